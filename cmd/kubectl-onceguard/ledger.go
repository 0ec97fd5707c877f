package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/pgurl"
)

const envLedgerURL = "ONCEGUARD_LEDGER_URL"

// maxURL bounds what is read as a URL, in bytes.
const maxURL = 64 << 10

const closeTimeout = 2 * time.Second

// source is a ledger's URL and where it was found, for messages. The URL itself is
// never part of one.
type source struct {
	url   string
	found string
}

// ledgerSource finds the ledger's URL: file, environment, Secret, in this order.
func (p *program) ledgerSource(ctx context.Context) (source, error) {
	if p.urlFile != "" {
		return p.fileSource()
	}
	if url := strings.TrimSpace(getenv(p.env, envLedgerURL)); url != "" {
		return source{url: url, found: "environment variable " + envLedgerURL}, nil
	}
	return p.secretSource(ctx)
}

func (p *program) fileSource() (source, error) {
	name, in := "file "+p.urlFile, p.stdin
	if p.urlFile == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(p.urlFile)
		if err != nil {
			return source{}, fmt.Errorf("--ledger-url-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxURL))
	if err != nil {
		return source{}, fmt.Errorf("--ledger-url-file: %w", err)
	}
	url := strings.TrimSpace(string(b))
	if url == "" {
		return source{}, fmt.Errorf("--ledger-url-file: %s is empty: it must hold postgres://user:password@host/database", name)
	}
	return source{url: url, found: name}, nil
}

func (p *program) secretSource(ctx context.Context) (source, error) {
	config := p.clientConfig()
	rest, err := config.ClientConfig()
	if err != nil {
		return source{}, fmt.Errorf("where is the ledger? %s is not set, and its Secret cannot be read without a cluster: %w (or use --ledger-url-file)", envLedgerURL, err)
	}
	namespace, _, err := config.Namespace()
	if err != nil {
		return source{}, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return source{}, fmt.Errorf("kubeconfig: %w", err)
	}
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, p.secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return source{}, fmt.Errorf("no Secret %s in namespace %s: choose another by -n and --secret, give the URL by --ledger-url-file or %s, or create it: "+
			"kubectl -n %s create secret generic %s --from-file=%s=FILE", p.secret, namespace, envLedgerURL, namespace, p.secret, contract.LedgerKey)
	case apierrors.IsForbidden(err):
		return source{}, fmt.Errorf("you may not read Secret %s in namespace %s: give the URL of a login that may read the record by --ledger-url-file or %s", p.secret, namespace, envLedgerURL)
	case err != nil:
		return source{}, fmt.Errorf("read Secret %s in namespace %s: %w", p.secret, namespace, err)
	}
	url := strings.TrimSpace(string(secret.Data[contract.LedgerKey]))
	if url == "" {
		return source{}, fmt.Errorf("the Secret %s in namespace %s has nothing under the key %q: it must hold postgres://user:password@host/database", p.secret, namespace, contract.LedgerKey)
	}
	return source{url: url, found: "Secret " + namespace + "/" + p.secret}, nil
}

func (p *program) clientConfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: p.kubeContext}
	overrides.Context.Namespace = p.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// jobNamespace is the namespace whose jobs are meant: -n, else that of the current
// context; empty means all, which is also so where there is no kubeconfig.
func (p *program) jobNamespace() (string, error) {
	if p.allNamespaces {
		if p.namespace != "" {
			return "", usagef("-n %s and -A exclude each other", p.namespace)
		}
		return "", nil
	}
	if p.namespace != "" {
		return p.namespace, nil
	}
	raw, err := p.clientConfig().RawConfig()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	if len(raw.Contexts) == 0 {
		return "", nil
	}
	namespace, _, err := p.clientConfig().Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return namespace, nil
}

// lookIn makes the namespace in a job's full name ("NAMESPACE/NAME", with "CLUSTER:"
// before it where clusters do not share) the one of its ledger's Secret, unless -n
// says another.
func (p *program) lookIn(job string) {
	if p.namespace != "" {
		return
	}
	namespace, _, _ := strings.Cut(job, "/")
	p.namespace = namespace[strings.LastIndexByte(namespace, ':')+1:]
}

// connection is an open ledger and how to speak of it.
type connection struct {
	*pgx.Conn
	name string // "database shop at db.example.com (Secret shop/onceguard-ledger-default)"
}

// ledgerOf opens the ledger of a typed job, and gives the namespace that the job is looked for
// in. The caller closes it. The name comes first: a full one says where the Secret is.
func (p *program) ledgerOf(ctx context.Context, job string) (ledger *connection, namespace string, err error) {
	if namespace, err = p.namespaceOf(job); err != nil {
		return nil, "", err
	}
	ledger, err = p.connect(ctx)
	return ledger, namespace, err
}

// namespaceOf gives the namespace that a typed job is looked for in; a full name says
// its own. An empty job stands for all.
func (p *program) namespaceOf(job string) (string, error) {
	namespace, err := p.jobNamespace()
	if err != nil {
		return "", err
	}
	if strings.Contains(job, "/") {
		p.lookIn(job)
		return "", nil
	}
	return namespace, nil
}

// connect opens the ledger. The caller closes it.
func (p *program) connect(ctx context.Context) (*connection, error) {
	src := p.found // standard input can be read only once
	if src.url == "" {
		var err error
		if src, err = p.ledgerSource(ctx); err != nil {
			return nil, err
		}
		p.found = src
	}
	config, err := pgurl.Parse(src.url, "kubectl-onceguard")
	if err != nil {
		return nil, fmt.Errorf("the ledger's URL in %s: %w", src.found, err)
	}
	name := fmt.Sprintf("database %s at %s (%s)", config.Database, config.Host, src.found)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, cannotConnect(name, config, err)
	}
	return &connection{Conn: conn, name: name}, nil
}

func cannotConnect(name string, config *pgx.ConnConfig, err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return fmt.Errorf("%s refuses user %s: %s (SQLSTATE %s)", name, config.User, server.Message, server.Code)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return fmt.Errorf("%s: the name %s is not known on this machine: if it is a name inside the cluster, forward its port (kubectl port-forward) and give a URL for it by --ledger-url-file", name, config.Host)
	}
	var network *net.OpError
	if errors.As(err, &network) {
		return fmt.Errorf("%s cannot be reached from this machine: %w", name, network)
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (c *connection) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = c.Close(ctx)
}

// explain adds where and what to do to an error of package audit.
func (c *connection) explain(err error) error {
	switch {
	case errors.Is(err, audit.ErrForbidden):
		return fmt.Errorf("%s: %w: as its owner run kubectl onceguard grant %s --audit, or give the URL of a login that may by --ledger-url-file", c.name, err, c.Config().User)
	case errors.Is(err, audit.ErrNoSchema):
		return fmt.Errorf("%s: %w: run kubectl onceguard migrate with the owner's URL, or look in another database", c.name, err)
	}
	return fmt.Errorf("%s: %w", c.name, err)
}

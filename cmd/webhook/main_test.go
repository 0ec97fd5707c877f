package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/onceguard/onceguard/pkg/kube"
)

func TestWrongCommandLinesSayWhatIsAccepted(t *testing.T) {
	base := []string{"serve", "--guard-image=g:1", "--namespace=onceguard"}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "serve, engine, migrate or version"},
		{[]string{"sreve"}, `"sreve"`},
		{[]string{"serve"}, "--guard-image"},
		{[]string{"serve", "--guard-image=g:1"}, "--namespace"},
		{append(base, "--nonsense=1"), "nonsense"},
		{append(base, "more"), `"more"`},
		{append(base, "--guard-pull-policy=Sometimes"), `"Sometimes" is none of Always, IfNotPresent, Never`},
		{append(base, "--log-language=de"), `"de" is none of en, zh`},
		{append(base, "--log-level=loud"), `"loud"`},
		{append(base, "--guard-resources={cpu: 1}"), "no ResourceRequirements"},
		{append(base, "--guard-pull-secrets=a,B"), `"B"`},
		{append(base, "--cluster=a:b"), `"a:b"`},
		{append(base, "--ledger-secret-prefix=-"), `"-default"`},
		{append(base, "--drain=soon"), `"soon"`},
		{[]string{"engine"}, "--namespace"},
		{[]string{"engine", "--namespace=n", "more"}, `"more"`},
		{[]string{"engine", "--namespace=a/b"}, `"a/b"`},
		{[]string{"engine", "--namespace=n", "--lease-name="}, "--lease-name"},
		{[]string{"engine", "--namespace=n", "--log-level=loud"}, `"loud"`},
		{[]string{"engine", "--namespace=n", "--namespaces=a,B"}, `"B"`},
		{[]string{"engine", "--namespace=n", "--namespaces=a,b", "--excluded-namespaces=b"}, `--namespaces: "b" is also one of --excluded-namespaces`},
		{[]string{"engine", "--namespace=n", "--nonsense=1"}, "nonsense"},
		{[]string{"migrate"}, "--url-file is missing"},
		{[]string{"migrate", "--url-file=x", "--grant=role"}, "ROLE=PATTERN, like shop_jobs=shop/*"},
		{[]string{"migrate", "--url-file=x", "--timeout=0s"}, "--timeout"},
		{[]string{"migrate", "--url-file=x", "--grant-engine="}, "give the name of a role"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), c.args, nil, io.Discard, &stderr); code != 2 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%v: exit %d, %q; want 2 and %q", c.args, code, stderr.String(), c.says)
		}
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	o, err := serveOptions([]string{"--namespace=flag", `--guard-resources={"limits":{"memory":"32Mi"}}`},
		map[string]string{"ONCEGUARD_NAMESPACE": "env", "ONCEGUARD_GUARD_IMAGE": "g:1", "ONCEGUARD_EXCLUDED_NAMESPACES": "a, b,", "ONCEGUARD_CLUSTER": "eu"})
	if err != nil {
		t.Fatal(err)
	}
	if o.namespace != "flag" || o.guard.Image != "g:1" || strings.Join(o.excluded, "|") != "a|b" || o.guard.Cluster != "eu" || o.guard.Resources.Limits.Memory().String() != "32Mi" || len(o.guard.Resources.Requests) != 0 {
		t.Errorf("got %+v", o)
	}
}

// The chart passes none by default, and says what then holds.
func TestResourcesOfTheGuardByDefault(t *testing.T) {
	o, err := serveOptions([]string{"--namespace=n", "--guard-image=g:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := o.guard.Resources
	got := []string{r.Requests.Cpu().String(), r.Requests.Memory().String(), r.Limits.Cpu().String(), r.Limits.Memory().String()}
	if want := []string{"5m", "16Mi", "200m", "64Mi"}; !slices.Equal(got, want) {
		t.Errorf("%v, but values.yaml says %v", got, want)
	}
}

func TestMigrateSaysWhichFileIsWrong(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://owner:hunter2@127.0.0.1:1/db\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, says := range map[string]string{"/nonexistent": "/nonexistent", empty: "is empty", secret: "migrating the ledger"} {
		var stderr bytes.Buffer
		code := run(t.Context(), []string{"migrate", "--url-file", file}, nil, io.Discard, &stderr)
		if code != 1 || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "hunter2") {
			t.Errorf("%s: exit %d: %s", file, code, stderr.String())
		}
	}
}

// free gives an address that nothing listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestServeFromStartToLeave(t *testing.T) {
	client := fake.NewClientset(&admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "onceguard"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "pods.onceguard.dev"}},
	})
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	o, err := serveOptions([]string{"--namespace=onceguard", "--guard-image=g:1", "--drain=1s", "--listen=" + free(t), "--health-listen=" + free(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- serveWith(ctx, o, kube.Clients{Typed: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme)}, zap.NewNop())
	}()
	status := func(path string) int {
		r, err := http.Get("http://" + o.healthListen + path)
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		return r.StatusCode
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within 20 s:", what)
			}
		}
	}
	wait("ready", func() bool { return status("/readyz") == http.StatusOK })
	if got := status("/healthz"); got != http.StatusOK {
		t.Error("healthz", got)
	}
	config, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "onceguard", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Webhooks[0].ClientConfig.CABundle)
	apiServer := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "onceguard-webhook.onceguard.svc"}, ForceAttemptHTTP2: true}}
	ask := func() int {
		r, err := apiServer.Post("https://"+o.listen+"/mutate/pods", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Error(err)
			return 0
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode
	}
	if got := ask(); got != http.StatusBadRequest { // heard, over a connection it trusts
		t.Error("asked:", got)
	}
	leave()
	wait("no longer ready", func() bool { return status("/readyz") == http.StatusServiceUnavailable })
	if got := ask(); got != http.StatusBadRequest {
		t.Error("not served while draining:", got)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not leave")
	}
}

func TestAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = serveWith(t.Context(), options{listen: l.Addr().String()}, kube.Clients{}, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("got %v", err)
	}
}

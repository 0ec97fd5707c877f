// Package bed joins what the demo and the end-to-end tests stand on: a Kubernetes
// cluster named by KUBECONFIG, a Postgres that its pods can reach, and Onceguard
// installed from the chart. It does not know where the cluster comes from.
package bed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Bed is a cluster to test on.
type Bed struct {
	Client *kubernetes.Clientset
	Config *rest.Config
	// GuardImage, WebhookImage and WorkerImage are names that the nodes can run.
	GuardImage, WebhookImage, WorkerImage string
	// Chart is the folder of the chart.
	Chart string
}

// Names of the installation.
const (
	Namespace = "onceguard-system"
	Release   = "onceguard"
)

// Open connects to the cluster of KUBECONFIG. The images come from
// ONCEGUARD_GUARD_IMAGE, ONCEGUARD_WEBHOOK_IMAGE and ONCEGUARD_WORKER_IMAGE (a
// busybox); root is the repository's folder.
func Open(root string) (*Bed, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, errors.New("KUBECONFIG is not set: run this through `make demo` or `make test-cluster`, or set it to your own cluster's file")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("KUBECONFIG %s: %w", path, err)
	}
	config.QPS, config.Burst = -1, -1
	config.WarningHandler = rest.NoWarnings{} // whoever wants to see them asks kubectl
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	b := &Bed{Client: client, Config: config, Chart: root + "/charts/onceguard"}
	for _, v := range []struct {
		name string
		to   *string
	}{
		{"ONCEGUARD_GUARD_IMAGE", &b.GuardImage},
		{"ONCEGUARD_WEBHOOK_IMAGE", &b.WebhookImage},
		{"ONCEGUARD_WORKER_IMAGE", &b.WorkerImage},
	} {
		if *v.to = os.Getenv(v.name); *v.to == "" {
			return nil, fmt.Errorf("%s is not set: an image that the cluster's nodes can run", v.name)
		}
	}
	return b, nil
}

// NodeAddress is an address of this machine, or its network namespace, that pods
// can reach: the first node's internal address.
func (b *Bed) NodeAddress(ctx context.Context) (string, error) {
	if a := os.Getenv("ONCEGUARD_POSTGRES_LISTEN"); a != "" {
		return a, nil
	}
	nodes, err := b.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return a.Address, nil
			}
		}
	}
	return "", errors.New("no node with an internal address")
}

// Install installs or upgrades the chart and waits until it is ready; set holds
// further helm values as "name=value".
func (b *Bed) Install(ctx context.Context, set ...string) error {
	guard, guardTag := split(b.GuardImage)
	hook, hookTag := split(b.WebhookImage)
	args := []string{
		"upgrade", "--install", Release, b.Chart, "--namespace", Namespace, "--create-namespace",
		"--wait", "--timeout", "3m",
		"--set", "guard.image.repository=" + guard, "--set", "guard.image.tag=" + guardTag,
		"--set", "image.repository=" + hook, "--set", "image.tag=" + hookTag,
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	_, err := b.Run(ctx, "", "helm", args...)
	return err
}

func split(image string) (repository, tag string) {
	i := strings.LastIndex(image, ":")
	return image[:i], image[i+1:]
}

// Kubectl runs kubectl and gives its output; err holds what it said on stderr.
func (b *Bed) Kubectl(ctx context.Context, args ...string) (string, error) {
	return b.Run(ctx, "", "kubectl", args...)
}

// Apply applies manifests and gives kubectl's output with its warnings.
func (b *Bed) Apply(ctx context.Context, manifests string) (string, error) {
	return b.Run(ctx, manifests, "kubectl", "apply", "-f", "-")
}

// Run runs a program with its output and warnings joined.
func (b *Bed) Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Wait polls until done says true, fails, or the time is up; what names the
// condition for the error.
func Wait(ctx context.Context, limit time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waited %s in vain for: %s", limit, what), last)
		case <-tick.C:
		}
	}
}

package main

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/onceguard/onceguard/pkg/kube"
)

func TestEngineOptions(t *testing.T) {
	o, err := readEngineOptions([]string{"--namespaces=b,a,b", "--ledgers-dir=/l"}, map[string]string{"ONCEGUARD_NAMESPACE": "env", "ONCEGUARD_LEASE_NAME": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if o.namespace != "env" || o.leaseName != "x" || o.ledgersDir != "/l" || !slices.Equal(o.namespaces, []string{"a", "b"}) || !slices.Equal(o.excluded, []string{"kube-system"}) {
		t.Errorf("got %+v", o)
	}
}

// Without any ledger it leads, is ready, and gives its Lease back when it leaves.
func TestEngineFromStartToLeave(t *testing.T) {
	client := fake.NewClientset()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	o, err := readEngineOptions([]string{"--namespace=onceguard", "--ledgers-dir=" + t.TempDir(), "--health-listen=" + free(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- engineWith(ctx, o, kube.Clients{Typed: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme)}, zap.NewNop())
	}()
	holder := func() string {
		l, err := client.CoordinationV1().Leases("onceguard").Get(context.Background(), "onceguard-engine", metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return ""
		}
		return *l.Spec.HolderIdentity
	}
	ready := func() bool {
		r, err := http.Get("http://" + o.healthListen + "/readyz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK && holder() != ""
	}
	for end := time.Now().Add(60 * time.Second); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not ready within 60 s")
		}
	}
	leave()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("does not leave")
	}
	if h := holder(); h != "" {
		t.Errorf("the Lease is still held by %s", h)
	}
}

func TestEnginePortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = engineWith(t.Context(), engineOptions{healthListen: l.Addr().String()}, kube.Clients{}, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "--health-listen") {
		t.Errorf("got %v", err)
	}
}

package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func cluster() (*fake.Clientset, *clock) {
	return fake.NewClientset(&admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "onceguard"},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "cronjobs.onceguard.dev"}, {Name: "pods.onceguard.dev"}},
	}), &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func keeper(client *fake.Clientset, now func() time.Time) *Keeper {
	return New(Config{Client: client, Namespace: "onceguard", Secret: "ca", Service: "hook", WebhookConfigs: []string{"onceguard"}, Now: now, Log: zap.NewNop()})
}

func bundleOf(t *testing.T, client *fake.Clientset) []byte {
	t.Helper()
	c, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(context.Background(), "onceguard", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, c.Webhooks[0].ClientConfig.CABundle) {
			t.Fatal("the webhooks have different caBundles")
		}
	}
	return c.Webhooks[0].ClientConfig.CABundle
}

func pass(t *testing.T, k *Keeper) {
	t.Helper()
	if err := k.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// trusts reports what an API server that knows bundle says to the leaf k serves.
func trusts(t *testing.T, k *Keeper, bundle []byte, now time.Time) error {
	t.Helper()
	leaf, err := k.Certificate(nil)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "hook.onceguard.svc", CurrentTime: now})
	return err
}

func TestThreeReplicasAtOnceEndWithOneAuthority(t *testing.T) {
	client, clock := cluster()
	replicas := []*Keeper{keeper(client, clock.Now), keeper(client, clock.Now), keeper(client, clock.Now)}
	var wg sync.WaitGroup
	for _, k := range replicas {
		wg.Go(func() {
			if err := k.Sync(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	bundle := bundleOf(t, client)
	if n := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); n != 1 {
		t.Fatalf("%d authorities", n)
	}
	for i, k := range replicas {
		if err := errors.Join(k.Ready(), trusts(t, k, bundle, clock.Now())); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
}

func TestNamesOfTheService(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	pass(t, k)
	leaf, err := k.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hook", "hook.onceguard", "hook.onceguard.svc", "hook.onceguard.svc.cluster.local"} {
		if err := leaf.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

// Over two years, an API server whose view of the caBundle is up to five minutes
// old always trusts every replica, whatever their order and though their clocks are
// five minutes apart.
func TestRotationHasNoGap(t *testing.T) {
	client, clock := cluster()
	skewed := func(d time.Duration) func() time.Time { return func() time.Time { return clock.Now().Add(d) } }
	replicas := []*Keeper{keeper(client, clock.Now), keeper(client, skewed(5*time.Minute)), keeper(client, skewed(-5*time.Minute))}
	for _, k := range replicas {
		pass(t, k)
	}
	seen := map[string]bool{}
	most := 0
	for visit := range 2 * 365 / 3 {
		clock.add(3 * 24 * time.Hour)
		views := [][]byte{bundleOf(t, client)}
		for minute := 0; ; minute++ {
			for i := range replicas { // the fastest clock is not always the first to look
				pass(t, replicas[(visit+i)%3])
			}
			b := bundleOf(t, client)
			views = append(views, b)
			seen[string(b)] = true
			most = max(most, bytes.Count(b, []byte("BEGIN CERTIFICATE")))
			for _, view := range [][]byte{b, views[max(0, minute-5)]} {
				for _, k := range replicas {
					if err := errors.Join(k.Ready(), trusts(t, k, view, clock.Now())); err != nil {
						t.Fatalf("visit %d minute %d: %v", visit, minute, err)
					}
				}
			}
			newest := replicas[0].published[len(replicas[0].published)-1]
			if clock.Now().Sub(newest.made()) > time.Hour {
				break // nothing is going on
			}
			clock.add(time.Minute)
		}
	}
	if len(seen) < 4 || most != 2 {
		t.Errorf("%d different bundles, at most %d authorities at once: was anything renewed?", len(seen), most)
	}
}

func TestLeafIsRenewedWhenNobodyPolled(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	pass(t, k)
	clock.add(30 * 24 * time.Hour) // suspended
	if k.Ready() == nil {
		t.Error("ready with an expired leaf")
	}
	if err := errors.Join(trusts(t, k, bundleOf(t, client), clock.Now()), k.Ready()); err != nil {
		t.Error(err)
	}
}

func TestNothingIsWrittenWithoutNeed(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	pass(t, k)
	client.ClearActions()
	for range 5 {
		clock.add(time.Minute)
		pass(t, k)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("needless %s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func TestDriftIsMended(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	pass(t, k)
	before := bundleOf(t, client)
	ctx := t.Context()

	t.Run("caBundle blanked by a deployment tool", func(t *testing.T) {
		configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
		c, err := configs.Get(ctx, "onceguard", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Webhooks[1].ClientConfig.CABundle = nil
		if _, err := configs.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(t, k)
		if !bytes.Equal(bundleOf(t, client), before) {
			t.Error("not written back")
		}
	})
	t.Run("Secret deleted", func(t *testing.T) {
		if err := client.CoreV1().Secrets("onceguard").Delete(ctx, "ca", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(t, k)
		other := keeper(client, clock.Now)
		pass(t, other)
		if !bytes.Equal(bundleOf(t, client), before) {
			t.Error("the authority that is trusted already was not kept")
		}
		if err := trusts(t, other, before, clock.Now()); err != nil {
			t.Error(err)
		}
	})
	t.Run("Secret damaged", func(t *testing.T) {
		s, err := client.CoreV1().Secrets("onceguard").Get(ctx, "ca", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Data["ca.key"] = []byte("garbage")
		if _, err := client.CoreV1().Secrets("onceguard").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(t, k)
		if err := errors.Join(k.Ready(), trusts(t, k, bundleOf(t, client), clock.Now())); err != nil {
			t.Error(err)
		}
	})
}

func TestNotReadyUntilTheBundleHoldsTheAuthority(t *testing.T) {
	client, clock := cluster()
	away := errors.New("away")
	client.PrependReactor("patch", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, away })
	k := keeper(client, clock.Now)
	if err := k.Sync(t.Context()); !errors.Is(err, away) {
		t.Fatal(err)
	}
	if _, err := k.Certificate(nil); !errors.Is(err, ErrNotReady) || !errors.Is(k.Ready(), ErrNotReady) {
		t.Errorf("a certificate that nobody trusts is served: %v", err)
	}
	client.ReactionChain = client.ReactionChain[1:]
	pass(t, k)
	if err := k.Ready(); err != nil {
		t.Error(err)
	}
	// What was ready stays so while the API server is away.
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, away })
	if k.Sync(t.Context()) == nil || k.Ready() != nil {
		t.Error("no longer ready, though the certificate is good")
	}
}

// Guarded pods need the first configuration only: whatever becomes of another one, they are
// served, and it gets its caBundle as soon as it can have one.
func TestASecondConfiguration(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	k.WebhookConfigs = append(k.WebhookConfigs, "00-onceguard-jobs")
	if err := k.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "00-onceguard-jobs") {
		t.Errorf("the second one is missing, and nobody says so: %v", err)
	}
	if err := k.Ready(); err != nil {
		t.Error(err)
	}
	configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configs.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "00-onceguard-jobs"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "jobs.onceguard.dev"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pass(t, k)
	second, err := configs.Get(t.Context(), "00-onceguard-jobs", metav1.GetOptions{})
	if err != nil || !bytes.Equal(second.Webhooks[0].ClientConfig.CABundle, bundleOf(t, client)) {
		t.Errorf("the caBundle of the second one is another: %v", err)
	}
}

func TestWithoutWebhookConfiguration(t *testing.T) {
	_, clock := cluster()
	k := keeper(fake.NewClientset(), clock.Now)
	if err := k.Sync(t.Context()); err == nil || k.Ready() == nil {
		t.Error("ready without a MutatingWebhookConfiguration")
	}
}

// helm uninstall and install, or a person, may make the configuration anew while the
// replicas go on: it must not stay without a caBundle until the next look by the clock.
func TestANewConfigurationGetsItsBundleAtOnce(t *testing.T) {
	client, clock := cluster()
	k := keeper(client, clock.Now)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	defer func() { cancel(); <-done }()
	configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	hasBundle := func() bool {
		c, err := configs.Get(ctx, "onceguard", metav1.GetOptions{})
		return err == nil && len(c.Webhooks[0].ClientConfig.CABundle) > 0
	}
	await := func(what string) {
		t.Helper()
		for range 200 { // 10 s, far less than the minute between two looks
			if hasBundle() {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatal(what)
	}
	await("no caBundle at the start")
	c, err := configs.Get(ctx, "onceguard", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := configs.Delete(ctx, "onceguard", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.ResourceVersion = ""
	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig.CABundle = nil
	}
	if _, err := configs.Create(ctx, c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the new configuration has no caBundle")
}

func FuzzParse(f *testing.F) {
	c, err := newCA(time.Unix(1_800_000_000, 0))
	if err != nil {
		f.Fatal(err)
	}
	certs, keys, err := encode([]ca{c})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(certs, keys)
	f.Add(certs, []byte{})
	f.Fuzz(func(t *testing.T, certs, keys []byte) {
		cas := parse(certs, keys)
		if !slices.IsSortedFunc(cas, func(a, b ca) int { return a.cert.NotBefore.Compare(b.cert.NotBefore) }) {
			t.Error("not oldest first")
		}
		for _, c := range cas {
			if _, err := c.leaf([]string{"x"}, c.cert.NotBefore.Add(time.Hour)); err != nil {
				t.Errorf("an authority that cannot sign was kept: %v", err)
			}
		}
	})
}

package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	keyCerts = "ca.crt"
	keyKeys  = "ca.key"

	poll      = time.Minute
	firstPoll = 2 * time.Second
	syncTime  = 30 * time.Second
	// writes bounds how often one pass writes the Secret anew after another replica
	// was faster.
	writes = 5
)

// ErrNotReady says that no trusted certificate can be served yet.
var ErrNotReady = errors.New("no serving certificate that the API servers trust")

// Config says where certificates are kept and what they are for.
type Config struct {
	Client    kubernetes.Interface
	Namespace string
	Secret    string // holds the authorities
	Service   string // the webhook's Service; gives the DNS names
	// WebhookConfigs are the MutatingWebhookConfigurations whose caBundle is kept, at least
	// one. What is served, and whether this replica is ready, depends on the first alone.
	WebhookConfigs []string
	Now            func() time.Time
	Log            *zap.Logger
}

// Keeper keeps one replica's serving certificate.
type Keeper struct {
	Config
	names []string

	mu        sync.Mutex
	cas       []ca // as last read
	published []ca // known to stand in the caBundle of the first configuration
	leaf      *tls.Certificate
	issuer    ca
}

// New makes a Keeper that has no certificate until Sync or Run.
func New(c Config) *Keeper {
	full := c.Service + "." + c.Namespace
	return &Keeper{Config: c, names: []string{full + ".svc", c.Service, full, full + ".svc.cluster.local"}}
}

// Run keeps the certificate until ctx ends. It never gives up: what cannot be done
// now is logged and tried again. It looks once a minute by the wall clock, and at
// once when somebody changes the webhook configuration: one that was deleted and
// made anew has no caBundle, and until it has one no guarded pod can be created.
func (k *Keeper) Run(ctx context.Context) {
	changes := make(chan struct{}, 1)
	for _, name := range k.WebhookConfigs {
		go k.watch(ctx, name, changes)
	}
	for {
		err := k.Sync(ctx)
		wait := poll
		if err != nil && ctx.Err() == nil {
			k.Log.Warn("serving certificate", zap.Error(err))
			if k.Ready() != nil {
				wait = firstPoll
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-time.After(wait):
		}
	}
}

// watch sends on changes, without waiting, whenever a webhook configuration is made or
// changed.
func (k *Keeper) watch(ctx context.Context, name string, changes chan<- struct{}) {
	byName := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	for {
		w, err := k.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(ctx, byName)
		if err == nil {
			for event := range w.ResultChan() {
				if event.Type == watch.Added || event.Type == watch.Modified {
					select {
					case changes <- struct{}{}:
					default: // one is waiting already
					}
				}
			}
		} else if ctx.Err() == nil {
			k.Log.Warn("watch of a webhook configuration", zap.String("config", name), zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(firstPoll):
		}
	}
}

// Sync makes one pass: authorities in the Secret, caBundle, leaf.
func (k *Keeper) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	cas, err := k.authorities(ctx)
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", k.Namespace, k.Secret, err)
	}
	k.mu.Lock()
	k.cas = cas
	k.mu.Unlock()
	var failed []error
	for i, name := range k.WebhookConfigs {
		err := k.publish(ctx, name, bundle(cas))
		if err != nil {
			failed = append(failed, fmt.Errorf("MutatingWebhookConfiguration %s: %w", name, err))
		} else if i == 0 {
			k.mu.Lock()
			k.published = cas
			err = k.renew()
			k.mu.Unlock()
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Ready is nil when the served certificate is valid and its authority is known to
// stand in the caBundle.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaf == nil || !validAt(k.leaf.Leaf, k.Now()) || !slices.ContainsFunc(k.published, k.issuer.equal) {
		return ErrNotReady
	}
	return nil
}

// Certificate is for tls.Config.GetCertificate. A leaf that has grown old while
// nobody looked (a suspended machine) is replaced here.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.renew(); err != nil {
		return nil, err
	}
	return k.leaf, nil
}

// renew signs a leaf when there is none, when it is due, or when another authority
// signs by now. k.mu is held.
func (k *Keeper) renew() error {
	now := k.Now()
	// Only an authority that the API servers can know may sign.
	usable := slices.DeleteFunc(slices.Clone(k.published), func(c ca) bool { return !validAt(c.cert, now) })
	by, ok := signer(usable, now)
	if !ok {
		return ErrNotReady
	}
	if k.leaf != nil && k.issuer.equal(by) && !due(k.leaf.Leaf, now) && validAt(k.leaf.Leaf, now) {
		return nil
	}
	leaf, err := by.leaf(k.names, now)
	if err != nil {
		return err
	}
	k.leaf, k.issuer = leaf, by
	k.Log.Info("serving certificate signed", zap.Time("until", leaf.Leaf.NotAfter), zap.Time("authority_until", by.cert.NotAfter))
	return nil
}

// authorities reads the Secret, makes it when it is missing and renews its content
// when it is time.
func (k *Keeper) authorities(ctx context.Context) ([]ca, error) {
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	for range writes {
		secret, err := secrets.Get(ctx, k.Secret, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, err
		}
		if missing {
			secret = &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: k.Secret, Namespace: k.Namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "onceguard"}},
				Type:       corev1.SecretTypeOpaque,
			}
		}
		cas := parse(secret.Data[keyCerts], secret.Data[keyKeys])
		if missing {
			// Somebody deleted it: write back what the API servers trust already.
			k.mu.Lock()
			cas = k.cas
			k.mu.Unlock()
		}
		cas, changed, err := keep(cas, k.Now())
		if err != nil || !changed && !missing {
			return cas, err
		}
		certs, keys, err := encode(cas)
		if err != nil {
			return nil, err
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[keyCerts], secret.Data[keyKeys] = certs, keys
		if missing {
			_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		} else {
			_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			k.Log.Info("certificate authority written", zap.String("secret", k.Secret), zap.Int("authorities", len(cas)))
			return cas, nil
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
			continue // another replica was faster: look again
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("changed by somebody else %d times in a row", writes)
}

// publish puts the authorities into the caBundle of every webhook of a configuration,
// where they are not there yet.
func (k *Keeper) publish(ctx context.Context, name string, want []byte) error {
	configs := k.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configs.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var ops []op
	for i, w := range config.Webhooks {
		if bytes.Equal(w.ClientConfig.CABundle, want) {
			continue
		}
		at := fmt.Sprintf("/webhooks/%d/", i)
		ops = append(ops, op{"test", at + "name", w.Name}, op{"add", at + "clientConfig/caBundle", want})
	}
	if len(config.Webhooks) == 0 {
		return errors.New("it has no webhooks")
	}
	if len(ops) == 0 {
		return nil
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	if _, err = configs.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err == nil {
		k.Log.Info("caBundle written", zap.String("config", name))
	}
	return err
}

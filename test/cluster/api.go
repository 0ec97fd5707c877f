package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// api asks the cluster's programs whether they are ready, from inside its network.
type api struct {
	http *http.Client
}

func newAPI(l layout) (*api, error) {
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", l.pki("ca.crt"))
	}
	admin, err := tls.LoadX509KeyPair(l.pki("admin.crt"), l.pki("admin.key"))
	if err != nil {
		return nil, err
	}
	return &api{&http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DialContext:       dialer(l.netns()),
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{admin}, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true, // the other side is started and stopped all the time
		},
	}}, nil
}

// get returns the body of an answer 200; every other answer is an error.
func (a *api) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, nil
}

// health is where a component says that it serves, and what it says then.
type health struct {
	url, says string
}

// healthOf each component; containerd has only its socket. A component that loses the
// API server while it still starts gives up, and here nothing starts it again: so the
// controller manager counts as ready only when its controllers run.
var healthOf = map[string]health{
	"etcd":                    {url: etcdAddress + "/health"},
	"kube-apiserver":          {url: apiServer + "/readyz"},
	"kube-controller-manager": {url: "https://127.0.0.1:10257/healthz?verbose", says: "cronjob-controller ok"},
	"kube-scheduler":          {url: "https://127.0.0.1:10259/readyz"},
	"kubelet":                 {url: "http://127.0.0.1:10248/healthz"},
	"kube-proxy":              {url: "http://127.0.0.1:10256/healthz"},
}

// serves: the component answers as it does when it has started.
func (a *api) serves(ctx context.Context, component string) error {
	h := healthOf[component]
	body, err := a.get(ctx, h.url)
	if err == nil && !strings.Contains(string(body), h.says) {
		err = fmt.Errorf("%s is still starting", component)
	}
	return err
}

// nodeReady: the kubelet serves, and the node takes pods.
func (a *api) nodeReady(ctx context.Context) error {
	body, err := a.get(ctx, apiServer+"/api/v1/nodes/"+nodeName)
	if err != nil {
		return err
	}
	var node struct {
		Spec struct {
			Taints []struct{ Key string }
		}
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	ready := false
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			if c.Status != "True" {
				return fmt.Errorf("node %s is not ready: %s", nodeName, c.Message)
			}
			ready = true
		}
	}
	if !ready {
		return fmt.Errorf("node %s has not reported itself yet", nodeName)
	}
	// The controller manager takes the taint of a new node away a moment later.
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("node %s is still tainted %s", nodeName, node.Spec.Taints[0].Key)
	}
	return nil
}

// podsReady: pods of the default namespace can be created.
func (a *api) podsReady(ctx context.Context) error {
	_, err := a.get(ctx, apiServer+"/api/v1/namespaces/default/serviceaccounts/default")
	return err
}

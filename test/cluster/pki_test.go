package main

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// testLayout is a cluster whose folders are the test's own.
func testLayout(t *testing.T) layout {
	t.Helper()
	dir := t.TempDir()
	l := layout{name: "unit", state: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"), cache: filepath.Join(dir, "cache")}
	for _, d := range []string{l.pki(""), l.config("cni"), l.run} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func TestPKIIsOneThatTheComponentsAccept(t *testing.T) {
	l := testLayout(t)
	now := time.Now()
	if err := writePKI(l, now); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("ca.crt holds no certificate")
	}
	subjects := map[string]string{
		"apiserver": "CN=kube-apiserver", "admin": "CN=admin,O=system:masters", "kubelet": "CN=system:node:node1,O=system:nodes",
		"kube-controller-manager": "CN=system:kube-controller-manager", "kube-scheduler": "CN=system:kube-scheduler", "kube-proxy": "CN=system:kube-proxy",
	}
	serves := map[string][]string{
		"apiserver": {"localhost", "127.0.0.1", nodeAddress, serviceAPI, "kubernetes.default.svc"},
		"kubelet":   {nodeAddress, nodeName}, "kube-scheduler": {"127.0.0.1"}, "kube-controller-manager": {"127.0.0.1"},
	}
	for file, subject := range subjects {
		pair, err := tls.LoadX509KeyPair(l.pki(file+".crt"), l.pki(file+".key"))
		if err != nil {
			t.Fatal(err)
		}
		cert := pair.Leaf
		if got := cert.Subject.String(); got != subject {
			t.Errorf("%s: subject %q, want %q", file, got, subject)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: now.Add(-24 * time.Hour)}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		for _, host := range serves[file] {
			if err := cert.VerifyHostname(host); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	keys, err := filepath.Glob(l.pki("*.key"))
	if err != nil || len(keys) != len(subjects)+1 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	for _, k := range keys {
		if info, err := os.Stat(k); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v; a private key is its owner's alone", k, info.Mode(), err)
		}
	}
	private := parseKey(t, l.pki("sa.key"), x509.ParsePKCS8PrivateKey).(*rsa.PrivateKey)
	if public := parseKey(t, l.pki("sa.pub"), x509.ParsePKIXPublicKey).(*rsa.PublicKey); !public.Equal(&private.PublicKey) {
		t.Error("sa.pub is not the public part of sa.key")
	}
	if key := parseKey(t, l.pki("admin.key"), x509.ParsePKCS8PrivateKey); key.(*ecdsa.PrivateKey) == nil {
		t.Error("admin.key is no ECDSA key")
	}
}

func parseKey(t *testing.T, file string, parse func([]byte) (any, error)) any {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatalf("%s is not PEM", file)
	}
	key, err := parse(block.Bytes)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return key
}

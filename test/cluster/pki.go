package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// identity is one certificate of the cluster: who a component is to the others.
type identity struct {
	file    string // file name without its ending
	subject pkix.Name
	names   []string // DNS names it serves under
	ips     []net.IP
}

func identities() []identity {
	loopback := []net.IP{net.ParseIP("127.0.0.1")}
	return []identity{
		{
			file: "apiserver", subject: pkix.Name{CommonName: "kube-apiserver"},
			names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			ips:   []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(serviceAPI), net.ParseIP(nodeAddress)},
		},
		{file: "admin", subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}},
		{file: "kube-controller-manager", subject: pkix.Name{CommonName: "system:kube-controller-manager"}, ips: loopback},
		{file: "kube-scheduler", subject: pkix.Name{CommonName: "system:kube-scheduler"}, ips: loopback},
		{file: "kube-proxy", subject: pkix.Name{CommonName: "system:kube-proxy"}},
		{
			file: "kubelet", subject: pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}},
			names: []string{nodeName}, ips: []net.IP{net.ParseIP(nodeAddress)},
		},
	}
}

// Certificates begin early, so that a node whose clock a test has set back accepts them.
const (
	pkiBefore = 48 * time.Hour
	pkiAfter  = 365 * 24 * time.Hour
)

// writePKI makes a new CA and everything it signs, as PEM files in the cluster's pki folder.
func writePKI(l layout, now time.Time) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "onceguard-test-" + l.name},
		NotBefore: now.Add(-pkiBefore), NotAfter: now.Add(pkiAfter),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	if err := writePEM(l.pki("ca.crt"), "CERTIFICATE", caDER, 0o644); err != nil {
		return err
	}
	for i, id := range identities() {
		if err := issue(l, id, int64(i+2), ca, caKey, now); err != nil {
			return fmt.Errorf("certificate %s: %w", id.file, err)
		}
	}
	return writeServiceAccountKey(l)
}

func issue(l layout, id identity, serial int64, ca *x509.Certificate, caKey crypto.Signer, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: id.subject,
		NotBefore: now.Add(-pkiBefore), NotAfter: now.Add(pkiAfter),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    id.names, IPAddresses: id.ips,
	}, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(l.pki(id.file+".key"), "PRIVATE KEY", keyDER, 0o600); err != nil {
		return err
	}
	return writePEM(l.pki(id.file+".crt"), "CERTIFICATE", der, 0o644)
}

// writeServiceAccountKey makes the key that signs the pods' tokens.
func writeServiceAccountKey(l layout) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(l.pki("sa.key"), "PRIVATE KEY", private, 0o600); err != nil {
		return err
	}
	return writePEM(l.pki("sa.pub"), "PUBLIC KEY", public, 0o644)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

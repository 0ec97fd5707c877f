package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	caLife   = 365 * 24 * time.Hour
	leafLife = 7 * 24 * time.Hour
	backDate = time.Hour
	// publishDelay is between adding an authority and signing with it; what the clocks
	// of two replicas differ by is lost from it.
	publishDelay = 30 * time.Minute
)

// ca is one certificate authority with its key.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (c ca) equal(o ca) bool { return bytes.Equal(c.cert.Raw, o.cert.Raw) }

// made is when the authority was created, by the clock of its creator.
func (c ca) made() time.Time { return c.cert.NotBefore.Add(backDate) }

func validAt(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

// due reports whether a certificate has lived two thirds of its time.
func due(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3))
}

func newCA(now time.Time) (ca, error) {
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "Onceguard webhook CA"},
		IsCA:     true,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, MaxPathLenZero: true,
		NotBefore: now.Add(-backDate), NotAfter: now.Add(caLife),
	}
	key, cert, err := sign(template, ca{})
	return ca{cert: cert, key: key}, err
}

// leaf signs a serving certificate.
func (c ca) leaf(names []string, now time.Time) (*tls.Certificate, error) {
	until := now.Add(leafLife)
	if until.After(c.cert.NotAfter) {
		until = c.cert.NotAfter
	}
	key, cert, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: now.Add(-backDate), NotAfter: until,
	}, c)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// sign makes a key and its certificate; without issuer it signs itself.
func sign(template *x509.Certificate, issuer ca) (crypto.Signer, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("making a serial number: %w", err)
	}
	if issuer.cert == nil {
		issuer = ca{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.cert, key.Public(), issuer.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return key, cert, err
}

// signer chooses the authority that signs: the newest that was published long
// enough ago, or the oldest when none was.
func signer(cas []ca, now time.Time) (ca, bool) {
	for _, c := range slices.Backward(cas) {
		if now.After(c.made().Add(publishDelay)) {
			return c, true
		}
	}
	if len(cas) == 0 {
		return ca{}, false
	}
	return cas[0], true
}

// keep drops what has expired and adds an authority when the newest is due. It
// reports whether anything changed.
func keep(cas []ca, now time.Time) ([]ca, bool, error) {
	kept := slices.DeleteFunc(slices.Clone(cas), func(c ca) bool { return !now.Before(c.cert.NotAfter) })
	changed := len(kept) != len(cas)
	if len(kept) > 0 && !due(kept[len(kept)-1].cert, now) {
		return kept, changed, nil
	}
	fresh, err := newCA(now)
	return append(kept, fresh), true, err
}

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

// bundle gives the certificates as PEM.
func bundle(cas []ca) []byte {
	var out []byte
	for _, c := range cas {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.cert.Raw})...)
	}
	return out
}

// encode gives certificates and keys for the Secret.
func encode(cas []ca) (certs, keys []byte, err error) {
	for _, c := range cas {
		der, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			return nil, nil, fmt.Errorf("encoding a key: %w", err)
		}
		keys = append(keys, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})...)
	}
	return bundle(cas), keys, nil
}

// parse reads what encode wrote, oldest first. What cannot be used (no key of its
// own, damaged) is left out.
func parse(certs, keys []byte) []ca {
	var signers []crypto.Signer
	for block, rest := pem.Decode(keys); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if s, ok := key.(crypto.Signer); ok {
				signers = append(signers, s)
			}
		}
	}
	var out []ca
	for block, rest := pem.Decode(certs); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !cert.IsCA {
			continue
		}
		public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		if !ok {
			continue
		}
		for _, s := range signers {
			if public.Equal(s.Public()) {
				out = append(out, ca{cert: cert, key: s})
				break
			}
		}
	}
	slices.SortStableFunc(out, func(a, b ca) int { return a.cert.NotBefore.Compare(b.cert.NotBefore) })
	return out
}

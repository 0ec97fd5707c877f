package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/test/bed"
	"github.com/onceguard/onceguard/test/postgres"
)

// The mark of the namespaces that a demo made and so may delete.
const (
	markKey   = "app.kubernetes.io/managed-by"
	markValue = "onceguard-demo"
)

// makeNamespaces makes the two namespaces of the demo. What a killed demo left is
// removed first; what is anybody else's is left alone.
func (d *demo) makeNamespaces(ctx context.Context) error {
	namespaces := d.bed.Client.CoreV1().Namespaces()
	for _, name := range []string{bed.Namespace, namespace} {
		found, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && found.Labels[markKey] != markValue {
			return fmt.Errorf("namespace %s exists and is not of an earlier demo: this cluster has another use for it, so the demo does not touch it; take another cluster, or delete the namespace", name)
		}
	}
	if err := d.removeNamespaces(ctx); err != nil {
		return err
	}
	for _, name := range []string{bed.Namespace, namespace} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{markKey: markValue}}}
		if _, err := namespaces.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	d.madeNamespaces = true
	return nil
}

// removeNamespaces uninstalls the chart and deletes the namespaces, where they are.
func (d *demo) removeNamespaces(ctx context.Context) error {
	namespaces := d.bed.Client.CoreV1().Namespaces()
	if _, err := d.bed.Run(ctx, "", "helm", "uninstall", bed.Release, "-n", bed.Namespace, "--ignore-not-found", "--wait"); err != nil {
		return err
	}
	for _, name := range []string{namespace, bed.Namespace} {
		if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		err := bed.Wait(ctx, 2*time.Minute, "the end of namespace "+name, func(ctx context.Context) (bool, error) {
			_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// close removes everything that the demo made.
func (d *demo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var errs []error
	if d.madeNamespaces {
		errs = append(errs, d.removeNamespaces(ctx))
	}
	if d.ledger != nil {
		d.ledger.Close()
	}
	if d.server != nil {
		errs = append(errs, d.server.Stop(ctx, postgres.Fast))
	}
	return errors.Join(errs...)
}

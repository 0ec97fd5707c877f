package kube

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What comes back is what the API server wrote, with fields that our types do not know.
func TestCronJobsAreReadAsTheyAreWritten(t *testing.T) {
	const written = `{"kind":"CronJob","apiVersion":"batch/v1","metadata":{"name":"sync"},"spec":{"power":"all"}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/apis/batch/v1/namespaces/shop/cronjobs/sync" || r.Header.Get("Accept") != "application/json" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		_, _ = io.WriteString(w, written)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (CronJobs{client}).CronJob(t.Context(), "shop", "sync"); err != nil || string(got) != written {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := (CronJobs{client}).CronJob(t.Context(), "shop", "nope"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

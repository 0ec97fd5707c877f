package kube

import (
	"context"

	"k8s.io/client-go/kubernetes"
)

// CronJobs reads CronJobs as the API server writes them.
type CronJobs struct{ Client kubernetes.Interface }

// CronJob gives the JSON of a CronJob, live; fields that our types do not know are in it.
// The error of one that does not exist is known to apierrors.IsNotFound.
func (c CronJobs) CronJob(ctx context.Context, namespace, name string) ([]byte, error) {
	return c.Client.BatchV1().RESTClient().Get().Namespace(namespace).Resource("cronjobs").Name(name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
}

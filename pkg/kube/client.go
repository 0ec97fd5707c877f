package kube

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Clients talk to one cluster.
type Clients struct {
	Typed    kubernetes.Interface
	Metadata metadata.Interface
}

// Connect makes clients from a kubeconfig file, or from the pod's ServiceAccount
// when kubeconfig is empty. They have no rate limit of their own: client-go's five
// requests per second would hold up the pods of a full hour for minutes, and the API
// server has its own limits.
func Connect(kubeconfig, userAgent string) (Clients, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return Clients{}, fmt.Errorf("connecting to Kubernetes: %w", err)
	}
	config.QPS, config.UserAgent = -1, userAgent
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Clients{}, fmt.Errorf("connecting to Kubernetes: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return Clients{}, fmt.Errorf("connecting to Kubernetes: %w", err)
	}
	return Clients{Typed: typed, Metadata: meta}, nil
}

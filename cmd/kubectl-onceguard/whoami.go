package main

import (
	"context"
	"os"
	"os/user"
	"time"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/onceguard/onceguard/pkg/admin"
)

// whoamiTimeout bounds the question to a cluster that is not needed otherwise.
const whoamiTimeout = 3 * time.Second

// whoami is who is taken to decide when nobody says so: the user that the API server of
// the current context sees, else the user of this machine. Neither is proof of anything;
// the database's login is recorded beside it.
func (p *program) whoami(ctx context.Context) (string, error) {
	if name := p.kubernetesUser(ctx); name != "" {
		return name, nil
	}
	name := getenv(p.env, "USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil && name != "" {
		name += "@" + host
	}
	if name, err := line("--by", name, admin.MaxWho); err == nil {
		return name, nil
	}
	return "", usagef("--by is missing: this machine does not say who you are")
}

// kubernetesUser is empty where there is no cluster, or it does not answer.
func (p *program) kubernetesUser(ctx context.Context) string {
	config := p.clientConfig()
	if raw, err := config.RawConfig(); err != nil || len(raw.Contexts) == 0 {
		return ""
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return ""
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, whoamiTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	name, err := line("user", review.Status.UserInfo.Username, admin.MaxWho)
	if err != nil {
		return ""
	}
	return name
}

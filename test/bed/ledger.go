package bed

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

// Ledger is a fresh database with the ledger's schema, its owner, a role that may claim
// the windows of one namespace, and one that may judge them.
type Ledger struct {
	Namespace string
	// Name is the one by which CronJobs choose it.
	Name string
	// OwnerURL, GuardURL and EngineURL are the connection URLs of the three roles. The
	// owner is not a superuser.
	OwnerURL, GuardURL, EngineURL string
	GuardRole, EngineRole         string
	// DB is a pool of the owner, Admin one of the superuser, who sees what others do.
	DB, Admin *pgxpool.Pool
}

// Close closes the pools.
func (l *Ledger) Close() {
	l.DB.Close()
	l.Admin.Close()
}

// NewLedger makes the database on a server of ours. The schema is made by Migrate, or
// by the chart's hook.
func NewLedger(ctx context.Context, server *postgres.Server, namespace string) (*Ledger, error) {
	suffix := random(4)
	owner, guard, engine := "owner_"+suffix, "guard_"+suffix, "engine_"+suffix
	l := &Ledger{Namespace: namespace, Name: contract.DefaultLedger, GuardRole: guard, EngineRole: engine}
	admin, err := pgx.Connect(ctx, server.SocketURL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = admin.Close(ctx) }()
	for role, to := range map[string]*string{owner: &l.OwnerURL, guard: &l.GuardURL, engine: &l.EngineURL} {
		password := random(12)
		if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", role, password)); err != nil {
			return nil, err
		}
		u, err := url.Parse(server.URL(owner))
		if err != nil {
			return nil, err
		}
		u.User = url.UserPassword(role, password)
		*to = u.String()
	}
	if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s OWNER %s", owner, owner)); err != nil {
		return nil, err
	}
	if l.DB, err = pgxpool.New(ctx, l.OwnerURL); err != nil {
		return nil, err
	}
	l.Admin, err = pgxpool.New(ctx, server.SocketURL(owner))
	return l, err
}

// Runs says whether a statement of the guard that contains the words is running.
func (l *Ledger) Runs(ctx context.Context, words string) (yes bool, err error) {
	err = l.Admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE usename = $1 AND state = 'active' AND strpos(query, $2) > 0)`, l.GuardRole, words).Scan(&yes)
	return yes, err
}

// Migrate makes the schema, grants the namespace's jobs to the guard's role, and their
// windows to the engine's.
func (l *Ledger) Migrate(ctx context.Context) error {
	if _, _, err := migrate.Up(ctx, l.OwnerURL, zap.NewNop()); err != nil {
		return err
	}
	if err := migrate.GrantEngine(ctx, l.OwnerURL, l.EngineRole); err != nil {
		return err
	}
	return migrate.GrantJob(ctx, l.OwnerURL, l.GuardRole, l.Namespace+"/*")
}

// Exec runs statements as the owner, with ${GUARD} replaced by the guard's role.
func (l *Ledger) Exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := l.DB.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Secret puts the guard's URL where the guard of this namespace looks for it.
func (b *Bed) Secret(ctx context.Context, namespace, name, key, value string) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{key: value},
	}
	_, err := b.Client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{})
	return err
}

// EngineSecret gives the windows engine the URLs of ledgers, and the values with which the
// chart is to be installed for them. The Secrets are named after the databases: an engine
// that had others starts anew.
func (b *Bed) EngineSecret(ctx context.Context, ledgers ...*Ledger) (values []string, err error) {
	for i, l := range ledgers {
		secret := "ledger-" + strings.ReplaceAll(l.EngineRole, "_", "-")
		if err := b.Secret(ctx, Namespace, secret, contract.LedgerKey, l.EngineURL); err != nil {
			return nil, err
		}
		values = append(values, fmt.Sprintf("engine.ledgers[%d].name=%s", i, l.Name), fmt.Sprintf("engine.ledgers[%d].secretName=%s", i, secret))
	}
	return values, nil
}

// LedgerSecret gives the ledger's namespace the guard's URL.
func (b *Bed) LedgerSecret(ctx context.Context, l *Ledger) error {
	return b.Secret(ctx, l.Namespace, contract.LedgerSecretPrefix+l.Name, contract.LedgerKey, l.GuardURL)
}

func random(n int) string {
	buf := make([]byte, n)
	_, _ = rand.Read(buf)
	return hex.EncodeToString(buf)
}

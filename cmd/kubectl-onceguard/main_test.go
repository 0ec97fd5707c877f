package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

// plugin runs a command line without any kubeconfig or environment of this machine.
func plugin(t *testing.T, env []string, args ...string) result {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, errs bytes.Buffer
	code := run(t.Context(), args, env, strings.NewReader(""), &out, &errs)
	return result{code, out.String(), errs.String()}
}

func (r result) ok(t *testing.T) result {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	return r
}

func (r result) has(t *testing.T, words ...string) {
	t.Helper()
	all := r.stdout + r.stderr
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("no %q in the output:\n%s", w, all)
		}
	}
}

func urlFile(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

var (
	noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	one  = noon.Add(time.Hour)
	two  = noon.Add(2 * time.Hour)
)

const origin = `{"trigger":"scheduled","source":"timestamp","namespace":"shop","job":"order-sync-1","pod":"order-sync-1-x","podUID":"u1","node":"n1","schedule":"0 * * * *","timeZone":"Asia/Shanghai"}`

// record makes a ledger with a history, through the functions that guards call:
// 12:00 done at the second attempt with a duplicate prevented, 13:00 failed, 14:00
// running; 12:00 of another namespace done.
func record(t *testing.T) (ownerURL string) {
	t.Helper()
	ownerURL = postgres.Database(t)
	role, loginURL := postgres.Login(t, ownerURL)
	owner := urlFile(t, ownerURL)
	plugin(t, nil, "migrate", "--ledger-url-file", owner).ok(t)
	plugin(t, nil, "grant", role, "*", "--ledger-url-file", owner).ok(t)

	conn, err := pgx.Connect(t.Context(), loginURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	claim := func(job string, w time.Time) uuid.UUID {
		t.Helper()
		id := uuid.New()
		exec("SELECT onceguard.claim($1, $2, $3, '1 hour', $4::text::jsonb)", job, w, id, origin)
		return id
	}
	complete := func(job string, w time.Time, id uuid.UUID) {
		t.Helper()
		exec("BEGIN")
		exec("SELECT onceguard.begin($1, $2, $3)", job, w, id)
		exec("SELECT onceguard.complete($1, $2, $3, processed => 7)", job, w, id)
		exec("COMMIT")
		exec("SELECT onceguard.release($1, $2, $3, 'completed', 0)", job, w, id)
	}
	fail := func(job string, w time.Time, id uuid.UUID) {
		t.Helper()
		exec("SELECT onceguard.release($1, $2, $3, 'failed', 42, $4)", job, w, id, "no space\x1b[31m\nleft")
	}
	fail("shop/order-sync", noon, claim("shop/order-sync", noon))
	complete("shop/order-sync", noon, claim("shop/order-sync", noon))
	// Only separate runs, the older one with the greater name.
	complete("lab/probe@b", noon, claim("lab/probe@b", noon))
	complete("lab/probe@a", one, claim("lab/probe@a", one))
	exec("SELECT onceguard.record_skip($1, $2, $3, 'completed', $4::text::jsonb)", "shop/order-sync", noon, uuid.New(), origin)
	fail("shop/order-sync", one, claim("shop/order-sync", one))
	claim("shop/order-sync", two)
	complete("bank/interest", noon, claim("bank/interest", noon))
	return ownerURL
}

func TestWindows(t *testing.T) {
	owner := urlFile(t, record(t))
	list := func(args ...string) (jobs []string) {
		t.Helper()
		r := plugin(t, nil, append([]string{"windows", "-o", "json", "--ledger-url-file", owner}, args...)...).ok(t)
		var got struct {
			Windows []struct {
				JobName     string    `json:"job_name"`
				WindowStart time.Time `json:"window_start"`
				State       string    `json:"state"`
			} `json:"windows"`
		}
		if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
			t.Fatal(err)
		}
		for _, w := range got.Windows {
			jobs = append(jobs, w.JobName+" "+w.WindowStart.Format("15:04")+" "+w.State)
		}
		return jobs
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all, newest first":    {[]string{"-A"}, "shop/order-sync 14:00 running, lab/probe@a 13:00 done, shop/order-sync 13:00 failed, bank/interest 12:00 done, lab/probe@b 12:00 done, shop/order-sync 12:00 done"},
		"a namespace":          {[]string{"-n", "bank"}, "bank/interest 12:00 done"},
		"a job of a namespace": {[]string{"-n", "shop", "--job", "order-sync", "--limit", "1"}, "shop/order-sync 14:00 running"},
		"a job's full name":    {[]string{"-n", "shop", "--job", "bank/interest"}, "bank/interest 12:00 done"},
		"states":               {[]string{"-A", "--state", "failed,running"}, "shop/order-sync 14:00 running, shop/order-sync 13:00 failed"},
		"completed means done": {[]string{"-n", "shop", "--state", "completed"}, "shop/order-sync 12:00 done"},
		"no such job":          {[]string{"-A", "--job", "sync"}, ""},
	} {
		if got := strings.Join(list(c.args...), ", "); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestWindowsTable(t *testing.T) {
	owner := urlFile(t, record(t))
	r := plugin(t, nil, "windows", "-n", "shop", "--ledger-url-file", owner).ok(t)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 4 {
		t.Fatalf("want a head and three windows:\n%s", r.stdout)
	}
	column := strings.Index(lines[0], "STATE")
	for i, state := range []string{"running", "failed", "done"} {
		if !strings.HasPrefix(lines[i+1][column:], state) {
			t.Errorf("line %d: want %s under STATE:\n%s", i+1, state, r.stdout)
		}
	}
	// A worker's message must not move the cursor or break the line.
	r.has(t, "2026-11-30T12:00:00Z", "failed (42): no space\uFFFD[31m left")

	plugin(t, nil, "windows", "-n", "shop", "--limit", "2", "--ledger-url-file", owner).ok(t).has(t, "There are more than 2")
	plugin(t, nil, "windows", "-n", "none", "--since", "2h", "--ledger-url-file", owner).ok(t).
		has(t, "No windows found", "namespace none", "last 2h0m0s", "file "+owner)
}

func TestPaging(t *testing.T) {
	owner := postgres.Database(t)
	role, login := postgres.Login(t, owner)
	file := urlFile(t, owner)
	plugin(t, nil, "migrate", "--ledger-url-file", file).ok(t)
	plugin(t, nil, "grant", role, "shop/*", "--ledger-url-file", file).ok(t)
	conn, err := pgx.Connect(t.Context(), login)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	// Two jobs share each instant, so that pages end between equal instants.
	if _, err := conn.Exec(t.Context(), `SELECT onceguard.claim('shop/' || j, $1::timestamptz + w * interval '1 minute', gen_random_uuid(), '1 hour')
		FROM generate_series(1, 601) w, unnest(ARRAY['a', 'b']) j`, noon); err != nil {
		t.Fatal(err)
	}
	r := plugin(t, nil, "windows", "-A", "--limit", "0", "-o", "json", "--ledger-url-file", file).ok(t)
	var got struct {
		Windows []struct {
			JobName     string    `json:"job_name"`
			WindowStart time.Time `json:"window_start"`
		} `json:"windows"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, w := range got.Windows {
		seen[w.JobName+w.WindowStart.String()] = true
	}
	if len(got.Windows) != 1202 || len(seen) != 1202 {
		t.Errorf("got %d windows, %d of them different, want 1202", len(got.Windows), len(seen))
	}
}

func TestShow(t *testing.T) {
	owner := urlFile(t, record(t))
	show := func(args ...string) result {
		t.Helper()
		return plugin(t, nil, append([]string{"show", "--ledger-url-file", owner}, args...)...)
	}
	for _, at := range []string{"2026-11-30T12:00:00Z", "2026-11-30T20:00:00+08:00", "2026-11-30T12:00Z"} {
		show("-n", "shop", "order-sync", at).ok(t).has(t, "shop/order-sync", "done", "1 prevented", "0 * * * * Asia/Shanghai",
			"failed (42)", "completed (0)", "shop/order-sync-1-x", "SKIPPED")
	}
	show("shop/order-sync", "latest").ok(t).has(t, "running, lease until", "2026-11-30T14:00:00Z")

	var story struct {
		Attempts []struct {
			Attempt int    `json:"attempt"`
			Outcome string `json:"outcome"`
		} `json:"attempts"`
		Skips []struct {
			Reason string `json:"reason"`
		} `json:"skips"`
	}
	r := show("shop/order-sync", "2026-11-30T12:00:00Z", "-o", "json").ok(t)
	if err := json.Unmarshal([]byte(r.stdout), &story); err != nil {
		t.Fatal(err)
	}
	if len(story.Attempts) != 2 || story.Attempts[0].Outcome != "failed" || story.Attempts[1].Outcome != "completed" ||
		len(story.Skips) != 1 || story.Skips[0].Reason != "completed" {
		t.Errorf("unexpected story: %s", r.stdout)
	}

	show("lab/probe", "latest").ok(t).has(t, "lab/probe@a", "2026-11-30T13:00:00Z")
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"several runs":   {[]string{"lab/probe", "2026-11-30T12:30:00Z"}, 1, []string{"lab/probe@a, lab/probe@b"}},
		"unknown window": {[]string{"shop/order-sync", "2026-11-30T12:30:00Z"}, 1, []string{"never claimed", "2026-11-30T14:00:00Z"}},
		"unknown job":    {[]string{"-n", "shop", "sync", "latest"}, 1, []string{"no job shop/sync", "windows -A"}},
		"no zone":        {[]string{"shop/order-sync", "2026-11-30T12:00:00"}, 2, []string{`"2026-11-30T12:00:00"`, "with its zone"}},
		"no window":      {[]string{"shop/order-sync"}, 2, []string{"WINDOW is missing"}},
		"bad output":     {[]string{"shop/order-sync", "latest", "-o", "yaml"}, 2, []string{`"yaml"`, "table or json"}},
	} {
		r := show(c.args...)
		if r.code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, r.code, c.code)
		}
		r.has(t, c.want...)
	}
}

func TestRights(t *testing.T) {
	owner := postgres.Database(t)
	role, login := postgres.Login(t, owner)
	ownerFile, loginFile := urlFile(t, owner), urlFile(t, login)

	r := plugin(t, nil, "windows", "-A", "--ledger-url-file", ownerFile)
	if r.code != 1 {
		t.Errorf("a database without a ledger: exit code %d", r.code)
	}
	r.has(t, "no ledger", "kubectl onceguard migrate")

	plugin(t, nil, "migrate", "--ledger-url-file", ownerFile).ok(t).has(t, "from version 0")
	plugin(t, nil, "migrate", "--ledger-url-file", ownerFile).ok(t).has(t, "up to date")

	r = plugin(t, nil, "windows", "-A", "--ledger-url-file", loginFile)
	if r.code != 1 {
		t.Errorf("a login without rights: exit code %d", r.code)
	}
	r.has(t, "may not read the record", "grant "+role+" --audit")

	plugin(t, nil, "grant", role, "--audit", "--ledger-url-file", ownerFile).ok(t)
	plugin(t, nil, "windows", "-A", "--ledger-url-file", loginFile).ok(t).has(t, "No windows found")

	plugin(t, nil, "grant", role, "shop/*", "--ledger-url-file", ownerFile).ok(t)
	plugin(t, nil, "grant", role, "--engine", "--ledger-url-file", ownerFile).ok(t).has(t, "may judge the windows of all jobs.")
	plugin(t, nil, "grant", role, "--engine", "--revoke", "--ledger-url-file", ownerFile).ok(t).has(t, "may no longer judge the windows")
	plugin(t, nil, "grant", role, "shop/*", "--audit", "--revoke", "--ledger-url-file", ownerFile).ok(t).has(t, "may no longer act for jobs shop/*.", "may no longer read the record")
	if r = plugin(t, nil, "windows", "-A", "--ledger-url-file", loginFile); r.code != 1 {
		t.Errorf("the record was read after its revocation: %s", r.stdout)
	}
	conn, err := pgx.Connect(t.Context(), login)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var refused *pgconn.PgError
	if _, err := conn.Exec(t.Context(), "SELECT onceguard.claim('shop/x', now(), gen_random_uuid(), '1 hour', '{}')"); !errors.As(err, &refused) || refused.Code != "OG005" {
		t.Errorf("claimed after the pattern was taken away: %v", err)
	}

	if r = plugin(t, nil, "grant", role, "shop/%/x*", "--ledger-url-file", ownerFile); r.code == 0 {
		t.Error("a bad pattern was granted")
	}
	r.has(t, "namespace/*")
	if r = plugin(t, nil, "grant", "nobody_here", "*", "--ledger-url-file", ownerFile); r.code == 0 {
		t.Error("granted to a role that does not exist")
	}
	r.has(t, `"nobody_here"`)
}

// apiServer answers for one Secret, as the API server would.
func apiServer(t *testing.T, url string) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason string) {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
		}
		secret := func(data map[string][]byte) {
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Secret", "apiVersion": "v1", "data": data})
		}
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/selfsubjectreviews":
			selfSubjectReview(w)
		case "/api/v1/namespaces/shop/secrets/onceguard-ledger-default":
			secret(map[string][]byte{"url": []byte(url)})
		case "/api/v1/namespaces/shop/secrets/empty":
			secret(map[string][]byte{"dsn": []byte(url)})
		case "/api/v1/namespaces/secret/secrets/onceguard-ledger-default":
			status(http.StatusForbidden, "Forbidden")
		default:
			status(http.StatusNotFound, "NotFound")
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	config := `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "` + server.URL + `"}}]
users: [{name: u, user: {}}]
contexts:
- {name: c, context: {cluster: c, user: u, namespace: shop}}
- {name: away, context: {cluster: c, user: u, namespace: away}}
`
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func TestWhereTheLedgerIs(t *testing.T) {
	const password = "s3cr3t-pw"
	owner := record(t)
	kubeconfig := apiServer(t, owner)

	// The context's namespace names both the Secret and the jobs.
	r := plugin(t, nil, "windows", "--kubeconfig", kubeconfig).ok(t)
	r.has(t, "shop/order-sync")
	if strings.Contains(r.stdout, "bank/interest") {
		t.Errorf("a job of another namespace:\n%s", r.stdout)
	}
	// A job's full name says where its Secret is, from any namespace; -n wins.
	elsewhere := []string{"--kubeconfig", kubeconfig, "--context", "away"}
	for _, args := range [][]string{
		{"show", "shop/order-sync", "latest"},
		{"windows", "--job", "shop/order-sync"},
		{"show", "shop/order-sync", "latest", "-n", "shop"},
		{"show", "bank/interest", "latest", "-n", "shop"},
	} {
		plugin(t, nil, append(args, elsewhere...)...).ok(t)
	}
	for job, namespace := range map[string]string{"order-sync": "away", "eu:other/order-sync": "other", "other/order-sync": "other"} {
		r := plugin(t, nil, append([]string{"show", job, "latest"}, elsewhere...)...)
		r.has(t, "no Secret onceguard-ledger-default in namespace "+namespace)
	}
	plugin(t, []string{"ONCEGUARD_LEDGER_URL=" + owner}, "windows").ok(t).has(t, "bank/interest", "shop/order-sync")

	for name, c := range map[string]struct {
		env  []string
		args []string
		want []string
	}{
		"no Secret":      {nil, []string{"-n", "other", "--kubeconfig", kubeconfig}, []string{"no Secret onceguard-ledger-default in namespace other", "create secret generic"}},
		"no key":         {nil, []string{"--secret", "empty", "--kubeconfig", kubeconfig}, []string{"Secret empty in namespace shop", `"url"`}},
		"forbidden":      {nil, []string{"-n", "secret", "--kubeconfig", kubeconfig}, []string{"may not read Secret", "--ledger-url-file"}},
		"no cluster":     {nil, nil, []string{"ONCEGUARD_LEDGER_URL", "--ledger-url-file"}},
		"no file":        {nil, []string{"--ledger-url-file", "/nonexistent"}, []string{"--ledger-url-file", "/nonexistent"}},
		"empty file":     {nil, []string{"--ledger-url-file", urlFile(t, "")}, []string{"is empty"}},
		"standard input": {nil, []string{"--ledger-url-file", "-"}, []string{"standard input is empty"}},
		"bad URL":        {[]string{"ONCEGUARD_LEDGER_URL=postgres://u:" + password + "@h:port/d"}, nil, []string{"environment variable ONCEGUARD_LEDGER_URL", "must look like"}},
		"unknown host":   {[]string{"ONCEGUARD_LEDGER_URL=postgres://u:" + password + "@db.invalid/d"}, nil, []string{"db.invalid", "port-forward"}},
		"nobody listens": {[]string{"ONCEGUARD_LEDGER_URL=postgres://u:" + password + "@127.0.0.1:1/d"}, nil, []string{"127.0.0.1", "cannot be reached"}},
		"wrong password": {[]string{"ONCEGUARD_LEDGER_URL=" + withPassword(t, owner, password)}, nil, []string{"refuses user", "28P01"}},
		"both -n and -A": {nil, []string{"-A", "-n", "shop"}, []string{"exclude each other"}},
		"bad state":      {nil, []string{"--state", "finished"}, []string{`"finished"`, "lease-ended"}},
	} {
		r := plugin(t, c.env, append([]string{"windows"}, c.args...)...)
		if r.code == 0 {
			t.Errorf("%s: no error", name)
		}
		r.has(t, c.want...)
		if strings.Contains(r.stdout+r.stderr, password) {
			t.Errorf("%s: the password was printed:\n%s", name, r.stderr)
		}
	}
}

func withPassword(t *testing.T, url, password string) string {
	t.Helper()
	before, after, ok := strings.Cut(url, "@")
	colon := strings.LastIndex(before, ":")
	if !ok || colon < 0 {
		t.Fatal("no password in the URL of the test database")
	}
	return before[:colon+1] + password + "@" + after
}

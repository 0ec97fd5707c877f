package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/test/bench/cpu"
)

// cost is what something has cost.
type cost struct {
	Requests   map[string]int64 // to the API server, by verb and resource
	Statements int64            // as the server counts them
	Looks      int64            // CronJobs looked at
	Judged     int64            // CronJobs written
	// CPU of the engine's process, of Postgres, and of the API server with its etcd (where it
	// is the test cluster's).
	Own, Server, API time.Duration
	Took             time.Duration
}

// less is what was added since before.
func (c cost) less(before cost) cost {
	added := map[string]int64{}
	for k, n := range c.Requests {
		if n -= before.Requests[k]; n != 0 {
			added[k] = n
		}
	}
	return cost{
		added, c.Statements - before.Statements, c.Looks - before.Looks, c.Judged - before.Judged,
		c.Own - before.Own, c.Server - before.Server, c.API - before.API, c.Took - before.Took,
	}
}

// of is the requests of some kinds, of all without any.
func (c cost) of(kinds ...string) (n int64) {
	for k, m := range c.Requests {
		if len(kinds) == 0 || slices.Contains(kinds, k) {
			n += m
		}
	}
	return n
}

// text lists the requests, for people.
func (c cost) text() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(c.Requests)) {
		out = append(out, fmt.Sprintf("%d %s", c.Requests[k], k))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// requests counts what is sent to the API server.
type requests struct {
	next http.RoundTripper
	mu   sync.Mutex
	n    map[string]int64
}

// RoundTrip counts and passes on.
func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.n[kind(q)]++
	r.mu.Unlock()
	return r.next.RoundTrip(q)
}

func (r *requests) read() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.n)
}

// kind is "list jobs" or "get leases": a request's verb and resource.
func kind(q *http.Request) string {
	// /api/v1/namespaces/x/pods, /apis/batch/v1/jobs
	path := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	path = path[min(len(path), map[bool]int{true: 2, false: 3}[path[0] == "api"]):]
	if len(path) > 2 && path[0] == "namespaces" {
		path = path[2:]
	}
	verb := strings.ToLower(q.Method)
	if verb == "get" && len(path) == 1 {
		verb = "list"
		if q.URL.Query().Get("watch") != "" {
			verb = "watch"
		}
	}
	return verb + " " + strings.Join(path[:min(1, len(path))], "")
}

// counted are clients as the engine's program makes them, and the count of their requests.
func counted(kubeconfig string) (kube.Clients, *requests, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return kube.Clients{}, nil, err
	}
	r := &requests{n: map[string]int64{}}
	config.QPS, config.UserAgent = -1, "onceguard-bench"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { r.next = next; return r })
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return kube.Clients{}, nil, err
	}
	typed, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		return kube.Clients{}, nil, err
	}
	meta, err := metadata.NewForConfigAndClient(config, transport)
	return kube.Clients{Typed: typed, Metadata: meta}, r, err
}

// statements is how many the engine's login has sent to the ledger.
func (s *scene) statements(ctx context.Context) (n int64, err error) {
	owner, err := pgx.Connect(ctx, s.Owner)
	if err != nil {
		return 0, err
	}
	defer owner.Close(ctx)
	err = owner.QueryRow(ctx, "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE userid = '"+login+"'::regrole").Scan(&n)
	return n, err
}

// memory is what a process holds.
type memory struct {
	Heap int64 // bytes alive, beyond what was before
	Peak int64 // resident at most, in bytes
	Took time.Duration
	Own  time.Duration // CPU
}

// alive is what is alive in memory, in bytes.
func alive() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc) // #nosec G115 -- far from overflow
}

// peak is the most that was resident, in bytes; 0 where there is no /proc.
func peak() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		var kilobytes int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	return 0
}

// held measures the memory that something took since before.
func held(before int64, begin time.Time, own time.Duration) memory {
	m := memory{Took: time.Since(begin), Own: cpu.Own() - own, Peak: peak()}
	m.Heap = alive() - before
	return m
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Addresses inside the cluster's own network namespace. Every cluster uses the same
// ones, since no two share a namespace.
const (
	nodeName    = "node1"
	nodeAddress = "10.89.0.1" // pods and the test program reach each other through it
	podRange    = "10.88.0.0/24"
	podCIDR     = "10.88.0.0/16" // of the whole cluster; the one node gets podRange of it
	serviceCIDR = "10.96.0.0/16"
	serviceAPI  = "10.96.0.1" // kubernetes.default.svc
	serviceDNS  = "10.96.0.10"
	apiServer   = "https://" + nodeAddress + ":6443"
	etcdAddress = "http://127.0.0.1:2379"
)

const (
	defaultName = "onceguard"
	// defaultState and defaultRun hold one folder per cluster: what a cluster keeps
	// (etcd, PKI, images, logs) and its sockets, whose paths must be short.
	defaultState = "/var/lib/onceguard-test"
	defaultRun   = "/run/onceguard-test"
	defaultCache = "/var/cache/onceguard"
	// stateMarker stands in every folder that this program made and may remove.
	stateMarker = ".onceguard-test-cluster"
)

// clusterName is short because the sockets' paths contain it: Linux allows 107 bytes,
// containerd 42 for the folder of its shims' sockets.
var clusterName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,18}$`)

// layout says where everything of one cluster is.
type layout struct {
	name  string // also the name of the network namespace
	state string // removed by down
	run   string // sockets and mounts; removed by down
	cache string // built programs; shared by all clusters, never removed
}

func newLayout(env []string, name string) (layout, error) {
	if !clusterName.MatchString(name) {
		return layout{}, usagef("--name %q: must be 1 to 19 lower-case letters, digits and dashes, and begin with a letter", name)
	}
	state := getenv(env, "ONCEGUARD_STATE")
	if state == "" {
		state = defaultState
	}
	state, err := filepath.Abs(state)
	if err != nil {
		return layout{}, fmt.Errorf("ONCEGUARD_STATE: %w", err)
	}
	cache, err := cacheDir(env)
	if err != nil {
		return layout{}, err
	}
	return layout{name: name, state: filepath.Join(state, name), run: filepath.Join(defaultRun, name), cache: cache}, nil
}

// cacheDir is ONCEGUARD_CACHE, else /var/cache/onceguard for root, else the user's cache.
func cacheDir(env []string) (string, error) {
	if dir := getenv(env, "ONCEGUARD_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 && unix.Access(filepath.Dir(defaultCache), unix.W_OK) == nil {
		return defaultCache, nil
	}
	if dir := getenv(env, "XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "onceguard"), nil
	}
	if home := getenv(env, "HOME"); home != "" {
		return filepath.Join(home, ".cache", "onceguard"), nil
	}
	return "", fmt.Errorf("no place for the built programs: set ONCEGUARD_CACHE to a folder that may grow to 1 GB")
}

func (l layout) netns() string             { return filepath.Join("/run/netns", l.name) }
func (l layout) pki(file string) string    { return filepath.Join(l.state, "pki", file) }
func (l layout) config(file string) string { return filepath.Join(l.state, "config", file) }
func (l layout) kubeconfig() string        { return l.config("admin.conf") }
func (l layout) bin() string               { return filepath.Join(l.state, "bin") }
func (l layout) log(component string) string {
	return filepath.Join(l.state, "logs", component+".log")
}
func (l layout) containerdSocket() string { return filepath.Join(l.run, "containerd.sock") }

// cgroup is the parent of all of this cluster's pods, so that two kubelets on one
// machine do not tidy away each other's, and so that what a killed run left is found.
func (l layout) cgroup() string { return "onceguard-test-" + l.name }

// network names the CNI network, and with it the files that CNI keeps elsewhere.
func (l layout) network() string { return "onceguard-test-" + l.name }

// program is the path of a built program.
func (l layout) program(name string) string {
	for _, t := range tools() {
		for _, p := range t.programs {
			if p == name {
				return filepath.Join(l.toolDir(t), p)
			}
		}
	}
	panic("no tool builds " + name)
}

func (l layout) toolDir(t tool) string {
	return filepath.Join(l.cache, "tools", t.name+"-"+t.version)
}

// getenv returns the last value of key in env, as the C library does.
func getenv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return ""
}

// setenv returns env with key set once.
func setenv(env []string, key, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, key+"=") {
			out = append(out, e)
		}
	}
	return append(out, key+"="+value)
}

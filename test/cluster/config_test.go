package main

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func TestKubeletIsToldOfCgroupV1OnlyWhereItRuns(t *testing.T) {
	l := testLayout(t)
	if v, ok := kubeletConfig(l, false)["failCgroupV1"]; !ok || v != false {
		t.Errorf("on cgroup v1 failCgroupV1 is %v, want false: 1.37 refuses to start otherwise", v)
	}
	if _, ok := kubeletConfig(l, true)["failCgroupV1"]; ok {
		t.Error("failCgroupV1 is set on cgroup v2")
	}
}

func TestWrittenConfigurationCanBeRead(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := writeConfig(l, false); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"kubelet.yaml", "kube-proxy.yaml", "cni/10-pods.conflist", "admin.conf", "kubelet.conf", "kube-proxy.conf"} {
		var v map[string]any
		if err := yaml.UnmarshalStrict(readFile(t, l.config(file)), &v); err != nil || len(v) == 0 {
			t.Errorf("%s: %v, %v", file, v, err)
		}
	}
	var conf struct {
		Clusters []struct{ Cluster struct{ Server string } }
		Users    []struct {
			User struct {
				Cert string `json:"client-certificate-data"`
				Key  string `json:"client-key-data"`
			}
		}
	}
	if err := yaml.Unmarshal(readFile(t, l.kubeconfig()), &conf); err != nil {
		t.Fatal(err)
	}
	if got := conf.Clusters[0].Cluster.Server; got != apiServer {
		t.Errorf("kubeconfig points at %s, want %s", got, apiServer)
	}
	cert, err1 := base64.StdEncoding.DecodeString(conf.Users[0].User.Cert)
	key, err2 := base64.StdEncoding.DecodeString(conf.Users[0].User.Key)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		t.Errorf("kubeconfig's user: %v", err)
	}
	// Nothing of containerd may fall back to a folder that other programs share.
	toml := string(readFile(t, l.config("containerd.toml")))
	for _, key := range []string{"root = ", "state = ", "address = ", "socket_dir = ", "Root = "} {
		for line := range strings.Lines(toml) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, key) && !strings.HasPrefix(line, key+`"`+l.state) && !strings.HasPrefix(line, key+`"`+l.run) {
				t.Errorf("containerd: %s", line)
			}
		}
		if !strings.Contains(toml, key) {
			t.Errorf("containerd: no %q", key)
		}
	}
}

func TestSocketPathsFitForTheLongestName(t *testing.T) {
	l, err := newLayout([]string{"ONCEGUARD_STATE=/some/very/long/path/that/does/not/matter/here"}, strings.Repeat("n", 19))
	if err != nil {
		t.Fatal(err)
	}
	if dir := l.run + "/s"; len(dir) > 42 {
		t.Errorf("containerd accepts 42 bytes for its shims' sockets; %s has %d", dir, len(dir))
	}
}

func TestEveryComponentHasAProgramAndAHealthCheck(t *testing.T) {
	l := testLayout(t)
	for _, c := range components() {
		if argv := c.argv(l); !strings.HasPrefix(argv[0], l.cache) {
			t.Errorf("%s runs %s, outside the cache", c.name, argv[0])
		}
		if healthOf[c.name].url == "" && c.name != "containerd" {
			t.Errorf("%s has no health check", c.name)
		}
	}
	if c, err := componentNamed("apiserver"); err != nil || c.name != "kube-apiserver" {
		t.Errorf("apiserver: %q, %v", c.name, err)
	}
	var usage usageError
	if _, err := componentNamed("dns"); !errors.As(err, &usage) {
		t.Errorf("an unknown component: %v", err)
	}
}

func TestNamesThatCannotBeUsed(t *testing.T) {
	for _, name := range []string{"", "a b", "../x", "A", "1a", strings.Repeat("n", 20)} {
		var usage usageError
		if _, err := newLayout(nil, name); !errors.As(err, &usage) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestPlacesFollowTheEnvironment(t *testing.T) {
	l, err := newLayout([]string{"ONCEGUARD_STATE=/a", "ONCEGUARD_CACHE=/b"}, "x")
	if err != nil || l.state != "/a/x" || l.cache != "/b" || l.run != "/run/onceguard-test/x" {
		t.Errorf("%+v, %v", l, err)
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// component is one long-running program of the cluster.
type component struct {
	name string // also the name of the program
	args func(layout) []string
}

func (c component) argv(l layout) []string {
	return append([]string{l.program(c.name)}, c.args(l)...)
}

// components in the order in which they are started; down stops them the other way round.
func components() []component {
	return []component{
		{"etcd", func(l layout) []string {
			return []string{
				"--data-dir=" + filepath.Join(l.state, "etcd"), "--listen-client-urls=" + etcdAddress,
				"--advertise-client-urls=" + etcdAddress, "--unsafe-no-fsync",
			} // a test bed has nothing to lose
		}},
		{"containerd", func(l layout) []string { return []string{"--config=" + l.config("containerd.toml")} }},
		{"kube-apiserver", apiserverArgs},
		{"kube-controller-manager", func(l layout) []string {
			return append(controllerArgs(l, "kube-controller-manager"), "--service-account-private-key-file="+l.pki("sa.key"), "--root-ca-file="+l.pki("ca.crt"),
				"--use-service-account-credentials", "--allocate-node-cidrs", "--cluster-cidr="+podCIDR)
		}},
		{"kube-scheduler", func(l layout) []string { return controllerArgs(l, "kube-scheduler") }},
		{"kubelet", func(l layout) []string {
			return []string{
				"--config=" + l.config("kubelet.yaml"), "--kubeconfig=" + l.config("kubelet.conf"), "--hostname-override=" + nodeName,
				"--root-dir=" + filepath.Join(l.state, "kubelet"), "--node-ip=" + nodeAddress,
			}
		}},
		{"kube-proxy", func(l layout) []string { return []string{"--config=" + l.config("kube-proxy.yaml")} }},
	}
}

func apiserverArgs(l layout) []string {
	return []string{
		"--etcd-servers=" + etcdAddress,
		"--advertise-address=" + nodeAddress,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--client-ca-file=" + l.pki("ca.crt"),
		"--tls-cert-file=" + l.pki("apiserver.crt"),
		"--tls-private-key-file=" + l.pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + l.pki("sa.key"),
		"--service-account-key-file=" + l.pki("sa.pub"),
		"--authorization-mode=Node,RBAC", // so that a chart's RBAC is really tested
		"--kubelet-client-certificate=" + l.pki("admin.crt"),
		"--kubelet-client-key=" + l.pki("admin.key"),
		"--kubelet-preferred-address-types=InternalIP", // nothing resolves the node's name
		"--allow-privileged=true",
	}
}

func controllerArgs(l layout, name string) []string {
	conf := l.config(name + ".conf")
	return []string{
		"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf, "--leader-elect=false",
		"--tls-cert-file=" + l.pki(name+".crt"), "--tls-private-key-file=" + l.pki(name+".key"),
	}
}

// componentNamed accepts the full name and, as people say it, the name without "kube-".
func componentNamed(name string) (component, error) {
	var names []string
	for _, c := range components() {
		if c.name == name || c.name == "kube-"+name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return component{}, usagef("component %q: must be one of %s", name, strings.Join(names, ", "))
}

// componentPath is where components look for other programs: runc, mount, nft,
// conntrack of the machine, the shim beside containerd.
func componentPath(l layout) string {
	return filepath.Dir(l.program("containerd")) + ":" + searchPath
}

// writeConfig writes everything that the components read, besides the PKI.
func writeConfig(l layout, unified bool) error {
	for _, user := range []string{"admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"} {
		text, err := kubeconfig(l, user)
		if err != nil {
			return err
		}
		if err := os.WriteFile(l.config(user+".conf"), text, 0o600); err != nil {
			return err
		}
	}
	kubelet, err := yaml.Marshal(kubeletConfig(l, unified))
	if err != nil {
		return err
	}
	proxy, err := yaml.Marshal(proxyConfig(l))
	if err != nil {
		return err
	}
	network, err := yaml.Marshal(networkConfig(l))
	if err != nil {
		return err
	}
	if network, err = yaml.YAMLToJSON(network); err != nil {
		return err
	}
	return writeFiles(l.config(""), map[string]string{
		"kubelet.yaml": string(kubelet), "kube-proxy.yaml": string(proxy),
		"containerd.toml": containerdConfig(l), "cni/10-pods.conflist": string(network),
	})
}

func kubeconfig(l layout, user string) ([]byte, error) {
	data := map[string]string{}
	for _, f := range []string{"ca.crt", user + ".crt", user + ".key"} {
		b, err := os.ReadFile(l.pki(f))
		if err != nil {
			return nil, err
		}
		data[f] = base64.StdEncoding.EncodeToString(b)
	}
	name := l.network()
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{"server": apiServer, "certificate-authority-data": data["ca.crt"]}}},
		"users":    []any{map[string]any{"name": user, "user": map[string]any{"client-certificate-data": data[user+".crt"], "client-key-data": data[user+".key"]}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": user}}},
	})
}

// kubeletConfig. unified says that the machine has cgroup v2 only.
func kubeletConfig(l layout, unified bool) map[string]any {
	config := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + l.containerdSocket(),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": l.pki("ca.crt")},
		},
		"authorization":     map[string]any{"mode": "Webhook"},
		"tlsCertFile":       l.pki("kubelet.crt"),
		"tlsPrivateKeyFile": l.pki("kubelet.key"),
		"clusterDNS":        []any{serviceDNS}, // nothing answers there; without it every pod warns
		"podLogsDir":        filepath.Join(l.state, "pod-logs"),
		"cgroupDriver":      "cgroupfs",
		"cgroupRoot":        "/" + l.cgroup(),
		// The node is the tester's machine: reserve nothing on it, and do not evict or
		// collect images because of what else it does.
		"enforceNodeAllocatable":      []any{},
		"failSwapOn":                  false,
		"imageGCHighThresholdPercent": 100,
		"evictionHard":                map[string]any{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		// A mended Secret reaches its volume within seconds instead of a minute. Pods
		// are not started or stopped sooner by it.
		"syncFrequency": "10s",
	}
	if !unified {
		config["failCgroupV1"] = false // 1.37 refuses cgroup v1 unless it is told
	}
	return config
}

func proxyConfig(l layout) map[string]any {
	return map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             "nftables",
		"clusterCIDR":      podCIDR,
		"clientConnection": map[string]any{"kubeconfig": l.config("kube-proxy.conf")},
		"hostnameOverride": nodeName,
		"conntrack":        map[string]any{"maxPerCore": 0, "min": 0}, // these limits are the whole machine's
	}
}

// networkConfig routes each pod over a pair of its own (ptp). With a bridge, the answer
// of one pod to another would bypass the translation of Service addresses unless the
// kernel has br_netfilter.
func networkConfig(l layout) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": l.network(),
		"plugins": []any{
			map[string]any{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables", "ipam": map[string]any{
				"type": "host-local", "dataDir": filepath.Join(l.state, "cni"),
				"ranges": []any{[]any{map[string]any{"subnet": podRange}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			}},
			map[string]any{"type": "portmap", "backend": "nftables", "capabilities": map[string]any{"portMappings": true}},
		},
	}
}

// containerdConfig keeps everything of containerd, its shims and runc in our folders,
// so that down can remove it. restrict_oom_score_adj serves machines without
// CAP_SYS_RESOURCE, where otherwise no pod starts.
func containerdConfig(l layout) string {
	return fmt.Sprintf(`version = 3
root = %[1]q
state = %[2]q

[grpc]
  address = %[3]q

[ttrpc]
  address = %[4]q

[plugins.'io.containerd.shim.v1.manager']
  socket_dir = %[5]q

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %[6]q

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%[7]q]
    conf_dir = %[8]q
    use_internal_loopback = true

  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      Root = %[9]q
      SystemdCgroup = false
`, filepath.Join(l.state, "containerd"), filepath.Join(l.run, "containerd"), l.containerdSocket(), l.containerdSocket()+".ttrpc",
		filepath.Join(l.run, "s"), pauseImage, filepath.Dir(l.program("ptp")), l.config("cni"), filepath.Join(l.run, "runc"))
}

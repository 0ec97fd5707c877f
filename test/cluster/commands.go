package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// action is what a command does with its cluster.
type action func(ctx context.Context, l layout, args []string) error

func rootCommand(env []string, stdout, stderr io.Writer) *cobra.Command {
	name := getenv(env, "ONCEGUARD_TEST_CLUSTER")
	if name == "" {
		name = defaultName
	}
	root := &cobra.Command{
		Use: "cluster", Short: "A real Kubernetes node for tests and the demo, without a container engine",
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q; \"cluster help\" lists them", args[0])
			}
			return c.Help()
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&name, "name", name, "which cluster (default from ONCEGUARD_TEST_CLUSTER)")

	// Progress goes to stderr, results to stdout.
	add := func(use, short string, args cobra.PositionalArgs, do action) *cobra.Command {
		cmd := &cobra.Command{
			Use: use, Short: short,
			Args: func(c *cobra.Command, a []string) error {
				if err := args(c, a); err != nil {
					return usagef("%w; usage: %s", err, c.UseLine())
				}
				return nil
			},
			RunE: func(c *cobra.Command, a []string) error {
				l, err := newLayout(env, name)
				if err != nil {
					return err
				}
				return do(c.Context(), l, a)
			},
		}
		root.AddCommand(cmd)
		return cmd
	}

	add("build", "Build what the cache lacks (about 20 minutes on a cold machine with two cores)", cobra.NoArgs,
		func(ctx context.Context, l layout, _ []string) error {
			if err := build(ctx, l, stderr); err != nil {
				return err
			}
			fmt.Fprintln(stderr, "built:", toolNames(tools()), "in", l.cache)
			return nil
		})

	var fresh, wait bool
	upCmd := add("up", "Start the cluster and wait until it takes pods; builds and installs what is missing", cobra.NoArgs,
		func(ctx context.Context, l layout, _ []string) error { return up(ctx, l, fresh, wait, stderr) })
	upCmd.Flags().BoolVar(&fresh, "fresh", false, "start over even if the cluster is up")
	upCmd.Flags().BoolVar(&wait, "wait", true, "wait until the node takes pods")

	add("down", "End the cluster and remove everything but the built programs", cobra.NoArgs,
		func(ctx context.Context, l layout, _ []string) error { return down(ctx, l, stderr) })
	add("status", "Show what runs; exit code 3 if the cluster is not up", cobra.NoArgs,
		func(ctx context.Context, l layout, _ []string) error { return status(ctx, l, stdout) })
	add("kubeconfig", "Print the path of the administrator's kubeconfig", cobra.NoArgs,
		func(_ context.Context, l layout, _ []string) error {
			if err := requireUp(l); err != nil {
				return err
			}
			fmt.Fprintln(stdout, l.kubeconfig())
			return nil
		})
	add("env", `Print shell exports: eval "$(cluster env)"`, cobra.NoArgs,
		func(_ context.Context, l layout, _ []string) error {
			if err := requireUp(l); err != nil {
				return err
			}
			for _, e := range clusterEnv(l, env) {
				key, value, _ := strings.Cut(e, "=")
				fmt.Fprintf(stdout, "export %s='%s'\n", key, strings.ReplaceAll(value, "'", `'\''`))
			}
			return nil
		})
	execCmd := add("exec -- COMMAND [ARG...]", "Run a command inside the cluster's network, with KUBECONFIG and kubectl, helm, ctr on PATH", cobra.MinimumNArgs(1),
		func(_ context.Context, l layout, args []string) error { return execInside(l, args, env) })
	execCmd.Flags().SetInterspersed(false)

	add("logs COMPONENT", "Print a component's log", cobra.ExactArgs(1),
		func(_ context.Context, l layout, args []string) error {
			c, err := componentNamed(args[0])
			if err != nil {
				return err
			}
			f, err := os.Open(l.log(c.name))
			if err != nil {
				return fmt.Errorf("%w (%w)", errNotUp, err)
			}
			defer f.Close()
			_, err = io.Copy(stdout, f)
			return err
		})
	add("start COMPONENT", "Start a component that was stopped; nothing if it runs", cobra.ExactArgs(1),
		func(ctx context.Context, l layout, args []string) error { return startOne(ctx, l, args[0], stderr) })
	add("stop COMPONENT", "Stop a component with SIGTERM, and SIGKILL if it stays", cobra.ExactArgs(1),
		func(ctx context.Context, l layout, args []string) error {
			return signalOne(ctx, l, args[0], unix.SIGTERM, stderr)
		})
	var sig string
	kill := add("kill COMPONENT", "Signal a component, with SIGKILL unless told otherwise; waits until it has ended (not for STOP and CONT)", cobra.ExactArgs(1),
		func(ctx context.Context, l layout, args []string) error {
			n := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(sig), "SIG"))
			if n == 0 {
				return usagef("--signal %q: must be a signal's name, such as KILL, TERM, STOP or CONT", sig)
			}
			return signalOne(ctx, l, args[0], n, stderr)
		})
	kill.Flags().StringVar(&sig, "signal", "KILL", "the signal's name; STOP and CONT freeze and thaw")

	addLoadImage(add, stderr)
	return root
}

func addLoadImage(add func(use, short string, args cobra.PositionalArgs, do action) *cobra.Command, stderr io.Writer) {
	var (
		archive, user, entrypoint, command string
		env                                []string
		busybox                            bool
	)
	cmd := add("load-image NAME:TAG PATH=FILE...", "Pack files into an image of one layer and give it to the node; or --archive FILE", cobra.ArbitraryArgs,
		func(ctx context.Context, l layout, args []string) error {
			if err := requireUp(l); err != nil {
				return err
			}
			if archive != "" {
				if len(args) > 0 {
					return usagef("--archive brings its own names and files: remove %s", strings.Join(args, " "))
				}
				return importArchive(ctx, l, archive)
			}
			spec, err := parseImage(args)
			if err != nil {
				return err
			}
			spec.user, spec.env = user, env
			if spec.entrypoint, err = words("--entrypoint", entrypoint); err != nil {
				return err
			}
			if spec.cmd, err = words("--cmd", command); err != nil {
				return err
			}
			if busybox {
				if err := addBusybox(ctx, &spec); err != nil {
					return err
				}
			}
			if err := loadImage(ctx, l, spec); err != nil {
				return err
			}
			fmt.Fprintln(stderr, "loaded", spec.name)
			return nil
		})
	f := cmd.Flags()
	f.StringVar(&archive, "archive", "", "import this archive (docker save or OCI) instead")
	f.StringVar(&user, "user", "", "user and group, such as 65532:65532")
	f.StringVar(&entrypoint, "entrypoint", "", `a program, or a JSON array such as ["/guard","sidecar"]`)
	f.StringVar(&command, "cmd", "", "as --entrypoint: the default arguments")
	f.StringArrayVar(&env, "env", nil, "KEY=VALUE, repeatable")
	f.BoolVar(&busybox, "busybox", false, "also put busybox into it, with all applets in /bin")
}

// parseImage reads NAME:TAG PATH=FILE...
func parseImage(args []string) (imageSpec, error) {
	if len(args) == 0 {
		return imageSpec{}, usagef("load-image needs NAME:TAG and files, or --archive")
	}
	if _, err := parseTag(args[0]); err != nil {
		return imageSpec{}, err
	}
	spec := imageSpec{name: args[0], files: map[string]string{}}
	for _, a := range args[1:] {
		where, file, ok := strings.Cut(a, "=")
		if !ok || !strings.HasPrefix(where, "/") || file == "" {
			return imageSpec{}, usagef("%q: must be PATH=FILE, an absolute path in the image and a file of this machine", a)
		}
		spec.files[where] = file
	}
	return spec, nil
}

// words reads a flag that is one word or a JSON array of words.
func words(flag, value string) ([]string, error) {
	if value == "" {
		return nil, nil
	}
	if !strings.HasPrefix(value, "[") {
		return []string{value}, nil
	}
	var out []string
	if err := json.Unmarshal([]byte(value), &out); err != nil {
		return nil, usagef("%s %q: must be one word or a JSON array of strings: %w", flag, value, err)
	}
	return out, nil
}

// requireUp answers errNotUp when there is no such cluster at all.
func requireUp(l layout) error {
	for _, path := range []string{l.netns(), l.kubeconfig()} {
		if _, err := os.Stat(path); err != nil {
			return errNotUp
		}
	}
	return nil
}

// clusterEnv is what programs need to talk to the cluster, besides its network.
func clusterEnv(l layout, env []string) []string {
	return []string{
		"KUBECONFIG=" + l.kubeconfig(),
		"PATH=" + l.bin() + ":" + getenv(env, "PATH"),
		"CONTAINERD_ADDRESS=" + l.containerdSocket(),
		"CONTAINERD_NAMESPACE=k8s.io",
		"ONCEGUARD_TEST_CLUSTER=" + l.name,
		"ONCEGUARD_NODE_ADDRESS=" + nodeAddress,
	}
}

// execInside becomes the command, so that signals, streams and the exit code are its own.
func execInside(l layout, args, env []string) error {
	if err := requireRoot(); err != nil {
		return err
	}
	if err := requireUp(l); err != nil {
		return err
	}
	for _, e := range clusterEnv(l, env) {
		key, value, _ := strings.Cut(e, "=")
		env = setenv(env, key, value)
	}
	// The PATH of the command decides, not ours.
	if err := os.Setenv("PATH", getenv(env, "PATH")); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return inNamespace(l.netns(), func() error {
		return fmt.Errorf("%s: %w", path, unix.Exec(path, args, env))
	})
}

func status(ctx context.Context, l layout, out io.Writer) error {
	ps, err := processes(l)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	running := 0
	for _, c := range components() {
		state := "-"
		if i := slices.IndexFunc(ps, func(p process) bool { return p.main() && p.component == c.name }); i >= 0 {
			state = fmt.Sprintf("pid %d", ps[i].pid)
			running++
		}
		fmt.Fprintf(w, "%s\t%s\n", c.name, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if running < len(components()) {
		return errNotUp
	}
	a, err := newAPI(l)
	if err != nil {
		return err
	}
	if err := a.nodeReady(ctx); err != nil {
		return fmt.Errorf("%w (%w)", errNotUp, err)
	}
	fmt.Fprintf(out, "node %s is ready at %s; kubeconfig %s\n", nodeName, nodeAddress, l.kubeconfig())
	return nil
}

func startOne(ctx context.Context, l layout, name string, out io.Writer) error {
	c, err := componentNamed(name)
	if err != nil {
		return err
	}
	if err := errors.Join(requireRoot(), requireUp(l)); err != nil {
		return err
	}
	unlock, err := lockCluster(ctx, l, out)
	if err != nil {
		return err
	}
	defer unlock()
	ps, err := mainProcesses(l, c)
	if err != nil || len(ps) > 0 {
		return err
	}
	if err := start(l, c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, upTimeout, fmt.Errorf("%s was not ready within %s", c.name, upTimeout))
	defer cancel()
	return waitReady(ctx, l, c.name)
}

func signalOne(ctx context.Context, l layout, name string, sig unix.Signal, out io.Writer) error {
	c, err := componentNamed(name)
	if err != nil {
		return err
	}
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := lockCluster(ctx, l, out)
	if err != nil {
		return err
	}
	defer unlock()
	ps, err := mainProcesses(l, c)
	if err != nil {
		return err
	}
	if len(ps) == 0 {
		return fmt.Errorf("%s of cluster %s does not run", c.name, l.name)
	}
	if sig == unix.SIGTERM || sig == unix.SIGKILL {
		return end(ctx, l, ps, sig, stopGrace)
	}
	hs := holdAll(l, ps)
	defer closeAll(hs)
	return signalAll(hs, sig)
}

func mainProcesses(l layout, c component) ([]process, error) {
	ps, err := processes(l)
	return slices.DeleteFunc(ps, func(p process) bool { return !p.main() || p.component != c.name }), err
}

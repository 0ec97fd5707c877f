package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs f on a thread of its own inside the network namespace at path.
// Sockets made and processes started by f stay in it. f must not start goroutines
// that do either. The mount namespace stays the host's: "ip netns exec" would remount
// /sys, and the kubelet would find no cgroups there.
func inNamespace(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// dialer makes connections inside the namespace.
func dialer(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = inNamespace(path, func() error {
			// A numeric address: no resolver and no second address, so no goroutine dials.
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// createNamespace makes the cluster's network: the loopback, a device that carries
// the node's address, and a default route, without which no Service address is routable.
func createNamespace(ctx context.Context, l layout) error {
	if err := ip(ctx, "netns", "add", l.name); err != nil {
		return err
	}
	if err := ip(ctx, "-n", l.name, "link", "set", "lo", "up"); err != nil {
		return err
	}
	// Not every kernel has the dummy type; a bridge without ports does as well.
	if err := ip(ctx, "-n", l.name, "link", "add", "node0", "type", "dummy"); err != nil {
		if err := ip(ctx, "-n", l.name, "link", "add", "node0", "type", "bridge"); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"addr", "add", nodeAddress + "/32", "dev", "node0"},
		{"link", "set", "node0", "up"},
		{"route", "add", "default", "dev", "node0"},
	} {
		if err := ip(ctx, append([]string{"-n", l.name}, args...)...); err != nil {
			return err
		}
	}
	return inNamespace(l.netns(), func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// deleteNamespace removes the namespace's name; the kernel frees it with its last process.
func deleteNamespace(ctx context.Context, l layout) error {
	if _, err := os.Stat(l.netns()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return ip(ctx, "netns", "del", l.name)
}

func ip(ctx context.Context, args ...string) error {
	path, err := findProgram("ip")
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

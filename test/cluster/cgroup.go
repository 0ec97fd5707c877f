package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// unifiedCgroups reports whether the machine uses cgroup v2 alone, by the same test
// as the kubelet. A v2 tree beside v1 ("hybrid") does not count.
func unifiedCgroups() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &st); err != nil {
		return false, fmt.Errorf("no cgroups at %s: %w (in a container, mount them and run it privileged)", cgroupMount, err)
	}
	return st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// cgroupTrees are the mounted hierarchies: one on v2, one for each controller on v1.
func cgroupTrees() ([]string, error) {
	mounts, err := mountPoints()
	if err != nil {
		return nil, err
	}
	var trees []string
	for _, m := range mounts {
		if m.kind == "cgroup" || m.kind == "cgroup2" {
			trees = append(trees, m.path)
		}
	}
	if len(trees) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted at %s", cgroupMount)
	}
	return trees, nil
}

// createCgroup makes the parent of the cluster's pods in every hierarchy.
func createCgroup(l layout) error {
	unified, err := unifiedCgroups()
	if err != nil {
		return err
	}
	if unified {
		if err := delegateControllers(cgroupMount); err != nil {
			return err
		}
	}
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		dir := filepath.Join(tree, l.cgroup())
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		// A v1 cpuset begins empty and takes no process before it is filled.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(tree, f))
			if err != nil || unified || len(bytes.TrimSpace(value)) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, f), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegateControllers lets the children of a v2 cgroup use what the kubelet needs.
func delegateControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	has := func(list []byte, name string) bool { return slices.Contains(strings.Fields(string(list)), name) }
	for _, name := range []string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"} {
		if !has(available, name) || has(enabled, name) {
			continue
		}
		if err := os.WriteFile(control, []byte("+"+name), 0o644); err != nil {
			if errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("enable cgroup controller %s: %w (this container's root cgroup holds processes: move them into a child cgroup first, or use the machine itself)", name, err)
			}
			return fmt.Errorf("enable cgroup controller %s: %w", name, err)
		}
	}
	return nil
}

// podProcesses are the processes of the cluster's pods, by their cgroup.
func podProcesses(l layout) ([]int, error) {
	seen := map[int]bool{}
	err := walkCgroups(l, func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return fmt.Errorf("%s/cgroup.procs: %w", dir, err)
			}
			if pid > 0 { // 0 is a process outside our process namespace
				seen[pid] = true
			}
		}
		return nil
	})
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		pids = append(pids, pid)
	}
	return pids, err
}

// removeCgroup removes the cluster's cgroups, deepest first. Their processes have ended.
func removeCgroup(l layout) error {
	var dirs []string
	if err := walkCgroups(l, func(dir string) error {
		dirs = append(dirs, dir)
		return nil
	}); err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := ignoreGone(unix.Rmdir(dirs[i])); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
		}
	}
	return nil
}

// walkCgroups visits every cgroup of the cluster, parents before children.
func walkCgroups(l layout, visit func(dir string) error) error {
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		err := filepath.WalkDir(filepath.Join(tree, l.cgroup()), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return ignoreGone(err)
			}
			if !d.IsDir() {
				return nil
			}
			return visit(path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoreGone drops the errors that only say that something has already gone.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoint is one line of /proc/self/mountinfo.
type mountPoint struct {
	path, kind string
}

func mountPoints() ([]mountPoint, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountInfo(string(b))
}

func parseMountInfo(text string) ([]mountPoint, error) {
	var out []mountPoint
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 1 {
			return nil, fmt.Errorf("mountinfo: cannot read %q", line)
		}
		path, err := unescapeMount(head[4])
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w in %q", err, line)
		}
		out = append(out, mountPoint{path: path, kind: tail[0]})
	}
	return out, nil
}

// unescapeMount undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i+4 > len(s) {
			return "", fmt.Errorf("cut-off escape")
		}
		c, err := strconv.ParseUint(s[i+1:i+4], 8, 8)
		if err != nil {
			return "", fmt.Errorf("bad escape %q", s[i:i+4])
		}
		b.WriteByte(byte(c))
		i += 3
	}
	return b.String(), nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// unmountBelow detaches every mount at or below the folders, the newest first, and
// then makes sure that none is left: what is removed afterwards must never reach
// through a mount into somebody else's files.
func unmountBelow(dirs ...string) error {
	below := func() ([]string, error) {
		mounts, err := mountPoints()
		if err != nil {
			return nil, err
		}
		var out []string
		for _, m := range mounts {
			for _, dir := range dirs {
				if within(m.path, dir) {
					out = append(out, m.path)
				}
			}
		}
		return out, nil
	}
	paths, err := below()
	if err != nil {
		return err
	}
	for i := len(paths) - 1; i >= 0; i-- {
		if err := unix.Unmount(paths[i], unix.MNT_DETACH); err != nil && ignoreGone(err) != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount %s: %w", paths[i], err)
		}
	}
	if paths, err = below(); err != nil {
		return err
	}
	if len(paths) > 0 {
		return fmt.Errorf("still mounted: %s", strings.Join(paths, " "))
	}
	return nil
}

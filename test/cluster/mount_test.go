package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParseMountInfo(t *testing.T) {
	text := "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n" +
		"37 35 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	got, err := parseMountInfo(text)
	if err != nil || !slices.Equal(got, []mountPoint{{"/mnt 2", "ext3"}, {"/sys/fs/cgroup/memory", "cgroup"}}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"x\n", "1 2 3 / /a\\04 rw - ext4 d rw\n", "1 2 3 / /a\\999 rw - ext4 d rw\n", "1 2 3 / /a rw\n"} {
		if got, err := parseMountInfo(bad); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}

func TestWithinDoesNotReachANeighbour(t *testing.T) {
	for path, want := range map[string]bool{"/a/b": true, "/a/b/c": true, "/a/bc": false, "/a": false} {
		if within(path, "/a/b") != want {
			t.Errorf("%s within /a/b: %v", path, !want)
		}
	}
}

func FuzzParseMountInfo(f *testing.F) {
	f.Add("36 35 98:0 / /mnt\\040 rw - ext3 /dev/root rw\n")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := parseMountInfo(text)
		if err == nil && len(mounts) != strings.Count(text, "\n") && strings.HasSuffix(text, "\n") {
			t.Errorf("%d mounts of %q", len(mounts), text)
		}
	})
}

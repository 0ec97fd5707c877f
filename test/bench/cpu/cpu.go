// Package cpu reads what processes have cost so far.
package cpu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU time in /proc on Linux.
const tick = 10 * time.Millisecond

// Tree is the CPU time so far of a process and its children, of ended ones too; 0
// where there is no /proc. A process that ends meanwhile would be missed or counted
// twice, so it is read until none did.
func Tree(pid int) time.Duration {
	for range 100 {
		_, before := times(strconv.Itoa(pid))
		sum := children(pid)
		self, ended := times(strconv.Itoa(pid))
		if ended == before {
			return sum + self + ended
		}
	}
	return 0
}

func children(of int) (sum time.Duration) {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", of, of))
	for pid := range strings.FieldsSeq(string(list)) {
		self, _ := times(pid)
		sum += self
	}
	return sum
}

// times are a process's own CPU time and that of its ended children.
func times(pid string) (self, ended time.Duration) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, 0
	}
	// pid (command) state …: the command may hold spaces and brackets.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const utime, stime, cutime, cstime = 11, 12, 13, 14
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return time.Duration(n) * tick
	}
	return ticks(utime) + ticks(stime), ticks(cutime) + ticks(cstime)
}

// Find gives the processes whose environment has this entry, such as NAME=value.
func Find(entry string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		text, err := os.ReadFile(file) // #nosec G304 -- of /proc
		if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), entry) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Own is the CPU time of this process so far.
func Own() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

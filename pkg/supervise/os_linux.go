package supervise

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	atFDCWD    = -0x64
	atEaccess  = 0x200
	xOK        = 1
	prSetChild = 36 // PR_SET_CHILD_SUBREAPER

	lastSignal = syscall.Signal(64)
)

// access asks the kernel whether this process, by its effective ids, may execute file.
func access(file string) error { return syscall.Faccessat(atFDCWD, file, xOK, atEaccess) }

// adoptOrphans makes orphaned descendants our children, which process 1 of a pid
// namespace has anyway.
func adoptOrphans() {
	if os.Getpid() != 1 {
		// Kernels since 3.4 know it; where it fails, orphans go to another init.
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChild, 1, 0)
	}
}

// foreground says whether our process group is the foreground group of a terminal.
func foreground() bool {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	fields := afterName(stat)
	return len(fields) > 5 && fields[5] == strconv.Itoa(syscall.Getpgrp()) // tpgid, -1 without a terminal
}

// afterName gives the fields behind the name: "pid (comm) state ppid pgrp session tty
// tpgid …"; comm may hold anything, also ")".
func afterName(stat []byte) []string {
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
}

// children lists our living children, adopted orphans included. Zombies are left out.
func children() []int {
	self := os.Getpid()
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	_ = dir.Close()
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		fields := afterName(stat)
		if len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(self) {
			pids = append(pids, pid)
		}
	}
	return pids
}

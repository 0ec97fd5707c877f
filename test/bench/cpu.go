package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// tick is the unit of CPU time in /proc on Linux.
const tick = 10 * time.Millisecond

// serverCPU is the CPU time so far of the postmaster's processes, of ended ones too; 0
// where there is no /proc.
func (b *bench) serverCPU() (sum time.Duration) {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (command) state ppid …: the command may hold spaces and brackets.
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		const ppid, utime, stime, cutime, cstime = 1, 11, 12, 13, 14
		ticks := func(i int) time.Duration {
			n, _ := strconv.ParseInt(string(f[i]), 10, 64)
			return time.Duration(n) * tick
		}
		switch {
		case name == "/proc/"+strconv.Itoa(b.postmaster)+"/stat":
			sum += ticks(utime) + ticks(stime) + ticks(cutime) + ticks(cstime)
		case string(f[ppid]) == strconv.Itoa(b.postmaster):
			sum += ticks(utime) + ticks(stime)
		}
	}
	return sum
}

func (b *bench) findPostmaster(ctx context.Context) (pid int, err error) {
	err = b.admin.QueryRow(ctx, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").Scan(&pid)
	return pid, err
}

// ownCPU is the CPU time of this process so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// as is the superuser's URL with our login, which has the same password.
func as(superuser string) (string, error) {
	u, err := url.Parse(superuser)
	if err != nil {
		return "", fmt.Errorf("the server's URL: %w", err)
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(login, password)
	return u.String(), nil
}

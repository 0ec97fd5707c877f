package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU time in /proc on Linux.
const tick = 10 * time.Millisecond

// serverCPU is the CPU time so far of the postmaster's processes, of ended ones too; 0
// where there is no /proc. A process that ends meanwhile would be missed or counted
// twice, so it is read until none did.
func (b *bench) serverCPU() time.Duration {
	for range 100 {
		_, before := cpuTimes(strconv.Itoa(b.postmaster))
		sum := b.childrenCPU()
		self, ended := cpuTimes(strconv.Itoa(b.postmaster))
		if ended == before {
			return sum + self + ended
		}
	}
	return 0
}

func (b *bench) childrenCPU() (sum time.Duration) {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", b.postmaster, b.postmaster))
	for pid := range strings.FieldsSeq(string(children)) {
		self, _ := cpuTimes(pid)
		sum += self
	}
	return sum
}

// cpuTimes are a process's own CPU time and that of its ended children.
func cpuTimes(pid string) (self, ended time.Duration) {
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

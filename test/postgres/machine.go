package postgres

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

const (
	superuser  = "postgres"
	tempPrefix = "onceguard-postgres-"
	ownerFile  = "owner" // pid of the process that made a temporary directory
)

// ErrMissing says that a program of ours is not on the machine.
var ErrMissing = errors.New("is not installed")

// Binaries is the directory of initdb and postgres: Debian's newest version, else
// what PATH has.
func Binaries() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	sort.Slice(dirs, func(i, j int) bool { return version(dirs[i]) > version(dirs[j]) })
	for _, d := range dirs {
		if executable(filepath.Join(d, "initdb")) && executable(filepath.Join(d, "postgres")) {
			return d, nil
		}
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil && executable(filepath.Join(filepath.Dir(p), "postgres")) {
			return filepath.Dir(p), nil
		}
	}
	return "", fmt.Errorf("a Postgres server %w (looked in /usr/lib/postgresql/*/bin and PATH): apt-get install postgresql", ErrMissing)
}

func version(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
}

// account is whom the server runs as. Postgres refuses to run as root.
type account struct{ uid, gid int }

// serverAccount is nil when we are not root.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		return &account{uid: uid, gid: gid}, nil
	}
	return nil, errors.New("postgres does not run as root, and the machine has neither a user postgres nor nobody")
}

func (a *account) attributes() *syscall.SysProcAttr {
	if a == nil {
		return &syscall.SysProcAttr{}
	}
	//nolint:gosec // ids come from the account database
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
}

// cleanEnv keeps a person's PGHOST, PGDATA and the like out of the server.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C.UTF-8")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// removeAbandoned stops and removes the temporary servers of test runs that were
// killed before they could do it.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, ownerFile))
		if err != nil {
			continue
		}
		owner, err := strconv.Atoi(string(b))
		if err != nil || syscall.Kill(owner, 0) == nil || !errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			continue
		}
		s := &Server{opts: Options{Dir: dir}}
		if s.readState() == nil && s.st.PID != 0 && s.alive() {
			_ = syscall.Kill(s.st.PID, syscall.SIGQUIT)
		}
		_ = os.RemoveAll(dir)
	}
}

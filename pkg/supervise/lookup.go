package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/onceguard/onceguard/pkg/contract"
)

// DefaultPath is searched when the environment has no PATH: what container runtimes set.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// StartError says why a command could not be started.
type StartError struct {
	Name string // as the user wrote it
	Code int    // contract.ExitNotFound or contract.ExitNotExecutable, as a shell says it
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("cannot start %q: %v", e.Name, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// startError sorts err by the shell's rule: what is not there is 127, what is there
// and cannot run is 126.
func startError(name string, err error) *StartError {
	code := contract.ExitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		code = contract.ExitNotFound
	}
	return &StartError{Name: name, Code: code, Err: err}
}

var errNotInPath = fmt.Errorf("not found in PATH: %w", fs.ErrNotExist)

// Lookup finds the file to execute for name the way execvp(3) does, with the PATH of
// env: a name with a slash is taken as it is; an empty entry of PATH is the current
// directory, and "." is allowed (os/exec refuses it, container runtimes do not).
func Lookup(name string, env []string) (string, error) {
	if name == "" {
		return "", startError(name, fs.ErrNotExist)
	}
	if strings.Contains(name, "/") {
		return name, nil // the kernel judges it better than a look beforehand
	}
	path, set := getenv(env, "PATH")
	if !set {
		path = DefaultPath
	}
	found := errNotInPath
	for _, dir := range strings.Split(path, ":") {
		if dir == "" {
			dir = "."
		}
		file := strings.TrimSuffix(dir, "/") + "/" + name
		switch err := executable(file); {
		case err == nil:
			return file, nil
		case errors.Is(err, fs.ErrPermission) && errors.Is(found, fs.ErrNotExist):
			found = fmt.Errorf("%s: %w", file, err)
		}
	}
	return "", startError(name, found)
}

func executable(file string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		if errors.Is(err, syscall.EACCES) {
			return fs.ErrNotExist // a directory that may not be searched is passed over, as by a shell
		}
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return fs.ErrNotExist
	}
	return access(file)
}

// getenv gives the first value of key, as getenv(3) does.
func getenv(env []string, key string) (string, bool) {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v, true
		}
	}
	return "", false
}

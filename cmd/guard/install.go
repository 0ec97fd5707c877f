package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/onceguard/onceguard/pkg/contract"
)

// install is the sidecar's postStart hook: the kubelet starts no worker before it ends.
func install(stderr io.Writer) int {
	if err := copyProgram(contract.PathExecSource, contract.PathExec); err != nil {
		_, _ = fmt.Fprintln(stderr, "guard install:", err)
		return 1
	}
	return 0
}

// copyProgram puts an executable in its place at once: nobody can execute half of it,
// and one that is being executed is not touched.
func copyProgram(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.CreateTemp(filepath.Dir(to), ".guard-exec-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(0o555), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(out.Name()))
	}
	return nil
}

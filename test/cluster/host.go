package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// requirement is a program that must come from the machine's own packages.
type requirement struct {
	program, debian string
}

func requirements() []requirement {
	return []requirement{
		{"ip", "iproute2"},
		{"mount", "mount"},
		{"runc", "runc"},
		{"conntrack", "conntrack"},
		{"nft", "nftables"},
		{"busybox", "busybox-static"},
	}
}

// searchPath is where system programs are, also for a user whose PATH lacks sbin.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const aptTimeout = 10 * time.Minute

// errNotRoot explains what else a person can do.
var errNotRoot = errors.New("needs root, for a network namespace, mounts and cgroups: run it with sudo, or in a virtual machine; " +
	"or point the demo and the tests at a cluster you already have with KUBECONFIG=FILE")

func requireRoot() error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	return nil
}

// missingPackages names the Debian packages whose programs are not there.
func missingPackages() []string {
	var missing []string
	for _, r := range requirements() {
		path, err := findProgram(r.program)
		if err != nil || (r.program == "busybox" && !static(path)) {
			missing = append(missing, r.debian)
		}
	}
	return missing
}

func findProgram(name string) (string, error) {
	for _, dir := range strings.Split(searchPath, ":") {
		path := dir + "/" + name
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// needsInterpreter names the dynamic loader that an ELF program asks for, "" if it is
// static or no ELF program. Alone in an image, only a static program runs.
func needsInterpreter(program []byte) string {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return "an unreadable loader"
			}
			return string(bytes.TrimRight(b, "\x00"))
		}
	}
	return ""
}

func static(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && needsInterpreter(b) == ""
}

// ensurePackages installs what is missing with apt-get, or says what is missing.
func ensurePackages(ctx context.Context, out io.Writer) error {
	missing := missingPackages()
	if len(missing) == 0 {
		return nil
	}
	apt, err := findProgram("apt-get")
	if err != nil {
		return fmt.Errorf("missing on this machine: the programs of the Debian packages %s; install them (there is no apt-get here to do it), "+
			"or point the demo and the tests at a cluster you already have with KUBECONFIG=FILE", strings.Join(missing, " "))
	}
	fmt.Fprintln(out, "installing Debian packages:", strings.Join(missing, " "))
	ctx, cancel := context.WithTimeout(ctx, aptTimeout)
	defer cancel()
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, missing...)} {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s\nInstall the packages %s yourself, then try again", args[0], err, said.Bytes(), strings.Join(missing, " "))
		}
	}
	if missing := missingPackages(); len(missing) > 0 {
		return fmt.Errorf("apt-get installed %s, and their programs are still missing from %s", strings.Join(missing, " "), searchPath)
	}
	return nil
}

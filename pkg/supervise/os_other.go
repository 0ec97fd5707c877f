//go:build unix && !linux

package supervise

import "syscall"

func access(file string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&0o111 == 0 {
		return syscall.EACCES
	}
	return nil
}

const lastSignal = syscall.Signal(31)

// Only Linux lets a process other than the first adopt orphans and list children.
func adoptOrphans()   {}
func children() []int { return nil }

// foreground is not asked elsewhere.
func foreground() bool { return false }

package wrapper

import (
	"fmt"
	"os"
	"syscall"
)

// maxSocketPath is what fits into sockaddr_un on every Unix, with its closing zero.
const maxSocketPath = 103

// Dial connects to a Unix socket without waiting. It stands in for package net, which
// would be a third of the wrapper's size. The file takes deadlines.
func Dial(path string) (*os.File, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path of %d bytes: %q; at most %d fit", len(path), path, maxSocketPath)
	}
	syscall.ForkLock.RLock() // no fork between socket and close-on-exec
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	err = syscall.SetNonblock(fd, true) // before NewFile, which then uses the poller
	if err == nil {
		// A Unix socket connects at once, or says EAGAIN when the queue is full.
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, &os.PathError{Op: "connect", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

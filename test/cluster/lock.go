package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes an exclusive lock on a file and waits for it until ctx is done. waiting
// is called once when another process holds it. The kernel frees the lock of a
// killed process.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for said := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !said {
			waiting()
			said = true
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("waiting for the lock %s: %w", path, err)
		}
	}
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// poll calls f until it answers true or ctx is done. f's last error says what was missing.
func poll(ctx context.Context, f func(context.Context) (bool, error)) error {
	var last error
	for {
		ok, err := f(ctx)
		if ok {
			return nil
		}
		var fatal fatalError
		if errors.As(err, &fatal) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			if last != nil {
				return fmt.Errorf("%w; last: %w", err, last)
			}
			return err
		}
	}
}

// fatalError ends a poll at once: waiting cannot mend it.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

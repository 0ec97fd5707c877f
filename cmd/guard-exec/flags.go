package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// flags parses --name=value and --name value. Unlike package flag it keeps to two
// dashes, lets flags depend on their order, and costs nothing in the binary.
type flags map[string]flag

type flag struct {
	set  func(value string) error
	bare bool // takes no value
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

var errHelp = errors.New("help asked for")

// parse reads flags up to "--" or the first argument without dashes, and gives the rest.
func (fs flags) parse(args []string) ([]string, error) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return args[1:], nil
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			return args, nil
		}
		args = args[1:]
		if arg == "--help" || arg == "-h" {
			return nil, errHelp
		}
		name, value, has := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		f, known := fs[name]
		switch {
		case !known || !strings.HasPrefix(arg, "--"):
			return nil, usageError{fmt.Errorf("unknown flag %q: known are %s", arg, fs)}
		case f.bare && has:
			return nil, usageError{fmt.Errorf("--%s takes no value, but has %q", name, value)}
		case !f.bare && !has:
			if len(args) == 0 {
				return nil, usageError{fmt.Errorf("--%s needs a value", name)}
			}
			value, args = args[0], args[1:]
		}
		if err := f.set(value); err != nil {
			return nil, usageError{fmt.Errorf("--%s: %w", name, err)}
		}
	}
	return nil, nil
}

// and gives the flags of both.
func (fs flags) and(more flags) flags {
	maps.Copy(fs, more)
	return fs
}

// String lists the names.
func (fs flags) String() string {
	names := slices.Sorted(maps.Keys(fs))
	if len(names) == 0 {
		return "none"
	}
	return "--" + strings.Join(names, ", --")
}

func text(to *string) flag {
	return flag{set: func(v string) error { *to = v; return nil }}
}

func yes(to *bool) flag {
	return flag{bare: true, set: func(string) error { *to = true; return nil }}
}

func oneOf[T ~string](to *T, accepted ...T) flag {
	return flag{set: func(v string) error {
		if !slices.Contains(accepted, T(v)) {
			return fmt.Errorf("%q is not one of %q", v, accepted)
		}
		*to = T(v)
		return nil
	}}
}

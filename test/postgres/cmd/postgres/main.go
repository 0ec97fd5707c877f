// Command postgres starts and stops a private Postgres for the demo:
//
//	postgres up --dir DIR [--listen ADDRESS] [--port N] [--netns NAME]
//	postgres down --dir DIR
//
// up prints the superuser's URL on standard output; a server that already runs in DIR
// is kept. down stops the server and keeps its data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/onceguard/onceguard/test/postgres"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("postgres", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var o postgres.Options
	fs.StringVar(&o.Dir, "dir", "", "directory of the server (required)")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1", "TCP address")
	fs.IntVar(&o.Port, "port", 0, "TCP port; 0 takes a free one")
	fs.StringVar(&o.NetNS, "netns", "", "network namespace to listen in, by name or path")
	if len(args) == 0 {
		return errors.New("usage: postgres up|down --dir DIR [--listen ADDRESS] [--port N] [--netns NAME]")
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if o.Dir == "" {
		return errors.New("--dir is required")
	}
	s, running, err := postgres.Attach(o.Dir)
	if err != nil {
		return err
	}
	switch args[0] {
	case "up":
		if !running {
			if s, err = postgres.Start(ctx, o); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintln(stdout, s.URL("postgres"))
		return err
	case "down":
		if !running {
			return nil
		}
		return s.Stop(ctx, postgres.Fast)
	default:
		return fmt.Errorf("unknown command %q: up or down", args[0])
	}
}

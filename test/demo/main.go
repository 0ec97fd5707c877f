// Command demo shows on a real cluster what Onceguard does: it annotates a CronJob
// that books 10 units a window and then doubles, kills, repeats and storms it, and
// compares what Postgres and Kubernetes say with what was promised. It exits 1 if
// any figure is off.
//
// It needs KUBECONFIG and the images named by package bed; `make demo` provides
// both and cleans up afterwards.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "the repository's folder")
	keep := flags.Bool("keep", false, "leave everything running and wait for Ctrl-C")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()

	d := &demo{out: stdout, began: time.Now()}
	err := d.run(ctx, *root)
	d.printTable()
	if err != nil {
		fmt.Fprintf(stderr, "\ndemo: %v\n", err)
		d.explain(ctx, stderr)
	}
	if *keep && d.bed != nil && ctx.Err() == nil {
		d.printHints()
		<-ctx.Done()
	}
	if tidied := d.close(); tidied != nil {
		fmt.Fprintf(stderr, "\ndemo: cleaning up: %v\n", tidied)
	}
	if err != nil || !d.allRight() {
		return 1
	}
	fmt.Fprintln(stdout, "\nAll figures are as promised.")
	return 0
}

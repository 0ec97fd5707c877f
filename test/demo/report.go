package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/onceguard/onceguard/test/bed"
)

// promises is how many figures a whole demo compares.
const promises = 6

func (d *demo) allRight() bool {
	for _, r := range d.table {
		if r.promised != r.seen {
			return false
		}
	}
	return len(d.table) == promises
}

func (d *demo) printTable() {
	fmt.Fprintln(d.out)
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  \tWHAT HAPPENED\tPROMISED\tSEEN")
	for _, r := range d.table {
		mark := "ok"
		if r.promised != r.seen {
			mark = "XX"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", mark, r.step, r.promised, r.seen)
	}
	_ = w.Flush()
}

func (d *demo) printHints() {
	fmt.Fprint(d.out, "\nStill running, until Ctrl-C. Try in another terminal:\n")
	if os.Getenv("ONCEGUARD_TEST_CLUSTER") != "" {
		fmt.Fprintln(d.out, "  dist/cluster exec -- sh            # first: a shell in the cluster's network")
	}
	fmt.Fprintf(d.out, `  kubectl -n %[1]s patch cronjob %[2]s -p '{"spec":{"suspend":false}}'   # let it fire every minute
  kubectl -n %[1]s create job try --from=cronjob/%[2]s                   # a manual Job: the newest due window
  kubectl onceguard windows -n %[1]s
  kubectl onceguard show %[3]s latest
  psql "$(kubectl -n %[4]s get secret onceguard-owner -o jsonpath='{.data.url}' | base64 -d)" -c 'select * from onceguard.windows'
`, namespace, cronJob, jobName, bed.Namespace)
}

// explain prints what a person would look at first.
func (d *demo) explain(ctx context.Context, w io.Writer) {
	if !d.madeNamespaces || ctx.Err() != nil {
		return
	}
	for _, args := range [][]string{
		{"get", "pods,jobs", "-A", "-o", "wide"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
		{"logs", "-n", bed.Namespace, "-l", "app.kubernetes.io/name=onceguard", "--tail=20", "--prefix"},
		{"logs", "-n", namespace, "-l", "onceguard.dev/guard=enabled", "--all-containers", "--tail=5", "--prefix"},
	} {
		out, _ := d.bed.Kubectl(ctx, args...)
		fmt.Fprintf(w, "\n$ kubectl %s\n%s", strings.Join(args, " "), out)
	}
}

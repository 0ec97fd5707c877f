package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
)

func (p *program) windowsCommand() *cobra.Command {
	var job, states, output string
	var since time.Duration
	var limit int
	c := &cobra.Command{
		Use:   "windows",
		Short: "List windows, newest first",
		Example: `  kubectl onceguard windows -n shop
  kubectl onceguard windows -A --state failed,held,lease-ended --since 24h
  kubectl onceguard windows -n shop --job order-sync -o json --limit 0`,
		Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := parseStates(states)
			if err != nil {
				return err
			}
			if err := checkOutput(output); err != nil {
				return err
			}
			if since < 0 || limit < 0 {
				return usagef("--since and --limit must not be negative")
			}
			return p.windows(c.Context(), audit.Filter{Job: job, States: chosen, Since: since, Limit: limit}, output)
		},
	}
	p.outputFlag(c, &output)
	c.Flags().BoolVarP(&p.allNamespaces, "all-namespaces", "A", false, "jobs of all namespaces in this ledger")
	c.Flags().StringVar(&job, "job", "", "only this job: NAME or NAMESPACE/NAME")
	c.Flags().StringVar(&states, "state", "", "only these states: "+stateWords()+"; comma-separated")
	c.Flags().DurationVar(&since, "since", 0, "only windows that began at most so long ago, e.g. 24h; 0 means all")
	c.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 means all")
	return c
}

func (p *program) windows(ctx context.Context, f audit.Filter, output string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ledger, namespace, err := p.ledgerOf(ctx, f.Job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	f.Namespace = namespace
	found, more, err := audit.Windows(ctx, ledger, f)
	if err != nil {
		return ledger.explain(err)
	}
	if output == outputJSON {
		if found == nil {
			found = []audit.Window{}
		}
		return p.printJSON(struct {
			Windows []audit.Window `json:"windows"`
			More    bool           `json:"more"`
		}{found, more})
	}
	if len(found) == 0 {
		fmt.Fprintf(p.stderr, "No windows found. Looked for %s in %s.\n", describe(f), ledger.name)
		return nil
	}
	if err := p.windowTable(found); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(p.stderr, "There are more than %d: use --limit, --since or --job.\n", f.Limit)
	}
	return nil
}

func (p *program) windowTable(found []audit.Window) error {
	rows := [][]string{{"WINDOW (UTC)", "JOB", "STATE", "ATTEMPTS", "DUPLICATES", "TOOK", "PROCESSED", "LAST ATTEMPT"}}
	for _, x := range found {
		rows = append(rows, []string{
			instant(&x.WindowStart), printable(x.JobName), stateInShort(x), strconv.Itoa(x.Attempts),
			strconv.FormatInt(x.DuplicatesPrevented, 10), seconds(x.DurationSeconds), number(x.Processed),
			ending(x.LastOutcome, x.LastExitCode, x.LastMessage),
		})
	}
	return p.table(rows)
}

// stateInShort is "done", "skipped (late)", "running (generation 2, checkpoint 7)".
func stateInShort(x audit.Window) string {
	var more []string
	if x.Reason != nil && *x.Reason != string(x.State) {
		more = append(more, printable(*x.Reason))
	}
	if x.Planned && x.State != audit.Planned {
		more = append(more, planned)
	}
	if x.Trigger != nil && *x.Trigger == string(contract.TriggerCatchUp) {
		more = append(more, "caught up")
	}
	if x.Generation > 1 {
		more = append(more, "generation "+strconv.Itoa(x.Generation))
	}
	if x.CheckpointSeq > 0 && x.State != audit.Done {
		more = append(more, "checkpoint "+strconv.Itoa(x.CheckpointSeq))
	}
	if len(more) == 0 {
		return string(x.State)
	}
	return string(x.State) + " (" + strings.Join(more, ", ") + ")"
}

// describe says in words what a filter looked for.
func describe(f audit.Filter) string {
	text := "windows"
	if len(f.States) > 0 {
		names := make([]string, len(f.States))
		for i, s := range f.States {
			names[i] = string(s)
		}
		text += " that are " + strings.Join(names, " or ")
	}
	switch {
	case f.Job != "" && f.Namespace != "":
		text += " of job " + f.Namespace + "/" + f.Job
	case f.Job != "":
		text += " of job " + f.Job
	case f.Namespace != "":
		text += " of jobs in namespace " + f.Namespace
	default:
		text += " of all jobs"
	}
	if f.Since > 0 {
		text += " of the last " + f.Since.String()
	}
	return text
}

// parseStates reads a comma-separated list; "completed" and "lease-ended" are taken
// as people type them.
func parseStates(list string) ([]audit.State, error) {
	if list == "" {
		return nil, nil
	}
	var states []audit.State
	for _, word := range strings.Split(list, ",") {
		state := audit.State(strings.ReplaceAll(strings.TrimSpace(word), "-", " "))
		if state == "completed" {
			state = audit.Done
		}
		if !slices.Contains(audit.States(), state) {
			return nil, usagef("--state %q: must be %s", strings.TrimSpace(word), stateWords())
		}
		states = append(states, state)
	}
	return states, nil
}

// stateWords lists the states as they are typed.
func stateWords() string {
	var words []string
	for _, s := range audit.States() {
		words = append(words, strings.ReplaceAll(string(s), " ", "-"))
	}
	return strings.Join(words, ", ")
}

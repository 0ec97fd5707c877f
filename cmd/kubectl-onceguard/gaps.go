package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
)

func (p *program) gapsCommand() *cobra.Command {
	f := audit.GapFilter{}
	var since, output string
	var fail bool
	c := &cobra.Command{
		Use:   "gaps [JOB]",
		Short: "List the windows that nobody has run, and why",
		Long: `List the windows that were due and that nobody has run, as ranges, newest first:

  late     nobody has run it yet, and its Job may still come
  missed   no Job of its own will come any more
  skipped  it was not to run: suspended, superseded by a newer one, or a rule for moved clocks

Then what is planned to be run later, and the CronJobs whose windows cannot be judged. A
window that ran after all is in no range; it is in kubectl onceguard windows.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record.`,
		Example: `  kubectl onceguard gaps -n shop
  kubectl onceguard gaps -A --late --fail
  kubectl onceguard gaps shop/order-sync --since 90d -o json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("JOB")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			var err error
			if f.Since, err = parseAge(since); err != nil && since != "0" {
				return usagef("--since %q: must be a duration like 7d or 36h, or 0 for all", since)
			}
			if f.Limit < 0 {
				return usagef("--limit must not be negative")
			}
			if len(args) == 1 {
				f.Job = args[0]
			}
			return p.gaps(c.Context(), f, output, fail)
		},
	}
	p.outputFlag(c, &output)
	c.Flags().BoolVarP(&p.allNamespaces, "all-namespaces", "A", false, "jobs of all namespaces in this ledger")
	c.Flags().StringVar(&since, "since", "7d", "only ranges that reach into so long before now, and all that are late: 7d, 36h; 0 means all")
	c.Flags().BoolVar(&f.Late, "late", false, "only what is late")
	c.Flags().BoolVar(&fail, "fail", false, "exit with 1 when a window is late or missed, or when that is not known for a CronJob: for scripts")
	c.Flags().IntVar(&f.Limit, "limit", 200, "at most so many ranges; 0 means all")
	return c
}

// maxPlans bounds the planned windows that are listed.
const maxPlans = 10_000

// dues is what was due and not run, as gaps prints it.
type dues struct {
	Gaps      []audit.Gap `json:"gaps"`
	More      bool        `json:"more"`
	Totals    totals      `json:"totals"` // of the ranges given
	Planned   []plans     `json:"planned"`
	Schedules []watched   `json:"schedules"`
}

// totals counts windows.
type totals struct {
	Late    int64 `json:"late"`
	Missed  int64 `json:"missed"`
	Skipped int64 `json:"skipped"`
}

// plans are the planned windows of one job.
type plans struct {
	JobName string    `json:"job_name"`
	Windows int       `json:"windows"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Made    int       `json:"made"` // for how many of them a Job was made
	// PlannedBy are the people who planned some; those of the engine are caught up.
	PlannedBy []string `json:"planned_by,omitempty"`
}

// watched is a CronJob as the engine knows it, and what is amiss with that.
type watched struct {
	audit.Schedule
	NotLooked string `json:"not_looked,omitempty"`
}

func (p *program) gaps(ctx context.Context, f audit.GapFilter, output string, fail bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if b := base(f.Job); b != f.Job {
		return usagef("JOB %q: due are the windows of the job as a whole: %s", f.Job, b)
	}
	ledger, namespace, err := p.ledgerOf(ctx, f.Job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	f.Namespace = namespace
	d, err := readDues(ctx, ledger, f)
	if err != nil {
		return ledger.explain(err)
	}
	if output == outputJSON {
		err = p.printJSON(d)
	} else {
		err = p.dueTable(d, f, ledger.name)
	}
	if err == nil && fail {
		err = d.alarm()
	}
	return err
}

// alarm is an error when a window is late or missed, and when that would not be known.
func (d dues) alarm() error {
	var texts, unjudged []string
	if d.Totals.Late+d.Totals.Missed > 0 {
		texts = append(texts, d.Totals.String())
	}
	for _, x := range d.Schedules {
		if len(x.notes()) > 0 {
			unjudged = append(unjudged, printable(x.CronJob))
		}
	}
	switch n := len(unjudged); {
	case n > maxUnjudged:
		texts = append(texts, fmt.Sprintf("notes about CronJobs %s and %d more", strings.Join(unjudged[:maxUnjudged], ", "), n-maxUnjudged))
	case n > 0:
		texts = append(texts, "notes about CronJobs "+strings.Join(unjudged, ", "))
	case len(d.Schedules) == 0:
		texts = append(texts, "nothing is judged")
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// maxUnjudged is how many CronJobs an alarm names.
const maxUnjudged = 5

// notes say what is amiss with a CronJob that is there.
func (x watched) notes() []string {
	if x.GoneAt != nil {
		return nil
	}
	return slices.DeleteFunc([]string{x.Note, x.NotLooked}, func(s string) bool { return s == "" })
}

func readDues(ctx context.Context, ledger *connection, f audit.GapFilter) (d dues, err error) {
	if d.Gaps, d.More, err = audit.Gaps(ctx, ledger, f); err != nil {
		return d, err
	}
	left := d.Gaps[:0]
	for _, g := range d.Gaps {
		g, err := unanswered(ctx, ledger, snapped(g))
		if err != nil {
			return d, err
		}
		if g.Windows > 0 {
			left = append(left, g)
			d.Totals.add(g)
		}
	}
	d.Gaps = left
	planned, err := audit.Plans(ctx, ledger, f.Namespace, f.Job, maxPlans)
	if err != nil {
		return d, err
	}
	d.Planned = summed(planned)
	known, err := audit.Schedules(ctx, ledger, f.Namespace, f.Job, maxSchedules)
	if err != nil {
		return d, err
	}
	now, err := clock(ctx, ledger)
	if err != nil {
		return d, err
	}
	for _, x := range known {
		d.Schedules = append(d.Schedules, watched{x, notLooked(x, now)})
	}
	if d.Gaps == nil {
		d.Gaps = []audit.Gap{}
	}
	return d, nil
}

// clock is the database's.
func clock(ctx context.Context, ledger *connection) (now time.Time, err error) {
	if err := ledger.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("%s: %w", ledger.name, err)
	}
	return now.UTC(), nil
}

func (t *totals) add(g audit.Gap) {
	switch g.Status {
	case disposition.Late:
		t.Late += g.Windows
	case disposition.Missed:
		t.Missed += g.Windows
	case disposition.Skipped:
		t.Skipped += g.Windows
	}
}

func (t totals) String() string {
	return fmt.Sprintf("%d late, %d missed, %d skipped", t.Late, t.Missed, t.Skipped)
}

// summed adds up plans, which are newest first, by job.
func summed(all []audit.Plan) []plans {
	found := []plans{}
	for _, x := range all {
		i := slices.IndexFunc(found, func(s plans) bool { return s.JobName == x.JobName })
		if i < 0 {
			i = len(found)
			found = append(found, plans{JobName: x.JobName, Last: x.WindowStart})
		}
		s := &found[i]
		s.First = x.WindowStart
		s.Windows++
		if x.Made > 0 {
			s.Made++
		}
		if x.PlannedBy != "" && !slices.Contains(s.PlannedBy, x.PlannedBy) {
			s.PlannedBy = append(s.PlannedBy, x.PlannedBy)
		}
	}
	slices.SortFunc(found, func(a, b plans) int { return strings.Compare(a.JobName, b.JobName) })
	return found
}

// dueTable prints the ranges under the names of their jobs, so that they fit a terminal of
// 80 columns.
func (p *program) dueTable(d dues, f audit.GapFilter, ledger string) error {
	var b strings.Builder
	var jobs []string
	for _, g := range d.Gaps {
		if !slices.Contains(jobs, g.JobName) {
			jobs = append(jobs, g.JobName)
		}
	}
	slices.Sort(jobs)
	for _, job := range jobs {
		b.WriteString(printable(job) + "\n")
		width := len("LAST (UTC)")
		for _, g := range d.Gaps {
			if g.JobName == job {
				width = max(width, len(lastText(g)))
			}
		}
		fmt.Fprintf(&b, "  %-20s  %-*s  %7s  %-7s  %s\n", "FIRST (UTC)", width, "LAST (UTC)", "WINDOWS", "STATUS", "WHY")
		for _, g := range d.Gaps {
			if g.JobName == job {
				b.WriteString(gapText(g, width))
			}
		}
		b.WriteByte('\n')
	}
	if len(d.Gaps) == 0 {
		b.WriteString(folded("", fmt.Sprintf("No gaps found. Looked for %s in %s.", describeGaps(f), ledger)))
	} else {
		fmt.Fprintf(&b, "%s windows in %s of %s.\n", d.Totals, plural(len(d.Gaps), "range"), plural(len(jobs), "job"))
	}
	if d.More {
		fmt.Fprintf(&b, "There are more than %d ranges: use --limit, --since or JOB.\n", f.Limit)
	}
	for _, s := range d.Planned {
		b.WriteString(folded("Planned: ", planText(s)))
	}
	if len(d.Schedules) == 0 {
		b.WriteString(folded("Note: ", "no CronJob is recorded here, so nothing is judged: "+errNoEngine.Error()))
	}
	for _, x := range d.Schedules {
		notes := x.notes()
		if note := suspended(x.Schedule); note != "" && slices.ContainsFunc(d.Planned, func(s plans) bool { return s.JobName == x.JobName }) {
			notes = append(notes, note)
		}
		for _, note := range notes {
			b.WriteString(folded("Note: ", fmt.Sprintf("CronJob %s: %s", x.CronJob, note)))
		}
	}
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}

// lastText is the last window of a range: its time of day where the day is the first one's.
func lastText(g audit.Gap) string {
	switch {
	case g.LastWindow.Equal(g.FirstWindow):
		return none
	case g.LastWindow.Truncate(24 * time.Hour).Equal(g.FirstWindow.Truncate(24 * time.Hour)):
		return g.LastWindow.Format("15:04:05Z")
	}
	return instant(&g.LastWindow)
}

// gapText is a range in a line, and what was seen below it.
func gapText(g audit.Gap, width int) string {
	status := string(g.Status)
	if g.Status == disposition.Late {
		status = "LATE"
	}
	s := fmt.Sprintf("  %-20s  %-*s  %7d  %-7s  %s\n", instant(&g.FirstWindow), width, lastText(g), g.Windows, status, printable(string(g.Reason)))
	if g.Evidence != "" {
		s += folded("    ", g.Evidence)
	}
	if rule := ruleMeaning[g.Rule]; rule != "" && g.Status == disposition.Missed {
		s += folded("    ", "Not caught up: "+rule+".")
	}
	return s
}

func planText(s plans) string {
	text := fmt.Sprintf("%s of %s, %s", plural(s.Windows, "window"), s.JobName, instant(&s.First))
	if s.Windows > 1 {
		text += " to " + instant(&s.Last)
	}
	if len(s.PlannedBy) > 0 {
		text += ", by " + strings.Join(s.PlannedBy, ", ")
	} else {
		text += ", to be caught up"
	}
	return text + fmt.Sprintf("; a Job was made for %d", s.Made)
}

func describeGaps(f audit.GapFilter) string {
	text := strings.Replace(describe(audit.Filter{Namespace: f.Namespace, Job: f.Job}), "windows", "windows that nobody has run", 1)
	if f.Late {
		text += ", and that are late,"
	}
	if f.Since > 0 && !f.Late {
		text += " of the last " + f.Since.String() + ", and late ones of any age,"
	}
	return text
}

// foldWidth is how wide prose is printed, in characters.
const foldWidth = 80

// folded prints prose in lines of at most foldWidth; those after the first are indented as
// far as the text after head.
func folded(head, prose string) string {
	indent := strings.Repeat(" ", len(head))
	var b strings.Builder
	line := head
	for _, word := range strings.Fields(printable(prose)) {
		if len(line) > len(head) && len([]rune(line))+1+len([]rune(word)) > foldWidth {
			b.WriteString(line + "\n")
			line = indent
		}
		if len(line) > len(head) {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}

// Package gaps is the windows engine's side of the ledger: what it remembers of the
// CronJobs, what the ledger knows of their windows, and the judgements that it records. It
// needs a login with grant_engine, which may do nothing else.
//
// Two engines at once are harmless: a judgement that was made from an outdated state is not
// taken.
package gaps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// DB is what of a connection or pool is needed here.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Most is how many asks or judgements are taken at once.
const Most = 10_000

// MaxText is how many bytes of a gap's evidence, and of a note, are kept.
const MaxText = 1024

// What a caller can branch on, with errors.Is; the texts say more.
var (
	// ErrForbidden: the login is not the engine's.
	ErrForbidden = errors.New("this login is not the windows engine's: grant it as the owner of the ledger with SELECT onceguard.grant_engine('<login>')")
	// ErrSchema: there is no ledger of this version in the database.
	ErrSchema = errors.New("the database holds no ledger of this version: migrate it with the owner's URL (kubectl onceguard migrate)")
	// ErrBusy: another engine, or a person, is at it; nothing was changed. Try again.
	ErrBusy = errors.New("the record is being changed by another: try again")
	// ErrInvalid: an argument was refused, and nothing was changed; the text names it.
	ErrInvalid = errors.New("not accepted")
)

// Outdated is the error of Judge about judgements that were made from a state which is no
// longer the recorded one, because another engine has judged meanwhile. They were not taken;
// all others were. Load again.
type Outdated struct {
	Judgements []int // their places among those given
}

func (o *Outdated) Error() string {
	return fmt.Sprintf("%d judgements were made from an outdated state, and not taken", len(o.Judgements))
}

// Schedule is what the engine remembers of a CronJob.
type Schedule struct {
	JobName    string
	CronJobUID string
	CronJob    string // namespace/name
	Schedule   string
	TimeZone   string
	DST        contract.DST
	CatchUp    contract.CatchUp
	Indexes    int       // completions of its Indexed Job; 0: it is none; -1: not known
	Since      time.Time // Settings.Since
	State      disposition.State
	Note       string    // Decision.Note
	Gone       time.Time // when Gone was called; zero while there is the CronJob. Judge undoes it.
	LookedAt   time.Time // when it was last judged, by the database's clock; Judge does not read it
}

// Load gives all that is remembered, by job name and UID; of CronJobs that are gone only for
// 30 days. State.Recorded are the gaps behind JudgedBefore.
func Load(ctx context.Context, db DB) ([]Schedule, error) {
	const what = "read the schedules"
	rows, err := db.Query(ctx, `SELECT job_name, cron_job_uid, cron_job, coalesce(schedule, ''), coalesce(time_zone, ''), coalesce(dst, ''), coalesce(catch_up, ''), coalesce(indexes, -1),
		since, judged_before, open, suspensions, coalesce(note, ''), gone_at, looked_at FROM onceguard.engine_schedules()`)
	if err != nil {
		return nil, translate(what, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Schedule, err error) {
		var gone *time.Time
		err = row.Scan(&s.JobName, &s.CronJobUID, &s.CronJob, &s.Schedule, &s.TimeZone, &s.DST, &s.CatchUp, &s.Indexes,
			&s.Since, &s.State.JudgedBefore, &s.State.Open, &s.State.Suspensions, &s.Note, &gone, &s.LookedAt)
		s.Since, s.State.JudgedBefore, s.LookedAt = s.Since.UTC(), s.State.JudgedBefore.UTC(), s.LookedAt.UTC()
		for i, w := range s.State.Open {
			s.State.Open[i] = w.UTC()
		}
		if gone != nil {
			s.Gone = gone.UTC()
		}
		return s, err
	})
	if err != nil {
		return nil, translate(what, err)
	}
	return all, translate(what, recall(ctx, db, all))
}

// recall fills State.Recorded.
func recall(ctx context.Context, db DB, all []Schedule) error {
	type key struct{ job, uid string }
	places := make(map[key]int, len(all))
	for i, s := range all {
		places[key{s.JobName, s.CronJobUID}] = i
	}
	rows, err := db.Query(ctx, `SELECT s.job_name, s.cron_job_uid, g.first_window, g.last_window, g.windows, g.status, g.reason, coalesce(g.rule, ''), coalesce(g.evidence, '')
		FROM onceguard.schedules s JOIN onceguard.gaps g ON g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid AND g.first_window >= s.judged_before
		WHERE s.gone_at IS NULL ORDER BY 1, 2, 3`)
	if err != nil {
		return err
	}
	var k key
	var g disposition.Gap
	_, err = pgx.ForEachRow(rows, []any{&k.job, &k.uid, &g.First, &g.Last, &g.Windows, &g.Status, &g.Reason, &g.Rule, &g.Evidence}, func() error {
		if i, known := places[k]; known {
			g.First, g.Last = g.First.UTC(), g.Last.UTC()
			all[i].State.Recorded = append(all[i].State.Recorded, g)
		}
		return nil
	})
	return err
}

// Ask is a question about the windows of a CronJob.
type Ask struct {
	JobName    string    `json:"job"` // the base, without index and separate run
	CronJobUID string    `json:"uid"`
	CronJob    string    `json:"cron_job"` // namespace/name, by which Execution.Foreign is told
	From       time.Time `json:"from"`     // State.JudgedBefore
	Upto       time.Time `json:"upto"`     // included
	// Open are windows before From that are asked about too: State.Open.
	Open []time.Time `json:"open,omitempty"`
}

// Seen is what the ledger knows of the windows that were asked about.
type Seen struct {
	// ClosedBefore is the job's watermark; zero when nothing was pruned.
	ClosedBefore time.Time
	// Upto is how far Executions are complete: as asked, or earlier where there were too
	// many of them (20,000, or 200,000 in all the answers).
	Upto time.Time
	// Executions from Ask.From to Upto, and those of Ask.Open, in order. A window of an
	// Indexed Job is one execution: as little closed as the least of its indexes, and alive
	// when one of them is. While it is planned it is not closed, for an index that has not
	// come is still to run.
	Executions []disposition.Execution
	// Plans of the job, in order: all from Ask.From on, and the 2,000 oldest. A plan of a
	// window that is to run though it is closed shows that window as failed, not closed.
	Plans []disposition.Plan
}

// Look answers all asks with one statement, in their order. Plans whose window is closed are
// removed by it.
func Look(ctx context.Context, db DB, asks []Ask) ([]Seen, error) {
	what := fmt.Sprintf("look at the windows of %d CronJobs", len(asks))
	seen := make([]Seen, len(asks))
	if len(asks) == 0 {
		return seen, nil
	}
	text, err := json.Marshal(asks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	rows, err := db.Query(ctx, `SELECT ask, nullif(closed_before, '-infinity'), upto, executions, plans FROM onceguard.engine_look($1::jsonb)`, string(text))
	if err != nil {
		return nil, translate(what, err)
	}
	var (
		ask        int
		closed     *time.Time
		upto       time.Time
		executions []disposition.Execution
		plans      []disposition.Plan
		answered   int
	)
	_, err = pgx.ForEachRow(rows, []any{&ask, &closed, &upto, &executions, &plans}, func() error {
		if ask < 0 || ask >= len(seen) {
			return fmt.Errorf("the ledger answers ask %d of %d", ask, len(seen))
		}
		s := Seen{Upto: upto.UTC(), Executions: executions, Plans: plans}
		if closed != nil {
			s.ClosedBefore = closed.UTC()
		}
		for i := range s.Executions {
			e := &s.Executions[i]
			e.WindowStart, e.UpdatedAt = e.WindowStart.UTC(), e.UpdatedAt.UTC()
		}
		for i := range s.Plans {
			s.Plans[i].WindowStart = s.Plans[i].WindowStart.UTC()
		}
		seen[ask] = s
		closed, executions, plans = nil, nil, nil
		answered++
		return nil
	})
	if err == nil && answered != len(asks) {
		err = fmt.Errorf("the ledger gave %d answers", answered)
	}
	if err != nil {
		return nil, translate(what, err)
	}
	return seen, nil
}

// Judgement is what is recorded of one CronJob after a decision.
type Judgement struct {
	Schedule // Schedule.State is the new one: Decision.State
	// From is the former State.JudgedBefore, which the decision was made from. Recorded gaps
	// from there on are replaced by Gaps.
	From time.Time
	// Before is the due window before the first of Gaps; zero for none. A recorded gap that
	// ends there is continued by the first of Gaps when both say the same.
	Before time.Time
	// Gaps are in order and do not overlap. None reaches over State.JudgedBefore.
	Gaps    []disposition.Gap
	Plans   []disposition.Plan
	Unplan  []disposition.Gap
	Exhaust []disposition.Gap
	// Hold: a window of Exhaust whose last attempt crashed, or was lost, is held, for a person
	// to decide (on-crash=hold).
	Hold bool
}

// recorded is a Judgement as engine_judge takes it.
type recorded struct {
	Job          string             `json:"job"`
	UID          string             `json:"uid"`
	CronJob      string             `json:"cron_job"`
	Schedule     string             `json:"schedule,omitempty"`
	TimeZone     string             `json:"time_zone,omitempty"`
	DST          contract.DST       `json:"dst,omitempty"`
	CatchUp      contract.CatchUp   `json:"catch_up,omitempty"`
	Indexes      *int               `json:"indexes,omitempty"`
	Since        time.Time          `json:"since"`
	JudgedBefore time.Time          `json:"judged_before"`
	Open         []time.Time        `json:"open,omitempty"`
	Suspensions  []disposition.Span `json:"suspensions,omitempty"`
	Note         string             `json:"note,omitempty"`
	From         time.Time          `json:"from"`
	Before       time.Time          `json:"before,omitzero"`
	Gaps         []disposition.Gap  `json:"gaps,omitempty"`
	Plans        []plan             `json:"plans,omitempty"`
	Unplan       []disposition.Gap  `json:"unplan,omitempty"`
	Exhaust      []disposition.Gap  `json:"exhaust,omitempty"`
	Hold         bool               `json:"hold,omitempty"`
}

type plan struct {
	Window time.Time          `json:"window"`
	Reason disposition.Reason `json:"reason,omitempty"`
}

// Judge records what was decided, each judgement as a whole, all with one statement. It waits
// for no business transaction: what cannot be exhausted now is left as it is, and the next
// look shows it. An *Outdated error names those that were not taken; after any other error
// nothing was changed. Given twice, the second time is outdated or changes nothing.
func Judge(ctx context.Context, db DB, judgements []Judgement) error {
	what := fmt.Sprintf("record judgements of %d CronJobs", len(judgements))
	if len(judgements) == 0 {
		return nil
	}
	all := make([]recorded, 0, len(judgements))
	for _, j := range judgements {
		r := recorded{
			Job: j.JobName, UID: j.CronJobUID, CronJob: j.CronJob, Schedule: j.Schedule.Schedule, TimeZone: j.TimeZone, DST: j.DST, CatchUp: j.CatchUp,
			Since: j.Since, JudgedBefore: j.State.JudgedBefore, Open: j.State.Open, Suspensions: j.State.Suspensions, Note: cut(j.Note),
			From: j.From, Before: j.Before, Gaps: cutAll(j.Gaps), Unplan: cutAll(j.Unplan), Exhaust: cutAll(j.Exhaust),
			Hold: j.Hold,
		}
		if j.Indexes >= 0 {
			r.Indexes = &j.Indexes
		}
		for _, p := range j.Plans {
			r.Plans = append(r.Plans, plan{p.WindowStart, p.Reason})
		}
		all = append(all, r)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	outdated, err := one[[]int](ctx, db, what, `SELECT onceguard.engine_judge($1::jsonb)`, string(text))
	if err == nil && len(outdated) > 0 {
		return fmt.Errorf("%s: %w", what, &Outdated{outdated})
	}
	return err
}

// Making is called before a Job is made for a planned window, and gives whether it is still
// to be made: not when the plan has gone meanwhile. A window that is closed, and was planned
// by a person to run all the same, is opened again by it.
func Making(ctx context.Context, db DB, jobName string, window time.Time, cronJobUID, job string) (bool, error) {
	return one[bool](ctx, db, fmt.Sprintf("plan of %s %s", jobName, window.UTC().Format(time.RFC3339)),
		`SELECT onceguard.engine_making($1, $2, $3, $4)`, jobName, window, cronJobUID, job)
}

// Clock gives the ledger's time, which leases and guards go by.
func Clock(ctx context.Context, db DB) (time.Time, error) {
	t, err := one[time.Time](ctx, db, "read the ledger's clock", `SELECT clock_timestamp()`)
	return t.UTC(), err
}

// Asked is a CronJob for which a person has planned windows.
type Asked struct {
	JobName    string
	CronJobUID string // empty while the job has no CronJob
}

// Wanted gives the CronJobs with windows that a person has planned and no Job was made for.
func Wanted(ctx context.Context, db DB) ([]Asked, error) {
	const what = "ask for what people have planned"
	rows, err := db.Query(ctx, `SELECT DISTINCT job_name, coalesce(cron_job_uid, '') FROM onceguard.plans WHERE planned_by IS NOT NULL AND made = 0`)
	if err != nil {
		return nil, translate(what, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Asked])
	return all, translate(what, err)
}

// Gone records that there is no such CronJob any more: what of it was late is missed, and
// what the engine planned for it is missed with the rule disposition.Gone. What a person planned is
// handed to another CronJob of the job, if need be the next one.
func Gone(ctx context.Context, db DB, cronJobUID string) error {
	_, err := one[int](ctx, db, "CronJob "+cronJobUID+" is gone", `SELECT onceguard.engine_gone($1)`, cronJobUID)
	return err
}

func one[T any](ctx context.Context, db DB, what, sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, translate(what, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	return v, translate(what, err)
}

// cutAll bounds what came from outside: a sentence too long must not keep a gap, and all
// that are recorded with it, from being recorded.
func cutAll(gaps []disposition.Gap) []disposition.Gap {
	out := make([]disposition.Gap, len(gaps))
	for i, g := range gaps {
		g.Evidence = cut(g.Evidence)
		out[i] = g
	}
	return out
}

func cut(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= MaxText {
		return s
	}
	n := MaxText - len("…")
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// translate is the one place here that knows SQLSTATEs.
func translate(what string, err error) error {
	if err == nil {
		return nil
	}
	kind := map[string]error{
		"OG005": ErrForbidden, "42501": ErrForbidden, "3F000": ErrSchema, "42883": ErrSchema, "42P01": ErrSchema,
		"55P03": ErrBusy, "40P01": ErrBusy, "22023": ErrInvalid, "22007": ErrInvalid, "22008": ErrInvalid,
	}
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || kind[server.Code] == nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, kind[server.Code], server.Message)
}

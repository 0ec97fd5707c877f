package bugs_test

import (
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/test/prove/rig"
)

// check is one short interleaving of two or three sessions and what must come of it.
type check struct {
	name string
	run  func(w *world)
}

// checks is the battery: what every ledger must pass.
var checks = []check{
	{"a zombie's commit is refused", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		heir := w.takeover(a)
		w.want("a complete after a takeover", w.complete(w.a, a), "OG001")
		w.want("its COMMIT", w.commit(w.a), "ROLLBACK")
		w.works(w.b, heir)
		w.effects(a, "1")
	}},
	{"a zombie's commit is refused after its heir's", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.works(w.b, w.takeover(a))
		w.want("a complete after another's", w.complete(w.a, a), "OG002")
		w.want("its COMMIT", w.commit(w.a), "ROLLBACK")
		w.effects(a, "1")
	}},
	{"a zombie cannot begin", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.takeover(a)
		w.say(w.a, "BEGIN")
		w.want("begin after a takeover", w.say(w.a, rig.BeginSQL, rig.Args(a)...), "OG001")
	}},
	{"an attempt commits once", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.begin(w.b, a)
		w.want("complete", w.complete(w.a, a), done)
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.want("the second complete", w.complete(w.b, a), "OG002")
		w.commit(w.b)
		w.effects(a, "1")
	}},
	{"a second transaction without complete does not commit", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.begin(w.b, a)
		w.want("complete", w.complete(w.a, a), done)
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.want("COMMIT without complete", w.commit(w.b), "OG006")
		w.effects(a, "1")
	}},
	{"a forgotten complete does not commit", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("COMMIT", w.commit(w.a), "OG006")
		w.effects(a, "0")
	}},
	{"a swallowed refusal does not commit", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.takeover(a)
		w.say(w.a, "SAVEPOINT s")
		w.want("complete", w.complete(w.a, a), "OG001")
		w.say(w.a, "ROLLBACK TO s")
		w.want("COMMIT", w.commit(w.a), "OG006")
		w.effects(a, "0")
	}},
	{"a replica session does not pass the barrier", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.say(w.root, "SET session_replication_role = replica")
		w.begin(w.root, a)
		w.want("COMMIT", w.commit(w.root), "OG006")
		w.effects(a, "0")
	}},
	{"complete needs begin in its own transaction", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.say(w.b, "BEGIN")
		w.want("the effect", w.say(w.b, rig.EffectSQL, rig.Args(a)...), "INSERT 0 1")
		w.want("complete beside begin", w.complete(w.b, a), "OG006")
		w.commit(w.b)
		w.effects(a, "0")
	}},
	{"an armed transaction takes no lease", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("a heartbeat", w.heartbeat(w.a, a), "OG006")
	}},
	{"a transaction may not idle beyond its lease", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.say(w.a, "BEGIN")
		w.say(w.a, rig.BeginSQL, rig.Args(a)...)
		w.want("the limit", w.say(w.a, "SHOW idle_in_transaction_session_timeout"), "2412s") // 0.67 of an hour
	}},
	{"a living lease is not taken", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("another's claim", w.claim(w.a, rig.Again(a.Window)), "wait busy")
	}},
	{"a lease is judged by the database's clock", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("the claim of a client whose clock is a year ahead", w.claim(w.a, rig.Again(a.Window), "origin => '{"+`"now": "2999-01-01T00:00:00Z"`+"}'"), "wait busy")
		w.say(w.a, "BEGIN")
		w.say(w.a, "SELECT now()")
		w.say(w.owner, "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() WHERE job_name = $1", a.Window.JobName)
		w.want("a claim in a transaction older than the end of the lease", w.claim(w.a, rig.Again(a.Window)), "run takeover")
		w.commit(w.a)
	}},
	{"a takeover is judged under the locks", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.age(a)
		w.say(w.a, "BEGIN")
		w.say(w.a, "SELECT FROM onceguard.job WHERE name = $1 FOR NO KEY UPDATE", a.Window.JobName)
		p := w.start(w.b, claimText(), rig.Args(rig.Again(a.Window))...)
		w.settled(p)
		w.want("the heartbeat meanwhile", w.heartbeat(w.c, a), "ok")
		w.commit(w.a)
		w.want("the claim", w.end(p), "wait busy")
	}},
	{"a takeover waits out a heartbeat", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.age(a)
		w.say(w.a, "BEGIN")
		w.want("the heartbeat", w.heartbeat(w.a, a), "ok")
		w.want("the claim meanwhile", w.claim(w.b, rig.Again(a.Window)), "wait busy")
		w.commit(w.a)
	}},
	{"a takeover gives the lease to the heir", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		heir := w.takeover(a)
		w.want("the heir's heartbeat", w.heartbeat(w.a, heir), "ok")
		w.want("the zombie's heartbeat", w.heartbeat(w.a, a), "lost")
	}},
	{"a heartbeat never inserts", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		for _, table := range []string{"job_execution", "job_lease", "job_attempt"} {
			w.say(w.owner, "DELETE FROM onceguard."+table+" WHERE job_name = $1", a.Window.JobName)
		}
		w.want("the heartbeat of a vanished window", w.heartbeat(w.a, a), "lost")
		w.want("leases", w.say(w.owner, "SELECT count(*) FROM onceguard.job_lease WHERE job_name = $1", a.Window.JobName), "0")
	}},
	{"tokens grow", func(w *world) {
		a := w.attempt()
		token := func() string {
			return w.say(w.owner, "SELECT fencing_token FROM onceguard.job_execution WHERE job_name = $1", a.Window.JobName)
		}
		w.run(a, "first")
		first := token()
		heir := w.takeover(a)
		w.want("the heir's token grows", w.say(w.owner, "SELECT $1::bigint > $2::bigint", token(), first), "true")
		second := token()
		w.want("release", w.release(heir, "failed"), "failed")
		w.run(rig.Again(a.Window), "retry")
		w.want("the next one's token grows", w.say(w.owner, "SELECT $1::bigint > $2::bigint", token(), second), "true")
	}},
	{"an id is given once", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("release", w.release(a, "failed"), "failed")
		w.want("the claim of a released id", w.claim(w.owner, a), "wait fence-lost")
		w.want("its complete", w.complete(w.a, a), "OG001")
	}},
	{"a zombie's release ends nothing", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		heir := w.takeover(a)
		w.want("the zombie's release", w.release(a, "failed"), "nothing")
		w.want("the heir's heartbeat", w.heartbeat(w.a, heir), "ok")
		w.works(w.a, heir)
	}},
	{"a completed window is done", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.works(w.a, a)
		w.age(a)
		w.want("a claim", w.claim(w.a, rig.Again(a.Window)), "skip completed")
		w.want("a release", w.release(a, "failed"), "completed")
		w.want("a claim", w.claim(w.a, rig.Again(a.Window)), "skip completed")
	}},
	{"a committing row is not waited for", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("complete", w.complete(w.a, a), done)
		w.age(a)
		w.want("another's claim", w.claim(w.b, rig.Again(a.Window)), "wait committing")
		w.want("a resolve", w.resolve(w.b, a, uuid.New()), "pending")
		w.want("another window", w.claim(w.b, later(a)), "run first")
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.effects(a, "1")
	}},
	{"not committed stays so", func(w *world) {
		a := w.attempt()
		next := uuid.New()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("the resolve", w.resolve(w.b, a, next), "not-committed")
		w.want("asked again", w.resolve(w.b, a, next), "not-committed")
		w.want("the late complete", w.complete(w.a, a), "OG001")
		w.commit(w.a)
		a.ExecutionID = next
		w.want("the heartbeat under the new id", w.heartbeat(w.b, a), "ok")
		w.works(w.b, a)
		w.effects(a, "1")
	}},
	{"committed is said by a durable write", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.works(w.a, a)
		w.say(w.a, "SET synchronous_commit = off")
		w.say(w.a, "BEGIN")
		w.want("the resolve", w.resolve(w.a, a, uuid.New()), "committed")
		w.want("it wrote", w.say(w.a, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"), "true")
		w.want("synchronous_commit", w.say(w.a, "SHOW synchronous_commit"), "on")
		w.commit(w.a)
	}},
	{"a commit is durable", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.say(w.a, "SET synchronous_commit = off")
		w.want("complete", w.complete(w.a, a), done)
		w.want("synchronous_commit", w.say(w.a, "SHOW synchronous_commit"), "on")
	}},
	{"a claim reads the newest rows", func(w *world) {
		w.say(w.a, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		w.want("a claim in REPEATABLE READ", w.claim(w.a, w.attempt()), "OG008")
	}},
	{"pruned windows never run", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.works(w.a, a)
		w.want("release", w.release(a, "completed"), "completed")
		w.prune(a.Window.JobName, a.Window.Start.Add(time.Minute), a.Window.Start.Add(time.Minute))
		w.want("a claim of it", w.claim(w.a, rig.Again(a.Window)), "skip closed")
	}},
	{"prune stops before an open window", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("release", w.release(a, "failed"), "failed")
		w.prune(a.Window.JobName, a.Window.Start.Add(time.Minute), a.Window.Start)
		w.run(rig.Again(a.Window), "retry")
	}},
	{"a claim sees the watermark under its lock", func(w *world) {
		a := w.attempt()
		w.run(later(a), "first")
		w.say(w.a, "BEGIN")
		w.say(w.a, "SELECT onceguard.prune($1, $2)", a.Window.JobName, a.Window.Start.Add(time.Minute))
		p := w.start(w.b, claimText(), rig.Args(a)...)
		w.settled(p)
		w.commit(w.a)
		w.want("the claim", w.end(p), "skip closed")
	}},
	{"each checkpoint commits once", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.piece(w.a, a, 0, "1")
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.piece(w.a, a, 0, "OG007")
		w.commit(w.a)
		w.piece(w.a, a, 1, "2")
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.effects(a, "2")
	}},
	{"a zombie's checkpoint is refused", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.takeover(a)
		w.want("its checkpoint", w.say(w.a, checkpointSQL, append(rig.Args(a), 0)...), "OG001")
	}},
	{"a takeover waits out a checkpoint", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.piece(w.a, a, 0, "1")
		w.want("the barrier", w.say(w.a, "SET CONSTRAINTS ALL IMMEDIATE"), "SET CONSTRAINTS")
		w.age(a)
		w.want("another's claim", w.claim(w.b, rig.Again(a.Window)), "wait committing")
		w.want("COMMIT", w.commit(w.a), "COMMIT")
	}},
	{"whoever overlaps a dead window fences it", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.begin(w.a, a)
		w.age(a)
		w.run(b, "first", "overlap => 'wait'")
		w.want("the dead one's complete", w.complete(w.a, a), "OG001")
		w.commit(w.a)
		w.stored(a, "failed")
		w.effects(a, "0")
	}},
	{"a committing window is not overlapped", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a)
		w.want("complete", w.complete(w.a, a), done)
		w.age(a)
		w.want("the next window", w.claim(w.b, later(a), "overlap => 'wait'"), "wait committing")
		w.want("COMMIT", w.commit(w.a), "COMMIT")
	}},
	{"overlap is judged by one at a time", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(rig.Again(later(b).Window), "first") // so that the job is known
		w.say(w.owner, "UPDATE onceguard.job_execution SET status = 'failed', execution_id = NULL WHERE job_name = $1", a.Window.JobName)
		w.say(w.a, "BEGIN")
		w.want("the first", w.claim(w.a, a, "overlap => 'wait'"), "run first")
		p := w.start(w.b, claimText("overlap => 'wait'"), rig.Args(b)...)
		w.settled(p)
		w.want("COMMIT", w.commit(w.a), "COMMIT")
		w.want("the second", w.end(p), "wait overlap")
	}},
	{"a skipped overlap is closed", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("the second", w.claim(w.a, b, "overlap => 'skip'"), "skip overlap")
		w.stored(b, "skipped overlap")
		w.works(w.b, a)
		w.want("the second, once more", w.claim(w.a, rig.Again(b.Window)), "skip overlap")
	}},
	{"a replacement waits until the older has stopped", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("the newer", w.claim(w.a, b, "overlap => 'replace'"), "wait replacing")
		w.want("the older's heartbeat", w.heartbeat(w.a, a), "cancel")
		w.want("the older's end", w.release(a, "stopped"), "stopped")
		w.stored(a, "skipped superseded")
		w.run(b, "first", "overlap => 'replace'")
		w.want("the older, once more", w.claim(w.a, rig.Again(a.Window)), "skip superseded")
	}},
	{"an older window does not replace", func(w *world) {
		a := w.attempt()
		w.run(later(a), "first")
		w.want("the older", w.claim(w.a, a, "overlap => 'replace'"), "skip superseded")
		w.stored(a, "skipped superseded")
	}},
	{"attempts are counted", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("release", w.release(a, "failed"), "failed")
		b := rig.Again(a.Window)
		w.run(b, "retry", "max_attempts => 2")
		w.want("a stop", w.release(b, "stopped"), "stopped")
		w.run(rig.Again(a.Window), "retry", "max_attempts => 2")
		w.age(a) // a dead attempt counts
		w.want("the last", w.claim(w.a, rig.Again(a.Window), "max_attempts => 2"), "refuse exhausted")
		w.stored(a, "exhausted exhausted")
		w.want("without the limit", w.claim(w.a, rig.Again(a.Window)), "refuse exhausted")
	}},
	{"after a crash a person decides", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.age(a)
		w.want("the next", w.claim(w.a, rig.Again(a.Window), "hold_on_crash => true"), "refuse held")
		w.stored(a, "held held")
		w.want("without the term", w.claim(w.a, rig.Again(a.Window)), "refuse held")
		w.want("a person", w.say(w.owner, "SELECT onceguard.rerun($1, $2, 'somebody', 'looked at it')", a.Window.JobName, a.Window.Start), "1")
		w.run(rig.Again(a.Window), "retry", "hold_on_crash => true")
	}},
	{"a payload stays", func(w *world) {
		a := w.attempt()
		w.run(a, "first", "payload_digest => 'one'")
		w.want("release", w.release(a, "failed"), "failed")
		w.want("another payload", w.claim(w.a, rig.Again(a.Window), "payload_digest => 'two'"), "refuse payload")
		b := rig.Again(a.Window)
		w.run(b, "retry", "payload_digest => 'one'")
		w.begin(w.a, b)
		w.want("another payload at complete", w.say(w.a, "SELECT onceguard.complete($1, $2, $3, 'two')", rig.Args(b)...), "OG003")
	}},
	{"serial waits for what is not closed", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("release", w.release(a, "failed"), "failed")
		w.want("the next", w.claim(w.a, b, "serial => true"), "wait order")
		w.run(rig.Again(a.Window), "retry")
		w.want("the next", w.claim(w.a, b, "serial => true"), "wait order")
	}},
	{"serial waits for a window that nobody knows", func(w *world) {
		a := w.attempt()
		b := later(a)
		previous := "previous => '" + a.Window.Start.Format(time.RFC3339) + "'"
		w.want("the next", w.claim(w.a, b, "serial => true", previous), "wait order")
		w.run(a, "first")
		w.works(w.b, a)
		w.run(b, "first", "serial => true", previous)
	}},
	{"serial does not go back", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(b, "first")
		w.works(w.b, b)
		w.want("the earlier", w.claim(w.a, a, "serial => true"), "skip superseded")
		w.stored(a, "skipped superseded")
	}},
	{"serial runs again what was tried", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("release", w.release(a, "failed"), "failed")
		w.run(b, "first")
		w.want("beside the later", w.claim(w.a, rig.Again(a.Window), "serial => true"), "wait overlap")
		w.works(w.b, b)
		w.run(rig.Again(a.Window), "retry", "serial => true")
	}},
	{"serial waits for whatever runs", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("the next", w.claim(w.a, b, "serial => true", "since => '"+b.Window.Start.Format(time.RFC3339)+"'"), "wait order")
	}},
	{"what a person reran is not superseded", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("release", w.release(a, "failed"), "failed")
		w.want("the rerun", w.say(w.owner, "SELECT onceguard.rerun($1, $2, 'somebody', 'again')", a.Window.JobName, a.Window.Start), "1")
		again := rig.Again(a.Window)
		w.run(again, "retry")
		w.want("the newer", w.claim(w.a, later(a), "overlap => 'replace'"), "wait replacing")
		w.want("the older's end", w.release(again, "stopped"), "stopped")
		w.stored(a, "failed")
	}},
	{"a replacement is not late", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("the newer", w.claim(w.a, b, "overlap => 'replace'"), "wait replacing")
		w.want("past its deadline", w.claim(w.a, b, "overlap => 'replace'", "start_deadline => '1 second'"), "wait replacing")
		w.want("the older's end", w.release(a, "stopped"), "stopped")
		w.run(b, "first", "overlap => 'replace'", "start_deadline => '1 second'")
	}},
	{"a mark to stop ends with its window", func(w *world) {
		a := w.attempt()
		b := later(a)
		w.run(a, "first")
		w.want("the newer", w.claim(w.a, b, "overlap => 'replace'"), "wait replacing")
		w.want("the newer, too late", w.say(w.owner, `INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, attempt, fencing_token)
			VALUES ($1, $2, 'skipped', 'late', 0, 0)`, b.Window.JobName, b.Window.Start), "INSERT 0 1")
		w.want("the older's end", w.release(a, "stopped"), "stopped")
		w.stored(a, "failed")
	}},
	{"a separate run is only waited for", func(w *world) {
		a := w.attempt()
		separate := rig.Again(a.Window)
		separate.Window.JobName += "@u"
		w.run(separate, "first")
		b := later(a)
		w.want("under skip", w.claim(w.a, b, "overlap => 'skip'"), "wait overlap")
		w.want("under replace", w.claim(w.a, b, "overlap => 'replace'"), "wait overlap")
		w.want("its heartbeat", w.heartbeat(w.a, separate), "ok")
	}},
	{"what was closed later is not reopened", func(w *world) {
		a := w.attempt()
		w.want("a person", w.say(w.owner, "SELECT 'done' FROM onceguard.cancel($1, $2, 'somebody', 'not this one')", a.Window.JobName, a.Window.Start), "done")
		w.want("asked before", w.claim(w.a, a, "reopen_closed_before => '2020-01-01'"), "skip cancelled")
		w.run(a, "reopened", "reopen_closed_before => 'infinity'")
	}},
	{"a claim may not idle", func(w *world) {
		w.say(w.a, "BEGIN")
		w.want("a claim", w.claim(w.a, w.attempt()), "run first")
		w.want("idle_in_transaction_session_timeout", w.say(w.a, "SHOW idle_in_transaction_session_timeout"), "5s")
		w.commit(w.a)
	}},
	{"late once is late for ever", func(w *world) {
		a := w.attempt()
		w.want("a late one", w.claim(w.a, a, "start_deadline => '1 second'"), "skip late")
		w.stored(a, "skipped late")
		w.want("without the term", w.claim(w.a, rig.Again(a.Window)), "skip late")
		w.run(rig.Again(a.Window), "reopened", "reopen_closed_before => 'infinity'")
	}},
	{"a rerun is another work", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.works(w.a, a)
		w.want("release", w.release(a, "completed"), "completed")
		w.want("the rerun", w.say(w.owner, "SELECT onceguard.rerun($1, $2, 'somebody', 'wrong numbers')", a.Window.JobName, a.Window.Start), "2")
		w.run(rig.Again(a.Window), "retry")
		w.want("the generation", w.say(w.owner, "SELECT generation FROM onceguard.job_execution WHERE job_name = $1", a.Window.JobName), "2")
	}},
	{"a lost answer to COMMIT is found out", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("the client says", w.lost(a, afterCommit), "committed")
		w.effects(a, "1")
	}},
	{"a lost COMMIT is made again", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.want("the client says", w.lost(a, beforeCommit), "committed")
		w.effects(a, "1")
		w.stored(a, "completed")
	}},
	{"what is called not committed never is", func(w *world) {
		a := w.attempt()
		w.run(a, "first")
		w.begin(w.a, a) // the client is gone, and its transaction goes on
		said, err := w.client.outcome(w.ledger, a)
		w.note(err)
		w.want("the client says", said, "not-committed")
		w.want("the transaction that went on", w.complete(w.a, a), "OG001")
	}},
}

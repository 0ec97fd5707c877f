package disposition

import (
	"fmt"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// fate is what becomes of a Job's pods.
type fate int

const (
	works       fate = iota // claims, and completes
	fails                   // claims, fails, and the Job gives up
	retries                 // claims, fails, claims again, and completes
	dies                    // claims, and its node is lost: nothing reports it; then the Job gives up
	neverClaims             // the image cannot be pulled, then the Job's deadline ends it
	hangs                   // the pod is never scheduled
	vanishes                // the Job is deleted before it claims
	cutOff                  // the Job is deleted while it runs
	fates
)

// simJob is a Job and what its pods do.
type simJob struct {
	Job
	fate    fate
	start   time.Time // when its pod claims
	end     time.Time // when it ends or is deleted
	claimed bool
	retried bool
}

// add makes a Job.
func (w *world) add(due time.Time, catchUp bool) *simJob {
	j := &simJob{Job: Job{WindowStart: due, Name: fmt.Sprintf("order-sync-%d", due.Unix()/60), CatchUp: catchUp, Created: w.now}}
	if catchUp {
		j.Name = window.CatchUpName("order-sync", due)
	}
	j.start = w.now.Add(time.Duration(1+w.rnd.IntN(20)) * time.Second)
	j.end = j.start.Add(w.length/2 + time.Duration(w.rnd.Int64N(int64(w.length))))
	if w.faults.jobs && !w.healed && w.chance(0.2) {
		j.fate = fate(w.rnd.IntN(int(fates)))
	}
	if w.faults.jobs && !w.healed && catchUp && w.chance(0.5) {
		j.fate = []fate{vanishes, neverClaims, fails}[w.rnd.IntN(3)]
	}
	w.jobs = append(w.jobs, j)
	w.had[due.Unix()] = true
	return j
}

func (w *world) delete(j *simJob) {
	w.jobs = slices.DeleteFunc(w.jobs, func(k *simJob) bool { return k == j })
	if !j.Ended {
		due := w.schedule.Previous(w.now.Add(1))
		for _, due := range []time.Time{due, w.schedule.Previous(due)} { // before anybody looked, maybe
			if b := w.blockers[due.Unix()]; b != nil {
				b["unseen"] = true
			}
		}
	}
	if r := w.rows[j.WindowStart.Unix()]; r != nil && r.holder == j && !r.Closed {
		r.Alive, r.Failed, r.holder, r.UpdatedAt = false, true, nil, w.now
	}
}

// run lets the pods of a Job go on.
func (w *world) run(j *simJob) {
	if j.Ended || w.now.Before(j.start) {
		return
	}
	if j.fate == vanishes {
		w.delete(j)
		return
	}
	if j.fate == hangs {
		j.Reason, j.Evidence = Unschedulable, "0/3 nodes are available"
		return
	}
	if j.fate == neverClaims {
		j.Reason, j.Evidence = Image, "ErrImagePull"
		if w.now.After(j.end) {
			w.ended(j, false)
		}
		return
	}
	if !j.claimed {
		if !w.webhookUp {
			j.Reason, j.Evidence = Admission, "failed calling webhook"
			j.end = w.now.Add(w.length)
			return
		}
		j.Reason, j.Evidence = Waiting, ""
		w.claim(j)
		return
	}
	if w.now.Before(j.end) {
		return
	}
	r := w.rows[j.WindowStart.Unix()]
	if r.holder != j {
		w.ended(j, r.Closed)
		return
	}
	r.UpdatedAt, r.Alive, r.holder = w.now, false, nil
	switch {
	case j.fate == cutOff:
		r.Failed = true
		w.delete(j)
	case j.fate == dies:
		w.ended(j, false) // nobody reports it
	case j.fate == fails:
		r.Failed = true
		w.ended(j, false)
	case j.fate == retries && !j.retried:
		r.Failed, j.retried, j.claimed = true, true, false
		j.start = w.now.Add(time.Duration(w.rnd.IntN(300)) * time.Second)
		j.end = j.start.Add(w.length)
	default:
		r.completed++
		r.Closed, r.Failed = true, false
		delete(w.plans, j.WindowStart.Unix())
		w.ended(j, true)
	}
}

func (w *world) claim(j *simJob) {
	key := j.WindowStart.Unix()
	if w.serial() && w.rows[key] == nil && w.waits(j.WindowStart) {
		w.counts["waited for order"]++
		return
	}
	r := w.rows[key]
	if r == nil {
		r = &row{Execution: Execution{WindowStart: j.WindowStart}}
		w.rows[key] = r
	}
	switch {
	case r.Closed:
		w.ended(j, true) // skipped
		return
	case r.Alive:
		j.end = w.now.Add(w.length)
		return
	}
	j.claimed, r.holder = true, j
	r.Alive, r.Failed, r.UpdatedAt = true, false, w.now
}

// serial reports whether windows run in their order.
func (w *world) serial() bool { return w.cronJob.Settings.Order == contract.OrderSerial }

// waits reports whether an older window than at is planned, or open.
func (w *world) waits(at time.Time) bool {
	for _, p := range w.plans {
		if p.WindowStart.Before(at) {
			return true
		}
	}
	for _, r := range w.rows {
		if r.WindowStart.Before(at) && !r.Closed {
			return true
		}
	}
	return false
}

func (w *world) ended(j *simJob, complete bool) {
	j.Ended, j.Complete, j.EndedAt = true, complete, w.now
	if !complete && j.Reason == Waiting {
		j.Reason, j.Evidence = JobFailed, "BackoffLimitExceeded"
	}
}

// clean keeps of ended Jobs as many as the controller does.
func (w *world) clean() {
	left := map[bool]int{true: 3, false: 1}
	for _, j := range slices.Backward(slices.Clone(w.jobs)) {
		switch {
		case !j.Ended:
		case j.CatchUp:
			if w.now.Sub(j.EndedAt) > 24*time.Hour {
				w.delete(j)
			}
		default:
			if left[j.Complete]--; left[j.Complete] < 0 {
				w.delete(j)
			}
		}
	}
}

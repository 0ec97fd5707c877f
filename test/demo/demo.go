package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/test/bed"
	"github.com/onceguard/onceguard/test/postgres"
)

//go:embed cronjob.yaml
var manifests string

const (
	namespace = "demo"
	cronJob   = "daily-credit"
	jobName   = namespace + "/" + cronJob
)

type demo struct {
	out    io.Writer
	began  time.Time
	bed    *bed.Bed
	server *postgres.Server
	ledger *bed.Ledger
	table  []row

	madeNamespaces bool
}

// row is one promise: what was promised, and what Postgres and Kubernetes said.
type row struct{ step, promised, seen string }

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "[%4.0fs] %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) check(step, promised, seen string) {
	d.table = append(d.table, row{step, promised, seen})
	d.say("%s: %s", step, seen)
}

func (d *demo) run(ctx context.Context, root string) error {
	if err := d.prepare(ctx, root); err != nil {
		return err
	}
	first, err := d.killedAndRetried(ctx)
	if err != nil {
		return err
	}
	if err := d.secondJob(ctx, first); err != nil {
		return err
	}
	if err := d.eightJobs(ctx, first.Add(time.Minute)); err != nil {
		return err
	}
	return d.sum(ctx)
}

// prepare makes the ledger, installs the chart and annotates an ordinary CronJob.
func (d *demo) prepare(ctx context.Context, root string) (err error) {
	if d.bed, err = bed.Open(root); err != nil {
		return err
	}
	address, err := d.bed.NodeAddress(ctx)
	if err != nil {
		return err
	}
	if d.server, err = postgres.Start(ctx, postgres.Options{Listen: address}); err != nil {
		return err
	}
	d.say("Postgres answers at %s", d.server.Address())
	if d.ledger, err = bed.NewLedger(ctx, d.server, namespace); err != nil {
		return err
	}
	if err := d.makeNamespaces(ctx); err != nil {
		return err
	}
	if err := d.bed.Secret(ctx, bed.Namespace, "onceguard-owner", "url", d.ledger.OwnerURL); err != nil {
		return err
	}
	values, err := d.bed.EngineSecret(ctx, d.ledger)
	if err != nil {
		return err
	}
	d.say("installing the chart; its hook makes the ledger's schema")
	if err := d.bed.Install(ctx, append(values, "policies.keepOnUninstall=false", "migrate.secretName=onceguard-owner",
		"migrate.grants[0].role="+d.ledger.GuardRole, "migrate.grants[0].pattern="+namespace+"/*",
		"migrate.auditRoles[0]="+d.ledger.GuardRole, "migrate.engineRoles[0]="+d.ledger.EngineRole)...); err != nil {
		return err
	}
	if err := d.ledger.Exec(ctx,
		"CREATE TABLE account (name text PRIMARY KEY, units bigint NOT NULL)",
		"INSERT INTO account VALUES ('acme', 0)",
		"GRANT SELECT, UPDATE ON account TO "+d.ledger.GuardRole); err != nil {
		return err
	}
	if err := d.bed.LedgerSecret(ctx, d.ledger); err != nil {
		return err
	}
	// The first attempt finds the file /demo/crash and waits to be killed.
	crash := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cronJob + "-crash"}, Data: map[string]string{"crash": ""}}
	if _, err := d.bed.Client.CoreV1().ConfigMaps(namespace).Create(ctx, crash, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := d.bed.Apply(ctx, strings.ReplaceAll(manifests, "${WORKER_IMAGE}", d.bed.WorkerImage)); err != nil {
		return err
	}
	command := []string{"annotate", "cronjob", cronJob, "-n", namespace, "onceguard.dev/guard=enabled"}
	out, err := d.bed.Kubectl(ctx, command...)
	d.say("$ kubectl %s", strings.Join(command, " "))
	for line := range strings.Lines(out) {
		d.say("  %s", strings.TrimSpace(line))
	}
	return err
}

// killedAndRetried waits for the window that the CronJob controller fires, kills its
// worker between the statement and the commit, and lets Kubernetes retry.
func (d *demo) killedAndRetried(ctx context.Context) (window time.Time, err error) {
	d.say("waiting for the CronJob to fire (up to a minute)")
	var job *batchv1.Job
	err = bed.Wait(ctx, 90*time.Second, "the first Job of "+jobName, func(ctx context.Context) (bool, error) {
		jobs, err := d.bed.Client.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(jobs.Items) == 0 {
			return false, err
		}
		job = &jobs.Items[0]
		return true, nil
	})
	if err != nil {
		return window, err
	}
	// One window is enough for the moment; the later ones are made by hand.
	if _, err := d.bed.Kubectl(ctx, "patch", "cronjob", cronJob, "-n", namespace, "-p", `{"spec":{"suspend":true}}`); err != nil {
		return window, err
	}
	err = bed.Wait(ctx, 60*time.Second, "the first attempt's statement", func(ctx context.Context) (bool, error) {
		return d.ledger.Runs(ctx, "pg_sleep(60)")
	})
	if err != nil {
		return window, err
	}
	if err := d.ledger.DB.QueryRow(ctx, "SELECT window_start FROM onceguard.job_execution").Scan(&window); err != nil {
		return window, err
	}
	d.say("Job %s runs the window %s; its statement has run: kill -9", job.Name, window.UTC().Format(time.RFC3339))
	pods, err := d.bed.Pods(ctx, namespace, job.Name)
	if err != nil || len(pods) != 1 {
		return window, errors.Join(err, fmt.Errorf("%d pods of Job %s, want 1", len(pods), job.Name))
	}
	// kubectl exec may lose its connection to the dying container; the ledger tells.
	_, _ = d.bed.Kubectl(ctx, "exec", "-n", namespace, pods[0].Name, "-c", "worker", "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")

	var ended, units, windows int
	err = bed.Wait(ctx, 30*time.Second, "the end of the first attempt", func(ctx context.Context) (bool, error) {
		err := d.ledger.DB.QueryRow(ctx, `SELECT (SELECT count(*) FROM onceguard.job_attempt WHERE attempt = 1 AND outcome IS NOT NULL),
			(SELECT units FROM account), (SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed')`).Scan(&ended, &units, &windows)
		return ended == 1, err
	})
	if err != nil {
		return window, err
	}
	d.check("killed between statement and commit", "0 units, 0 windows", booked(units, windows))

	end, err := d.bed.WaitJob(ctx, 2*time.Minute, namespace, job.Name)
	if err != nil {
		return window, err
	}
	attempts, err := d.number(ctx, "SELECT max(attempt) FROM onceguard.job_attempt")
	if err != nil {
		return window, err
	}
	seen, err := d.balance(ctx)
	if err != nil {
		return window, err
	}
	d.check("Kubernetes retries the Job", "Complete, 2 attempts, 10 units, 1 window", fmt.Sprintf("%s, %d attempts, %s", end, attempts, seen))

	logs, err := d.bed.Kubectl(ctx, "logs", "-n", namespace, "-l", "batch.kubernetes.io/job-name="+job.Name, "-c", "worker")
	if err != nil {
		return window, err
	}
	replayed := strings.Count(logs, `"replayed":true`)
	d.check("the same commit is sent twice", "1 replayed, 10 units", fmt.Sprintf("%d replayed, %s", replayed, strings.Split(seen, ",")[0]))
	return window, nil
}

// secondJob makes one more Job for a window that is done.
func (d *demo) secondJob(ctx context.Context, window time.Time) error {
	ended, err := d.storm(ctx, window, 1, "again")
	if err != nil {
		return err
	}
	seen, err := d.balance(ctx)
	if err != nil {
		return err
	}
	d.check("a second Job for that window", "1 Complete: 0 applied, 1 duplicate; 10 units, 1 window", ended+"; "+seen)
	return nil
}

// eightJobs makes eight Jobs for the next window at the same time.
func (d *demo) eightJobs(ctx context.Context, window time.Time) error {
	if err := d.bed.Client.CoreV1().ConfigMaps(namespace).Delete(ctx, cronJob+"-crash", metav1.DeleteOptions{}); err != nil {
		return err
	}
	d.say("waiting until the next window is due")
	if err := bed.Wait(ctx, 2*time.Minute, "the next window", func(context.Context) (bool, error) { return time.Now().After(window), nil }); err != nil {
		return err
	}
	ended, err := d.storm(ctx, window, 8, "storm")
	if err != nil {
		return err
	}
	seen, err := d.balance(ctx)
	if err != nil {
		return err
	}
	d.check("eight Jobs for the next window at once", "8 Complete: 1 applied, 7 duplicates; 20 units, 2 windows", ended+"; "+seen)
	return nil
}

// storm creates n Jobs for one window, waits for them, and says how they ended.
func (d *demo) storm(ctx context.Context, window time.Time, n int, prefix string) (string, error) {
	owner, err := d.bed.Client.BatchV1().CronJobs(namespace).Get(ctx, cronJob, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var names []string
	for i := range n {
		job, err := d.bed.Create(ctx, bed.ScheduledJob(owner, window, fmt.Sprintf("%s-%s-%d", cronJob, prefix, i+1)))
		if err != nil {
			return "", err
		}
		names = append(names, job.Name)
	}
	var complete, applied, duplicates int
	var sentence string
	for _, name := range names {
		end, err := d.bed.WaitJob(ctx, 3*time.Minute, namespace, name)
		if err != nil {
			return "", err
		}
		if end == batchv1.JobComplete {
			complete++
		}
		pods, err := d.bed.Pods(ctx, namespace, name)
		if err != nil {
			return "", err
		}
		for _, p := range pods {
			switch message := terminated(p, "worker"); {
			case message == nil:
			case message.Message != "":
				duplicates++
				sentence = message.Message
			case message.ExitCode == 0:
				applied++
			}
		}
	}
	if sentence != "" {
		d.say("  a duplicate says: %s", strings.TrimSpace(sentence))
	}
	plural := "s"
	if duplicates == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d Complete: %d applied, %d duplicate%s", complete, applied, duplicates, plural), nil
}

func terminated(pod corev1.Pod, container string) *corev1.ContainerStateTerminated {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container {
			return s.State.Terminated
		}
	}
	return nil
}

// sum compares what was booked with what the ledger says was completed.
func (d *demo) sum(ctx context.Context) error {
	seen, err := d.balance(ctx)
	if err != nil {
		return err
	}
	d.check("in the end", "20 units, 2 windows", seen)
	out, err := d.bed.Run(ctx, "", "kubectl", "onceguard", "windows", "-n", namespace)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n$ kubectl onceguard windows -n %s\n%s", namespace, out)
	return nil
}

func (d *demo) balance(ctx context.Context) (string, error) {
	var units, windows int
	err := d.ledger.DB.QueryRow(ctx, `SELECT (SELECT units FROM account),
		(SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed')`).Scan(&units, &windows)
	return booked(units, windows), err
}

func booked(units, windows int) string {
	if windows == 1 {
		return fmt.Sprintf("%d units, 1 window", units)
	}
	return fmt.Sprintf("%d units, %d windows", units, windows)
}

func (d *demo) number(ctx context.Context, query string) (n int, err error) {
	err = d.ledger.DB.QueryRow(ctx, query).Scan(&n)
	return n, err
}

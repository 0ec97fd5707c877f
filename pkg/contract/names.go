package contract

// Prefix of every annotation and label of the product.
const Prefix = "onceguard.dev/"

// Annotations that people put on a CronJob.
const (
	AnnotationGuard        = Prefix + "guard"         // "enabled" turns the guard on
	AnnotationJobName      = Prefix + "job-name"      // logical name inside the namespace; default the CronJob's name
	AnnotationLedger       = Prefix + "ledger"        // which ledger; default "default"
	AnnotationContainers   = Prefix + "containers"    // comma-separated names to wrap; default all of the template
	AnnotationAfter        = Prefix + "after"         // insert the guard behind this init container
	AnnotationCompletion   = Prefix + "completion"    // exit-code (default) or transaction
	AnnotationBusy         = Prefix + "busy"          // wait (default), skip or fail
	AnnotationManual       = Prefix + "manual"        // window (default), separate or refuse
	AnnotationStartTimeout = Prefix + "start-timeout" // how long an unstarted worker may hold the lease; default 5m
	AnnotationLedgerWait   = Prefix + "ledger-wait"   // how long to wait for an unreachable ledger; default until the next window
	AnnotationLease        = Prefix + "lease"         // length of the lease; default 30s
	// While another window of the same job name runs: allow, skip, wait or replace;
	// default by concurrencyPolicy.
	AnnotationOverlap       = Prefix + "overlap"
	AnnotationOrder         = Prefix + "order"          // any (default) or serial
	AnnotationStartDeadline = Prefix + "start-deadline" // a window that has not run this long after its start never does; default none
	AnnotationPayload       = Prefix + "payload"        // text that the window belongs to; only its digest is passed on
	AnnotationMaxAttempts   = Prefix + "max-attempts"   // failures after which a window is closed; default none
	AnnotationOnCrash       = Prefix + "on-crash"       // retry (default) or hold
	// Windows that no Job came for: none (default), latest or all are run later, ...
	AnnotationCatchUp         = Prefix + "catch-up"
	AnnotationCatchUpLimit    = Prefix + "catch-up-limit"    // ... of the newest 100 (default), ...
	AnnotationCatchUpAge      = Prefix + "catch-up-age"      // ... if not older than 168h (default), ...
	AnnotationCatchUpParallel = Prefix + "catch-up-parallel" // ... so many at a time; default 1
	// Windows that passed while the CronJob was suspended: skip or catch-up; default
	// catch-up with catch-up=all, else skip.
	AnnotationSuspendedWindows = Prefix + "suspended-windows"
	AnnotationDST              = Prefix + "dst" // kubernetes (default) or once
	// AnnotationCommandPrefix is followed by a container's name; the value is a JSON
	// array of strings: what the container's image runs when the pod names no command.
	AnnotationCommandPrefix = Prefix + "command."
)

// Annotations and labels that Onceguard writes or reads elsewhere.
const (
	// LabelGuard with the value Enabled stands on the Job template and its pod
	// template; the API server calls the Pod hook for exactly the pods that carry it,
	// whatever its value.
	LabelGuard = Prefix + "guard"
	// Enabled is the one accepted value of AnnotationGuard and LabelGuard.
	Enabled = "enabled"
	// LabelCatchUp with the value Enabled stands on the Jobs that Onceguard makes for windows
	// that no Job came for.
	LabelCatchUp = Prefix + "catch-up"
	// AnnotationConfig on the Job template, and so on each Job, holds Settings as JSON.
	AnnotationConfig = Prefix + "config"
	// AnnotationWindowStart on the pod template of a Job that no CronJob owns names
	// its window as an RFC 3339 instant.
	AnnotationWindowStart = Prefix + "window-start"
	// AnnotationScheduledTimestamp is set by the CronJob controller on each Job.
	AnnotationScheduledTimestamp = "batch.kubernetes.io/cronjob-scheduled-timestamp"
	// AnnotationInstantiate with the value "manual" is set by kubectl create job --from.
	AnnotationInstantiate = "cronjob.kubernetes.io/instantiate"
	// AnnotationIndex is set by the Job controller on each pod of an Indexed Job.
	AnnotationIndex = "batch.kubernetes.io/job-completion-index"
)

// Names inside the pod.
const (
	ContainerGuard = "onceguard"       // the native sidecar
	ContainerClaim = "onceguard-claim" // waits for the verdict where a worker has a liveness or startup probe

	VolumeShared = "onceguard"        // emptyDir: the wrapper and the sockets; read-only in workers
	VolumeState  = "onceguard-state"  // emptyDir: execution_id, token, port; the sidecar's alone
	VolumeLedger = "onceguard-ledger" // the ledger's Secret; the sidecar's alone

	DirShared = "/onceguard"
	DirState  = "/var/lib/onceguard"
	DirLedger = "/etc/onceguard/ledger"

	// PathExec is the wrapper that runs a worker.
	PathExec = DirShared + "/guard-exec"
	// PathExecSocket is where the wrapper talks to the guard (package wire).
	PathExecSocket = DirShared + "/exec.sock"
	// PathAPISocket is the local endpoint's Unix socket.
	PathAPISocket = DirShared + "/api.sock"
	// PathGuard and PathExecSource are the two programs in the guard's image.
	PathGuard      = "/guard"
	PathExecSource = "/guard-exec"

	// LedgerSecretPrefix and a ledger's name make the default name of its Secret.
	LedgerSecretPrefix = "onceguard-ledger-"
	// LedgerKey is the key of the Secret that holds the connection URL.
	LedgerKey = "url"
	// DefaultLedger is the ledger used when none is named.
	DefaultLedger = "default"
)

// Environment of the guard's own container.
const (
	// EnvConfig holds GuardConfig as JSON. It never holds a secret.
	EnvConfig = "ONCEGUARD_CONFIG"
	// The pod's own facts, by the downward API.
	EnvPodName = "ONCEGUARD_POD_NAME"
	EnvPodUID  = "ONCEGUARD_POD_UID"
	EnvNode    = "ONCEGUARD_NODE"
)

// Environment of the worker, set by the wrapper and never part of the pod's spec.
const (
	EnvJobName        = "ONCEGUARD_JOB_NAME"
	EnvWindowStart    = "ONCEGUARD_WINDOW_START" // RFC 3339, UTC
	EnvWindowEnd      = "ONCEGUARD_WINDOW_END"   // the next nominal instant; absent when unknown
	EnvExecutionID    = "ONCEGUARD_EXECUTION_ID"
	EnvAttempt        = "ONCEGUARD_ATTEMPT"
	EnvFencingToken   = "ONCEGUARD_FENCING_TOKEN"
	EnvIdempotencyKey = "ONCEGUARD_IDEMPOTENCY_KEY" // equal over all attempts at a window
	EnvTrigger        = "ONCEGUARD_TRIGGER"         // scheduled, manual or catch-up
	EnvURL            = "ONCEGUARD_URL"             // http://127.0.0.1:port; absent with hostNetwork
	EnvSocket         = "ONCEGUARD_SOCKET"
	EnvToken          = "ONCEGUARD_TOKEN" // bearer token, random per pod
)

// Exit codes of our own. A worker's code passes through unchanged; a worker killed
// by signal n gives 128+n.
const (
	// ExitRetry: try again later (ledger away, lease lost, window busy with busy=fail).
	// A podFailurePolicy may Ignore it.
	ExitRetry = 75
	// ExitRefused: a retry makes no sense (no window, no command, bad configuration).
	// A podFailurePolicy may FailJob on it.
	ExitRefused = 78
	// ExitNotExecutable and ExitNotFound follow the shell's convention.
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// TerminationPrefix begins every termination message that Onceguard itself writes,
// so that it can be told from a worker's own. A message says why the container ended
// otherwise than by its worker; the exit code says what it is: 0 a skip, ExitRetry,
// ExitRefused.
const TerminationPrefix = "onceguard: "

package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/inject"
)

const (
	// maxBody bounds a request: two objects, each of which etcd limits to 1.5 MiB.
	maxBody = 8 << 20
	// defaultTimeout is Kubernetes' own for a webhook that names none.
	defaultTimeout = 10 * time.Second
	// answerTime is kept back of the API server's patience, so that it gets our
	// sentence and not "context deadline exceeded".
	answerTime = 500 * time.Millisecond
)

// Jobs reads Jobs.
type Jobs interface {
	// Job gives the metadata of the Job of that name and UID. An error means that
	// nothing can be said now; a Job that is gone is an error as well.
	Job(ctx context.Context, namespace, name string, uid types.UID) (*metav1.PartialObjectMetadata, error)
	// Spec gives the spec of the same Job, in the same way.
	Spec(ctx context.Context, namespace, name string, uid types.UID) (*batchv1.JobSpec, error)
}

// Config is what the handler needs.
type Config struct {
	Jobs     Jobs
	CronJobs CronJobs
	Guard    inject.Guard
	Now      func() time.Time
	Log      *zap.Logger
}

type handler struct{ Config }

// New serves POST /mutate/cronjobs, /mutate/pods, and /mutate/jobs, which changes nothing.
func New(c Config) http.Handler {
	h := handler{c}
	mux := http.NewServeMux()
	mux.Handle("POST /mutate/cronjobs", h.serve(h.cronJob))
	mux.Handle("POST /mutate/pods", h.serve(h.pod))
	mux.Handle("POST /mutate/jobs", h.serve(h.job))
	return mux
}

// decision is an answer before it has the form of Kubernetes.
type decision struct {
	ops      []inject.Op
	warnings []string
	refusal  *metav1.Status // nil: allowed
}

func refused(code int32, reason metav1.StatusReason, message string) decision {
	return decision{refusal: &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "onceguard: " + message}}
}

// later asks to try again: the Job controller does so within a minute.
func later(format string, args ...any) decision {
	return refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, fmt.Sprintf(format, args...)+"; it is tried again")
}

func (h handler) serve(decide func(context.Context, *admissionv1.AdmissionRequest) decision) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, fmt.Sprintf("the request is larger than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
			return
		} else if err != nil {
			http.Error(w, "the request ended early: "+err.Error(), http.StatusBadRequest)
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil {
			http.Error(w, "the request is no AdmissionReview: "+err.Error(), http.StatusBadRequest)
			return
		}
		if review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" || review.Request == nil {
			http.Error(w, fmt.Sprintf("want an AdmissionReview %s with a request, got %q %q", admissionv1.SchemeGroupVersion, review.Kind, review.APIVersion), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), patience(r))
		defer cancel()
		response, err := h.respond(ctx, review.Request, decide)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // the API server went away: it asks again
	})
}

// patience is how long the API server waits, less what the answer needs.
func patience(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 || d > 30*time.Second {
		d = defaultTimeout
	}
	return max(d-answerTime, d/2)
}

func (h handler) respond(ctx context.Context, request *admissionv1.AdmissionRequest, decide func(context.Context, *admissionv1.AdmissionRequest) decision) (response *admissionv1.AdmissionResponse, err error) {
	d := h.guarded(ctx, request, decide)
	response = &admissionv1.AdmissionResponse{UID: request.UID, Allowed: d.refusal == nil, Result: d.refusal, Warnings: d.warnings}
	if d.refusal == nil && len(d.ops) > 0 {
		kind := admissionv1.PatchTypeJSONPatch
		if response.Patch, err = json.Marshal(d.ops); err != nil {
			return nil, err
		}
		response.PatchType = &kind
	}
	return response, nil
}

// guarded turns a panic into an answer: a fault of ours must not look like an outage.
func (h handler) guarded(ctx context.Context, request *admissionv1.AdmissionRequest, decide func(context.Context, *admissionv1.AdmissionRequest) decision) (d decision) {
	defer func() {
		if p := recover(); p != nil {
			h.Log.Error("admission panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()),
				zap.String("namespace", request.Namespace), zap.String("name", request.Name))
			d = refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "a fault in the webhook; its log says more")
		}
	}()
	return decide(ctx, request)
}

func (h handler) cronJob(_ context.Context, request *admissionv1.AdmissionRequest) decision {
	stamp, err := inject.PatchCronJob(inject.CronJob{
		Object: request.Object.Raw, OldObject: request.OldObject.Raw,
		Namespace: request.Namespace, Cluster: h.Guard.Cluster, Now: h.Now(),
	})
	if err != nil {
		return refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	if len(stamp.Problems) > 0 {
		sentences := make([]string, len(stamp.Problems))
		for i, p := range stamp.Problems {
			sentences[i] = p.Error()
		}
		d := refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, strings.Join(sentences, "; "))
		d.warnings = stamp.Warnings
		return d
	}
	h.Log.Info("CronJob stamped", zap.String("namespace", request.Namespace), zap.String("cronjob", request.Name),
		zap.Int("changes", len(stamp.Ops)), zap.Bool("dry_run", isDryRun(request)))
	return decision{ops: stamp.Ops, warnings: stamp.Warnings}
}

func (h handler) pod(ctx context.Context, request *admissionv1.AdmissionRequest) decision {
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the pod cannot be read: "+err.Error())
	}
	in := inject.Pod{Object: request.Object.Raw, Namespace: request.Namespace, Now: h.Now()}
	if owner := metav1.GetControllerOfNoCopy(&pod); owner != nil && owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, "batch/") {
		job, err := h.Jobs.Job(ctx, request.Namespace, owner.Name, owner.UID)
		if err != nil {
			return h.waits(request, owner.Name, err)
		}
		if in.Job = job; inject.NeedsSpec(job) {
			if in.JobSpec, err = h.Jobs.Spec(ctx, request.Namespace, owner.Name, owner.UID); err != nil {
				return h.waits(request, owner.Name, err)
			}
		}
	}
	out, err := h.Guard.PatchPod(in)
	var impossible inject.Impossible
	if errors.As(err, &impossible) {
		return refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, string(impossible))
	} else if err != nil {
		return later("the pod cannot be given its guard: %v", err)
	}
	log := h.Log.With(zap.String("namespace", request.Namespace), zap.String("job", out.Config.Job), zap.String("job_name", out.Config.JobName))
	if !out.Config.WindowStart.IsZero() {
		log = log.With(zap.Time("window_start", out.Config.WindowStart))
	}
	if out.Config.Refusal != "" {
		log.Warn("pod admitted to be refused", zap.String("reason", out.Config.Refusal))
		return decision{ops: out.Ops}
	}
	if early := out.Config.WindowStart.Sub(in.Now); early > time.Minute && out.Config.Source == contract.SourceTimestamp {
		log.Warn("the window starts in the future", zap.Duration("early", early))
	}
	// A pod that comes again, after another webhook changed it, mostly needs nothing more.
	if len(out.Ops) > 0 {
		log.Info("pod guarded", zap.String("source", string(out.Config.Source)), zap.String("trigger", string(out.Config.Trigger)), zap.Bool("dry_run", isDryRun(request)))
	}
	return decision{ops: out.Ops}
}

func (h handler) waits(request *admissionv1.AdmissionRequest, job string, err error) decision {
	h.Log.Warn("a pod has to wait: its Job cannot be read", zap.String("namespace", request.Namespace), zap.String("job", job), zap.Error(err))
	return later("Job %s/%s, which says what window this pod means, cannot be read now: %v", request.Namespace, job, err)
}

func isDryRun(request *admissionv1.AdmissionRequest) bool {
	return request.DryRun != nil && *request.DryRun
}

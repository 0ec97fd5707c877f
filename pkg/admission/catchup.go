package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// CronJobs reads CronJobs.
type CronJobs interface {
	// CronJob gives a CronJob as the API server writes it in JSON, live. One that does not
	// exist is an error that apierrors.IsNotFound knows.
	CronJob(ctx context.Context, namespace, name string) ([]byte, error)
}

// job judges a Job of the windows engine, whose right to create Jobs would be the right to
// run anything as anybody: it may make only what the Job's CronJob makes. Who the engine is
// says the webhook's configuration; the form of such a Job (name, timestamp, owner
// reference, labels) is the business of an admission policy. No policy can do this part:
// one with CronJobs as parameters must hold for each of them, so that a Job whose owner is
// none of them would pass.
func (h handler) job(ctx context.Context, request *admissionv1.AdmissionRequest) decision {
	job, err := readTree(request.Object.Raw)
	if err != nil {
		return refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the Job cannot be read: "+err.Error())
	}
	deny := func(why string) decision {
		h.Log.Warn("a Job of the windows engine is denied", zap.String("namespace", request.Namespace), zap.String("job", request.Name), zap.String("why", why))
		return refused(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("the windows engine may not create Job %s/%s: %s", request.Namespace, request.Name, why))
	}
	owners, _ := job.at("metadata")["ownerReferences"].([]any)
	if len(owners) != 1 {
		return deny(fmt.Sprintf("it has %d owners, and must have one, its CronJob", len(owners)))
	}
	owner, _ := owners[0].(map[string]any)
	name, _ := owner["name"].(string)
	if owner["kind"] != "CronJob" || name == "" {
		return deny("its owner is no CronJob")
	}
	raw, err := h.CronJobs.CronJob(ctx, request.Namespace, name)
	if apierrors.IsNotFound(err) {
		return deny(fmt.Sprintf("CronJob %s does not exist", name))
	}
	if err != nil {
		return later("CronJob %s/%s, which says what Job %s has to be, cannot be read now: %v", request.Namespace, name, request.Name, err)
	}
	cronJob, err := readTree(raw)
	if err != nil {
		return later("CronJob %s/%s cannot be read now: %v", request.Namespace, name, err)
	}
	if owner["uid"] != cronJob.at("metadata")["uid"] {
		return deny(fmt.Sprintf("its owner is another CronJob of the name %s, with UID %v", name, owner["uid"]))
	}
	if why := deviation(job, cronJob); why != "" {
		return deny(why)
	}
	return decision{}
}

// tree is an object in JSON: compared as it is written, fields of API versions newer than
// our types count too.
type tree map[string]any

func readTree(raw []byte) (tree, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // as they are written
	var t tree
	if err := d.Decode(&t); err != nil {
		return nil, err
	}
	dropNulls(t)
	return t, nil
}

// dropNulls takes the nulls of objects away: whether "nothing" is written depends on the
// API server's version, and two may serve side by side during an upgrade.
func dropNulls(v any) {
	switch v := v.(type) {
	case tree:
		dropNulls(map[string]any(v))
	case map[string]any:
		for key, value := range v {
			if value == nil {
				delete(v, key)
			} else {
				dropNulls(value)
			}
		}
	case []any:
		for _, value := range v {
			dropNulls(value)
		}
	}
}

// at walks down; what is not there is empty.
func (t tree) at(keys ...string) tree {
	for _, key := range keys {
		next, _ := t[key].(map[string]any)
		t = next
	}
	return t
}

// filled are the fields of a Job's spec that may stand in it and not in its CronJob's
// template: what the API server writes where nothing is said, and the engine's own choice.
// No value means any.
var filled = map[string][]any{
	"parallelism":             {json.Number("1")},
	"completions":             {json.Number("1")},
	"completionMode":          {"NonIndexed"},
	"backoffLimit":            {json.Number("6"), json.Number("2147483647")},
	"podReplacementPolicy":    {"TerminatingOrFailed", "Failed"},
	"manualSelector":          {false},
	"suspend":                 nil,
	"ttlSecondsAfterFinished": nil,
}

// telling are prefixes of labels and annotations that say what a Job is.
var telling = []string{contract.Prefix, "cronjob.kubernetes.io/", "batch.kubernetes.io/"}

// changers is who may have made a Job of the engine another one, for people, and the cure.
const changers = "the CronJob was edited just now, has a field newer than this release, or a MutatingAdmissionPolicy or another webhook changed the Job on its way: " +
	"let that change CronJobs or pods instead, or leave Jobs with the label " + contract.LabelCatchUp + " alone"

// difference leads into two values, as far as objects are different in one field.
func difference(path string, a, b any) string {
	x, xok := a.(map[string]any)
	y, yok := b.(map[string]any)
	if !xok || !yok {
		return path
	}
	var all []string
	for _, key := range keys(x, y) {
		if !reflect.DeepEqual(x[key], y[key]) {
			all = append(all, key)
		}
	}
	if len(all) != 1 {
		return path
	}
	return difference(path+"."+all[0], x[all[0]], y[all[0]])
}

// deviation says in what a Job is not what its CronJob makes now; empty for nothing.
func deviation(job, cronJob tree) string {
	template := cronJob.at("spec", "jobTemplate")
	spec, want := job.at("spec"), template.at("spec")
	switch {
	case cronJob.at("spec")["suspend"] == true:
		return "its CronJob is suspended"
	case cronJob.at("metadata")["deletionTimestamp"] != nil:
		return "its CronJob is being deleted"
	}
	for _, key := range keys(spec, want) {
		value, there := spec[key]
		wanted, said := want[key]
		allowed, may := filled[key]
		switch {
		case reflect.DeepEqual(value, wanted):
		case key == "suspend" && value == true: // a queue's webhook holds it back
		case there && !said && may && (allowed == nil || slices.Contains(allowed, value)):
		default:
			return fmt.Sprintf("its %s is not the one of its CronJob's template, as it is now (%s)", difference("spec."+key, value, wanted), changers)
		}
	}
	for _, kind := range []struct {
		name, own string // what is added for a window
	}{{"labels", contract.LabelCatchUp}, {"annotations", contract.AnnotationScheduledTimestamp}} {
		got, want := job.at("metadata", kind.name), template.at("metadata", kind.name)
		for _, key := range keys(got, want) {
			_, said := want[key]
			// Others may mark Jobs. Our marks and Kubernetes' own say what a Job is, whether it was
			// made by hand (a run of its own, perhaps), and how it is guarded.
			if key != kind.own && !reflect.DeepEqual(got[key], want[key]) && (said || slices.ContainsFunc(telling, func(p string) bool { return strings.HasPrefix(key, p) })) {
				return fmt.Sprintf("its %s differ from those of its CronJob's template, as it is now, in %s (%s)", kind.name, key, changers)
			}
		}
	}
	return ""
}

// keys are those of both in order.
func keys(a, b tree) []string {
	var all []string
	for _, t := range []tree{a, b} {
		for key := range t {
			all = append(all, key)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

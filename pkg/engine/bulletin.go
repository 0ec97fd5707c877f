package engine

import (
	"context"
	"slices"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// single is how many objects of a namespace are asked about one by one in a look.
	single = 3
	// pages bounds what is read of a namespace at once.
	pages = 10
)

// bulletin is what Events say in one look about Jobs and pods that could not be made. To
// answer about one object the API server reads all Events of its namespace, as it keeps no
// copy of them. So when many windows of a namespace are missed together, its Events are read
// once for all.
type bulletin struct {
	*Engine
	asked map[string]int                          // by namespace
	whole map[string]map[types.UID][]corev1.Event // of namespaces; nil when there are too many
}

func (e *Engine) bulletin() *bulletin {
	return &bulletin{e, map[string]int{}, map[string]map[types.UID][]corev1.Event{}}
}

// about gives the Events about an object. Without the right to read them there are none.
func (b *bulletin) about(ctx context.Context, namespace string, uid types.UID) ([]corev1.Event, error) {
	if b.asked[namespace]++; b.asked[namespace] > single {
		all, known := b.whole[namespace]
		if !known {
			var err error
			if all, err = b.all(ctx, namespace); err != nil {
				return nil, err
			}
			b.whole[namespace] = all
		}
		if all != nil {
			return all[uid], nil
		}
	}
	found, _, err := b.list(ctx, namespace, "involvedObject.uid="+string(uid)+","+failures)
	if err != nil {
		return nil, err
	}
	// Some servers, and all fakes, do not select by field.
	return slices.DeleteFunc(found, func(ev corev1.Event) bool { return ev.InvolvedObject.UID != uid }), nil
}

// all gives the Events of a namespace by what they are about, nil when there are too many.
func (b *bulletin) all(ctx context.Context, namespace string) (map[types.UID][]corev1.Event, error) {
	found, complete, err := b.list(ctx, namespace, failures)
	if err != nil || !complete {
		return nil, err
	}
	out := map[types.UID][]corev1.Event{}
	for _, ev := range found {
		if ev.Reason == failedCreate {
			out[ev.InvolvedObject.UID] = append(out[ev.InvolvedObject.UID], ev)
		}
	}
	return out, nil
}

// list reads Events page by page, as the newest come last; complete is false when there are
// more.
func (b *bulletin) list(ctx context.Context, namespace, selector string) (found []corev1.Event, complete bool, err error) {
	next := ""
	for range pages {
		b.Counters.Reads.Add(1)
		list, err := b.Clients.Typed.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector, Limit: page, Continue: next})
		if apierrors.IsForbidden(err) {
			b.blind.Do(func() { b.Log.Warn("Events cannot be read: reasons of missed windows stay unknown", zap.Error(err)) })
			return nil, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		found = append(found, list.Items...)
		if next = list.Continue; next == "" {
			return found, true, nil
		}
	}
	return found, false, nil
}

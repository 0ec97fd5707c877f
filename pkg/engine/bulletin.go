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
	found, err := b.list(ctx, namespace, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid) + "," + failures, Limit: fewest})
	if err != nil {
		return nil, err
	}
	// Some servers, and all fakes, do not select by field.
	return slices.DeleteFunc(found.Items, func(ev corev1.Event) bool { return ev.InvolvedObject.UID != uid }), nil
}

// all gives the Events of a namespace by what they are about, nil when there are too many.
func (b *bulletin) all(ctx context.Context, namespace string) (map[types.UID][]corev1.Event, error) {
	out := map[types.UID][]corev1.Event{}
	next := ""
	for range pages {
		found, err := b.list(ctx, namespace, metav1.ListOptions{FieldSelector: failures, Limit: page, Continue: next})
		if err != nil {
			return nil, err
		}
		for _, ev := range found.Items {
			if ev.Reason == failedCreate {
				out[ev.InvolvedObject.UID] = append(out[ev.InvolvedObject.UID], ev)
			}
		}
		if next = found.Continue; next == "" {
			return out, nil
		}
	}
	return nil, nil
}

func (b *bulletin) list(ctx context.Context, namespace string, o metav1.ListOptions) (*corev1.EventList, error) {
	b.Counters.Reads.Add(1)
	list, err := b.Clients.Typed.CoreV1().Events(namespace).List(ctx, o)
	if apierrors.IsForbidden(err) {
		b.blind.Do(func() { b.Log.Warn("Events cannot be read: reasons of missed windows stay unknown", zap.Error(err)) })
		return &corev1.EventList{}, nil
	}
	return list, err
}

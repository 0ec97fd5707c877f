package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/onceguard/onceguard/pkg/kube"
)

// paging serves Events a few at a time, the oldest first, as the API server does.
type paging struct {
	kubernetes.Interface
	clientcorev1.CoreV1Interface
	clientcorev1.EventInterface
	events []corev1.Event
	each   int
}

func (p *paging) CoreV1() clientcorev1.CoreV1Interface      { return p }
func (p *paging) Events(string) clientcorev1.EventInterface { return p }
func (p *paging) List(_ context.Context, o metav1.ListOptions) (*corev1.EventList, error) {
	from := 0
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &from); err != nil {
			return nil, err
		}
	}
	upto := min(from+p.each, len(p.events))
	list := &corev1.EventList{Items: p.events[from:upto]}
	if upto < len(p.events) {
		list.Continue = fmt.Sprint(upto)
	}
	return list, nil
}

// Lists of Events begin with the oldest: the newest one says why there is no Job now, however
// many came before it, and what is read of them is bounded.
func TestTheNewestEventWins(t *testing.T) {
	const namespace = "shop"
	for _, c := range []struct {
		name   string
		asked  int // objects of the namespace that were asked about before
		events int
		says   string
		reads  int64
	}{
		{"one of many", 0, 7, "6", 4},
		{"of all of the namespace", single, 7, "6", 4},
		{"more than are read", 0, 2*pages + 5, fmt.Sprint(2*pages - 1), pages},
		{"more than are read of the namespace", single, 2*pages + 5, fmt.Sprint(2*pages - 1), 2 * pages},
		{"none", 0, 0, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &paging{Interface: fake.NewClientset(), each: 2}
			for i := range c.events {
				p.events = append(p.events, corev1.Event{
					InvolvedObject: corev1.ObjectReference{UID: "u"}, Reason: failedCreate, Message: fmt.Sprint(i), LastTimestamp: metav1.NewTime(time.Unix(int64(i), 0)),
				})
			}
			e := &Engine{Clients: kube.Clients{Typed: p}, Log: zap.NewNop()}
			b := e.bulletin()
			b.asked[namespace] = c.asked
			found, err := b.about(t.Context(), namespace, "u")
			if err != nil {
				t.Fatal(err)
			}
			if _, text, _ := refusal(found); text != c.says || e.Counters.Reads.Load() != c.reads {
				t.Errorf("says %q after %d reads, expected %q after %d", text, e.Counters.Reads.Load(), c.says, c.reads)
			}
		})
	}
}

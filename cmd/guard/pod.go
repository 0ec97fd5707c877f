package main

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/guard"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/localapi"
	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/window"
)

// paths are where a guard keeps and offers what it does.
type paths struct {
	state, ledger    string // directories
	execSocket, apis string
}

// inPod are the paths inside a pod.
var inPod = paths{
	state: contract.DirState, ledger: contract.DirLedger,
	execSocket: contract.PathExecSocket, apis: contract.PathAPISocket,
}

// pod is a guard and everything that belongs to it.
type pod struct {
	config contract.GuardConfig
	origin claim.Origin
	name   string // for people
	source func(context.Context) (string, error)
	where  string // the source, for people
	paths  paths
	log    *zap.Logger
}

// opened is a pod whose sockets are open: wrappers may connect, nothing is served yet.
type opened struct {
	pod
	guard     *guard.Guard
	ledger    *ledger.Ledger
	token     string
	listeners []net.Listener
}

// open opens sockets and state; it does not speak to the ledger.
func (p pod) open() (*opened, error) {
	store, warning, err := guard.OpenStore(p.paths.state)
	if err != nil {
		return nil, err
	}
	if warning != nil {
		p.log.Error("the guard begins anew", zap.Error(warning))
	}
	wrappers, err := localapi.ListenSocket(p.paths.execSocket)
	if err != nil {
		return nil, err
	}
	workers, err := localapi.ListenSocket(p.paths.apis)
	if err != nil {
		return nil, errors.Join(err, wrappers.Close())
	}
	o := &opened{pod: p, token: store.Token(), listeners: []net.Listener{workers}}
	env := map[string]string{contract.EnvSocket: p.paths.apis, contract.EnvToken: store.Token()}
	maps.Copy(env, o.loopback(store))

	o.ledger = ledger.New(p.source, p.log, ledger.Application("onceguard-guard/"+p.name), ledger.ReadFrom(p.where))
	o.guard = guard.New(guard.Options{
		Conf: guard.Conf{
			GuardConfig: p.config,
			Window:      window.Window{JobName: p.config.JobName, Start: p.config.WindowStart.UTC()},
			Pod:         p.name, Env: env,
		},
		Origin: p.origin, Ledger: o.ledger, Judge: judge, Store: store, Listener: wrappers, Log: p.log,
	})
	return o, nil
}

// loopback opens the loopback port, the same one after a restart, since a running
// worker has it in its environment. Without it the socket still serves.
func (o *opened) loopback(store *guard.Store) map[string]string {
	if o.config.HostNetwork {
		o.log.Info("the pod uses the node's network: the local endpoint has its socket only")
		return nil
	}
	l, port, err := localapi.ListenLoopback(store.Port())
	if err == nil {
		err = store.SetPort(port)
	}
	if err != nil {
		o.log.Warn("no loopback port: the local endpoint has its socket only", zap.Error(err))
		if l != nil {
			_ = l.Close()
		}
		return nil
	}
	o.listeners = append(o.listeners, l)
	return map[string]string{contract.EnvURL: "http://" + l.Addr().String()}
}

// serve works until ctx ends and no wrapped process is connected.
func (o *opened) serve(ctx context.Context) {
	committer := commit.New(o.ledger, o.guard, o.log, commit.Lease(time.Duration(o.config.Lease)))
	handler := localapi.Handler(localapi.Options{
		Token: o.token, Window: o.window, Committer: committer,
		Log: o.log.With(logs.Window(window.Window{JobName: o.config.JobName, Start: o.config.WindowStart})...),
	})
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		localapi.Serve(serving, handler, o.log, o.listeners...)
	}()
	o.guard.Run(ctx) // answers commits for as long as anyone is connected
	stop()
	<-done
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	committer.Close(bye)
	o.ledger.Close(bye)
}

// window is the answer to GET /v1/window.
func (o *opened) window() localapi.Window {
	v := o.guard.View()
	w := localapi.Window{
		JobName: o.config.JobName, WindowStart: o.config.WindowStart.UTC(), Trigger: string(o.config.Trigger),
		State: string(v.Phase), Committed: v.Committed, Message: v.Message, IdempotencyKey: v.IdempotencyKey,
	}
	if !o.config.WindowEnd.IsZero() {
		end := o.config.WindowEnd.UTC()
		w.WindowEnd = &end
	}
	if v.Attempt > 0 {
		w.ExecutionID, w.Attempt, w.FencingToken = v.ExecutionID.String(), v.Attempt, v.FencingToken
	}
	return w
}

// longestTrouble bounds the text of an error in messages.
const longestTrouble = 600

// judge says what an error of the ledger means for the attempt.
func judge(err error) guard.Trouble {
	t := guard.Trouble{Text: strings.Join(strings.Fields(err.Error()), " ")}
	if len(t.Text) > longestTrouble {
		t.Text = strings.ToValidUTF8(t.Text[:longestTrouble], "") + "…"
	}
	switch {
	case errors.Is(err, ledger.ErrFenced), errors.Is(err, ledger.ErrClosed):
		t.Fault = guard.Gone
	case errors.Is(err, ledger.ErrCompleted), errors.Is(err, ledger.ErrPayload):
		t.Fault = guard.Repeated
	case errors.Is(err, ledger.ErrConfig), errors.Is(err, ledger.ErrSchema), errors.Is(err, ledger.ErrNotGranted):
		t.Fault = guard.Misset
	}
	return t
}

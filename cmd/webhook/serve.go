package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"github.com/onceguard/onceguard/pkg/admission"
	"github.com/onceguard/onceguard/pkg/certs"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/pkg/logs"
)

const (
	// shutdownTime bounds how long requests in flight are waited for.
	shutdownTime  = 15 * time.Second
	headerTimeout = 5 * time.Second
	readTimeout   = 15 * time.Second
	writeTimeout  = 35 * time.Second // longer than the longest webhook timeout
	idleTimeout   = 2 * time.Minute
)

// serve answers until ctx ends, then lets go in order: no longer ready, serves on
// while endpoints are updated, finishes what it is answering.
func serve(ctx context.Context, o options, stderr io.Writer) error {
	log := logs.New(stderr, o.logLevel)
	klog.SetSlogLogger(clientLog(stderr))
	clients, err := kube.Connect(o.kubeconfig, "onceguard-webhook/"+version)
	if err != nil {
		return err
	}
	return serveWith(ctx, o, clients, log)
}

func serveWith(ctx context.Context, o options, clients kube.Clients, log *zap.Logger) error {
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	healthListener, err := net.Listen("tcp", o.healthListen)
	if err != nil {
		_ = listener.Close()
		return fmt.Errorf("--health-listen: %w", err)
	}
	keeper := certs.New(certs.Config{
		Client: clients.Typed, Namespace: o.namespace, Secret: o.certSecret,
		Service: o.service, WebhookConfigs: o.webhookConfigs, Now: time.Now, Log: log,
	})
	jobs := kube.NewJobs(clients)
	reconciler := &kube.Reconciler{Client: clients.Typed, Cluster: o.guard.Cluster, Excluded: o.excluded, Now: time.Now, Log: log}
	notes := &kube.Notes{Client: clients.Typed, Jobs: jobs, Now: time.Now, Log: log}

	// What runs beside the servers goes on while they drain.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	failed := make(chan error, 4)
	running.Go(func() { keeper.Run(work) })
	running.Go(func() { jobs.Run(work) })
	for _, loop := range []func(context.Context) error{reconciler.Run, notes.Run} {
		running.Go(func() {
			if err := loop(work); err != nil {
				failed <- err
			}
		})
	}
	defer running.Wait()
	defer stopWork()

	quiet := zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zapcore.WarnLevel)))
	webhook := &http.Server{
		Handler: admission.New(admission.Config{Jobs: jobs, CronJobs: kube.CronJobs{Client: clients.Typed}, Guard: o.guard, Now: time.Now, Log: log}),
		TLSConfig: &tls.Config{
			GetCertificate: keeper.Certificate, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"h2", "http/1.1"},
		},
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: quiet, // connections that break in the handshake are other people's news
	}
	var leaving atomic.Bool
	ready := func() error {
		if leaving.Load() {
			return errors.New("leaving")
		}
		return keeper.Ready()
	}
	health := &http.Server{Handler: healthHandler(ready), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, ErrorLog: quiet}
	running.Go(func() { failed <- served(webhook.ServeTLS(listener, "", "")) })
	running.Go(func() { failed <- served(health.Serve(healthListener)) })
	log.Info("serving", zap.String("version", version), zap.Stringer("listen", listener.Addr()), zap.Stringer("health", healthListener.Addr()))

	select {
	case err = <-failed:
		log.Error("stopping because of a failure", zap.Error(err))
	case <-ctx.Done():
		log.Info("leaving: no longer ready, serving on", zap.Duration("drain", o.drain))
		leaving.Store(true)
		select {
		case err = <-failed:
		case <-time.After(o.drain):
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	shutdown := errors.Join(webhook.Shutdown(end), health.Shutdown(end))
	if shutdown != nil {
		_ = webhook.Close()
		_ = health.Close()
	}
	log.Info("left")
	return errors.Join(err, shutdown)
}

// served takes the way a server is meant to end for no error.
func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// healthHandler: healthy is whoever answers. The webhook is ready when it can serve a
// certificate that the API servers trust, and is not leaving.
func healthHandler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

// clientLog gives client-go's own messages the form of ours.
func clientLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.MessageKey:
			a.Key = "message"
		case slog.LevelKey:
			a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
		}
		return a
	}}))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"github.com/onceguard/onceguard/pkg/engine"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/pkg/logs"
)

// runEngine gives windows their answers until ctx ends.
func runEngine(ctx context.Context, o engineOptions, stderr io.Writer) error {
	log := logs.New(stderr, o.logLevel)
	klog.SetSlogLogger(clientLog(stderr))
	clients, err := kube.Connect(o.kubeconfig, "onceguard-engine/"+version)
	if err != nil {
		return err
	}
	return engineWith(ctx, o, clients, log)
}

func engineWith(ctx context.Context, o engineOptions, clients kube.Clients, log *zap.Logger) error {
	listener, err := net.Listen("tcp", o.healthListen)
	if err != nil {
		return fmt.Errorf("--health-listen: %w", err)
	}
	host, err := os.Hostname() // in a pod its name
	if err != nil {
		host = "engine"
	}
	e := &engine.Engine{
		Clients: clients, Ledgers: engine.Ledgers(o.ledgersDir), Namespaces: o.namespaces, Excluded: o.excluded,
		Namespace: o.namespace, Lease: o.leaseName, Identity: host + "_" + uuid.NewString(), Now: time.Now, Log: log,
	}
	var leaving atomic.Bool
	quiet := zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zapcore.WarnLevel)))
	health := &http.Server{Handler: engineHealth(e, &leaving), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, ErrorLog: quiet}

	work, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	failed := make(chan error, 2)
	running.Go(func() {
		if err := e.Run(work); err != nil {
			failed <- err
		}
	})
	running.Go(func() {
		if err := served(health.Serve(listener)); err != nil {
			failed <- err
		}
	})
	log.Info("windows engine", zap.String("version", version), zap.String("ledgers", o.ledgersDir), zap.Stringer("health", listener.Addr()),
		zap.Strings("namespaces", o.namespaces), zap.Strings("excluded", o.excluded))
	select {
	case <-ctx.Done():
		log.Info("leaving")
	case err = <-failed:
		log.Error("stopping because of a failure", zap.Error(err))
	}
	leaving.Store(true)
	stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	shutdown := health.Shutdown(end)
	if shutdown != nil {
		_ = health.Close()
	}
	running.Wait()
	log.Info("left")
	return errors.Join(err, shutdown)
}

// engineHealth: healthy is whoever answers; ready is who leads with a whole copy of the
// cluster, or stands by.
func engineHealth(e *engine.Engine, leaving *atomic.Bool) http.Handler {
	return healthHandler(func() error {
		if leaving.Load() {
			return errors.New("leaving")
		}
		return e.Ready()
	})
}

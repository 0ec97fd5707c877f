#!/bin/sh
# Measures the windows engine on an API server of its own, which is taken down again:
# test/bench/engine.sh [-cronjobs N] [-jobs N] [-quiet SECONDS]
#
# Only etcd and the API server run: a hundred thousand Jobs must not begin.
set -eu
cd "$(dirname "$0")/../.."

ONCEGUARD_TEST_CLUSTER=bench
export ONCEGUARD_TEST_CLUSTER
(cd test/cluster && CGO_ENABLED=0 go build -o ../../dist/cluster .)
CGO_ENABLED=0 go build -o dist/bench-engine ./test/bench/engine
cluster=$PWD/dist/cluster

trap '"$cluster" down' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$cluster" up --fresh --wait=false
for c in kube-controller-manager kube-scheduler kubelet kube-proxy containerd; do
  "$cluster" kill "$c"
done
"$cluster" exec -- "$PWD/dist/bench-engine" "$@"

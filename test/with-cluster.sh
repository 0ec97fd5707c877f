#!/bin/sh
# Runs a command with a Kubernetes cluster at hand: test/with-cluster.sh COMMAND [ARG]…
#
# With KUBECONFIG set that is your own cluster; its nodes must be able to run the
# images named by ONCEGUARD_GUARD_IMAGE and ONCEGUARD_WEBHOOK_IMAGE (make images, then
# push or load them) and ONCEGUARD_WORKER_IMAGE (a busybox). kubectl is your own.
# Otherwise a private one is built, started and taken down again (test/cluster). It
# stays up with ONCEGUARD_KEEP=1, or when it was up before.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${KUBECONFIG-}" ]; then
  : "${ONCEGUARD_GUARD_IMAGE:?is not set: name the image built by make images, as the nodes of your cluster know it}"
  : "${ONCEGUARD_WEBHOOK_IMAGE:?is not set: name the image built by make images, as the nodes of your cluster know it}"
  : "${ONCEGUARD_WORKER_IMAGE:=busybox:1.37}"
  export ONCEGUARD_WORKER_IMAGE
  command -v helm >/dev/null || PATH=$PATH:$(dirname "$(test/tools.sh helm)")
  # kubectl finds its plugin here, built from this tree for this machine.
  make -s plugin
  PATH=$PWD/dist:$PATH
  exec "$@"
fi

make -s binaries dist/ca-certificates.crt
dist=dist/linux-$(go env GOARCH)
# kubectl finds its plugin here.
PATH=$PWD/$dist:$PATH
(cd test/cluster && CGO_ENABLED=0 go build -o ../../dist/cluster .)
# The cluster's network leads nowhere else: fetch before going in.
go mod download
cluster=$PWD/dist/cluster

if "$cluster" status >/dev/null 2>&1; then
  echo "the cluster is up already and will be left so" >&2
elif [ -z "${ONCEGUARD_KEEP-}" ]; then
  trap '"$cluster" down' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
fi
"$cluster" up

# Tags tell programs apart, so that an upgrade in a cluster that was kept is seen.
tag=t$(cat "$dist/guard" "$dist/guard-exec" "$dist/webhook" | sha256sum | cut -c1-12)
export ONCEGUARD_GUARD_IMAGE="onceguard/onceguard-guard:$tag"
export ONCEGUARD_WEBHOOK_IMAGE="onceguard/onceguard-webhook:$tag"
export ONCEGUARD_WORKER_IMAGE="onceguard/worker:$tag"
# The same as Dockerfile.guard and Dockerfile.webhook make, without a container engine.
certs=/etc/ssl/certs/ca-certificates.crt=dist/ca-certificates.crt
"$cluster" load-image --user 65532:65532 --entrypoint /guard "$ONCEGUARD_GUARD_IMAGE" \
  "/guard=$dist/guard" "/guard-exec=$dist/guard-exec" "$certs"
"$cluster" load-image --user 65532:65532 --entrypoint /webhook "$ONCEGUARD_WEBHOOK_IMAGE" "/webhook=$dist/webhook" "$certs"
"$cluster" load-image --busybox "$ONCEGUARD_WORKER_IMAGE"

"$cluster" exec -- "$@"

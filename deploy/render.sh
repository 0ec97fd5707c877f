#!/bin/sh
# Renders the chart for people without helm: deploy/render.sh HELM DIRECTORY
set -eu
cd "$(dirname "$0")/.."
helm=$1 out=$2
namespace=onceguard-system

render() {
  # A fixed version, so that what is rendered does not depend on the helm at hand.
  "$helm" template onceguard charts/onceguard --namespace "$namespace" --kube-version 1.34.0 "$@"
}

{
  cat <<EOF
# Rendered from charts/onceguard with default values by "make deploy": change the chart.
#   1. name your two images: in the Deployment image: (the webhook's) and --guard-image=
#      (the guard's); the ones below are in no public registry
#   2. migrate the ledger: migrate.yaml, or kubectl onceguard migrate
#   3. kubectl apply --server-side -f onceguard.yaml
# Undoing it: take the annotation onceguard.dev/guard off every CronJob first, then
# kubectl delete -f onceguard.yaml. That deletes the policy onceguard-pods as well (helm
# uninstall keeps it): pods that still ask for the guard run WITHOUT it then.
apiVersion: v1
kind: Namespace
metadata:
  name: $namespace
  labels:
    pod-security.kubernetes.io/enforce: restricted
EOF
  render --no-hooks
} >"$out/onceguard.yaml"

{
  cat <<'EOF'
# Rendered from charts/onceguard by "make deploy": change the chart.
# Brings a ledger to this release's schema. Name your webhook's image: first. The Secret ledger-owner must be there first:
#   kubectl create namespace onceguard-system
#   kubectl -n onceguard-system create secret generic ledger-owner --from-file=url=owner.url
#   kubectl apply -f migrate.yaml
#   kubectl -n onceguard-system wait --for=condition=Complete job -l app.kubernetes.io/name=onceguard
EOF
  render --show-only templates/migrate.yaml --set migrate.secretName=ledger-owner
} >"$out/migrate.yaml"

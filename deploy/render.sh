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
# Rendered from charts/onceguard by "make deploy": change the chart. The values are the
# default ones, and the windows engine's ledger "default" in the Secret ledger-engine.
#   1. name your two images: in both Deployments image: (the webhook's) and --guard-image=
#      (the guard's); the ones below are in no public registry
#   2. migrate the ledger: migrate.yaml, or kubectl onceguard migrate
#   3. kubectl apply --server-side -f onceguard.yaml
#   4. the windows engine's login (README, Install 6): its URL as Secret ledger-engine. Without
#      it windows that nobody runs get no answer; it may come later
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
  render --no-hooks --set 'engine.ledgers[0].name=default,engine.ledgers[0].secretName=ledger-engine'
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

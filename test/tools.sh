#!/bin/sh
# Prints the path of a developer's tool at the version we use, and builds it into the
# cache first when it is not there: test/tools.sh helm|golangci-lint
#
# The cache is ONCEGUARD_CACHE, else /var/cache/onceguard where that can be written,
# else ~/.cache/onceguard. Each version has a folder of its own, so that changing a
# version here is all that an update takes.
set -eu

case ${1-} in
helm) module=helm.sh/helm/v3/cmd/helm version=v3.22.0 ;;
golangci-lint) module=github.com/golangci/golangci-lint/v2/cmd/golangci-lint version=v2.15.0 ;;
*)
  echo "usage: test/tools.sh helm|golangci-lint" >&2
  exit 2
  ;;
esac
name=$1

cache=${ONCEGUARD_CACHE-}
if [ -z "$cache" ]; then
  if mkdir -p /var/cache/onceguard/tools 2>/dev/null && [ -w /var/cache/onceguard/tools ]; then
    cache=/var/cache/onceguard
  else
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/onceguard
  fi
fi
dir=$cache/tools/$name-$version

if [ ! -x "$dir/$name" ]; then
  if ! command -v go >/dev/null; then
    echo "tools.sh: go is not installed: $name $version is built from source" >&2
    exit 1
  fi
  echo "building $name $version into $dir (some minutes, once)" >&2
  mkdir -p "$cache/tools"
  # Built beside its place and renamed, so that a killed build leaves nothing that
  # looks finished.
  part=$(mktemp -d "$dir.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  GOBIN=$part GOFLAGS=-mod=mod CGO_ENABLED=0 go install -trimpath "$module@$version" >&2
  mkdir -p "$dir"
  mv -f "$part/$name" "$dir/$name"
fi
printf '%s\n' "$dir/$name"

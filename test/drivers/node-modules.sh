#!/bin/sh
# Prints the folder with the modules of examples/own-driver/node, for NODE_PATH, and
# installs them into the cache first when they are not there (see test/tools.sh).
set -eu

example=$(cd "$(dirname "$0")/../../examples/own-driver/node" && pwd)
cache=${ONCEGUARD_CACHE-}
if [ -z "$cache" ]; then
  if mkdir -p /var/cache/onceguard/node 2>/dev/null && [ -w /var/cache/onceguard/node ]; then
    cache=/var/cache/onceguard
  else
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/onceguard
  fi
fi
dir=$cache/node/$(cksum <"$example/package-lock.json" | tr -d ' \n')

if [ ! -d "$dir" ]; then
  for program in node npm; do
    if ! command -v $program >/dev/null; then
      echo "node-modules.sh: $program is not installed" >&2
      exit 1
    fi
  done
  mkdir -p "$cache/node"
  # Beside its place and renamed, so that a killed install leaves nothing that looks finished.
  part=$(mktemp -d "$dir.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  cp "$example/package.json" "$example/package-lock.json" "$part"
  (cd "$part" && npm ci --silent --no-audit --no-fund --ignore-scripts >&2)
  mv "$part" "$dir" 2>/dev/null || [ -d "$dir" ] # another one was faster
fi
printf '%s\n' "$dir/node_modules"

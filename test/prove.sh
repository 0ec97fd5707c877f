#!/usr/bin/env bash
# Runs the long form of every proof (the tests named TestProve…) and prints one line a
# claim as it is done, with its counts. Everything the tests said is kept in
# dist/prove.log. ONCEGUARD_SEED=… repeats a run; arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p dist
log=dist/prove.log
: >"$log"

ONCEGUARD_PROVE=long go test -v -p 1 -count=1 -timeout 60m -run '^TestProve' "$@" \
	./cmd/guard ./pkg/... ./test/prove/... >"$log" 2>&1 &
proofs=$!
trap 'kill "$proofs" 2>/dev/null || true' EXIT

# ends by itself when the proofs have ended
tail -q --pid="$proofs" -n +1 -f "$log" |
	sed -u -n -E -e 's/^ +[a-z_0-9]+\.go:[0-9]+: (holds|FAILS)  /\1  /p' -e '/^ *--- FAIL|^panic:|^FAIL/p'

code=0
wait "$proofs" || code=$?
trap - EXIT
held=$(grep -c -E '^ +[a-z_0-9]+\.go:[0-9]+: holds  ' "$log" || true)
if [ "$code" = 0 ]; then
	echo "$held claims hold."
else
	echo "A proof failed: see $log" >&2
fi
exit "$code"

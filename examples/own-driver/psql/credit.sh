#!/bin/sh
# Runs credit.sql with psql (15 or newer), which finds its database by PGHOST,
# PGDATABASE, PGUSER, …
# Exit codes: 0 done, now or before; 75 run me again; 1 a mistake of the SQL.
set -u

said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
for try in 1 2 3 4 5; do
  PGCONNECT_TIMEOUT=10 psql -X -q -o /dev/null -f "${0%/*}/credit.sql" 2>"$said"
  code=$?
  cat "$said" >&2
  [ $code -ne 0 ] || exit 0
  # 2: no connection, or it broke. Also at COMMIT: the next run finds out what became of it.
  [ $code -ne 2 ] || exit 75
  case $(sed -n 's/^psql:[^:]*:[0-9]*: [^:]*:  *\([0-9A-Z]\{5\}\): .*/\1/p' "$said" | tail -n 1) in
    OG002) exit 0 ;;         # done already
    OG001 | OG004) exit 75 ;; # the right to this window is gone
    40001 | 40P01) sleep $((try - 1)) ;; # the whole transaction again
    08* | 57*) exit 75 ;;
    *) exit 1 ;;
  esac
done
exit 75

#!/bin/sh
# Installs the Debian packages that tests and demo need: test/setup.sh [postgres|drivers|units|lint|images]…
# Without arguments: postgres. (The test cluster installs its own.) Does nothing where
# they are there already; where it may not install (no root, no apt-get) it says what
# is missing and fails.
set -eu

missing=
need() { # need PACKAGE COMMAND: COMMAND comes with PACKAGE
  PATH=$PATH:/usr/sbin:/sbin command -v "$2" >/dev/null || missing="$missing $1"
}

[ $# -gt 0 ] || set -- postgres
for part; do
  case $part in
  postgres)
    # Debian keeps the server's programs out of PATH.
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need postgresql initdb
    need postgresql-client psql
    need pgbouncer pgbouncer
    ;;
  drivers)
    # Debian's packages are for Debian's Python, whatever else is first in PATH.
    python3 -c 'import psycopg' 2>/dev/null || /usr/bin/python3 -c 'import psycopg' 2>/dev/null || missing="$missing python3-psycopg"
    need nodejs node
    need npm npm
    need curl curl
    need wget wget
    ;;
  units)
    need systemd systemd-analyze
    ;;
  lint)
    need shellcheck shellcheck
    ;;
  images)
    docker info >/dev/null 2>&1 || podman info >/dev/null 2>&1 || need buildah buildah
    ;;
  *)
    echo "usage: test/setup.sh [postgres|drivers|units|lint|images]…" >&2
    exit 2
    ;;
  esac
done

[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup.sh: missing:$missing (names of Debian packages)" >&2
  echo "setup.sh: install them with your package manager, or run this as root on Debian or Ubuntu" >&2
  exit 1
fi
echo "installing Debian packages:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# A package starts its service when it is installed; ours run privately.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq >&2
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >&2

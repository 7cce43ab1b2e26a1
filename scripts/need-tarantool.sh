#!/bin/sh
# Sees to it that there is a Tarantool and a linker: as root from Debian's archive, otherwise by saying what is missing.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

missing=
if [ -n "${TARANTOOL:-}" ]; then
    for t in $TARANTOOL; do
        have "$t" || { echo "TARANTOOL=$TARANTOOL: $t cannot be run" >&2; exit 1; }
    done
elif ! have tarantool; then
    missing=tarantool
fi
# A Rust toolchain links with cc.
have cc || missing="$missing gcc"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && have apt-get; then
    echo "installing: $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086
    apt-get install -qy --no-install-recommends $missing
    exit 0
fi
# Not root: one at a conventional place will do.
if [ "$missing" = tarantool ] && ls /opt/tarantool*/bin/tarantool >/dev/null 2>&1; then
    exit 0
fi
echo "missing: $missing; install it (Debian: apt-get install $missing), or give TARANTOOL=/path/to/tarantool" >&2
exit 1

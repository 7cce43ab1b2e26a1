#!/bin/sh
# Counted benches: instructions and allocations per operation, beside the saved base. bench/micro.sh [--save] [--list]
# [part of an operation's name…], see docs/performance.md. Needs valgrind.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is not installed" >&2; exit 1; }
CARGO_TARGET_DIR="$PWD/target/bench"
export CARGO_TARGET_DIR
cargo build --quiet --release --manifest-path bench/micro/Cargo.toml
exec "$CARGO_TARGET_DIR/release/micro" --base bench/micro/base.txt "$@"

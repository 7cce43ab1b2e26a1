#!/bin/sh
# Builds the load generator and the floors, then runs the benches: bench/run.sh [--quick] and more, see bench/README.md.
set -eu
cd "$(dirname "$0")/.."
CARGO_TARGET_DIR="$PWD/target/bench"
export CARGO_TARGET_DIR
cargo build --quiet --release --manifest-path bench/floor/Cargo.toml
cargo build --quiet --release --manifest-path bench/load/Cargo.toml
# Becomes the driver, so that signals reach it and nothing is left between.
exec "$CARGO_TARGET_DIR/release/load" bench --root "$PWD" --build "${RAWSHARD_BUILD:-$PWD/build}" "$@"

#!/bin/sh
# Builds the load generator, then runs at full load while storages die and come back: bench/soak.sh [--seconds N] [--seed N].
set -eu
cd "$(dirname "$0")/.."
CARGO_TARGET_DIR="$PWD/target/bench"
export CARGO_TARGET_DIR
cargo build --quiet --release --manifest-path bench/load/Cargo.toml
# Becomes the driver, so that signals reach it and nothing is left between.
exec "$CARGO_TARGET_DIR/release/load" soak --root "$PWD" --build "${RAWSHARD_BUILD:-$PWD/build}" "$@"

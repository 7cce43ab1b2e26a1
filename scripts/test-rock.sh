#!/bin/sh
# Installs this tree as a rock into a directory of its own, the way users do, and calls what was installed on each host.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)

if command -v tarantoolctl >/dev/null 2>&1; then
    rocks="tarantoolctl rocks"
elif command -v tt >/dev/null 2>&1; then
    rocks="tt rocks"
else
    echo "rock: neither tarantoolctl nor tt is installed: skipped"
    exit 0
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
# What is in the tree, without what was built in it. The compiled crate is reused.
mkdir "$dir/src" "$dir/run"
tar -cf - --exclude=./target --exclude=./build --exclude=./.rocks --exclude=./.git --exclude='./bench/*/target' . |
    tar -xf - -C "$dir/src"
case ${CARGO_TARGET_DIR:-} in
    '') CARGO_TARGET_DIR=$root/target ;;
    /*) ;;
    *) CARGO_TARGET_DIR=$root/$CARGO_TARGET_DIR ;;
esac
export CARGO_TARGET_DIR

(cd "$dir/src" && $rocks make rawshard-scm-1.rockspec) >"$dir/log" 2>&1 || {
    cat "$dir/log"
    echo "rock: $rocks make failed"
    exit 1
}

cat >"$dir/use.lua" <<'LUA'
box.cfg({log_level = 3, wal_mode = 'none'})
local router = require('rawshard.router')
assert(package.search('rawshard'):match('%.so$'), 'a Lua file hides the library')
router.cfg({bucket_count = 10, sharding = {}})
box.schema.func.create('rawshard.callraw', {language = 'C'})
local ok, err = pcall(box.func['rawshard.callraw'].call, box.func['rawshard.callraw'], {11, 'read', 'f'})
assert(not ok and tostring(err):find('bucket', 1, true), 'the stored function: ' .. tostring(err))
print('rock: works on ' .. _TARANTOOL)
os.exit(0)
LUA

hosts=${TARANTOOL:-$(command -v tarantool || true) $(ls -d /opt/tarantool*/bin/tarantool 2>/dev/null || true)}
for host in $hosts; do
    rm -rf "$dir/run"
    mkdir "$dir/run"
    cp -r "$dir/src/.rocks" "$dir/run/"
    (cd "$dir/run" && "$host" "$dir/use.lua")
done

#!/bin/sh
# The order of the modules of src/: each uses only what stands to its left,
#
#     time slab ids error metrics · wire · route · conn call · session · engine · control · router · host
#
# conn and call do not know each other, and `unsafe` is written in src/host and src/engine/sys.rs only.
set -eu
cd "$(dirname "$0")/.."

bad=0

# The modules that a file names after `crate::`, braces opened, comments dropped.
used() {
    sed 's|//.*||' "$1" | tr '\n' ' ' | awk '{
        text = $0
        while (match(text, /crate::/)) {
            text = substr(text, RSTART + RLENGTH)
            if (match(text, /^[a-z_]+/)) {
                print substr(text, 1, RLENGTH)
            } else if (substr(text, 1, 1) == "{") {
                depth = 1; word = ""; first = 1
                for (i = 2; i <= length(text) && depth > 0; i++) {
                    c = substr(text, i, 1)
                    if (c == "{") depth++
                    if (c == "}") depth--
                    if (depth == 1 && first && c ~ /[a-z_]/) word = word c
                    else if (word != "" && first) { print word; word = ""; first = 0 }
                    if (depth == 1 && c == ",") first = 1
                }
            }
        }
    }' | sort -u
}

rank() {
    case $1 in
        time) echo 1 ;; slab) echo 2 ;; ids) echo 3 ;; error) echo 4 ;; metrics) echo 5 ;; wire) echo 6 ;; route) echo 7 ;;
        conn | call) echo 8 ;; session) echo 9 ;; engine) echo 10 ;; control) echo 11 ;; router) echo 12 ;;
        host) echo 13 ;; *) echo 0 ;;
    esac
}

for file in $(find src -name '*.rs' ! -path src/lib.rs | sort); do
    module=$(echo "$file" | sed 's|^src/||; s|/.*||; s|\.rs$||')
    own=$(rank "$module")
    if [ "$own" = 0 ]; then
        echo "$file: the module $module has no place in the order (scripts/check-layers.sh)"
        bad=1
        continue
    fi
    for name in $(used "$file"); do
        [ "$name" = "$module" ] && continue
        theirs=$(rank "$name")
        # Names that are no module (macros, re-exported types) have no rank.
        if [ "$theirs" != 0 ] && [ "$theirs" -ge "$own" ]; then
            echo "$file: $module may not use crate::$name, which stands to its right or beside it"
            bad=1
        fi
    done
    case $file in
        src/host/* | src/engine/sys.rs) ;;
        *)
            if sed 's|//.*||' "$file" | grep -nw unsafe; then
                echo "$file: unsafe belongs into src/host and src/engine/sys.rs"
                bad=1
            fi
            ;;
    esac
done

[ "$bad" = 0 ] && echo "layers: in order"
exit "$bad"

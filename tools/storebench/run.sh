#!/bin/bash
# The runs behind docs/decisions/001-metadata-store.md. Usage: tools/storebench/run.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")"
cargo build --release --locked
bench=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/storebench
dir=${1:-/tmp}/storebench.$$
out=$(mktemp)
trap 'rm -rf "$dir" "$out"' EXIT
for _ in 1 2 3 4 5; do
    for threads in 1 2 4; do
        "$bench" create "$dir" fjall $threads 100000 direct
        "$bench" create "$dir" lmdb-nosync $threads 100000 direct
        "$bench" create "$dir" redb $threads 30000 direct
        for engine in fjall lmdb redb; do "$bench" create "$dir" $engine $threads 100000 grouped; done
    done
done
for _ in 1 2 3; do for engine in fjall lmdb redb; do "$bench" idle "$dir" $engine; done; done
for _ in 1 2 3 4 5; do
    for engine in fjall lmdb redb; do
        "$bench" writer "$dir" $engine >"$out" &
        pid=$!
        sleep 1
        kill -9 $pid
        wait $pid 2>/dev/null || true
        "$bench" check "$dir" $engine x "$(tail -1 "$out")"
    done
done

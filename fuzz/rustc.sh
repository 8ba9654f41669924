#!/bin/sh
# RUSTC_WRAPPER of `cargo xtask fuzz`: compiles this repository's own crates with coverage counters. Counters in other crates
# would only slow the targets down.
case "$CARGO_MANIFEST_DIR/" in
"$NACRE_ROOT"/*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*) exec "$@" ;;
esac

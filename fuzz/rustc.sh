#!/bin/sh
# The compiler as `cargo xtask fuzz` has it called: with coverage counters in this repository's own crates. In the others they
# would only make everything slow.
case "$CARGO_MANIFEST_DIR/" in
"$NACRE_ROOT"/*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*) exec "$@" ;;
esac

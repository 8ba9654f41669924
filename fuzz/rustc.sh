#!/bin/sh
# RUSTC_WRAPPER of `cargo xtask fuzz`: compiles the crates that handle input with coverage counters.
# Counters in other crates would only slow the targets down: libFuzzer looks at every counter after
# each input. Parsers also report the values that they compare.
sancov="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
compares=-Cllvm-args=-sanitizer-coverage-trace-compares
case "$CARGO_MANIFEST_DIR" in
"$NACRE_ROOT"/crates/wire | "$NACRE_ROOT"/crates/capture | "$NACRE_ROOT"/crates/lst) exec "$@" $sancov $compares ;;
"$NACRE_ROOT"/crates/rpc | "$NACRE_ROOT"/crates/ldlm | "$NACRE_ROOT"/crates/mdt | "$NACRE_ROOT"/crates/ost) exec "$@" $sancov ;;
*) exec "$@" ;;
esac

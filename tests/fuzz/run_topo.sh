#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Long fuzzing of the readers of topology files, outside CI, with AddressSanitizer and
# UndefinedBehaviorSanitizer. A failure leaves its input in build/fuzz and prints how to repeat it.
#
#   tests/fuzz/run_topo.sh [MINUTES [SEED]]         default 10 minutes, a random seed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MINUTES=${1:-10}
SEED=${2:-$((RANDOM * 32768 + RANDOM))}
OUT=build/fuzz
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1
export PYTHONDONTWRITEBYTECODE=1
export FUZZ_CRASH=$OUT/crash_topo

if ! [[ $MINUTES =~ ^[1-9][0-9]*$ && $SEED =~ ^[0-9]+$ ]]; then
    echo "usage: tests/fuzz/run_topo.sh [MINUTES [SEED]]" >&2
    exit 2
fi
mkdir -p "$OUT"
cmake --preset asan >"$OUT/build.log"
cmake --build --preset asan -- fuzz_topo >>"$OUT/build.log" || { tail -n 40 "$OUT/build.log" && exit 1; }
python3 tests/fuzz/topo_corpus.py "$OUT/topo_texts"
echo "seed $SEED, $MINUTES minutes"
build/asan/tests/fuzz_topo --seconds=$((MINUTES * 60)) --seed="$SEED" "$OUT/topo_texts" || {
    echo "FAILED; repeat: build/asan/tests/fuzz_topo $FUZZ_CRASH"
    exit 1
}

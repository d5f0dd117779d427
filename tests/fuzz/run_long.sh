#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Long fuzzing, outside CI, with AddressSanitizer and UndefinedBehaviorSanitizer:
#   decode  messages of every codec
#   peer    headers, handshakes, records and control messages, at live endpoints
#   net_plugin  the same at the net plugin for NCCL, and its packed messages
#   plans   random ranks, tiers, codecs, windows, threads and transports against the Python model
# A quarter of the time each. New inputs every time, by a seed that is printed; a failure leaves its
# input in build/fuzz and prints how to repeat it. With clang and libFuzzer installed, decode and
# peer are steered by coverage as well, in the second half of their time.
#
#   tests/fuzz/run_long.sh [MINUTES [SEED]]         default 10 minutes, a random seed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MINUTES=${1:-10}
SEED=${2:-$((RANDOM * 32768 + RANDOM))}
OUT=build/fuzz
SANITIZERS=address,undefined
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1
export PYTHONDONTWRITEBYTECODE=1

if ! [[ $MINUTES =~ ^[1-9][0-9]*$ && $SEED =~ ^[0-9]+$ ]]; then
    echo "usage: tests/fuzz/run_long.sh [MINUTES [SEED]]" >&2
    exit 2
fi
quarter=$((MINUTES * 15))
failed=()

say() {
    printf '\n== %s\n' "$*"
}

have_libfuzzer() {
    command -v clang >/dev/null &&
        echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n < 0; }' |
        clang -x c - -fsanitize=fuzzer,$SANITIZERS -o "$OUT/probe" 2>/dev/null
}

build_libfuzzer() { # name
    clang -std=c11 -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,$SANITIZERS -Iinclude -Isrc -Itests \
        "tests/fuzz/$1_fuzz.c" build/libfuzzer/src/libdsc_internal.a \
        $(pkg-config --libs libsodium libisal expat hwloc) -lpthread -lm -o "$OUT/$1_libfuzzer"
}

run_plain() { # name seconds
    FUZZ_CRASH=$OUT/crash_$1 "build/asan/tests/fuzz_$1" --seconds="$2" --seed="$SEED" \
        "tests/fuzz/corpus/$1" && return
    failed+=("$1")
    echo "repeat: build/asan/tests/fuzz_$1 $OUT/crash_$1"
}

# What it finds worth keeping grows in build/fuzz; the corpus in the tree is only read.
run_libfuzzer() { # name seconds
    mkdir -p "$OUT/corpus_$1"
    "$OUT/$1_libfuzzer" -max_total_time="$2" -seed="$SEED" -max_len=20004 -timeout=60 \
        -artifact_prefix="$OUT/$1_" -print_final_stats=1 -verbosity=0 \
        "$OUT/corpus_$1" "tests/fuzz/corpus/$1" && return
    failed+=("$1 (libFuzzer)")
}

run_target() { # name
    if [ "$with_libfuzzer" = 0 ]; then
        say "$1, $quarter s"
        run_plain "$1" "$quarter"
        return
    fi
    say "$1, $((quarter / 2)) s"
    run_plain "$1" $((quarter / 2))
    say "$1 with libFuzzer, $((quarter / 2)) s"
    run_libfuzzer "$1" $((quarter / 2))
}

mkdir -p "$OUT"
say "seed $SEED, $MINUTES minutes; building"
cmake --preset asan >"$OUT/build.log"
cmake --build --preset asan -- fuzz_decode fuzz_net_plugin fuzz_peer law_dump >>"$OUT/build.log" ||
    { tail -n 40 "$OUT/build.log" && exit 1; }
with_libfuzzer=0
if have_libfuzzer && cmake -S . -B build/libfuzzer -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_FLAGS=-O1 \
    -DDSCOMM_SANITIZE=fuzzer-no-link,$SANITIZERS >"$OUT/libfuzzer.log" 2>&1 &&
    cmake --build build/libfuzzer --target dsc_internal >>"$OUT/libfuzzer.log" 2>&1 &&
    build_libfuzzer decode && build_libfuzzer peer; then
    with_libfuzzer=1
else
    echo "no libFuzzer (clang): random changes only"
fi

run_target decode
run_target peer
say "net_plugin, $quarter s"
run_plain net_plugin "$quarter"
say "plans, $quarter s"
python=/usr/bin/python3 # numpy is one of its packages
[ -x "$python" ] || python=python3
"$python" tests/fuzz/plans_fuzz.py --seed "$SEED" \
    --seconds "$quarter" build/asan/tests/law_dump || failed+=(plans)

say "result"
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED with seed $SEED: ${failed[*]}"
    exit 1
fi
echo "all held, seed $SEED"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests in one command: installs what is missing (Debian and its kin), builds each stage's preset
# and runs its tests. The last line is `N passed, N failed, N skipped` over all stages; the exit code
# is not zero when a test failed, a build broke, or fewer tests ran than tests/expected_count says.
#
#   tests/run.sh [--write-expected] [STAGE ...]      stages: release mask0 asan tsan (default: all)
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."

JOBS=2
PACKAGES=(build-essential clang-format cmake gcc-aarch64-linux-gnu ibverbs-providers ibverbs-utils iperf3 iproute2 libcjson-dev libexpat1-dev libgtest-dev libhwloc-dev libibverbs-dev libisal-dev libopenmpi-dev
    libc6-dev-arm64-cross libsodium-dev ninja-build openmpi-bin pkg-config pmccabe python3 python3-matplotlib
    perftest python3-numpy python3-pip python3-torch qemu-system-x86 qemu-user-static zlib1g-dev)

say() {
    printf '\n== %s\n' "$*"
}

# Output of other programs is indented, so that the result line stands alone.
indent() {
    sed -u 's/^/    /'
}

install_packages() {
    local missing=() sudo=()
    local package

    if ! command -v apt-get >/dev/null; then
        say "this is no Debian: please provide the equivalents of ${PACKAGES[*]}"
        return
    fi
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    if [ ${#missing[@]} -eq 0 ]; then
        return
    fi
    say "installing ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
    if ! { "${sudo[@]}" apt-get update -q && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"; } 2>&1 | indent; then
        say "could not install ${missing[*]}; going on with what is here"
    fi
}

# The CUDA parts need nvcc, which Debian does not have in a version that serves: PyPI has it.
install_cuda() {
    local nvcc

    for nvcc in "$(command -v nvcc)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
        if [ -x "$nvcc" ]; then
            return
        fi
    done
    if [ ! -e build/cuda/complete ]; then
        say "installing nvcc into build/cuda"
        mkdir -p build
    fi
    if ! tests/support/cuda_toolkit.sh 2>&1 | indent; then
        rm -rf build/cuda
        say "no nvcc: the tests of CUDA parts are skipped, for the reason above"
    fi
}

declare -A built

# A folder that was configured elsewhere (another machine, a moved checkout) starts afresh.
configure_and_build() { # preset
    # perf/run.sh may have configured the same folder without the tests
    { cmake --preset "$1" -DDSCOMM_BUILD_TESTS=ON ||
        { rm -rf "build/$1" && cmake --preset "$1" -DDSCOMM_BUILD_TESTS=ON; }; } &&
        cmake --build --preset "$1" -j "$JOBS"
}

build() { # preset
    local log=build/log/$1

    [ -n "${built[$1]:-}" ] && return "${built[$1]}"
    say "building preset $1, output in $log"
    mkdir -p build/log
    if configure_and_build "$1" >"$log" 2>&1; then
        built[$1]=0
        grep -E 'warning:|^-- (dscomm|no CUDA)' "$log" | indent || true
    else
        built[$1]=1
        tail -n 100 "$log" | indent
    fi
    return "${built[$1]}"
}

results=()

run_stage() { # stage preset ctest-arguments...
    local stage=$1 preset=$2
    local junit=$PWD/build/junit/$stage.xml
    shift 2

    if ! build "$preset"; then
        results+=(--broken "$stage")
        return
    fi
    say "stage $stage: tests of preset $preset ${*}"
    mkdir -p build/junit
    rm -f "$junit"
    # A failing test is counted from the file; ctest that wrote none has broken the stage.
    DSC_TESTS_STRICT=1 ctest --preset "$preset" -j "$JOBS" --output-junit "$junit" \
        --test-output-size-passed 1000000 --test-output-size-failed 1000000 "$@" 2>&1 |
        indent || true
    if [ -s "$junit" ]; then
        results+=("$stage=$junit")
    else
        results+=(--broken "$stage")
    fi
}

stage_release() {
    run_stage release release
}

# The scalar reference everywhere. Only tests that compute anything can tell the difference; the check
# harness sets levels itself.
stage_mask0() {
    DSCOMM_CPU_MASK=0 run_stage mask0 release -L '^(codec|model|conformance)$'
}

stage_asan() {
    run_stage asan asan
}

stage_tsan() {
    run_stage tsan tsan
}

main() {
    local count_options=() stages=() stage

    for stage in "$@"; do
        case $stage in
        --write-expected) count_options=(--write-expected) ;;
        release | mask0 | asan | tsan) stages+=("$stage") ;;
        *)
            echo "unknown argument $stage; stages are release mask0 asan tsan" >&2
            exit 2
            ;;
        esac
    done
    [ ${#stages[@]} -gt 0 ] || stages=(release mask0 asan tsan)

    install_packages
    install_cuda
    for stage in "${stages[@]}"; do
        "stage_$stage"
    done
    say "results"
    python3 tests/support/count_results.py --expected tests/expected_count \
        --wanted "${stages[*]}" "${count_options[@]}" "${results[@]}"
}

main "$@"

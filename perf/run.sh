#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: installs what is missing (Debian), builds, and runs all_reduce_perf
# with 4 ranks on real gradients, over TCP and over shared memory, with no codec, bf16 and int8.
# Arguments are passed on to all_reduce_perf and win over those given here:
#   perf/run.sh -g 2 -e 256M --codec none --codec int8:block=64
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
packages='build-essential cmake ninja-build pkg-config libsodium-dev libisal-dev libexpat1-dev
    libhwloc-dev libcjson-dev python3'

. "$root/perf/install.sh"

# Tests need GoogleTest, which the main job does not: without it they are left out.
build() {
    cd "$root"
    tests=
    is_installed libgtest-dev || tests=-DDSCOMM_BUILD_TESTS=OFF
    quietly cmake --preset release $tests
    quietly cmake --build --preset release --target all_reduce_perf --target codec_perf \
        --target dscomm_info
}

# Few iterations: four ranks on two cores take the better part of a second per call at 64 MiB.
run() {
    "$root/build/release/perf/all_reduce_perf" -g 4 -b 64K -e 64M -f 4 -n 5 --data lm "$@"
}

install_missing
echo 'run.sh: building'
build
case " $*" in
*' --transport'*)
    run "$@"
    ;;
*)
    status=0
    run --transport tcp "$@" || status=$?
    run --transport shm "$@" || status=$?
    exit "$status"
    ;;
esac

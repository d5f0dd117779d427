#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: installs what is missing (Debian), builds, and runs all_reduce_perf
# with 4 ranks on real gradients, over TCP and over shared memory, with no codec, bf16 and int8.
# Arguments are passed on to all_reduce_perf and win over those given here:
#   perf/run.sh -g 2 -e 256M --codec none --codec int8:block=64
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
packages='build-essential cmake ninja-build pkg-config libsodium-dev libisal-dev libcjson-dev python3'

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "run.sh: needs root or sudo for: $*" >&2
        return 1
    fi
}

# Says nothing unless it fails.
quietly() {
    if ! output=$("$@" 2>&1); then
        printf '%s\n' "$output" >&2
        echo "run.sh: failed: $*" >&2
        return 1
    fi
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_missing() {
    missing=
    for package in $packages; do
        is_installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "run.sh: not a Debian system, assuming that these are here:$missing" >&2
        return 0
    fi
    echo "run.sh: installing$missing"
    quietly as_root apt-get update
    # shellcheck disable=SC2086 # a list
    quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        $missing
}

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

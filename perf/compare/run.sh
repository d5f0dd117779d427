#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# DSComm beside gloo and Open MPI in one command: installs what is missing (Debian), builds,
# measures (about 6 minutes; --quick: one), prints tables. Over slow links only as root. Arguments
# go to compare.py, for example:
#   perf/compare/run.sh --quick
#   perf/compare/run.sh --json result.json --plots .
#   perf/compare/run.sh --write-docs            # tables and plots of docs/perf.md anew
# With `tiers` as the first word it is what codec auto chooses on two hosts beside all it could have
# chosen (tiers.py, about 10 minutes; root):
#   perf/compare/run.sh tiers --rate 1gbit
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/compare
packages='build-essential cmake ninja-build pkg-config libsodium-dev libisal-dev
    libcjson-dev libexpat1-dev libhwloc-dev openmpi-bin libopenmpi-dev python3 python3-numpy python3-torch python3-matplotlib
    iproute2 iperf3'

. "$root/perf/install.sh"

install_missing
echo 'run.sh: building'
quietly cmake -S "$root/perf/compare" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release
quietly cmake --build "$build" -j 2
script=compare.py
if [ "${1:-}" = tiers ]; then
    shift
    script=tiers.py
    quietly cmake -S "$root" -B "$root/build/release" -G Ninja -DCMAKE_BUILD_TYPE=Release
    quietly cmake --build "$root/build/release" --target link_perf --target dscomm_tune -j 2
fi
# The distribution's interpreter: torch is one of its packages.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
exec "$python" "$root/perf/compare/$script" --build "$build" "$@"

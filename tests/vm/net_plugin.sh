#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The net plugin for NCCL over RDMA, against NCCL's contract. Runs in the virtual machine of run.py.
#
#   tests/vm/run.py tests/vm/net_plugin.sh PART net_conformance libnccl-net-dscomm.so
#
# PART   whole    all cases by the newest version, those that an adapter could spoil by the others
#        packed   all cases with messages that are shrunk
#        brief    what uses memory in the most ways, for AddressSanitizer
#        faults   a link that loses packets or goes down, limits, settings
#        lines    10^7 lines each of LL and LL128 under a poller's eyes, shrunk and not: by hand
part=$1 harness=$2 plugin=$3
export DSCOMM_NET=verbs
bad=0

run() {
    echo "== $*"
    "$harness" --plugin="$plugin" "$@" || bad=1
}

case $part in
whole)
    run --lines=100000
    for abi in 6 7 8 9 10 11; do
        run --abi=$abi --lines=20000 --cycles=12 \
            --case=properties,cycles,two_processes,order,does_not_fit,ll128_poller,close_in_flight
    done
    ;;
packed)
    DSCOMM_NET_COMPRESS=on run --lines=100000 --cycles=20
    ;;
brief)
    run --lines=5000 --case=sizes,order,back_pressure,does_not_fit,registration,threads,ll128_poller,\
ll_poller,close_in_flight,close_after_last,receiver_killed,half_message
    ;;
faults)
    run --rdma
    ;;
lines)
    for mode in off on; do
        DSCOMM_NET_COMPRESS=$mode run --lines=10000000 --case=ll128_poller,ll_poller
    done
    ;;
*)
    echo "unknown part $part: whole, packed, brief, faults, lines" >&2
    bad=2
    ;;
esac
exit $bad

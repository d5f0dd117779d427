#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In place of ssh, for mpirun: netns_rsh.sh ADDRESS COMMAND... runs the command "on the host" with
# that address: in the network namespace $COMPARE_NETNS followed by the rank, with a host name of
# its own, because Open MPI takes ranks on hosts of one name for neighbours and would not use links.
set -eu
address=$1
shift
name=$COMPARE_NETNS$((${address##*.} - 1))
exec ip netns exec "$name" unshare --uts sh -c "hostname $name && exec $*"

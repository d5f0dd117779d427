#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libdscomm_cuda exports what its map lists and its header declares, links the shared CUDA runtime and
# not NCCL, which it finds when it is used.
#   exports_test.sh LIBRARY SOURCE_FOLDER
set -euo pipefail

library=$1
source=$2
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort)
listed=$(sed -n '/^global:/,/^local:/p' "$source/src/cuda/dscomm_cuda.map" | grep -oE 'dscomm_\w+' | sort)
declared=$(grep -A3 '^DSCOMM_API' "$source/include/dscomm/nccl.h" | grep -oE 'dscomm_\w+\(' | tr -d '(' | sort)
needed=$(readelf -d "$library" | grep NEEDED)

if [ "$exported" != "$listed" ] || [ "$exported" != "$declared" ]; then
    printf 'exported:\n%s\nin dscomm_cuda.map:\n%s\nin nccl.h:\n%s\n' "$exported" "$listed" "$declared"
    exit 1
fi
grep -q 'libcudart\.so' <<<"$needed" || { echo "the CUDA runtime is not a shared library"; exit 1; }
if grep -q 'libnccl' <<<"$needed"; then
    echo "linked to NCCL"
    exit 1
fi

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of NCCL that are used, found at run time: whoever has an ncclComm_t has the library
 * in the process already, and a build needs nccl.h alone.
 */
#ifndef DSC_CUDA_NCCL_TABLE_H
#define DSC_CUDA_NCCL_TABLE_H

#include <nccl.h>

#include "core/core.h"

/* clang-format off */
#define DSC_NCCL_MAP(X)                                                                       \
    X(CommCount) X(CommUserRank) X(CommCuDevice) X(CommGetAsyncError) X(CommAbort)            \
    X(CommSplit) X(CommDestroy)                                                               \
    X(GetErrorString) X(GetLastError) X(GroupStart) X(GroupEnd) X(Send) X(Recv) X(AllGather)  \
    X(AllReduce)
/* clang-format on */

struct dsc_nccl {
#define DSC_NCCL_MEMBER(name) __typeof__(&nccl##name) name;
    DSC_NCCL_MAP(DSC_NCCL_MEMBER)
#undef DSC_NCCL_MEMBER
};

/* What the process has loaded, else libnccl.so.2. */
dscomm_status_t dsc_nccl_get(const struct dsc_nccl **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting, by ncclCommSplit(): the new communicator has an NCCL communicator of its own. That
 * function waits for all ranks and knows no deadline. So ranks first meet where there is one, and
 * while a rank is in it its watchdog looks at the clock.
 */
#include "cuda/cuda.h"

static dscomm_status_t split_handle(struct dsc_cuda_comm *cc, int color, int key,
                                    ncclComm_t *handle_out)
{
    ncclResult_t result;

    DSC_TRY(dsc_cuda_hold(cc));
    dsc_watch_blocking(cc, true);
    result = cc->nccl->CommSplit(cc->handle, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                                 handle_out, NULL);
    dsc_watch_blocking(cc, false);
    dsc_cuda_let_go(cc);
    return result == ncclSuccess || result == ncclInProgress
               ? DSCOMM_OK
               : dsc_nccl_fail(cc, result, "ncclCommSplit", __FILE__, __LINE__);
}

dscomm_status_t dsc_cuda_split(struct dscomm_comm *comm, int color, int key,
                               const dscomm_comm_config_t *config, dscomm_comm_t **comm_out)
{
    struct dsc_cuda_comm *const cc = (struct dsc_cuda_comm *)comm;
    dscomm_comm_config_t settings = *config;
    ncclComm_t handle = NULL;

    settings.transport = NULL; /* ours is not one to choose */
    dsc_log_set_rank(comm->rank, comm->n_ranks);
    DSC_TRY(dsc_cuda_check_device(cc));
    DSC_TRY(dsc_cuda_agree(cc, DSCOMM_OK, "call=split"));
    DSC_TRY(split_handle(cc, color, key, &handle));
    if (color < 0) {
        *comm_out = NULL;
        return DSCOMM_OK;
    }
    return dsc_cuda_create(handle, true, &settings, comm_out);
}

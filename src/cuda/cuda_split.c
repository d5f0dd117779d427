/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting, by ncclCommSplit(): the new communicator has an NCCL communicator of its own. That
 * function waits for all ranks and knows no deadline. So ranks first meet where there is one, and
 * while a rank is in it its watchdog looks at the clock.
 */
#include "cuda/cuda.h"

#include <string.h>

/* All ranks meet; the tiers of this rank's color. */
static dscomm_status_t find_tiers(struct dsc_cuda_comm *cc, int color, int key, char **tiers_out)
{
    const struct dsc_split_member own = { color, key };

    DSC_TRY(dsc_cuda_agree(cc, DSCOMM_OK, "call=split"));
    memcpy(cc->agree, &own, sizeof(own));
    DSC_TRY(dsc_cuda_gather(cc, sizeof(own)));
    *tiers_out = dsc_split_tiers(&cc->base, (const void *)(cc->agree + sizeof(own)));
    return *tiers_out != NULL
               ? DSCOMM_OK
               : dsc_fail(DSCOMM_ERR_NO_MEMORY, "splitting %d ranks", cc->base.n_ranks);
}

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
    char *tiers = NULL;
    dscomm_status_t st;

    settings.transport = NULL; /* ours is not one to choose */
    dsc_log_set_rank(comm->rank, comm->n_ranks);
    DSC_TRY(dsc_cuda_check_device(cc));
    st = find_tiers(cc, color, key, &tiers);
    if (st == DSCOMM_OK)
        st = split_handle(cc, color, key, &handle);
    if (st == DSCOMM_OK && color < 0)
        *comm_out = NULL;
    else if (st == DSCOMM_OK)
        st = dsc_cuda_create(handle, true, &settings, tiers, comm_out);
    dsc_free(tiers);
    return st;
}

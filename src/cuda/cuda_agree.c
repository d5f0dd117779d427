/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks compare notes over NCCL: first a hash and a status each, and only if something is wrong the
 * texts. All ranks see the same records and so come to the same verdict.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct note {
    uint64_t hash;
    int32_t status;
    uint32_t pad;
};

static void sleep_a_little(void)
{
    const struct timespec pause = { 0, 100000 };

    nanosleep(&pause, NULL);
}

dscomm_status_t dsc_cuda_wait_own(struct dsc_cuda_comm *cc, const char *what)
{
    const uint64_t start = dsc_now_ns(), until = dsc_deadline_ns(cc->base.config.timeout_ms);

    for (;;) {
        const cudaError_t state = cudaStreamQuery(cc->own);

        DSC_TRY(dsc_comm_check(&cc->base)); /* aborted, or NCCL's own error */
        if (state == cudaSuccess)
            return DSCOMM_OK;
        if (state != cudaErrorNotReady)
            return dsc_cuda_fail(state, what, __FILE__, __LINE__);
        if (dsc_now_ns() > until) {
            dsc_fail_at(__FILE__, __LINE__, "rank %d has waited %.1f s for all ranks: %s",
                        cc->base.rank, (double)(dsc_now_ns() - start) * 1e-9, what);
            dsc_watch_fail(cc, DSCOMM_ERR_TIMEOUT, dscomm_last_error()); /* ends what waits */
            return DSCOMM_ERR_TIMEOUT;
        }
        sleep_a_little();
    }
}

/* Every rank's record of n bytes; the own one is at cc->agree, all of them from n on. */
static dscomm_status_t gather(struct dsc_cuda_comm *cc, size_t n)
{
    const size_t all = n * (size_t)cc->base.n_ranks;
    ncclResult_t gathered;

    CUDA_TRY(cudaMemcpyAsync(cc->agree_device, cc->agree, n, cudaMemcpyHostToDevice, cc->own));
    DSC_TRY(dsc_cuda_hold(cc));
    gathered = cc->nccl->AllGather(cc->agree_device, cc->agree_device + n, n, ncclUint8, cc->handle,
                                   cc->own);
    dsc_cuda_let_go(cc);
    NCCL_TRY(cc, gathered);
    CUDA_TRY(
        cudaMemcpyAsync(cc->agree + n, cc->agree_device + n, all, cudaMemcpyDeviceToHost, cc->own));
    return dsc_cuda_wait_own(cc, "comparing what ranks must agree on");
}

/* Lowest rank that failed, or that differs from rank 0; -1: all is well. */
static int find_fault(const struct dsc_cuda_comm *cc, const struct note *notes, bool *failed_out)
{
    for (int r = 0; r < cc->base.n_ranks; r++)
        if (notes[r].status < 0) {
            *failed_out = true;
            return r;
        }
    *failed_out = false;
    for (int r = 1; r < cc->base.n_ranks; r++)
        if (notes[r].hash != notes[0].hash)
            return r;
    return -1;
}

static const char *record(struct dsc_cuda_comm *cc, int rank)
{
    char *const text = (char *)cc->agree + (size_t)(rank + 1) * DSC_AGREE_BYTES;

    text[DSC_AGREE_BYTES - 1] = '\0';
    return text;
}

dscomm_status_t dsc_cuda_agree(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text)
{
    const struct note mine = { .hash = dsc_hash_text(text), .status = st };
    char own_error[DSC_AGREE_BYTES], difference[DSC_AGREE_BYTES];
    struct note theirs;
    bool failed;
    int fault;

    snprintf(own_error, sizeof(own_error), "%s", st < 0 ? dscomm_last_error() : "");
    memcpy(cc->agree, &mine, sizeof(mine));
    DSC_TRY(gather(cc, sizeof(mine)));
    fault = find_fault(cc, (const struct note *)(const void *)(cc->agree + sizeof(mine)), &failed);
    if (fault < 0)
        return DSCOMM_OK;
    memcpy(&theirs, cc->agree + (size_t)(fault + 1) * sizeof(theirs), sizeof(theirs));
    snprintf((char *)cc->agree, DSC_AGREE_BYTES, "%s", failed ? own_error : text);
    DSC_TRY(gather(cc, DSC_AGREE_BYTES));
    if (failed)
        return dsc_fail((dscomm_status_t)theirs.status, "rank %d: %s", fault, record(cc, fault));
    dsc_describe_difference(record(cc, 0), 0, record(cc, fault), fault, difference,
                            sizeof(difference));
    return dsc_fail(DSCOMM_ERR_MISMATCH, "%s", difference);
}

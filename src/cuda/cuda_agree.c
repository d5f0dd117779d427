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

dscomm_status_t dsc_cuda_wait_event(struct dsc_cuda_comm *cc, cudaEvent_t event)
{
    cudaError_t state = cudaEventQuery(event);

    while (state == cudaErrorNotReady) {
        sleep_a_little();
        DSC_TRY(dsc_comm_check(&cc->base));
        state = cudaEventQuery(event);
    }
    DSC_TRY(dsc_comm_check(&cc->base)); /* what an abort leaves has not been done */
    CUDA_TRY(state);
    return DSCOMM_OK;
}

dscomm_status_t dsc_cuda_gather(struct dsc_cuda_comm *cc, size_t n)
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

/* What all ranks come to. */
struct verdict {
    int fault; /* a rank, -1: all is well */
    bool failed;
    dscomm_status_t status; /* of a rank that failed */
};

/* Unless all is well, records are texts afterwards: errors if somebody failed, else `text`. */
static dscomm_status_t compare(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text,
                               struct verdict *out)
{
    const struct note mine = { .hash = dsc_hash_text(text), .status = st };
    char own_error[DSC_AGREE_BYTES];
    struct note theirs;

    snprintf(own_error, sizeof(own_error), "%s", st < 0 ? dscomm_last_error() : "");
    memcpy(cc->agree, &mine, sizeof(mine));
    DSC_TRY(dsc_cuda_gather(cc, sizeof(mine)));
    out->fault =
        find_fault(cc, (const struct note *)(const void *)(cc->agree + sizeof(mine)), &out->failed);
    if (out->fault < 0)
        return DSCOMM_OK;
    memcpy(&theirs, cc->agree + (size_t)(out->fault + 1) * sizeof(theirs), sizeof(theirs));
    out->status = (dscomm_status_t)theirs.status;
    snprintf((char *)cc->agree, DSC_AGREE_BYTES, "%s", out->failed ? own_error : text);
    return dsc_cuda_gather(cc, DSC_AGREE_BYTES);
}

dscomm_status_t dsc_cuda_agree(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text)
{
    char difference[DSC_AGREE_BYTES];
    struct verdict v;

    DSC_TRY(compare(cc, st, text, &v));
    if (v.fault < 0)
        return DSCOMM_OK;
    if (v.failed)
        return dsc_fail(v.status, "rank %d: %s", v.fault, record(cc, v.fault));
    dsc_describe_difference(record(cc, 0), 0, record(cc, v.fault), v.fault, difference,
                            sizeof(difference));
    return dsc_fail(DSCOMM_ERR_MISMATCH, "%s", difference);
}

dscomm_status_t dsc_cuda_all_can(struct dsc_cuda_comm *cc, dscomm_status_t st, bool *out)
{
    char why[DSC_AGREE_BYTES + 16];
    struct verdict v;

    DSC_TRY(compare(cc, st, "", &v));
    *out = v.fault < 0;
    if (*out)
        return DSCOMM_OK;
    snprintf(why, sizeof(why), "rank %d: %s", v.fault, record(cc, v.fault));
    dsc_set_last_error(why);
    return DSCOMM_OK;
}

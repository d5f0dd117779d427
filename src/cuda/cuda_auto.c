/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec auto on devices: the choice is that of src/comm/auto.c, by rates of kernels and of NCCL.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>

dscomm_status_t dsc_cuda_gather_bytes(struct dscomm_comm *comm, const void *own, size_t n,
                                      uint8_t *all)
{
    struct dsc_cuda_comm *const cc = (struct dsc_cuda_comm *)comm;
    dscomm_status_t st = DSCOMM_OK;

    for (size_t at = 0; st == DSCOMM_OK && at < n; at += DSC_AGREE_BYTES) {
        const size_t part = dsc_min_size(DSC_AGREE_BYTES, n - at);

        memcpy(cc->agree, (const uint8_t *)own + at, part);
        st = dsc_cuda_gather(cc, part);
        for (size_t r = 0; st == DSCOMM_OK && r < (size_t)comm->n_ranks; r++)
            memcpy(all + r * n + at, cc->agree + part + r * part, part);
    }
    return st < 0 ? dsc_comm_fail(comm, NULL, st, -1) : st;
}

/* CPUs and sockets have no part in it: what computes is the device. */
void dsc_cuda_describe(const struct dscomm_comm *comm, struct dsc_fingerprint *machine)
{
    const struct dsc_cuda_comm *const cc = (const struct dsc_cuda_comm *)comm;
    struct cudaDeviceProp device = { 0 };
    char isa[32];

    if (cudaGetDeviceProperties(&device, cc->device) != cudaSuccess)
        (void)cudaGetLastError(); /* a device without a name fits no profile */
    snprintf(isa, sizeof(isa), "sm_%d%d", device.major, device.minor);
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_CPU_MODEL,
                        device.name[0] != '\0' ? device.name : "unknown device");
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_ISA, isa);
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_CPUS, "");
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_NSOCKS, "");
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_CRC, "");
    dsc_fingerprint_set(machine, DSC_FINGERPRINT_THREADS, "");
}

dscomm_status_t dsc_cuda_settle(struct dsc_cuda_comm *cc, cudaStream_t stream)
{
    cudaEvent_t done;
    dscomm_status_t st;

    CUDA_TRY(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CUDA_TRY(cudaEventRecord(done, stream));
    st = dsc_cuda_wait_event(cc, done);
    cudaEventDestroy(done);
    return st;
}

static dscomm_status_t choose(struct dsc_cuda_comm *cc, struct dsc_shape *shape,
                              cudaStream_t stream)
{
    const bool is_first = cc->base.automatic == NULL && cc->base.n_ranks > 1 && shape->count > 0;

    if (shape->codec->is_auto && is_first)
        DSC_TRY(dsc_cuda_settle(cc, stream));
    DSC_TRY(dsc_cuda_notes_begin(cc));
    DSC_TRY(dsc_auto_resolve(&cc->base, shape));
    return dsc_cuda_notes_chosen(cc);
}

/* A choice may take exchanges between ranks, which a capture does not allow. */
dscomm_status_t dsc_cuda_choose(struct dsc_cuda_comm *cc, struct dsc_shape *shape,
                                cudaStream_t stream, bool capturing)
{
    if (!capturing)
        return shape->collective == DSC_ALLREDUCE ? choose(cc, shape, stream) : DSCOMM_OK;
    if (!dsc_auto_recall(&cc->base, shape))
        return dsc_fail(DSCOMM_ERR_BAD_STATE,
                        "the stream is being captured and codec %s has not chosen for %zu %s yet, "
                        "which takes all ranks; make the call once before, or "
                        "dscomm_plan_create()",
                        shape->codec->spec, shape->count, dsc_dtype_name(shape->dtype));
    return DSCOMM_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of calls with codec auto: kernels write them down in device memory. Behind the last
 * allreduce of an epoch all ranks' notes are gathered over NCCL, on that call's stream; when the
 * epoch after it has ended, too, they have come, long ago as a rule, and the guard is told. So all
 * ranks learn the same before the same call, and none waits for a device that is not more than an
 * epoch behind.
 */
#include "cuda/cuda.h"

#define N_EPOCHS 2 /* by parity: one is being called, one is on its way */
#define NOT_NOTED UINT32_MAX

_Static_assert(DSC_GPU_NOTED_CALLS == DSC_EPOCH_CALLS, "an epoch's notes are kept until its end");

struct epoch {
    struct dsc_guard_call calls[DSC_EPOCH_CALLS];
    uint32_t at[DSC_EPOCH_CALLS]; /* place of the call's note in a rank's ring, or NOT_NOTED */
    struct dsc_gpu_noted *gathered, *device; /* [n_ranks][DSC_EPOCH_CALLS], pinned; on the device */
    cudaEvent_t has_come;
};

struct dsc_cuda_notes {
    struct dsc_gpu_notes *device;
    struct epoch epochs[N_EPOCHS];
    struct dsc_guard_call chosen; /* of the running call */
    uint64_t n_calls, n_noted;
};

static size_t ring_bytes(void)
{
    return DSC_EPOCH_CALLS * sizeof(struct dsc_gpu_noted);
}

/* ---- life ---- */

static dscomm_status_t make_parts(struct dsc_cuda_comm *cc, struct dsc_cuda_notes *notes)
{
    const size_t bytes = (size_t)cc->base.n_ranks * ring_bytes();

    CUDA_TRY(cudaMalloc((void **)&notes->device, sizeof(*notes->device)));
    CUDA_TRY(cudaMemsetAsync(notes->device, 0, sizeof(*notes->device), cc->own));
    for (int i = 0; i < N_EPOCHS; i++) {
        struct epoch *const epoch = &notes->epochs[i];

        CUDA_TRY(cudaMalloc((void **)&epoch->device, bytes));
        CUDA_TRY(cudaHostAlloc((void **)&epoch->gathered, bytes, cudaHostAllocPortable));
        CUDA_TRY(cudaEventCreateWithFlags(&epoch->has_come, cudaEventDisableTiming));
    }
    return dsc_cuda_wait_own(cc, "clearing notes");
}

static dscomm_status_t make_notes(struct dsc_cuda_comm *cc)
{
    dscomm_status_t st = DSCOMM_OK;

    cc->notes = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*cc->notes));
    if (cc->notes == NULL)
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "notes of calls");
    else
        st = make_parts(cc, cc->notes);
    return st < 0 ? dsc_comm_fail(&cc->base, NULL, st, -1) : st;
}

void dsc_cuda_notes_destroy(struct dsc_cuda_comm *cc)
{
    struct dsc_cuda_notes *const notes = cc->notes;

    if (notes == NULL)
        return;
    for (int i = 0; i < N_EPOCHS; i++) {
        cudaFree(notes->epochs[i].device);
        if (notes->epochs[i].gathered != NULL)
            cudaFreeHost(notes->epochs[i].gathered);
        if (notes->epochs[i].has_come != NULL)
            cudaEventDestroy(notes->epochs[i].has_come);
    }
    cudaFree(notes->device);
    dsc_free(notes);
    cc->notes = NULL;
}

/* ---- what has come ---- */

/*
 * A rank's note. What a call takes beyond the time of its kernels, it has waited: devices do not
 * share themselves as CPUs do.
 */
static uint32_t note_of(const struct dsc_gpu_noted *noted, const struct dsc_guard_call *call)
{
    const uint64_t ns = dsc_min_u64(noted->ns, UINT64_C(1) << 43); /* some hours */
    const uint64_t waited = ns - dsc_min_u64(call->cpu_ns, ns);
    const struct dsc_note note = {
        .error_ppm = noted->error_ppm,
        .residual_ppm = noted->residual_ppm,
        .ns_per_kib = call->bytes > 0 ? ns * 1024 / call->bytes : 0,
        .wait_ppm = (uint32_t)dsc_min_u64(waited * 1000 / (ns / 1000 + 1), 1000000),
        .overflow = noted->has_overflow != 0,
    };

    return dsc_note_pack(&note);
}

static uint32_t merged_note(const struct dsc_cuda_comm *cc, const struct epoch *epoch, size_t i)
{
    uint32_t note = 0;

    for (size_t r = 0; epoch->at[i] != NOT_NOTED && r < (size_t)cc->base.n_ranks; r++)
        note = dsc_note_merge(
            note, note_of(&epoch->gathered[r * DSC_EPOCH_CALLS + epoch->at[i]], &epoch->calls[i]));
    return note;
}

static struct epoch *running(struct dsc_cuda_notes *notes)
{
    return &notes->epochs[notes->n_calls / DSC_EPOCH_CALLS % N_EPOCHS];
}

dscomm_status_t dsc_cuda_notes_begin(struct dsc_cuda_comm *cc)
{
    struct dsc_cuda_notes *const notes = cc->notes;
    struct epoch *epoch;

    if (notes == NULL || notes->n_calls % DSC_EPOCH_CALLS != 0 ||
        notes->n_calls < N_EPOCHS * DSC_EPOCH_CALLS)
        return DSCOMM_OK;
    epoch = running(notes); /* and the one before the last */
    DSC_TRY(dsc_cuda_wait_event(cc, epoch->has_come));
    for (size_t i = 0; i < DSC_EPOCH_CALLS; i++)
        dsc_auto_feed(&cc->base, merged_note(cc, epoch, i), &epoch->calls[i]);
    return DSCOMM_OK;
}

/* ---- the running call ---- */

/* Making a plan, which may follow, asks for other choices. */
dscomm_status_t dsc_cuda_notes_chosen(struct dsc_cuda_comm *cc)
{
    if (cc->base.automatic != NULL && cc->notes == NULL)
        DSC_TRY(make_notes(cc));
    if (cc->notes != NULL)
        cc->notes->chosen = dsc_auto_running(&cc->base);
    return DSCOMM_OK;
}

struct dsc_gpu_notes *dsc_cuda_notes_device(const struct dsc_cuda_comm *cc)
{
    return cc->notes == NULL ? NULL : cc->notes->device;
}

static dscomm_status_t gather(struct dsc_cuda_comm *cc, struct epoch *epoch, cudaStream_t stream)
{
    NCCL_TRY(cc, cc->nccl->AllGather(cc->notes->device->calls, epoch->device, ring_bytes(),
                                     ncclUint8, cc->handle, stream));
    CUDA_TRY(cudaMemcpyAsync(epoch->gathered, epoch->device,
                             (size_t)cc->base.n_ranks * ring_bytes(), cudaMemcpyDeviceToHost,
                             stream));
    CUDA_TRY(cudaEventRecord(epoch->has_come, stream));
    return DSCOMM_OK;
}

dscomm_status_t dsc_cuda_notes_end(struct dsc_cuda_comm *cc, bool is_noted, cudaStream_t stream)
{
    struct dsc_cuda_notes *const notes = cc->notes;
    struct epoch *epoch;
    size_t i;

    if (notes == NULL)
        return DSCOMM_OK;
    epoch = running(notes);
    i = notes->n_calls % DSC_EPOCH_CALLS;
    epoch->calls[i] = notes->chosen;
    epoch->at[i] = is_noted ? (uint32_t)(notes->n_noted % DSC_EPOCH_CALLS) : NOT_NOTED;
    notes->n_noted += is_noted;
    notes->n_calls++;
    return i + 1 == DSC_EPOCH_CALLS ? gather(cc, epoch, stream) : DSCOMM_OK;
}

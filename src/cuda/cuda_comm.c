/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a communicator over NCCL, and the table through which libdscomm runs its calls here.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>

#include "dscomm/nccl.h"

/* Below, a launch costs more than what overlap wins. */
#define MIN_CHUNK_ELEMS 262144

/* ---- errors ---- */

dscomm_status_t dsc_nccl_fail(const struct dsc_cuda_comm *cc, ncclResult_t result, const char *what,
                              const char *file, int line)
{
    const char *const detail = cc->nccl->GetLastError(NULL);

    dsc_fail_at(file, line, "%s: %s%s%s", what, cc->nccl->GetErrorString(result),
                detail != NULL && detail[0] != '\0' ? ": " : "", detail != NULL ? detail : "");
    return result == ncclRemoteError ? DSCOMM_ERR_PEER_LOST : DSCOMM_ERR_SYSTEM;
}

/* ---- checks ---- */

static dscomm_status_t check_pointer(const struct dsc_cuda_comm *cc, const char *name,
                                     const void *pointer)
{
    struct cudaPointerAttributes a = { 0 };
    const cudaError_t error = cudaPointerGetAttributes(&a, pointer);

    if (error != cudaSuccess)
        (void)cudaGetLastError();
    if (error != cudaSuccess || (a.type != cudaMemoryTypeDevice && a.type != cudaMemoryTypeManaged))
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s %p is host memory, must be device memory: this communicator runs on "
                        "CUDA device %d",
                        name, pointer, cc->device);
    if (a.type == cudaMemoryTypeDevice && a.device != cc->device)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s %p is on device %d, must be on device %d", name,
                        pointer, a.device, cc->device);
    return DSCOMM_OK;
}

dscomm_status_t dsc_cuda_check_device(const struct dsc_cuda_comm *cc)
{
    int current = -1;

    CUDA_TRY(cudaGetDevice(&current));
    if (current != cc->device)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "current device %d, must be %d, that of the NCCL communicator", current,
                        cc->device);
    return DSCOMM_OK;
}

static dscomm_status_t cuda_check_shape(const struct dscomm_comm *comm,
                                        const struct dsc_shape *shape)
{
    DSC_TRY(dsc_cuda_check_device((const struct dsc_cuda_comm *)comm));
    return shape->codec->is_auto ? DSCOMM_OK : dsc_gpu_supports(shape->codec);
}

static dscomm_status_t cuda_check(const struct dscomm_comm *comm, dscomm_stream_t *stream,
                                  const struct dsc_call_args *args)
{
    const struct dsc_cuda_comm *const cc = (const struct dsc_cuda_comm *)comm;

    (void)stream;
    if (args->feedback != NULL && dsc_feedback_memory(args->feedback) != &dsc_cuda_memory)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "feedback object in %s memory, must be in device memory: "
                        "dscomm_feedback_create_cuda() makes one",
                        dsc_feedback_memory(args->feedback)->name);
    if (args->shape.count == 0)
        return DSCOMM_OK;
    DSC_TRY(check_pointer(cc, "send", args->send));
    return check_pointer(cc, "recv", args->recv);
}

/* ---- the backend ---- */

/* Peers cannot be told anything but that this rank is gone. */
static void cuda_tell(struct dscomm_comm *comm, const struct dsc_plan_entry *entry,
                      dscomm_status_t st, int bad_rank, char *text, size_t text_bytes)
{
    (void)entry, (void)bad_rank, (void)text_bytes;
    dsc_watch_fail((struct dsc_cuda_comm *)comm, st, text);
}

static void cuda_abort(struct dscomm_comm *comm)
{
    dsc_watch_abort((struct dsc_cuda_comm *)comm);
}

static void cuda_stats(const struct dscomm_comm *comm, dscomm_stats_t *stats)
{
    const struct dsc_cuda_comm *const cc = (const struct dsc_cuda_comm *)comm;

    dsc_watch_stats(cc, stats);
    stats->graph_hits = atomic_load(&cc->graph_hits);
    stats->graph_updates = atomic_load(&cc->graph_updates);
    stats->graph_misses = atomic_load(&cc->graph_misses);
}

static void free_parts(struct dsc_cuda_comm *cc)
{
    dsc_comm_drop_plans(&cc->base);
    dsc_cuda_sweep(cc); /* what was dropped before, while a graph held it */
    dsc_direct_close(cc);
    dsc_watch_stop(cc);
    dsc_cuda_notes_destroy(cc);
    if (cc->side != NULL)
        cudaStreamDestroy(cc->side);
    if (cc->own != NULL)
        cudaStreamDestroy(cc->own);
    if (cc->tell != NULL)
        cudaStreamDestroy(cc->tell);
    if (cc->order != NULL)
        cudaEventDestroy(cc->order);
    cudaFree(cc->state);
    cudaFree(cc->agree_device);
    if (cc->mapped != NULL)
        cudaFreeHost(cc->mapped);
    if (cc->agree != NULL)
        cudaFreeHost(cc->agree);
    pthread_mutex_destroy(&cc->runs_lock);
    pthread_mutex_destroy(&cc->handle_lock);
}

static dscomm_status_t cuda_close(struct dscomm_comm *comm)
{
    struct dsc_cuda_comm *const cc = (struct dsc_cuda_comm *)comm;
    const int n_graphs = dsc_cuda_live_graphs(cc);

    if (n_graphs > 0)
        return dsc_fail(
            DSCOMM_ERR_BAD_STATE,
            "calls of the communicator are in CUDA graphs that still exist, %d of them; "
            "destroy these first",
            n_graphs);
    cudaEventSynchronize(cc->order); /* the watchdog ends what does not end */
    dsc_log_info(CUDA,
                 "graphs: %llu replayed as they were, %llu with other pointers, %llu captured",
                 (unsigned long long)cc->graph_hits, (unsigned long long)cc->graph_updates,
                 (unsigned long long)cc->graph_misses);
    free_parts(cc);
    if (cc->is_owner && !cc->aborted)
        cc->nccl->CommDestroy(cc->handle);
    return DSCOMM_OK;
}

static const struct dsc_backend backend_cuda = {
    .name = "cuda",
    .fuses = false,
    .has_slots = false,
    .notes_are_late = true,
    .check_shape = cuda_check_shape,
    .check = cuda_check,
    .issue = dsc_cuda_issue,
    .prepare = dsc_cuda_prepare,
    .drop = dsc_cuda_drop,
    .tell = cuda_tell,
    .abort = cuda_abort,
    .stats = cuda_stats,
    .has_codec = dsc_gpu_knows,
    .gather = dsc_cuda_gather_bytes,
    .measure = dsc_cuda_measure,
    .describe = dsc_cuda_describe,
    .split = dsc_cuda_split,
    .close = cuda_close,
};

/* ---- making one ---- */

static dscomm_status_t make_state(struct dsc_cuda_comm *cc)
{
    struct dsc_gpu_state state = { .ring_mask = DSC_RING_ENTRIES - 1, .saved_at = UINT64_MAX };

    CUDA_TRY(cudaHostAlloc((void **)&cc->mapped, sizeof(*cc->mapped),
                           cudaHostAllocMapped | cudaHostAllocPortable));
    memset(cc->mapped, 0, sizeof(*cc->mapped));
    CUDA_TRY(cudaHostGetDevicePointer((void **)&cc->mapped_device, cc->mapped, 0));
    state.ring = cc->mapped_device->ring;
    state.board = &cc->mapped_device->board;
    CUDA_TRY(cudaMalloc((void **)&cc->state, sizeof(state)));
    CUDA_TRY(cudaMemcpy(cc->state, &state, sizeof(state), cudaMemcpyHostToDevice));
    return DSCOMM_OK;
}

static dscomm_status_t make_parts(struct dsc_cuda_comm *cc)
{
    const size_t records = ((size_t)cc->base.n_ranks + 1) * DSC_AGREE_BYTES;

    CUDA_TRY(cudaStreamCreateWithFlags(&cc->side, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&cc->own, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&cc->tell, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&cc->order, cudaEventDisableTiming));
    CUDA_TRY(cudaMalloc((void **)&cc->agree_device, records));
    CUDA_TRY(cudaHostAlloc((void **)&cc->agree, records, cudaHostAllocPortable));
    CUDA_TRY(cudaMemset(cc->agree_device, 0, records));
    memset(cc->agree, 0, records);
    DSC_TRY(make_state(cc));
    CUDA_TRY(cudaDeviceSynchronize()); /* memsets, before other streams use the memory */
    return dsc_watch_start(cc);
}

/* What must be equal on all ranks. */
static dscomm_status_t agree_on_settings(struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                         const char *given)
{
    const dscomm_comm_config_t *const c = &cc->base.config;
    char text[DSC_AGREE_BYTES], tiers[DSC_TIERS_SETTING_BYTES] = "";
    const dscomm_status_t st = dsc_tiers_setting(given, cc->base.n_ranks, tiers, sizeof(tiers));

    snprintf(text, sizeof(text),
             "version=%s chunk_bytes=%zu algorithm=%s oneshot_bytes=%llu seed=%u min_bytes=%zu "
             "cuda_graphs=%d cuda_direct=%s cuda_direct_bytes=%llu exact_order=%d "
             "preserve_input=%d tiers=%s error_budget=%s",
             dscomm_version(), c->chunk_bytes, c->algorithm, (unsigned long long)env->oneshot_bytes,
             c->seed, c->min_bytes, cc->use_graphs, env->cuda_direct,
             (unsigned long long)env->cuda_direct_bytes, c->exact_order, c->preserve_input, tiers,
             env->error_budget);
    return dsc_cuda_agree(cc, st, text);
}

static dscomm_status_t read_settings(const dscomm_comm_config_t *config, const struct dsc_env **env,
                                     dscomm_comm_config_t *out)
{
    DSC_TRY(dsc_env_get(env));
    DSC_TRY(dsc_comm_settings(config, *env, out));
    if (config == NULL || config->chunk_bytes == 0)
        out->chunk_bytes = (size_t)(*env)->cuda_chunk_bytes;
    out->transport = "nccl";
    return DSCOMM_OK;
}

static dscomm_status_t ask_nccl(struct dsc_cuda_comm *cc, int *n_ranks_out, int *rank_out)
{
    NCCL_TRY(cc, cc->nccl->CommCount(cc->handle, n_ranks_out));
    NCCL_TRY(cc, cc->nccl->CommUserRank(cc->handle, rank_out));
    NCCL_TRY(cc, cc->nccl->CommCuDevice(cc->handle, &cc->device));
    return dsc_cuda_check_device(cc);
}

/* cc has its handle and NCCL's functions. On an error it has no parts. */
static dscomm_status_t open_comm(struct dsc_cuda_comm *cc, const dscomm_comm_config_t *config,
                                 const char *tiers)
{
    const struct dsc_env *env;
    dscomm_comm_config_t settings;
    int n_ranks, rank;
    dscomm_status_t st;

    DSC_TRY(read_settings(config, &env, &settings));
    DSC_TRY(ask_nccl(cc, &n_ranks, &rank));
    dsc_log_set_rank(rank, n_ranks);
    cc->use_graphs = env->cuda_graphs != 0;
    cc->direct.is_wanted =
        strcmp(env->cuda_direct, "0") != 0 && n_ranks > 1 && n_ranks <= DSC_TWO_SHOT_RANKS;
    pthread_mutex_init(&cc->runs_lock, NULL);
    pthread_mutex_init(&cc->handle_lock, NULL);
    dsc_comm_init(&cc->base, &backend_cuda, n_ranks, rank, &settings, env);
    cc->base.min_chunk_elems = MIN_CHUNK_ELEMS;
    tiers = tiers != NULL ? tiers : env->tiers;
    st = make_parts(cc);
    if (st == DSCOMM_OK)
        st = agree_on_settings(cc, env, tiers);
    if (st == DSCOMM_OK)
        st = dsc_direct_init(cc, env);
    if (st == DSCOMM_OK)
        st = dsc_cuda_find_tiers(cc, env, tiers);
    if (st < 0)
        free_parts(cc);
    return st;
}

dscomm_status_t dsc_cuda_create(ncclComm_t handle, bool is_owner,
                                const dscomm_comm_config_t *config, const char *tiers,
                                dscomm_comm_t **comm_out)
{
    struct dsc_cuda_comm *const cc = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*cc));
    const struct dsc_nccl *nccl;
    dscomm_status_t st = dsc_nccl_get(&nccl);

    if (st == DSCOMM_OK && cc == NULL)
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "communicator");
    if (st == DSCOMM_OK) {
        cc->nccl = nccl;
        cc->handle = handle;
        cc->is_owner = is_owner;
        st = open_comm(cc, config, tiers);
    }
    if (st == DSCOMM_OK) {
        *comm_out = &cc->base;
        return DSCOMM_OK;
    }
    if (is_owner && (cc == NULL || !cc->aborted))
        nccl->CommAbort(handle);
    dsc_free(cc);
    return st;
}

dscomm_status_t dscomm_comm_create_nccl(ncclComm_t nccl, const dscomm_comm_config_t *config,
                                        dscomm_comm_t **comm_out)
{
    if (nccl == NULL || comm_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", nccl == NULL ? "nccl" : "comm_out");
    return dsc_cuda_create(nccl, false, config, NULL, comm_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan needs on the device, made once and on all ranks together: staging memory, tables,
 * NCCL's connections (by a first exchange, as none may be made in a capture), and the captured
 * graph. A run may outlive its plan: graphs of the caller hold it.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Destructors of user objects run some time after their graph's end. */
#define GRAPH_END_NS 500000000u

/* ---- memory ---- */

static size_t align_table(size_t bytes)
{
    return dsc_round_up(bytes, 256);
}

/* ops, tiles and recvs in one piece of memory, and `work` with where they are. */
static dscomm_status_t upload_tables(struct dsc_cuda_run *run, struct dsc_gpu_work *work)
{
    const struct dsc_schedule *const s = &run->schedule;
    const size_t ops = s->n_ops * sizeof(*s->ops), recvs = s->n_recvs * sizeof(*s->recvs);
    const size_t tiles = s->n_tiles * sizeof(*s->tiles);
    uint8_t *at;

    CUDA_TRY(
        cudaMalloc(&run->tables, align_table(ops) + align_table(recvs) + align_table(tiles) + 256));
    at = run->tables;
    work->ops = (const struct dsc_gpu_op *)(const void *)at;
    CUDA_TRY(cudaMemcpyAsync(at, s->ops, ops, cudaMemcpyHostToDevice, run->comm->own));
    at += align_table(ops);
    work->recvs = (const struct dsc_gpu_recv *)(const void *)at;
    CUDA_TRY(cudaMemcpyAsync(at, s->recvs, recvs, cudaMemcpyHostToDevice, run->comm->own));
    at += align_table(recvs);
    work->tiles = (const struct dsc_gpu_tile *)(const void *)at;
    CUDA_TRY(cudaMemcpyAsync(at, s->tiles, tiles, cudaMemcpyHostToDevice, run->comm->own));
    return DSCOMM_OK;
}

static dscomm_status_t alloc_device(struct dsc_cuda_run *run, const struct dscomm_plan *plan,
                                    struct dsc_gpu_work *work)
{
    if (run->schedule.messages_bytes > 0)
        CUDA_TRY(cudaMalloc((void **)&run->messages, run->schedule.messages_bytes));
    if (plan->partial_elems > 0)
        CUDA_TRY(cudaMalloc((void **)&run->partial, plan->partial_elems * sizeof(float)));
    *work = (struct dsc_gpu_work){ .messages = run->messages, .partial = run->partial };
    return upload_tables(run, work);
}

static dscomm_status_t make_events(struct dsc_cuda_run *run)
{
    CUDA_TRY(cudaEventCreateWithFlags(&run->fork, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&run->join, cudaEventDisableTiming));
    for (uint32_t i = 0; i < run->schedule.n_nodes; i++)
        if (run->schedule.nodes[i].is_waited)
            CUDA_TRY(cudaEventCreateWithFlags(&run->events[i], cudaEventDisableTiming));
    return DSCOMM_OK;
}

/* Launches of all kernels, but for the call. */
static void prepare_launches(struct dsc_cuda_run *run, const struct dscomm_plan *plan,
                             const struct dsc_gpu_work *tables)
{
    const struct dsc_schedule *const s = &run->schedule;
    const struct dsc_gpu_call call = { .dtype = plan->params.dtype };
    bool is_first = true;

    for (uint32_t i = 0; i < s->n_nodes; i++) {
        struct dsc_gpu_work work = *tables;

        if (s->nodes[i].is_group)
            continue;
        work.flags = is_first ? DSC_GPU_WORK_FIRST : 0;
        is_first = false;
        work.tiles += s->nodes[i].first;
        work.n_tiles = s->nodes[i].n;
        work.step = (uint64_t)run->id << 24 | (i & 0xffffffu);
        if (i == s->last_kernel) {
            work.flags |= DSC_GPU_WORK_LAST | (run->all_none ? DSC_GPU_WORK_ALL_NONE : 0);
            work.tx_bytes = s->tx_bytes;
            work.rx_bytes = s->rx_bytes;
        }
        run->launches[i] = dsc_gpu_prepare(s->nodes[i].stage, s->nodes[i].codec, &work, &call);
    }
}

void dsc_cuda_destroy_run(struct dsc_cuda_run *run)
{
    for (uint32_t i = 0; run->events != NULL && i < run->schedule.n_nodes; i++)
        if (run->events[i] != NULL)
            cudaEventDestroy(run->events[i]);
    if (run->fork != NULL)
        cudaEventDestroy(run->fork);
    if (run->join != NULL)
        cudaEventDestroy(run->join);
    if (run->graph != NULL)
        cudaGraphExecDestroy(run->graph);
    if (run->template != NULL)
        cudaGraphDestroy(run->template);
    dsc_gpu_two_shot_destroy(run->direct);
    cudaFree(run->tables);
    cudaFree(run->messages);
    cudaFree(run->partial);
    cudaFree(run->saved);
    dsc_schedule_fini(&run->schedule);
    dsc_free(run->launches);
    dsc_free(run->events);
    dsc_free(run->nodes);
    dsc_free(run);
}

/* ---- the input of calls in place ---- */

#define ALIGN 16 /* what kernels copy at a time */
#define COPY_BLOCKS_MAX 1024
#define COPY_BLOCK_BYTES 16384

/* At most what a call overwrites of its input, see dsc_call_overlap(). */
static size_t input_bytes(const struct dscomm_plan *plan)
{
    const struct dsc_collective_traits *const traits =
        dsc_collective_traits(plan->params.collective);
    const bool is_share = traits->sends_shares != traits->recvs_shares;
    const size_t n = plan->params.count / (is_share ? (size_t)plan->params.n_ranks : 1);

    return n * dsc_dtype_bytes(plan->params.dtype);
}

/* preserve_input: room, and the launches that use it. */
static dscomm_status_t prepare_copies(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    const size_t n_blocks = input_bytes(plan) / COPY_BLOCK_BYTES + 1;
    const struct dsc_gpu_work work = { .n_tiles =
                                           (uint32_t)dsc_min_size(n_blocks, COPY_BLOCKS_MAX) };
    const struct dsc_gpu_call call = { .dtype = plan->params.dtype };

    if (!run->comm->base.config.preserve_input)
        return DSCOMM_OK;
    CUDA_TRY(cudaMalloc((void **)&run->saved, input_bytes(plan) + ALIGN));
    for (int i = 0; i < 2; i++)
        run->copies[i] = dsc_gpu_prepare(i == 0 ? DSC_GPU_SAVE : DSC_GPU_UNDO,
                                         plan->params.codecs[0], &work, &call);
    return DSCOMM_OK;
}

/* ---- life ---- */

static dscomm_status_t fill_run(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    struct dsc_gpu_work work;
    size_t n;

    run->all_none = true;
    for (int t = 0; t < plan->params.n_tiers; t++) {
        DSC_TRY(dsc_gpu_supports(plan->params.codecs[t]));
        run->all_none = run->all_none && plan->params.codecs[t]->by_dtype;
    }
    DSC_TRY(dsc_schedule_build(plan, &run->schedule));
    n = run->schedule.n_nodes;
    run->launches = dsc_calloc(DSC_MEM_EXEC, n, sizeof(*run->launches));
    run->events = dsc_calloc(DSC_MEM_EXEC, n, sizeof(cudaEvent_t));
    run->nodes = dsc_calloc(DSC_MEM_EXEC, n, sizeof(cudaGraphNode_t));
    if (run->launches == NULL || run->events == NULL || run->nodes == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "launches of %zu steps", n);
    DSC_TRY(alloc_device(run, plan, &work));
    DSC_TRY(make_events(run));
    prepare_launches(run, plan, &work);
    return dsc_cuda_wait_own(run->comm, "copying a plan's tables");
}

/* Enqueues one word from and to every peer of the plan. */
static ncclResult_t exchange_words(struct dsc_cuda_comm *cc, const struct dscomm_plan *plan)
{
    const struct dsc_nccl *const nccl = cc->nccl;
    ncclResult_t first = nccl->GroupStart(), end;

    if (first != ncclSuccess)
        return first;
    for (int i = 0; i < plan->n_peers; i++) {
        /* words lie in the memory of records, of which each rank has one */
        uint8_t *const word = cc->agree_device + (size_t)(plan->peers[i] + 1) * DSC_AGREE_BYTES;

        if (plan->n_tx[i] > 0 && first == ncclSuccess)
            first =
                nccl->Send(cc->agree_device, 16, ncclUint8, plan->peers[i], cc->handle, cc->own);
        if (plan->n_rx[i] > 0 && first == ncclSuccess)
            first = nccl->Recv(word, 16, ncclUint8, plan->peers[i], cc->handle, cc->own);
    }
    end = nccl->GroupEnd(); /* in any case: the thread's group must not stay open */
    return first != ncclSuccess ? first : end;
}

/* So that NCCL connects the plan's peers. */
static dscomm_status_t first_exchange(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    struct dsc_cuda_comm *const cc = run->comm;
    ncclResult_t result;

    if (plan->n_peers == 0)
        return DSCOMM_OK;
    DSC_TRY(dsc_cuda_hold(cc));
    result = exchange_words(cc, plan);
    dsc_cuda_let_go(cc);
    NCCL_TRY(cc, result);
    return dsc_cuda_wait_own(cc, "a plan's first exchange");
}

/*
 * The graph of a call, without pointers: they come with the first one. Relaxed: other threads of
 * the process may allocate meanwhile.
 */
static dscomm_status_t capture(struct dsc_cuda_run *run)
{
    struct dsc_cuda_comm *const cc = run->comm;
    dscomm_status_t st;
    cudaError_t end;

    memset(&run->call, 0, sizeof(run->call));
    run->call.state = cc->state;
    CUDA_TRY(cudaStreamBeginCapture(cc->own, cudaStreamCaptureModeRelaxed));
    st = dsc_cuda_hold(cc);
    if (st == DSCOMM_OK) {
        st = dsc_cuda_enqueue(run, &run->call, cc->own, cc->side, run->nodes);
        dsc_cuda_let_go(cc);
    }
    end = cudaStreamEndCapture(cc->own, &run->template);
    DSC_TRY(st);
    CUDA_TRY(end);
    CUDA_TRY(cudaGraphInstantiate(&run->graph, run->template, 0));
    CUDA_TRY(cudaGraphUpload(run->graph, cc->own));
    atomic_fetch_add(&cc->graph_misses, 1);
    dsc_log_info(CUDA, "captured a graph of %u kernels and %u exchanges", run->schedule.n_kernels,
                 run->schedule.n_groups);
    return dsc_cuda_wait_own(cc, "uploading a graph");
}

static void add_run(struct dsc_cuda_comm *cc, struct dsc_cuda_run *run)
{
    pthread_mutex_lock(&cc->runs_lock);
    run->id = cc->next_run++;
    run->next = cc->runs;
    cc->runs = run;
    pthread_mutex_unlock(&cc->runs_lock);
}

/* The plan as one kernel, if that is possible; else run->direct stays NULL. */
static dscomm_status_t prepare_direct(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    if (!run->comm->direct.is_possible)
        return DSCOMM_OK;
    DSC_TRY(dsc_cuda_agree(run->comm, DSCOMM_OK, plan->descriptor));
    return dsc_direct_prepare(run, plan);
}

static dscomm_status_t prepare_exchange(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    DSC_TRY(dsc_cuda_agree(run->comm, fill_run(run, plan), plan->descriptor));
    return first_exchange(run, plan);
}

dscomm_status_t dsc_cuda_prepare(struct dscomm_comm *comm, struct dsc_plan_entry *entry)
{
    struct dsc_cuda_comm *const cc = (struct dsc_cuda_comm *)comm;
    struct dsc_cuda_run *const run = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*run));
    dscomm_status_t st;

    dsc_cuda_sweep(cc);
    dsc_direct_sweep(cc);
    if (run == NULL) {
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "a plan's state");
        return dsc_cuda_agree(cc, st, entry->plan->descriptor);
    }
    run->comm = cc;
    add_run(cc, run);
    entry->run = run;
    DSC_TRY(prepare_direct(run, entry->plan));
    if (run->direct == NULL)
        DSC_TRY(prepare_exchange(run, entry->plan));
    st = prepare_copies(run, entry->plan);
    if (st == DSCOMM_OK && cc->use_graphs)
        st = capture(run);
    return dsc_cuda_agree(cc, st, entry->plan->descriptor);
}

void dsc_cuda_drop(struct dsc_plan_entry *entry)
{
    struct dsc_cuda_run *const run = entry->run;

    if (run == NULL)
        return;
    run->dropped = true;
    dsc_cuda_sweep(run->comm);
}

/* Takes a run out of the list that nobody needs; NULL: there is none. */
static struct dsc_cuda_run *take_dropped(struct dsc_cuda_comm *cc)
{
    struct dsc_cuda_run **at = &cc->runs, *run;

    pthread_mutex_lock(&cc->runs_lock);
    while (*at != NULL && (!(*at)->dropped || atomic_load(&(*at)->n_graphs) > 0))
        at = &(*at)->next;
    run = *at;
    if (run != NULL)
        *at = run->next;
    pthread_mutex_unlock(&cc->runs_lock);
    return run;
}

void dsc_cuda_sweep(struct dsc_cuda_comm *cc)
{
    struct dsc_cuda_run *run = take_dropped(cc);

    if (run != NULL) /* its last call may still run; without a lock, the watchdog ends it */
        cudaEventSynchronize(cc->order);
    for (; run != NULL; run = take_dropped(cc))
        if (run->direct != NULL)
            dsc_direct_leave(run);
        else
            dsc_cuda_destroy_run(run);
}

/* ---- the caller's graphs ---- */

static int count_graphs(struct dsc_cuda_comm *cc)
{
    int n = 0;

    pthread_mutex_lock(&cc->runs_lock);
    for (struct dsc_cuda_run *run = cc->runs; run != NULL; run = run->next)
        n += atomic_load(&run->n_graphs);
    pthread_mutex_unlock(&cc->runs_lock);
    return n;
}

int dsc_cuda_live_graphs(struct dsc_cuda_comm *cc)
{
    const struct timespec pause = { 0, 1000000 };
    const uint64_t until = dsc_now_ns() + GRAPH_END_NS;
    int n = count_graphs(cc);

    while (n > 0 && dsc_now_ns() < until) {
        nanosleep(&pause, NULL);
        n = count_graphs(cc);
    }
    return n;
}

/* A graph with the run in it has ended. No CUDA call is allowed here. */
static void CUDART_CB release(void *arg)
{
    struct dsc_cuda_run *const run = arg;

    atomic_fetch_sub(&run->n_graphs, 1);
}

dscomm_status_t dsc_cuda_retain(struct dsc_cuda_run *run, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    cudaUserObject_t object = NULL;
    cudaGraph_t graph = NULL;

    CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL));
    atomic_fetch_add(&run->n_graphs, 1);
    if (cudaUserObjectCreate(&object, run, release, 1, cudaUserObjectNoDestructorSync) !=
        cudaSuccess) {
        atomic_fetch_sub(&run->n_graphs, 1);
        return dsc_fail(DSCOMM_ERR_SYSTEM, "cannot make the object that holds a plan for a graph");
    }
    CUDA_TRY(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    return DSCOMM_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog: one thread per communicator that looks every few milliseconds whether the device
 * gets on. A call is in flight if the device says so (the progress word, which also shows launches
 * of the caller's graphs) or if a call of the host has begun and not ended (events). If nothing
 * changes until the deadline, or NCCL reports an error, or somebody aborts, NCCL's communicator is
 * aborted, which ends its kernels, and ours fails with a text that says where it was.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define TICK_NS 2000000
#define ABORT_WAIT_S 1
/* A kernel that waits gives up by itself and knows for whom: its deadline comes first. */
#define DIRECT_GRACE_NS 1000000000u
/* Calls of the host whose events are kept; later ones are seen when earlier ones have ended. */
#define TRACKED 64u

struct tracked_call {
    cudaEvent_t begin, end;
};

struct dsc_watch {
    struct dsc_cuda_comm *cc;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of all that follows */
    struct tracked_call calls[TRACKED];
    uint32_t n_begun, n_ended; /* tracked; of [n_ended, n_begun) nothing is known yet */
    bool is_open;              /* of who issues calls: the call being enqueued is tracked */
    uint64_t seen;             /* calls whose entry in the ring was read */
    uint64_t n_nonfinite, tx_bytes, rx_bytes;
    bool lost; /* entries were overwritten before they were read */
    _Atomic bool stop, abort;
    _Atomic uint64_t blocked_since; /* 0: no thread waits inside of NCCL */
};

/* ---- the ring ---- */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* False: it is not there (yet), or changes under our eyes. */
static bool read_entry(const struct dsc_gpu_stats *entry, uint64_t number,
                       struct dsc_gpu_stats *out)
{
    if (load(&entry->number) != number)
        return false;
    out->n_nonfinite = load(&entry->n_nonfinite);
    out->tx_bytes = load(&entry->tx_bytes);
    out->rx_bytes = load(&entry->rx_bytes);
    return load(&entry->number) == number;
}

/* The newest number in the ring, if the one expected next was overwritten. */
static uint64_t newest(const struct dsc_gpu_stats *ring)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < DSC_RING_ENTRIES; i++)
        n = load(&ring[i].number) > n ? load(&ring[i].number) : n;
    return n;
}

static void read_ring(struct dsc_watch *w)
{
    const struct dsc_gpu_stats *const ring = w->cc->mapped->ring;
    struct dsc_gpu_stats entry;

    for (;;) {
        const struct dsc_gpu_stats *const next = &ring[(w->seen + 1) & (DSC_RING_ENTRIES - 1)];

        if (read_entry(next, w->seen + 1, &entry)) {
            w->seen++;
            w->n_nonfinite += entry.n_nonfinite;
            w->tx_bytes += entry.tx_bytes;
            w->rx_bytes += entry.rx_bytes;
        } else if (load(&next->number) > w->seen + 1) {
            w->seen = newest(ring);
            w->lost = true;
        } else {
            return;
        }
    }
}

void dsc_watch_stats(const struct dsc_cuda_comm *cc, dscomm_stats_t *stats)
{
    struct dsc_watch *const w = cc->watch;

    pthread_mutex_lock(&w->lock);
    read_ring(w);
    stats->calls = w->seen + atomic_load(&cc->plain_calls);
    stats->payload_tx_bytes = w->tx_bytes + atomic_load(&cc->plain_tx_bytes);
    stats->wire_tx_bytes = stats->payload_tx_bytes;
    stats->wire_rx_bytes = w->rx_bytes + atomic_load(&cc->plain_tx_bytes);
    stats->nonfinite_elems = w->n_nonfinite;
    pthread_mutex_unlock(&w->lock);
}

/* ---- calls of the host ---- */

static struct tracked_call *tracked(struct dsc_watch *w, uint32_t number)
{
    return &w->calls[number % TRACKED];
}

/* Without the lock while CUDA is called: with queues full it waits, and the watchdog must not. */
dscomm_status_t dsc_watch_begin(struct dsc_cuda_comm *cc, cudaStream_t stream)
{
    struct dsc_watch *const w = cc->watch;

    pthread_mutex_lock(&w->lock);
    w->is_open = w->n_begun - w->n_ended < TRACKED;
    pthread_mutex_unlock(&w->lock);
    if (w->is_open)
        CUDA_TRY(cudaEventRecord(tracked(w, w->n_begun)->begin, stream));
    return DSCOMM_OK;
}

dscomm_status_t dsc_watch_end(struct dsc_cuda_comm *cc, cudaStream_t stream)
{
    struct dsc_watch *const w = cc->watch;

    if (!w->is_open)
        return DSCOMM_OK;
    CUDA_TRY(cudaEventRecord(tracked(w, w->n_begun)->end, stream));
    pthread_mutex_lock(&w->lock);
    w->n_begun++;
    pthread_mutex_unlock(&w->lock);
    return DSCOMM_OK;
}

/* ---- where the device is ---- */

struct position {
    uint64_t progress, ended;
    uint32_t call;  /* oldest tracked call that has not ended */
    bool has_begun; /* it has */
};

static bool is_begun_on_device(const struct position *p)
{
    const uint64_t mask = (1u << 24) - 1;

    return p->progress != 0 && ((p->progress >> 40) & mask) == ((p->ended + 1) & mask);
}

static struct position look(struct dsc_watch *w)
{
    struct position p = { .progress = load(&w->cc->mapped->board.progress) };

    pthread_mutex_lock(&w->lock);
    read_ring(w);
    while (w->n_ended != w->n_begun && cudaEventQuery(tracked(w, w->n_ended)->end) == cudaSuccess)
        w->n_ended++;
    p.ended = w->seen;
    p.call = w->n_ended;
    p.has_begun =
        w->n_ended != w->n_begun && cudaEventQuery(tracked(w, w->n_ended)->begin) == cudaSuccess;
    pthread_mutex_unlock(&w->lock);
    return p;
}

/* "after FINAL, exchanging with rank 1, 2": the first exchange that no kernel has seen the end of.
 */
static void describe_node(const struct dsc_cuda_run *run, uint32_t index, char *text, size_t bytes)
{
    const struct dsc_schedule *const s = &run->schedule;
    uint32_t group = 0;
    size_t used;
    int last = -1;

    for (uint32_t i = 0; i <= index && i < s->n_nodes; i++)
        if (!s->nodes[i].is_group && s->nodes[i].waits != DSC_NO_NODE)
            group = s->nodes[i].waits + 1;
    while (group < s->n_nodes && !s->nodes[group].is_group)
        group++;
    used = (size_t)snprintf(text, bytes, "step %u of %u, %s", index + 1, s->n_nodes,
                            dsc_gpu_stage_name(s->nodes[index].stage));
    for (uint32_t i = 0; group < s->n_nodes && i < s->nodes[group].n && used < bytes; i++) {
        const int peer = s->transfers[s->nodes[group].first + i].peer;

        if (peer != last) /* transfers are sorted by peer */
            used += (size_t)snprintf(text + used, bytes - used, "%s %d",
                                     last < 0 ? ", exchanging with rank" : ",", peer);
        last = peer;
    }
}

static void describe_run(const struct dsc_cuda_run *run, uint32_t index, char *text, size_t bytes)
{
    if (run->direct != NULL)
        snprintf(text, bytes, "its one kernel");
    else
        describe_node(run, index, text, bytes);
}

static void describe(struct dsc_cuda_comm *cc, const struct position *p, char *text, size_t bytes)
{
    const uint16_t id = (uint16_t)(p->progress >> 24);

    snprintf(text, bytes, "its first exchange, or ncclAllReduce");
    if (!is_begun_on_device(p))
        return;
    pthread_mutex_lock(&cc->runs_lock);
    for (const struct dsc_cuda_run *run = cc->runs; run != NULL; run = run->next)
        if (run->id == id && (p->progress & 0xffffffu) < run->schedule.n_nodes) {
            describe_run(run, (uint32_t)(p->progress & 0xffffffu), text, bytes);
            break;
        }
    pthread_mutex_unlock(&cc->runs_lock);
}

/* ---- failing ---- */

dscomm_status_t dsc_cuda_hold(struct dsc_cuda_comm *cc)
{
    dscomm_status_t st;

    pthread_mutex_lock(&cc->handle_lock);
    st = dsc_comm_check(&cc->base);
    if (st < 0)
        pthread_mutex_unlock(&cc->handle_lock);
    return st;
}

void dsc_cuda_let_go(struct dsc_cuda_comm *cc)
{
    pthread_mutex_unlock(&cc->handle_lock);
}

/*
 * Who enqueues is let finish, but not for ever: with queues full it may itself wait for the device,
 * and then NCCL's abort, which may come from another thread, is what ends that.
 */
static bool lock_for_abort(struct dsc_cuda_comm *cc)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_WAIT_S;
    return pthread_mutex_timedlock(&cc->handle_lock, &until) == 0;
}

void dsc_watch_fail(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text)
{
    bool is_locked;

    dsc_comm_set_failed(&cc->base, st, text);
    is_locked = lock_for_abort(cc);
    if (!atomic_exchange(&cc->aborted, true)) {
        /* first: what waits for NCCL goes on with rubbish, and must not end as a call */
        if (cc->mapped != NULL)
            __atomic_store_n(&cc->mapped->board.aborted, 1, __ATOMIC_RELEASE);
        pthread_mutex_lock(&cc->runs_lock);
        dsc_direct_tell(cc);
        pthread_mutex_unlock(&cc->runs_lock);
        cc->nccl->CommAbort(cc->handle);
    }
    if (is_locked)
        pthread_mutex_unlock(&cc->handle_lock);
}

static void fail_late(struct dsc_watch *w, const struct position *p, uint64_t waited_ns)
{
    char where[256], text[512];

    describe(w->cc, p, where, sizeof(where));
    snprintf(text, sizeof(text), "rank %d: call %llu has made no progress for %.1f s, at %s",
             w->cc->base.rank, (unsigned long long)p->ended + 1, (double)waited_ns * 1e-9, where);
    dsc_log(DSCOMM_LOG_ERROR, "CUDA", "%s", text);
    dsc_watch_fail(w->cc, DSCOMM_ERR_TIMEOUT, text);
}

static void fail_blocked(struct dsc_watch *w, uint64_t waited_ns)
{
    char text[256];

    snprintf(text, sizeof(text), "rank %d has waited %.1f s for all ranks inside of NCCL",
             w->cc->base.rank, (double)waited_ns * 1e-9);
    dsc_log(DSCOMM_LOG_ERROR, "CUDA", "%s", text);
    dsc_watch_fail(w->cc, DSCOMM_ERR_TIMEOUT, text);
}

/* NCCL's own error with its text; ncclSuccess: there is none, or the handle is gone. */
static ncclResult_t async_error(struct dsc_cuda_comm *cc, char *text, size_t bytes)
{
    ncclResult_t result = ncclSuccess;

    if (pthread_mutex_trylock(&cc->handle_lock) != 0)
        return ncclSuccess; /* something is being enqueued: at the next look */
    if (!cc->aborted && cc->nccl->CommGetAsyncError(cc->handle, &result) == ncclSuccess &&
        result != ncclSuccess && result != ncclInProgress)
        snprintf(text, bytes, "rank %d: NCCL reports: %s: %s", cc->base.rank,
                 cc->nccl->GetErrorString(result), cc->nccl->GetLastError(cc->handle));
    else
        result = ncclSuccess;
    pthread_mutex_unlock(&cc->handle_lock);
    return result;
}

/* What the wait of a kernel over peer memory ended with; DSCOMM_OK: none did. */
static dscomm_status_t stuck(struct dsc_watch *w, char *text, size_t bytes)
{
    const struct dscomm_comm *const comm = &w->cc->base;
    const uint64_t word = load(&w->cc->mapped->board.stuck);
    const enum dsc_gpu_stage stage = DSC_STUCK_STAGE(word);

    if (word == 0)
        return DSCOMM_OK;
    if (stage == DSC_STUCK_TOLD) {
        snprintf(text, bytes, "rank %d: rank %d has given up", comm->rank, DSC_STUCK_PEER(word));
        return DSCOMM_ERR_PEER_LOST;
    }
    snprintf(text, bytes, "rank %d: call %llu has waited %.1f s for rank %d, at %s in one kernel",
             comm->rank, (unsigned long long)w->seen + 1, comm->config.timeout_ms * 1e-3,
             DSC_STUCK_PEER(word), dsc_gpu_stage_name(stage));
    return DSCOMM_ERR_TIMEOUT;
}

/* True: something was wrong, and the communicator has failed. */
static bool fail_if_told(struct dsc_watch *w)
{
    struct dsc_cuda_comm *const cc = w->cc;
    char text[512];
    dscomm_status_t st;

    if (atomic_load(&w->abort)) {
        snprintf(text, sizeof(text), "rank %d was aborted", cc->base.rank);
        dsc_watch_fail(cc, DSCOMM_ERR_ABORTED, text);
        return true;
    }
    st = stuck(w, text, sizeof(text));
    if (st == DSCOMM_OK && async_error(cc, text, sizeof(text)) != ncclSuccess)
        st = DSCOMM_ERR_PEER_LOST;
    if (st == DSCOMM_OK)
        return false;
    dsc_log(DSCOMM_LOG_ERROR, "CUDA", "%s", text);
    dsc_watch_fail(cc, st, text);
    return true;
}

/* ---- the thread ---- */

static bool same_position(const struct position *a, const struct position *b)
{
    return a->progress == b->progress && a->ended == b->ended && a->call == b->call &&
           a->has_begun == b->has_begun;
}

static void *watch_main(void *arg)
{
    struct dsc_watch *const w = arg;
    const uint64_t timeout_ns = (uint64_t)w->cc->base.config.timeout_ms * 1000000u;
    const uint64_t grace_ns = w->cc->direct.is_wanted ? DIRECT_GRACE_NS : 0;
    const struct timespec tick = { 0, TICK_NS };
    /* a query must not end captures of other threads */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    struct position last = { 0 };
    uint64_t since = dsc_now_ns();

    dsc_log_set_rank(w->cc->base.rank, w->cc->base.n_ranks);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaSetDevice(w->cc->device);
    while (!atomic_load(&w->stop)) {
        const struct position now = look(w);
        const uint64_t now_ns = dsc_now_ns();
        const bool busy = now.has_begun || is_begun_on_device(&now);
        const uint64_t blocked = atomic_load(&w->blocked_since);

        if (!busy || !same_position(&now, &last))
            since = now_ns;
        last = now;
        if (atomic_load(&w->cc->base.failed) < 0 || fail_if_told(w))
            break;
        if (busy && now_ns - since > timeout_ns + grace_ns) {
            fail_late(w, &now, now_ns - since);
            break;
        }
        if (blocked != 0 && now_ns > blocked + timeout_ns) {
            fail_blocked(w, now_ns - blocked);
            break;
        }
        nanosleep(&tick, NULL);
    }
    return NULL;
}

dscomm_status_t dsc_watch_start(struct dsc_cuda_comm *cc)
{
    struct dsc_watch *const w = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*w));

    if (w == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "watchdog");
    w->cc = cc;
    pthread_mutex_init(&w->lock, NULL);
    cc->watch = w;
    for (uint32_t i = 0; i < TRACKED; i++) {
        CUDA_TRY(cudaEventCreateWithFlags(&w->calls[i].begin, cudaEventDisableTiming));
        CUDA_TRY(cudaEventCreateWithFlags(&w->calls[i].end, cudaEventDisableTiming));
    }
    w->started = dsc_thread_start(&w->thread, watch_main, w);
    return w->started ? DSCOMM_OK : dsc_fail(DSCOMM_ERR_LIMIT, "cannot start the watchdog");
}

void dsc_watch_stop(struct dsc_cuda_comm *cc)
{
    struct dsc_watch *const w = cc->watch;

    if (w == NULL)
        return;
    atomic_store(&w->stop, true);
    if (w->started)
        pthread_join(w->thread, NULL);
    for (uint32_t i = 0; i < TRACKED; i++) {
        if (w->calls[i].begin != NULL)
            cudaEventDestroy(w->calls[i].begin);
        if (w->calls[i].end != NULL)
            cudaEventDestroy(w->calls[i].end);
    }
    pthread_mutex_destroy(&w->lock);
    dsc_free(w);
    cc->watch = NULL;
}

void dsc_watch_blocking(struct dsc_cuda_comm *cc, bool is_blocking)
{
    atomic_store(&cc->watch->blocked_since, is_blocking ? dsc_now_ns() : 0);
}

void dsc_watch_abort(struct dsc_cuda_comm *cc)
{
    atomic_store(&cc->watch->abort, true);
}

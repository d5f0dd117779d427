/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates of a CUDA communicator: exchanges of ncclSend and ncclRecv per tier, and what a launch and
 * a call cost besides. Codecs are in cuda_measure_codecs.c. Times are the device's, of work that is
 * enqueued back to back. Ranks take the same turns, and what one has to know of the others it asks.
 */
#include "cuda/cuda_measure.h"

#include <string.h>

#define SMALL_BYTES 16
#define BIG_BYTES ((size_t)16 << 20)
#define SOME_BYTES ((size_t)1 << 20) /* large enough where these take longer than ... */
#define SLOW_NS 1000000u
#define N_SMALL 20
#define N_LAUNCHES 32
#define ROUNDS_MAX 64 /* of large messages */

/* ---- time on the device ---- */

enum { FROM, TO, FORK, JOIN };

/* On an error, too, it is ended by end_timer(). */
static dscomm_status_t make_timer(struct dsc_cuda_timer *timer, struct dsc_cuda_comm *cc)
{
    *timer = (struct dsc_cuda_timer){ .cc = cc };
    for (size_t i = 0; i < DSC_ARRAY_LEN(timer->events); i++)
        CUDA_TRY(cudaEventCreate(&timer->events[i]));
    return DSCOMM_OK;
}

static void end_timer(struct dsc_cuda_timer *timer)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(timer->events); i++)
        if (timer->events[i] != NULL)
            cudaEventDestroy(timer->events[i]);
}

dscomm_status_t dsc_timer_start(struct dsc_cuda_timer *timer)
{
    CUDA_TRY(cudaEventRecord(timer->events[FROM], timer->cc->own));
    return DSCOMM_OK;
}

dscomm_status_t dsc_timer_stop(struct dsc_cuda_timer *timer, uint64_t *ns_out)
{
    float ms = 0;

    CUDA_TRY(cudaEventRecord(timer->events[TO], timer->cc->own));
    DSC_TRY(dsc_cuda_wait_own(timer->cc, "a measurement"));
    CUDA_TRY(cudaEventElapsedTime(&ms, timer->events[FROM], timer->events[TO]));
    *ns_out = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return DSCOMM_OK;
}

/* ---- what ranks tell each other ---- */

/* The largest of all ranks. */
static dscomm_status_t largest(struct dsc_cuda_comm *cc, uint64_t value, uint64_t *largest_out)
{
    uint64_t *const all = dsc_calloc(DSC_MEM_COMM, (size_t)cc->base.n_ranks, sizeof(*all));
    dscomm_status_t st;

    if (all == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "a number of %d ranks", cc->base.n_ranks);
    st = dsc_cuda_gather_bytes(&cc->base, &value, sizeof(value), (uint8_t *)all);
    *largest_out = 0;
    for (int r = 0; r < cc->base.n_ranks; r++)
        if (all[r] > *largest_out)
            *largest_out = all[r];
    dsc_free(all);
    return st;
}

/* ---- links ---- */

/* Whom this rank sends to and receives from in a burst. */
struct links {
    struct dsc_cuda_timer *timer;
    int tier;
    uint8_t *source, *sink; /* [BIG_BYTES], on the device; what senders send lies there in turn */
    int out;                /* -1: nobody */
    int first, second;      /* the pair that is measured alone; -1: there is none */
};

static bool receives_from(const struct links *l, int rank, bool pair_only)
{
    const struct dscomm_comm *const comm = &l->timer->cc->base;

    if (pair_only && (rank != l->first || comm->rank != l->second))
        return false;
    return dsc_measure_target(comm, l->tier, rank) == comm->rank;
}

static ncclResult_t exchange(const struct links *l, size_t bytes, bool pair_only)
{
    struct dsc_cuda_comm *const cc = l->timer->cc;
    const struct dsc_nccl *const nccl = cc->nccl;
    const bool sends = l->out >= 0 && (!pair_only || cc->base.rank == l->first);
    ncclResult_t result = nccl->GroupStart(), end;

    if (result != ncclSuccess)
        return result;
    if (sends)
        result = nccl->Send(l->source, bytes, ncclUint8, l->out, cc->handle, cc->own);
    for (int r = 0; r < cc->base.n_ranks && result == ncclSuccess; r++)
        if (receives_from(l, r, pair_only))
            result = nccl->Recv(l->sink, bytes, ncclUint8, r, cc->handle, cc->own);
    end = nccl->GroupEnd(); /* in any case: the thread's group must not stay open */
    return result != ncclSuccess ? result : end;
}

/* `n` exchanges, one behind the other: time of each, of the slowest rank. */
static dscomm_status_t burst(struct links *l, size_t bytes, bool pair_only, uint64_t n,
                             uint64_t *ns_out)
{
    struct dsc_cuda_comm *const cc = l->timer->cc;
    ncclResult_t result = ncclSuccess;
    uint64_t ns = 0;

    DSC_TRY(largest(cc, 0, &ns)); /* all begin at the same time */
    DSC_TRY(dsc_timer_start(l->timer));
    DSC_TRY(dsc_cuda_hold(cc));
    for (uint64_t i = 0; i < n && (result == ncclSuccess || result == ncclInProgress); i++)
        result = exchange(l, bytes, pair_only);
    dsc_cuda_let_go(cc);
    NCCL_TRY(cc, result);
    DSC_TRY(dsc_timer_stop(l->timer, &ns));
    DSC_TRY(largest(cc, ns / n, &ns));
    *ns_out = dsc_max_size(1, ns);
    return DSCOMM_OK;
}

/* Bytes per second of large messages, in about `ns`. */
static dscomm_status_t rate(struct links *l, bool pair_only, uint64_t ns, uint64_t *rate_out)
{
    uint64_t one = 0, n;
    size_t bytes;

    DSC_TRY(burst(l, SOME_BYTES, pair_only, 1, &one)); /* tells how many fit */
    bytes = one > SLOW_NS ? SOME_BYTES : BIG_BYTES;
    n = dsc_min_u64(ROUNDS_MAX, ns / (one * (bytes / SOME_BYTES)) + 1);
    DSC_TRY(burst(l, bytes, pair_only, n, &one));
    *rate_out = dsc_max_size(1, (uint64_t)bytes * 1000000u / dsc_max_size(1, one / 1000));
    return DSCOMM_OK;
}

static dscomm_status_t measure_tier(struct links *l, uint64_t ns, struct dsc_tier_rates *rates)
{
    const struct dscomm_comm *const comm = &l->timer->cc->base;
    uint64_t first_ns;

    l->out = dsc_measure_target(comm, l->tier, comm->rank);
    l->first = l->second = -1;
    for (int r = comm->n_ranks - 1; r >= 0; r--)
        if (dsc_measure_target(comm, l->tier, r) >= 0) {
            l->first = r;
            l->second = dsc_measure_target(comm, l->tier, r);
        }
    if (l->first < 0)
        return DSCOMM_OK;                                /* joins nobody */
    DSC_TRY(burst(l, SMALL_BYTES, false, 1, &first_ns)); /* connects */
    DSC_TRY(burst(l, SMALL_BYTES, false, N_SMALL, &rates->latency_ns));
    DSC_TRY(rate(l, true, ns / 3, &rates->bytes_per_s_alone));
    return rate(l, false, ns / 3, &rates->bytes_per_s);
}

static dscomm_status_t alloc_vectors(struct links *l)
{
    CUDA_TRY(cudaMalloc((void **)&l->source, BIG_BYTES));
    CUDA_TRY(cudaMalloc((void **)&l->sink, BIG_BYTES));
    return DSCOMM_OK;
}

static dscomm_status_t measure_links(struct dsc_cuda_timer *timer, struct dsc_rates *rates,
                                     uint64_t ns)
{
    struct links l = { .timer = timer };
    dscomm_status_t st = alloc_vectors(&l);

    /* who has no memory says so before the others wait for its messages */
    st = dsc_cuda_agree(timer->cc, st, "measure=links");
    for (l.tier = 0; st == DSCOMM_OK && l.tier < (int)rates->n_tiers; l.tier++)
        st = measure_tier(&l, ns / rates->n_tiers, &rates->tiers[l.tier]);
    cudaFree(l.source);
    cudaFree(l.sink);
    return st;
}

/* ---- what a call costs besides ---- */

/*
 * Operations of a stage at one place of the pipeline are one kernel, and a stage has about as many
 * as there are ranks. A call is forked to a second stream and joined again.
 */
static dscomm_status_t measure_calls(struct dsc_cuda_timer *timer,
                                     const struct dsc_gpu_prepared *small, struct dsc_rates *rates)
{
    struct dsc_cuda_comm *const cc = timer->cc;
    uint64_t launches, calls;

    CUDA_TRY(dsc_gpu_launch(small, cc->own)); /* loads it */
    DSC_TRY(dsc_timer_start(timer));
    for (int i = 0; i < N_LAUNCHES; i++)
        CUDA_TRY(dsc_gpu_launch(small, cc->own));
    DSC_TRY(dsc_timer_stop(timer, &launches));
    DSC_TRY(dsc_timer_start(timer));
    for (int i = 0; i < N_LAUNCHES; i++) {
        CUDA_TRY(cudaEventRecord(timer->events[FORK], cc->own));
        CUDA_TRY(cudaStreamWaitEvent(cc->side, timer->events[FORK], 0));
        CUDA_TRY(dsc_gpu_launch(small, cc->side));
        CUDA_TRY(cudaEventRecord(timer->events[JOIN], cc->side));
        CUDA_TRY(cudaStreamWaitEvent(cc->own, timer->events[JOIN], 0));
    }
    DSC_TRY(dsc_timer_stop(timer, &calls));
    rates->op_ns =
        (uint32_t)dsc_min_u64(launches / N_LAUNCHES / (uint64_t)cc->base.n_ranks, 1000000);
    rates->call_ns = (uint32_t)dsc_min_u64(calls / N_LAUNCHES, 1000000000);
    return DSCOMM_OK;
}

/* ---- all of it ---- */

static dscomm_status_t measure(struct dsc_cuda_timer *timer, const struct dsc_measure *what,
                               uint64_t budget_ns, struct dsc_rates *rates)
{
    struct dsc_codec_bench *bench = NULL;
    dscomm_status_t st;

    DSC_TRY(make_timer(timer, timer->cc));
    DSC_TRY(measure_links(timer, rates, budget_ns * 2 / 5));
    st = dsc_codec_bench_open(timer, &bench);
    if (st == DSCOMM_OK)
        st = measure_calls(timer, dsc_codec_bench_small(bench), rates);
    if (st == DSCOMM_OK)
        st = dsc_codec_bench_run(bench, what, budget_ns * 3 / 10, rates);
    dsc_codec_bench_close(bench);
    return st;
}

dscomm_status_t dsc_cuda_measure(struct dscomm_comm *comm, const struct dsc_measure *what,
                                 int budget_ms, struct dsc_rates *rates_out)
{
    const uint64_t start = dsc_now_ns();
    struct dsc_cuda_timer timer = { .cc = (struct dsc_cuda_comm *)comm };
    dscomm_status_t st;

    dsc_rates_begin(comm, rates_out);
    rates_out->cpus_per_host = rates_out->ranks_per_host = 1; /* a device each */
    st = measure(&timer, what, (uint64_t)budget_ms * 1000000u, rates_out);
    end_timer(&timer);
    if (st < 0 && atomic_load(&comm->failed) >= 0)
        st = dsc_comm_fail(comm, NULL, st, -1);
    if (st < 0)
        return st;
    DSC_TRY(dsc_comm_merge_rates(comm, rates_out));
    dsc_log_info(TUNE, "measured %u tiers and %u codecs in %.0f ms", rates_out->n_tiers,
                 rates_out->n_speeds, (double)(dsc_now_ns() - start) / 1e6);
    return DSCOMM_OK;
}

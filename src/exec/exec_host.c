/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host executor: one thread moves messages and lets operations go on until all are done; it
 * computes too, unless there are workers. Nothing here allocates or locks once a plan is prepared.
 */
#include "exec/exec_internal.h"

#include <string.h>

#define LOOK_AHEAD 64
#define MAX_LOOK_AHEAD 4096
#define JOB_SLICE_NS 200000u    /* longest sleep while workers compute: messages come meanwhile */
#define WAIT_SLICE_NS 50000000u /* longest sleep; deadline and abort are looked at between */

/* ---- life ---- */

dscomm_status_t dsc_exec_create(struct dsc_net *net, const struct dsc_exec_params *params,
                                struct dsc_exec **exec_out)
{
    struct dsc_exec *exec = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*exec));
    dscomm_status_t st;

    if (exec == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "host executor");
    exec->net = net;
    exec->params = *params;
    exec->samples = dsc_calloc(DSC_MEM_EXEC, (size_t)params->n_threads, sizeof(*exec->samples));
    if (exec->samples == NULL) {
        dsc_exec_destroy(exec);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "host executor of %d threads", params->n_threads);
    }
    st = dsc_workers_create(params->n_threads - 1, MAX_LOOK_AHEAD, params->spin_ns, &exec->workers);
    if (st < 0) {
        dsc_exec_destroy(exec);
        return st;
    }
    *exec_out = exec;
    return DSCOMM_OK;
}

void dsc_exec_destroy(struct dsc_exec *exec)
{
    if (exec == NULL)
        return;
    dsc_workers_destroy(exec->workers);
    dsc_free(exec->scratch.memory);
    dsc_free(exec->partial.memory);
    dsc_free(exec->gather.memory);
    dsc_free(exec->staging.memory);
    dsc_free(exec->samples);
    dsc_free(exec);
}

const struct dsc_exec_stats *dsc_exec_stats(const struct dsc_exec *exec)
{
    return &exec->stats;
}

static bool grow(struct dsc_buffer *buffer, size_t bytes)
{
    void *memory;

    if (bytes <= buffer->bytes)
        return true;
    memory = dsc_calloc(DSC_MEM_EXEC, 1, bytes);
    if (memory == NULL)
        return false;
    dsc_free(buffer->memory);
    *buffer = (struct dsc_buffer){ memory, bytes };
    return true;
}

static bool grow_buffers(struct dsc_exec *exec, const struct dscomm_plan *plan,
                         size_t staging_stride)
{
    const size_t floats =
        dsc_max_size(exec->scratch_floats, dsc_round_up(dsc_compute_scratch_floats(plan), 16));

    if (!grow(&exec->scratch, (size_t)exec->params.n_threads * floats * sizeof(float)))
        return false;
    exec->scratch_floats = floats;
    return grow(&exec->partial, plan->partial_elems * sizeof(float)) &&
           grow(&exec->gather, plan->gather_bytes) &&
           grow(&exec->staging, plan->n_staging * staging_stride);
}

static bool alloc_run(struct dsc_exec_run *run)
{
    const struct dscomm_plan *p = run->plan;

#define MAKE(field, n) ((run->field = dsc_calloc(DSC_MEM_EXEC, (n), sizeof(*run->field))) != NULL)
    run->staging_stride = dsc_round_up(p->max_msg_bytes, 64);
    return MAKE(conns, (size_t)p->n_peers) && MAKE(tx_base, (size_t)p->n_peers) &&
           MAKE(rx_base, (size_t)p->n_peers) && MAKE(state, p->n_ops) && MAKE(computed, p->n_ops) &&
           MAKE(bytes, p->n_ops) && MAKE(used, p->n_ops) && MAKE(flaws, p->n_ops) &&
           MAKE(op_staging, p->n_ops) && MAKE(payloads, p->n_recvs) &&
           MAKE(payload_bytes, p->n_recvs) && MAKE(posted, p->n_sends) &&
           MAKE(staging_used, p->n_staging) && MAKE(thresholds, p->n_thresholds) &&
           grow_buffers(run->exec, p, run->staging_stride);
#undef MAKE
}

dscomm_status_t dsc_exec_prepare(struct dsc_exec *exec, const struct dscomm_plan *plan,
                                 struct dsc_exec_run **run_out)
{
    struct dsc_exec_run *run;
    dscomm_status_t st;

    if (plan->max_msg_bytes > exec->params.slot_bytes)
        return dsc_fail(DSCOMM_ERR_LIMIT,
                        "count %zu needs messages of %zu bytes, connections have %zu; set "
                        "DSCOMM_CHUNK_BYTES to at least %zu on all ranks",
                        dsc_plan_share(&plan->params), plan->max_msg_bytes, exec->params.slot_bytes,
                        plan->max_msg_bytes);
    if (2 * (size_t)plan->n_staging > MAX_LOOK_AHEAD)
        return dsc_fail(DSCOMM_ERR_LIMIT, "plan needs %u staging buffers, at most %d",
                        plan->n_staging, MAX_LOOK_AHEAD / 2);
    run = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*run));
    if (run == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan state");
    run->exec = exec;
    run->plan = plan;
    run->look_ahead = (uint32_t)dsc_min_size(
        MAX_LOOK_AHEAD, LOOK_AHEAD + 4 * (size_t)plan->n_peers + 2 * (size_t)plan->n_staging);
    if (!alloc_run(run)) {
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "buffers of a plan for %zu elements",
                      plan->params.count);
        goto err;
    }
    dsc_net_enter(exec->net, exec->next_sequence, plan->hash, plan->descriptor);
    st = dsc_net_connect(exec->net, plan->peers, plan->n_peers);
    dsc_net_leave(exec->net);
    if (st < 0)
        goto err;
    *run_out = run;
    return DSCOMM_OK;

err:
    dsc_exec_run_destroy(run);
    return st;
}

void dsc_exec_run_destroy(struct dsc_exec_run *run)
{
    if (run == NULL)
        return;
    dsc_free(run->conns);
    dsc_free(run->tx_base);
    dsc_free(run->rx_base);
    dsc_free(run->state);
    dsc_free(run->computed);
    dsc_free(run->bytes);
    dsc_free(run->used);
    dsc_free(run->flaws);
    dsc_free(run->op_staging);
    dsc_free(run->payloads);
    dsc_free(run->payload_bytes);
    dsc_free(run->posted);
    dsc_free(run->staging_used);
    dsc_free(run->thresholds);
    dsc_free(run);
}

bool dsc_exec_wrote_residual(const struct dsc_exec_run *run)
{
    return dsc_compute_writes_residual(&run->compute);
}

const struct dsc_exec_outcome *dsc_exec_outcome(const struct dsc_exec_run *run)
{
    return &run->outcome;
}

/* ---- waiting ---- */

/* The rank that the oldest waiting operation waits for. */
int dsc_exec_missing_rank(struct dsc_exec_run *run)
{
    for (uint32_t i = run->first; i < run->plan->n_ops; i++) {
        const struct dsc_op *op = &run->plan->ops[i];

        if (run->state[i] == OP_DONE)
            continue;
        for (uint32_t k = op->first_recv; k < op->first_recv + op->n_recvs; k++)
            if (run->state[i] == OP_WAITING && run->payloads[k] == NULL)
                return run->plan->peers[run->plan->recvs[k].conn];
        for (uint32_t k = op->first_send; k < op->first_send + op->n_sends; k++)
            if (!run->posted[k] && dsc_ops_slot_taken(run, k))
                return run->plan->peers[run->plan->sends[k].conn];
    }
    for (int i = 0; i < run->plan->n_peers; i++)
        if (!run->conns[i]->ops->flushed(run->conns[i]))
            return run->plan->peers[i];
    return -1;
}

/* "rank A waits for rank B" is the link of a chain that the communicator follows. */
static dscomm_status_t deadline_passed(struct dsc_exec_run *run)
{
    const int peer = dsc_exec_missing_rank(run);

    return dsc_fail(
        DSCOMM_ERR_TIMEOUT,
        "rank %d waits for rank %d (%s): nothing came for %.1f s in call %u, %u of %u "
        "operations done",
        run->plan->params.rank, peer, peer < 0 ? "-" : dsc_net_transport_name(run->exec->net, peer),
        run->exec->params.timeout_ms / 1e3, run->sequence, run->n_done, run->plan->n_ops);
}

/* Nothing can move: computes for a worker, or waits for the network. */
static void wait_for_something(struct dsc_exec_run *run, uint32_t jobs_done)
{
    struct dsc_exec *exec = run->exec;

    if (run->n_running > 0) {
        if (!dsc_workers_help(exec->workers))
            dsc_workers_wait(exec->workers, jobs_done, JOB_SLICE_NS);
        return;
    }
    dsc_net_wait(exec->net,
                 dsc_min_u64(WAIT_SLICE_NS, (uint64_t)exec->params.timeout_ms * 1000000));
}

static bool anything_unsent(const struct dsc_exec_run *run)
{
    for (int i = 0; i < run->plan->n_peers; i++)
        if (!run->conns[i]->ops->flushed(run->conns[i]))
            return true;
    return false;
}

/* ---- the call ---- */

static void begin_call(struct dsc_exec_run *run, const struct dsc_call *call, uint32_t sequence)
{
    const struct dscomm_plan *p = run->plan;
    struct dsc_exec *exec = run->exec;

    dsc_compute_begin(&run->compute, p, call, exec->partial.memory, exec->gather.memory,
                      run->thresholds);
    memset(run->state, OP_WAITING, p->n_ops);
    memset((void *)run->computed, 0, p->n_ops);
    memset(run->flaws, 0, p->n_ops * sizeof(*run->flaws));
    memset(run->posted, 0, p->n_sends);
    memset((void *)run->payloads, 0, p->n_recvs * sizeof(*run->payloads));
    memset(run->staging_used, 0, p->n_staging);
    run->first = run->n_done = run->n_running = 0;
    run->outcome = (struct dsc_exec_outcome){ .note = call->note };
    memset(exec->samples, 0, (size_t)exec->params.n_threads * sizeof(*exec->samples));
    run->sequence = sequence;
    run->bad_rank = -1;
    run->idle_since = 0;
    run->use_workers = dsc_workers_count(exec->workers) > 0 &&
                       p->params.count * sizeof(float) > exec->params.inline_bytes;
    for (int i = 0; i < p->n_peers; i++) {
        run->conns[i] = dsc_net_conn(exec->net, p->peers[i]);
        run->tx_base[i] = run->conns[i]->tx_next;
        run->rx_base[i] = run->conns[i]->rx_next;
        run->conns[i]->ops->rx_expect(run->conns[i], run->rx_base[i] + p->n_rx[i]);
    }
    if (run->use_workers)
        dsc_workers_set(exec->workers, dsc_ops_job, run);
}

static void end_call(struct dsc_exec_run *run, uint64_t started)
{
    struct dsc_exec_stats *const stats = &run->exec->stats;
    struct dsc_exec_outcome *const outcome = &run->outcome;

    for (int i = 0; i < run->exec->params.n_threads; i++)
        dsc_sample_add(&outcome->sample, &run->exec->samples[i].sample);
    outcome->ns = dsc_now_ns() - started;
    run->exec->next_sequence = run->sequence + 1;
    for (int i = 0; i < run->plan->n_peers; i++) {
        run->conns[i]->tx_next += run->plan->n_tx[i];
        run->conns[i]->rx_next += run->plan->n_rx[i];
    }
    atomic_fetch_add_explicit(&stats->payload_tx_bytes, outcome->payload_tx_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->nonfinite_elems, outcome->sample.n_nonfinite,
                              memory_order_relaxed);
}

/* Workers may still read and write the caller's memory: lets them end before an error returns. */
static void drain_workers(struct dsc_exec_run *run)
{
    for (uint32_t i = 0; run->n_running > 0 && i < run->plan->n_ops; i++) {
        if (run->state[i] != OP_RUNNING)
            continue;
        while (!atomic_load_explicit(&run->computed[i], memory_order_acquire))
            if (!dsc_workers_help(run->exec->workers))
                dsc_workers_wait(run->exec->workers, dsc_workers_done(run->exec->workers),
                                 JOB_SLICE_NS);
        run->n_running--;
    }
}

/* The caller's memory is its own again: what was posted from there and is not sent is copied. */
static void give_back_memory(struct dsc_exec_run *run)
{
    for (int i = 0; i < run->plan->n_peers; i++)
        run->conns[i]->ops->settle(run->conns[i]);
}

/*
 * How long nothing has moved. Bytes of a message on a slow link are progress; own work that workers
 * still do is no wait for a peer.
 */
static uint64_t idle_ns(struct dsc_exec_run *run, uint64_t now)
{
    const struct dsc_net *net = run->exec->net;
    const uint64_t bytes = dsc_net_wire_tx_bytes(net) + dsc_net_wire_rx_bytes(net);

    if (run->idle_since == 0 || bytes != run->seen_bytes || run->n_running > 0)
        run->idle_since = now;
    run->seen_bytes = bytes;
    return now - run->idle_since;
}

static dscomm_status_t drive(struct dsc_exec_run *run)
{
    struct dsc_exec *exec = run->exec;
    const uint64_t patience = (uint64_t)exec->params.timeout_ms * 1000000u;
    uint64_t now;

    for (;;) {
        const uint32_t jobs_done = dsc_workers_done(exec->workers);
        bool moved = false;

        DSC_TRY(dsc_net_progress(exec->net));
        DSC_TRY(dsc_ops_scan(run, &moved));
        if (run->n_done == run->plan->n_ops && !anything_unsent(run))
            return DSCOMM_OK;
        if (moved) {
            run->idle_since = 0;
            continue;
        }
        now = dsc_now_ns();
        if (idle_ns(run, now) > patience)
            return deadline_passed(run);
        wait_for_something(run, jobs_done);
        now = dsc_now_ns() - now;
        run->outcome.wait_ns += now;
        atomic_fetch_add_explicit(&exec->stats.wait_ns, now, memory_order_relaxed);
    }
}

dscomm_status_t dsc_exec_call(struct dsc_exec_run *run, const struct dsc_call *call,
                              uint32_t sequence, int *bad_rank_out)
{
    const uint32_t saved = dsc_fp_enter();
    const uint64_t started = dsc_now_ns();
    dscomm_status_t st;

    dsc_net_enter(run->exec->net, sequence, run->plan->hash, run->plan->descriptor);
    begin_call(run, call, sequence);
    st = drive(run);
    drain_workers(run);
    if (st < 0)
        give_back_memory(run);
    dsc_net_leave(run->exec->net);
    dsc_fp_leave(saved);
    *bad_rank_out = run->bad_rank;
    if (st == DSCOMM_OK)
        end_call(run, started);
    return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call on the host: one thread moves messages and lets operations go on until all are done; it
 * computes too, unless there are workers. Nothing here allocates or locks.
 */
#include "exec/exec_internal.h"

#include <string.h>

#define JOB_SLICE_NS 200000u    /* longest sleep while workers compute: messages come meanwhile */
#define WAIT_SLICE_NS 50000000u /* longest sleep; deadline and abort are looked at between */

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
            if (!run->posted[k] && dsc_send_slot(run, k) == NULL)
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

bool dsc_exec_wrote_residual(const struct dsc_exec_run *run)
{
    return dsc_compute_writes_residual(&run->compute);
}

const struct dsc_exec_outcome *dsc_exec_outcome(const struct dsc_exec_run *run)
{
    return &run->outcome;
}

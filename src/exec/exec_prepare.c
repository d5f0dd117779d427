/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host executor between calls: its life, and what a plan needs before it can run. Everything is
 * allocated and connected here, so that a call does neither.
 */
#include "exec/exec_internal.h"

#define LOOK_AHEAD 64 /* operations that are looked at, at least */

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
    st = dsc_workers_create(params->n_threads - 1, DSC_LOOK_AHEAD_MAX, params->spin_ns,
                            &exec->workers);
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
    if (2 * (size_t)plan->n_staging > DSC_LOOK_AHEAD_MAX)
        return dsc_fail(DSCOMM_ERR_LIMIT, "plan needs %u staging buffers, at most %d",
                        plan->n_staging, DSC_LOOK_AHEAD_MAX / 2);
    run = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*run));
    if (run == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan state");
    run->exec = exec;
    run->plan = plan;
    run->look_ahead = (uint32_t)dsc_min_size(
        DSC_LOOK_AHEAD_MAX, LOOK_AHEAD + 4 * (size_t)plan->n_peers + 2 * (size_t)plan->n_staging);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of a running call. One starts as soon as what it depends on is done, what it receives
 * has arrived, and what it sends has a free slot; operations may overtake each other within a
 * look-ahead, because slots are numbered.
 *
 * An operation that both receives and sends must not hold received messages while it waits for a
 * slot (that could deadlock): it then computes into a staging buffer. See plan/assemble.c
 * for the proof.
 */
#include "exec/exec_internal.h"

#include <string.h>

/* ---- receiving ---- */

/* Messages of variable codecs say themselves how long they are; memory is there for the longest. */
static bool has_right_size(const struct dsc_exec_run *run, const struct dsc_op *op,
                           const struct dsc_plan_msg *m, uint32_t bytes, const uint8_t *payload)
{
    const struct dsc_codec *const codec = run->plan->codecs[op->tier];
    const struct dsc_msg msg = { .bytes = (uint8_t *)payload, .n = op->n, .exponent = m->exponent };

    if (!dsc_op_receives_variable(run, op))
        return bytes == m->bytes;
    return bytes <= m->bytes && codec->ops->used_bytes(codec, &msg, bytes) == bytes;
}

/* The header of a message against the plan. The connection has checked size, magic and checksum. */
static dscomm_status_t check_header(struct dsc_exec_run *run, const struct dsc_op *op,
                                    const struct dsc_plan_msg *m, const struct dsc_header *h,
                                    const uint8_t *payload)
{
    const int peer = run->plan->peers[m->conn];

    if (h->descriptor != run->plan->hash || h->sequence != run->sequence) {
        run->bad_rank = peer;
        return DSCOMM_ERR_MISMATCH; /* the caller finds out which field differs */
    }
    if (h->stage != m->stage || h->chunk != m->chunk ||
        !has_right_size(run, op, m, h->payload_bytes, payload))
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "message from rank %d has stage %u chunk %u bytes %u, expected %u %u %s%u",
                        peer, h->stage, h->chunk, h->payload_bytes, m->stage, m->chunk,
                        dsc_op_receives_variable(run, op) ? "what its segments add up to, at most "
                                                          : "",
                        m->bytes);
    return DSCOMM_OK;
}

/* DSCOMM_OK: all messages of the op are here. Each is checked when it is first seen. */
static dscomm_status_t look_for_messages(struct dsc_exec_run *run, const struct dsc_op *op)
{
    bool complete = true;

    for (uint32_t i = op->first_recv; i < op->first_recv + op->n_recvs; i++) {
        const struct dsc_plan_msg *m = &run->plan->recvs[i];
        struct dsc_conn *conn = run->conns[m->conn];
        const struct dsc_header *shared;
        struct dsc_header header;

        if (run->payloads[i] != NULL)
            continue;
        shared = conn->ops->rx_msg(conn, run->rx_base[m->conn] + m->index, &run->payloads[i]);
        if (shared == NULL) {
            run->payloads[i] = NULL;
            complete = false;
            continue;
        }
        header = *shared; /* the peer may write to shared memory at any time */
        DSC_TRY(check_header(run, op, m, &header, run->payloads[i]));
        run->payload_bytes[i] = header.payload_bytes;
        run->outcome.note = dsc_note_merge(run->outcome.note, header.note);
    }
    return complete ? DSCOMM_OK : DSCOMM_IN_PROGRESS;
}

static void release_messages(struct dsc_exec_run *run, const struct dsc_op *op)
{
    for (uint32_t i = op->first_recv; i < op->first_recv + op->n_recvs; i++) {
        const struct dsc_plan_msg *m = &run->plan->recvs[i];
        struct dsc_conn *conn = run->conns[m->conn];

        conn->ops->rx_release(conn, run->rx_base[m->conn] + m->index);
    }
}

/* ---- where an operation's message is made ---- */

static bool all_slots_free(struct dsc_exec_run *run, const struct dsc_op *op)
{
    for (uint32_t i = op->first_send; i < op->first_send + op->n_sends; i++)
        if (dsc_send_slot(run, i) == NULL)
            return false;
    return true;
}

static int take_staging(struct dsc_exec_run *run)
{
    for (uint32_t i = 0; i < run->plan->n_staging; i++)
        if (!run->staging_used[i]) {
            run->staging_used[i] = 1;
            return (int)i;
        }
    return -1;
}

/*
 * Finds memory for the op's message: kept messages have their place, others are made in the first
 * slot when all slots are free, else in a staging buffer if the op may use one. False: wait.
 */
static bool place_message(struct dsc_exec_run *run, uint32_t op_index, bool may_stage)
{
    const struct dsc_op *op = &run->plan->ops[op_index];

    run->op_staging[op_index] = -1;
    run->bytes[op_index] = NULL;
    if (op->kind == DSC_OP_ENCODE || op->kind == DSC_OP_GATHER) {
        run->bytes[op_index] = (uint8_t *)run->exec->gather.memory + op->keep;
        return true;
    }
    if (op->n_sends == 0)
        return true;
    if (all_slots_free(run, op)) {
        run->bytes[op_index] = dsc_send_slot(run, op->first_send);
        return true;
    }
    if (!may_stage)
        return false;
    run->op_staging[op_index] = (int16_t)take_staging(run);
    if (run->op_staging[op_index] < 0)
        return false;
    run->bytes[op_index] = (uint8_t *)run->exec->staging.memory +
                           (size_t)run->op_staging[op_index] * run->staging_stride;
    return true;
}

/* ---- one operation ---- */

/* Marks are not forwarded: a reduce-scatter is one flat tier. */
static bool forwards(const struct dsc_op *op)
{
    return op->kind == DSC_OP_GATHER || (op->kind == DSC_OP_DECODE && op->n_sends > 0);
}

/* Bytes of the message that the op has made or is to forward. */
static uint32_t used_bytes(const struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    const struct dsc_codec *const codec = run->plan->codecs[op->tier];
    const struct dsc_msg msg = { .bytes = run->bytes[op_index], .n = op->n };

    if (!dsc_op_sends_variable(run, op) || msg.bytes == NULL)
        return op->msg_bytes;
    return forwards(op) ? run->payload_bytes[op->first_recv]
                        : (uint32_t)dsc_codec_used_bytes(codec, &msg);
}

static void compute(struct dsc_exec_run *run, uint32_t op_index, int thread)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    float *scratch =
        (float *)run->exec->scratch.memory + (size_t)thread * run->exec->scratch_floats;
    struct dsc_sample *const sample = &run->exec->samples[thread].sample;

    sample->n_nonfinite += dsc_compute_op(&run->compute, op, run->payloads + op->first_recv,
                                          run->bytes[op_index], scratch, &run->flaws[op_index]);
    dsc_sample_op(&run->compute, op, run->bytes[op_index], scratch, sample);

    run->used[op_index] = used_bytes(run, op_index);
    if (forwards(op) && run->used[op_index] > 0)
        memcpy(run->bytes[op_index], run->payloads[op->first_recv], run->used[op_index]);
}

void dsc_ops_job(void *ctx, uint32_t op_index, int thread)
{
    struct dsc_exec_run *run = ctx;

    compute(run, op_index, thread);
    atomic_store_explicit(&run->computed[op_index], 1, memory_order_release);
}

static void finish_sending(struct dsc_exec_run *run, uint32_t op_index)
{
    if (run->op_staging[op_index] >= 0)
        run->staging_used[run->op_staging[op_index]] = 0;
    run->state[op_index] = OP_DONE;
    run->n_done++;
}

static dscomm_status_t on_computed(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    const struct dsc_flaw *const flaw = &run->flaws[op_index];
    const bool in_slot = op->n_sends > 0 && run->op_staging[op_index] < 0 &&
                         op->kind != DSC_OP_ENCODE && op->kind != DSC_OP_GATHER;

    if (flaw->what != NULL)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "message from rank %d, elements from %zu on, has %s",
                        flaw->source, op->start, flaw->what);
    release_messages(run, op);
    run->state[op_index] = OP_SENDING;
    if (in_slot)
        dsc_send_from_first_slot(run, op_index);
    if (in_slot || dsc_send_copies(run, op_index))
        finish_sending(run, op_index);
    return DSCOMM_IN_PROGRESS;
}

static bool deps_done(const struct dsc_exec_run *run, const struct dsc_op *op)
{
    for (uint32_t i = op->first_dep; i < op->first_dep + op->n_deps; i++)
        if (run->state[run->plan->deps[i]] != OP_DONE)
            return false;
    return true;
}

/* Positive: the op moved. DSCOMM_OK: it waits. */
static dscomm_status_t start_op(struct dsc_exec_run *run, uint32_t op_index, bool may_stage)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    const dscomm_status_t st = look_for_messages(run, op);

    if (st != DSCOMM_OK)
        return st < 0 ? st : DSCOMM_OK;
    if (!deps_done(run, op) || !place_message(run, op_index, may_stage))
        return DSCOMM_OK;
    const uint8_t *const input = dsc_send_in_input(run, op);

    if (input != NULL) {
        dsc_send_post(run, op->first_send, op->msg_bytes, input);
        finish_sending(run, op_index);
        return DSCOMM_IN_PROGRESS;
    }
    if (run->use_workers) {
        run->state[op_index] = OP_RUNNING;
        run->n_running++;
        dsc_workers_add(run->exec->workers, op_index);
        return DSCOMM_IN_PROGRESS;
    }
    compute(run, op_index, 0);
    return on_computed(run, op_index);
}

static dscomm_status_t step_op(struct dsc_exec_run *run, uint32_t op_index, bool may_stage)
{
    switch ((enum op_state)run->state[op_index]) {
    case OP_WAITING:
        return start_op(run, op_index, may_stage);
    case OP_RUNNING:
        if (!atomic_load_explicit(&run->computed[op_index], memory_order_acquire))
            return DSCOMM_OK;
        run->n_running--;
        run->state[op_index] = OP_SENDING; /* whatever is wrong with it: it runs no more */
        return on_computed(run, op_index);
    case OP_SENDING:
        if (!dsc_send_copies(run, op_index))
            return DSCOMM_OK;
        finish_sending(run, op_index);
        return DSCOMM_IN_PROGRESS;
    case OP_DONE:
        break;
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_ops_scan(struct dsc_exec_run *run, bool *moved_out)
{
    const struct dscomm_plan *plan = run->plan;
    uint32_t n_open = 0, n_both = 0;

    while (run->first < plan->n_ops && run->state[run->first] == OP_DONE)
        run->first++;
    for (uint32_t i = run->first; i < plan->n_ops && n_open < run->look_ahead; i++) {
        const struct dsc_op *op = &plan->ops[i];
        dscomm_status_t st;
        bool both;

        if (run->state[i] == OP_DONE)
            continue;
        n_open++;
        both = dsc_op_may_stage(op);
        n_both += both;
        st = step_op(run, i, both && n_both <= plan->n_staging);
        if (st < 0)
            return st;
        if (st == DSCOMM_IN_PROGRESS) {
            *moved_out = true;
            DSC_TRY(dsc_net_progress(run->exec->net));
        }
    }
    return DSCOMM_OK;
}

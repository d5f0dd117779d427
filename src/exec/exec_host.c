/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks a plan's operations. An operation starts as soon as what it depends on is computed, what it
 * receives has arrived, and what it sends has a free slot; operations may overtake each other
 * within a look-ahead, because slots are numbered. One thread moves messages; it computes too,
 * unless there are workers.
 *
 * An operation that both receives and sends must not hold received messages while it waits for a
 * slot (that could deadlock): it then computes into a staging buffer. See plan.c for the proof.
 */
#include "exec/exec.h"

#include <string.h>

#include "exec/workers.h"

#define LOOK_AHEAD 64
#define MAX_LOOK_AHEAD 4096
#define JOB_SLICE_NS 200000u    /* longest sleep while workers compute: messages come meanwhile */
#define WAIT_SLICE_NS 50000000u /* longest sleep; deadline and abort are looked at between */

enum op_state {
    OP_WAITING, /* for messages, slots, other operations */
    OP_RUNNING, /* being computed by a worker */
    OP_SENDING, /* computed, still has messages to post */
    OP_DONE,
};

struct dsc_buffer {
    void *memory;
    size_t bytes;
};

struct dsc_exec {
    struct dsc_net *net;
    struct dsc_exec_params params;
    struct dsc_workers *workers;
    struct dsc_exec_stats stats;
    uint32_t next_sequence; /* of the call that a plan is prepared for */
    /* Calls never overlap, so all plans share these; they grow when a plan is prepared. */
    struct dsc_buffer scratch; /* [n_threads] of scratch_floats float32 */
    struct dsc_buffer partial; /* float32 partial sums */
    struct dsc_buffer gather;  /* one-shot: kept messages */
    struct dsc_buffer staging; /* [n_staging] of a plan's staging_stride bytes */
    size_t scratch_floats;     /* per thread */
};

struct dsc_exec_run {
    struct dsc_exec *exec;
    const struct dscomm_plan *plan;
    struct dsc_compute compute;
    struct dsc_conn **conns;     /* [n_peers] */
    uint64_t *tx_base, *rx_base; /* [n_peers] number of this call's first message */
    uint8_t *state;              /* [n_ops] enum op_state */
    _Atomic uint8_t *computed;   /* [n_ops] set by workers */
    uint8_t **bytes;             /* [n_ops] message that the op encodes */
    const uint8_t **payloads;    /* [n_recvs] arrived messages */
    uint8_t *posted;             /* [n_sends] */
    float *partial;
    uint8_t *gather;
    uint8_t *staging; /* [n_staging] of staging_stride bytes */
    size_t staging_stride;
    uint8_t *staging_used; /* [n_staging] */
    int16_t *op_staging;   /* [n_ops] buffer in use, -1 none */
    uint32_t first, n_done, n_running, sequence, look_ahead;
    bool use_workers;
    uint64_t idle_since, seen_bytes; /* for the deadline: see idle_ns() */
    int bad_rank;
};

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
           MAKE(bytes, p->n_ops) && MAKE(op_staging, p->n_ops) && MAKE(payloads, p->n_recvs) &&
           MAKE(posted, p->n_sends) && MAKE(staging_used, p->n_staging) &&
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
                        plan->params.count, plan->max_msg_bytes, exec->params.slot_bytes,
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
    dsc_free(run->op_staging);
    dsc_free(run->payloads);
    dsc_free(run->posted);
    dsc_free(run->staging_used);
    dsc_free(run);
}

bool dsc_exec_wrote_residual(const struct dsc_exec_run *run)
{
    return dsc_compute_writes_residual(&run->compute);
}

/* ---- receiving ---- */

/* The header of a message against the plan. The connection has checked size, magic and checksum. */
static dscomm_status_t check_header(struct dsc_exec_run *run, const struct dsc_plan_msg *m,
                                    const struct dsc_header *h)
{
    const int peer = run->plan->peers[m->conn];

    if (h->descriptor != run->plan->hash || h->sequence != run->sequence) {
        run->bad_rank = peer;
        return DSCOMM_ERR_MISMATCH; /* the caller finds out which field differs */
    }
    if (h->stage != m->stage || h->chunk != m->chunk || h->payload_bytes != m->bytes)
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "message from rank %d has stage %u chunk %u bytes %u, expected %u %u %u",
                        peer, h->stage, h->chunk, h->payload_bytes, m->stage, m->chunk, m->bytes);
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
        DSC_TRY(check_header(run, m, &header));
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

/* ---- sending ---- */

static uint8_t *slot_of(struct dsc_exec_run *run, uint32_t send)
{
    const struct dsc_plan_msg *m = &run->plan->sends[send];
    struct dsc_conn *conn = run->conns[m->conn];

    return conn->ops->tx_slot(conn, run->tx_base[m->conn] + m->index);
}

static void post(struct dsc_exec_run *run, uint32_t send)
{
    const struct dsc_plan_msg *m = &run->plan->sends[send];
    struct dsc_conn *conn = run->conns[m->conn];
    const struct dsc_header header = { .magic = DSC_HEADER_MAGIC,
                                       .version = DSC_HEADER_VERSION,
                                       .kind = DSC_MSG_DATA,
                                       .sequence = run->sequence,
                                       .descriptor = run->plan->hash,
                                       .chunk = m->chunk,
                                       .stage = m->stage,
                                       .payload_bytes = m->bytes };

    conn->ops->tx_post(conn, run->tx_base[m->conn] + m->index, &header);
    run->posted[send] = 1;
}

static bool all_slots_free(struct dsc_exec_run *run, const struct dsc_op *op)
{
    for (uint32_t i = op->first_send; i < op->first_send + op->n_sends; i++)
        if (slot_of(run, i) == NULL)
            return false;
    return true;
}

/* Copies the op's message to every slot that is free now. True when nothing is left to post. */
static bool post_copies(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    bool all = true;

    for (uint32_t i = op->first_send; i < op->first_send + op->n_sends; i++) {
        uint8_t *slot;

        if (run->posted[i])
            continue;
        slot = slot_of(run, i);
        if (slot == NULL) {
            all = false;
            continue;
        }
        if (slot != run->bytes[op_index] && op->msg_bytes > 0)
            memcpy(slot, run->bytes[op_index], op->msg_bytes);
        post(run, i);
    }
    return all;
}

/*
 * As above where the message lies in the first send's slot: that one is posted last, because its
 * memory is the receiver's from then on.
 */
static void post_from_first_slot(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];

    for (uint32_t i = op->first_send + 1; i < op->first_send + op->n_sends; i++) {
        if (op->msg_bytes > 0)
            memcpy(slot_of(run, i), run->bytes[op_index], op->msg_bytes);
        post(run, i);
    }
    post(run, op->first_send);
}

/* ---- where an operation's message is made ---- */

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
        run->bytes[op_index] = slot_of(run, op->first_send);
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

static void compute(struct dsc_exec_run *run, uint32_t op_index, int thread)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    float *scratch =
        (float *)run->exec->scratch.memory + (size_t)thread * run->exec->scratch_floats;
    const size_t bad = dsc_compute_op(&run->compute, op, run->payloads + op->first_recv,
                                      run->bytes[op_index], scratch);

    if (op->kind == DSC_OP_DECODE && op->n_sends > 0 && op->msg_bytes > 0)
        memcpy(run->bytes[op_index], run->payloads[op->first_recv], op->msg_bytes);
    if (bad > 0)
        atomic_fetch_add_explicit(&run->exec->stats.nonfinite_elems, bad, memory_order_relaxed);
}

static void run_job(void *ctx, uint32_t op_index, int thread)
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

static void on_computed(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    const bool in_slot = op->n_sends > 0 && run->op_staging[op_index] < 0 &&
                         op->kind != DSC_OP_ENCODE && op->kind != DSC_OP_GATHER;

    release_messages(run, op);
    run->state[op_index] = OP_SENDING;
    if (in_slot)
        post_from_first_slot(run, op_index);
    if (in_slot || post_copies(run, op_index))
        finish_sending(run, op_index);
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
    if (run->use_workers) {
        run->state[op_index] = OP_RUNNING;
        run->n_running++;
        dsc_workers_add(run->exec->workers, op_index);
        return DSCOMM_IN_PROGRESS;
    }
    compute(run, op_index, 0);
    on_computed(run, op_index);
    return DSCOMM_IN_PROGRESS;
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
        on_computed(run, op_index);
        return DSCOMM_IN_PROGRESS;
    case OP_SENDING:
        if (!post_copies(run, op_index))
            return DSCOMM_OK;
        finish_sending(run, op_index);
        return DSCOMM_IN_PROGRESS;
    case OP_DONE:
        break;
    }
    return DSCOMM_OK;
}

/* One pass over the look-ahead. *moved_out: something happened. */
static dscomm_status_t scan(struct dsc_exec_run *run, bool *moved_out)
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
            if (!run->posted[k] && slot_of(run, k) == NULL)
                return run->plan->peers[run->plan->sends[k].conn];
    }
    for (int i = 0; i < run->plan->n_peers; i++)
        if (!run->conns[i]->ops->flushed(run->conns[i]))
            return run->plan->peers[i];
    return -1;
}

static dscomm_status_t deadline_passed(struct dsc_exec_run *run)
{
    const int peer = dsc_exec_missing_rank(run);

    return dsc_fail(DSCOMM_ERR_TIMEOUT,
                    "rank %d: waited %.1f s for rank %d (%s) in call %u, %u of "
                    "%u operations done",
                    run->plan->params.rank, run->exec->params.timeout_ms / 1e3, peer,
                    peer < 0 ? "-" : dsc_net_transport_name(run->exec->net, peer), run->sequence,
                    run->n_done, run->plan->n_ops);
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

    dsc_compute_begin(&run->compute, p, call, exec->partial.memory, exec->gather.memory);
    memset(run->state, OP_WAITING, p->n_ops);
    memset((void *)run->computed, 0, p->n_ops);
    memset(run->posted, 0, p->n_sends);
    memset((void *)run->payloads, 0, p->n_recvs * sizeof(*run->payloads));
    memset(run->staging_used, 0, p->n_staging);
    run->first = run->n_done = run->n_running = 0;
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
        dsc_workers_set(exec->workers, run_job, run);
}

static void end_call(struct dsc_exec_run *run)
{
    run->exec->next_sequence = run->sequence + 1;
    for (int i = 0; i < run->plan->n_peers; i++) {
        run->conns[i]->tx_next += run->plan->n_tx[i];
        run->conns[i]->rx_next += run->plan->n_rx[i];
    }
    atomic_fetch_add_explicit(&run->exec->stats.payload_tx_bytes, run->plan->payload_tx_bytes,
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
        DSC_TRY(scan(run, &moved));
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
        atomic_fetch_add_explicit(&exec->stats.wait_ns, dsc_now_ns() - now, memory_order_relaxed);
    }
}

dscomm_status_t dsc_exec_call(struct dsc_exec_run *run, const struct dsc_call *call,
                              uint32_t sequence, int *bad_rank_out)
{
    const uint32_t saved = dsc_fp_enter();
    dscomm_status_t st;

    dsc_net_enter(run->exec->net, sequence, run->plan->hash, run->plan->descriptor);
    begin_call(run, call, sequence);
    st = drive(run);
    drain_workers(run);
    dsc_net_leave(run->exec->net);
    dsc_fp_leave(saved);
    *bad_rank_out = run->bad_rank;
    if (st == DSCOMM_OK)
        end_call(run);
    return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collective call from its arguments to its end: check everything before touching anything, wait
 * for its turn on the communicator, run the plan, and on an error tell the peers and undo.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

/* ---- arguments ---- */

static dscomm_status_t check_kinds(const struct dsc_call_args *a)
{
    if (dsc_dtype_bytes(a->dtype) == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "dtype %d, must be 0 (fp32), 1 (fp16) or 2 (bf16)",
                        (int)a->dtype);
    if ((unsigned)a->op > DSCOMM_MIN)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %d, must be 0 (sum), 1 (avg), 2 (max) or 3 (min)",
                        (int)a->op);
    if (a->feedback != NULL && a->op != DSCOMM_SUM && a->op != DSCOMM_AVG)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %s has no error feedback; pass NULL",
                        dsc_op_name(a->op));
    if (a->feedback != NULL && dscomm_feedback_count(a->feedback) != a->count)
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback object of %zu elements for a call of %zu",
                        dscomm_feedback_count(a->feedback), a->count);
    return DSCOMM_OK;
}

static dscomm_status_t check_memory(const struct dsc_call_args *a)
{
    const size_t elem = dsc_dtype_bytes(a->dtype);
    const uintptr_t send = (uintptr_t)a->send, recv = (uintptr_t)a->recv;

    if (a->count > SIZE_MAX / 8)
        return dsc_fail(DSCOMM_ERR_INVALID, "count %zu, at most %zu", a->count, SIZE_MAX / 8);
    if (a->count == 0)
        return DSCOMM_OK;
    if (a->send == NULL || a->recv == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", a->send == NULL ? "send" : "recv");
    if (send % elem != 0 || recv % elem != 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s %p is not aligned to its %zu-byte elements",
                        send % elem != 0 ? "send" : "recv",
                        send % elem != 0 ? a->send : (const void *)a->recv, elem);
    if (send != recv && send < recv + a->count * elem && recv < send + a->count * elem)
        return dsc_fail(DSCOMM_ERR_INVALID, "send %p and recv %p overlap; pass the same or apart",
                        a->send, (const void *)a->recv);
    return DSCOMM_OK;
}

dscomm_status_t dsc_comm_check(const struct dscomm_comm *comm)
{
    if (comm == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm is NULL");
    if (atomic_load(&comm->failed) < 0)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "the communicator failed before: %s",
                        comm->error_text);
    return DSCOMM_OK;
}

/* ---- order of calls ---- */

uint32_t dsc_comm_take_ticket(struct dscomm_comm *comm)
{
    return atomic_fetch_add(&comm->next_ticket, 1);
}

static void wait_for_turn(struct dscomm_comm *comm, uint32_t ticket)
{
    uint32_t serving;

    while ((serving = atomic_load(&comm->serving)) != ticket)
        dsc_futex_wait(&comm->serving, serving, 1000000000u);
}

static void next_turn(struct dscomm_comm *comm)
{
    /* Nobody waits unless a later ticket was taken. */
    if (atomic_fetch_add(&comm->serving, 1) + 1 != atomic_load(&comm->next_ticket))
        dsc_futex_wake(&comm->serving, INT32_MAX);
}

/* ---- errors ---- */

void dsc_comm_set_failed(struct dscomm_comm *comm, dscomm_status_t status, const char *text)
{
    if (atomic_load(&comm->failed) < 0)
        return;
    snprintf(comm->error_text, sizeof(comm->error_text), "%s", text);
    atomic_store(&comm->failed, status);
}

/* Ranks wait for each other in chains: each adds its own link, so that the culprit is named. */
static void add_own_wait(const struct dscomm_comm *comm, struct dsc_exec_run *run, char *text,
                         size_t text_bytes)
{
    const int missing = run == NULL ? -1 : dsc_exec_missing_rank(run);
    const size_t used = strlen(text);

    if (missing >= 0 && dsc_net_error_rank(comm->net) != comm->rank)
        snprintf(text + used, text_bytes - used, "; rank %d itself waits for rank %d", comm->rank,
                 missing);
}

/* Tells the peers and remembers. Parts of the entry may be missing. Returns the call's status. */
static dscomm_status_t fail_call(struct dscomm_comm *comm, const struct dsc_plan_entry *entry,
                                 dscomm_status_t st, int bad_rank)
{
    char text[DSC_ERROR_TEXT_MAX];

    if (st == DSCOMM_ERR_MISMATCH && entry->plan != NULL) {
        if (bad_rank < 0)
            bad_rank = dsc_net_error_rank(comm->net);
        dsc_comm_explain_mismatch(comm, entry->plan->descriptor, bad_rank, text, sizeof(text));
        st = dsc_fail(DSCOMM_ERR_MISMATCH, "%s", text);
    } else {
        /* Found here (last error) or told by a peer (the endpoint's text). */
        const char *told = dsc_net_error_text(comm->net);

        snprintf(text, sizeof(text), "%s", told[0] != '\0' ? told : dscomm_last_error());
        dsc_net_fail(comm->net, st, text);
        if (st == DSCOMM_ERR_TIMEOUT)
            add_own_wait(comm, entry->run, text, sizeof(text));
        dsc_set_last_error(text);
    }
    dsc_comm_set_failed(comm, st, text);
    return st;
}

/* ---- running ---- */

static dscomm_status_t save_input(struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const size_t bytes = a->count * dsc_dtype_bytes(a->dtype);

    if (!comm->preserve_input || a->send != a->recv)
        return DSCOMM_OK;
    if (comm->saved_bytes < bytes) { /* once per largest shape */
        dsc_free(comm->saved_input);
        comm->saved_input = dsc_calloc(DSC_MEM_COMM, 1, bytes);
        comm->saved_bytes = comm->saved_input == NULL ? 0 : bytes;
        if (comm->saved_input == NULL)
            return dsc_fail(DSCOMM_ERR_NO_MEMORY, "copy of %zu input bytes", bytes);
    }
    memcpy(comm->saved_input, a->send, bytes);
    return DSCOMM_OK;
}

static void undo(struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    if (comm->preserve_input && a->send == a->recv && a->count > 0)
        memcpy(a->recv, comm->saved_input, a->count * dsc_dtype_bytes(a->dtype));
    if (a->feedback != NULL)
        dsc_feedback_abandon(a->feedback);
}

static dscomm_status_t run_plan(struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct dsc_shape shape = { a->count, a->dtype, a->op, a->codec, a->feedback != NULL };
    struct dsc_call call = { a->send, a->recv, a->feedback != NULL, { 0 } };
    struct dsc_plan_entry *entry = NULL;
    dscomm_status_t st;
    int bad_rank = -1;

    DSC_TRY(save_input(comm, a));
    st = dsc_comm_plan(comm, &shape, &entry);
    if (st < 0)
        return fail_call(comm, entry, st, -1);
    if (a->feedback != NULL)
        dsc_feedback_begin(a->feedback, &call.residual);
    st = dsc_exec_call(entry->run, &call, comm->sequence, &bad_rank);
    if (st < 0) {
        st = fail_call(comm, entry, st, bad_rank);
        undo(comm, a);
        return st;
    }
    if (a->feedback != NULL)
        dsc_feedback_finish(a->feedback, dsc_exec_wrote_residual(entry->run));
    comm->sequence++;
    return DSCOMM_OK;
}

dscomm_status_t dsc_comm_run(struct dscomm_comm *comm, uint32_t ticket,
                             const struct dsc_call_args *args)
{
    dscomm_status_t st;
    uint64_t start;

    dsc_log_set_rank(comm->rank, comm->n_ranks);
    wait_for_turn(comm, ticket);
    start = dsc_now_ns();
    st = dsc_comm_check(comm);
    if (st == DSCOMM_OK)
        st = run_plan(comm, args);
    if (st == DSCOMM_OK)
        atomic_fetch_add_explicit(&comm->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->call_ns, dsc_now_ns() - start, memory_order_relaxed);
    next_turn(comm);
    return st;
}

/* ---- public ---- */

dscomm_status_t dscomm_allreduce_compressed(const void *send, void *recv, size_t count,
                                            dscomm_dtype_t dtype, dscomm_op_t op,
                                            const dscomm_codec_t *codec,
                                            dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                            dscomm_stream_t *stream)
{
    const struct dsc_call_args args = { .send = send,
                                        .recv = recv,
                                        .count = count,
                                        .dtype = dtype,
                                        .op = op,
                                        .codec = codec != NULL ? codec : dscomm_codec("none"),
                                        .feedback = feedback };

    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(check_kinds(&args));
    DSC_TRY(check_memory(&args));
    if (stream != NULL)
        return dsc_stream_add(stream, comm, dsc_comm_take_ticket(comm), &args);
    return dsc_comm_run(comm, dsc_comm_take_ticket(comm), &args);
}

dscomm_status_t dscomm_plan_create(dscomm_comm_t *comm, size_t count, dscomm_dtype_t dtype,
                                   dscomm_op_t op, const dscomm_codec_t *codec, int with_feedback,
                                   const dscomm_plan_t **plan_out)
{
    const struct dsc_call_args args = { .count = count, .dtype = dtype, .op = op };
    const struct dsc_shape shape = { count, dtype, op, codec != NULL ? codec : dscomm_codec("none"),
                                     with_feedback != 0 };
    struct dsc_plan_entry *entry = NULL;
    dscomm_status_t st;

    if (plan_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "plan_out is NULL");
    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(check_kinds(&args));
    wait_for_turn(comm, dsc_comm_take_ticket(comm));
    st = dsc_comm_plan(comm, &shape, &entry);
    if (st < 0)
        st = fail_call(comm, entry, st, -1);
    else
        *plan_out = entry->plan;
    next_turn(comm);
    return st;
}

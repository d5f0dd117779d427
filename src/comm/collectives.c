/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collective call from its checked arguments to its end: wait for its turn on the communicator,
 * run the plan, and on an error tell the peers and undo. The public collectives are at the end.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dscomm_status_t dsc_comm_check(const struct dscomm_comm *comm)
{
    char text[DSC_ERROR_TEXT_MAX + 64];

    if (comm == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm is NULL");
    if (atomic_load(&comm->failed) >= 0)
        return DSCOMM_OK;
    /* Not logged: it was when it happened, and a training loop may ask often. */
    snprintf(text, sizeof(text), "the communicator failed before: %s", comm->error_text);
    dsc_set_last_error(text);
    return DSCOMM_ERR_BAD_STATE;
}

/* ---- errors ---- */

static void set_failed(struct dscomm_comm *comm, dscomm_status_t status, const char *text)
{
    if (atomic_load(&comm->failed) < 0)
        return;
    snprintf(comm->error_text, sizeof(comm->error_text), "%s", text);
    atomic_store(&comm->failed, status);
}

/*
 * Ranks wait for each other in chains, and whose deadline passes first is chance. Each rank tells
 * its own link, "rank A waits for rank B"; following them leads to the one that does not answer.
 */
#define CHAIN_NS 200000000u

static void append_link(char *text, size_t text_bytes, int rank, int next)
{
    const size_t used = strlen(text);

    if (next >= 0)
        snprintf(text + used, text_bytes - used, "; rank %d waits for rank %d", rank, next);
    else
        snprintf(text + used, text_bytes - used, "; rank %d has not answered", rank);
}

/* Whom `rank` waits for, by the reports so far; -1: it has not said. */
static int link_of(const struct dscomm_comm *comm, int rank)
{
    const struct dsc_report *reports;
    const size_t n = dsc_net_reports(comm->net, &reports);
    char link[48];

    snprintf(link, sizeof(link), "rank %d waits for rank ", rank);
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(reports[i].text, link);

        if (at != NULL)
            return (int)strtol(at + strlen(link), NULL, 10);
    }
    return -1;
}

static void follow_chain(struct dscomm_comm *comm, int rank, char *text, size_t text_bytes)
{
    const uint64_t until = dsc_now_ns() + CHAIN_NS;
    int hops = 0;

    while (rank >= 0 && rank != comm->rank && hops < comm->n_ranks) {
        const int next = link_of(comm, rank);

        if (next >= 0) {
            append_link(text, text_bytes, rank, next);
            rank = next;
            hops++;
        } else if (dsc_now_ns() < until) {
            dsc_net_progress(comm->net); /* its error is the one being explained */
            dsc_net_wait(comm->net, CHAIN_NS / 40);
        } else {
            append_link(text, text_bytes, rank, -1);
            return;
        }
    }
}

/* The error as found here (last error) or as a peer told it (the endpoint's text). */
static void tell_peers(struct dscomm_comm *comm, struct dsc_exec_run *run, dscomm_status_t st,
                       char *text, size_t text_bytes)
{
    const char *told = dsc_net_error_text(comm->net);
    const int missing = st == DSCOMM_ERR_TIMEOUT && run != NULL ? dsc_exec_missing_rank(run) : -1;

    snprintf(text, text_bytes, "%s", told[0] != '\0' ? told : dscomm_last_error());
    if (missing >= 0 && told[0] != '\0')
        append_link(text, text_bytes, comm->rank, missing);
    dsc_net_fail(comm->net, st, text);
    follow_chain(comm, missing, text, text_bytes);
}

dscomm_status_t dsc_comm_fail(struct dscomm_comm *comm, const struct dsc_plan_entry *entry,
                              dscomm_status_t st, int bad_rank)
{
    char text[DSC_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s", dscomm_last_error());
    if (st != DSCOMM_ERR_MISMATCH || entry == NULL || entry->plan == NULL)
        tell_peers(comm, entry == NULL ? NULL : entry->run, st, text, sizeof(text));
    else
        dsc_comm_explain_mismatch(comm, entry->plan->descriptor,
                                  bad_rank < 0 ? dsc_net_error_rank(comm->net) : bad_rank, text,
                                  sizeof(text));
    dsc_set_last_error(text);
    set_failed(comm, st, text);
    return st;
}

/* ---- running ---- */

/* preserve_input: an in-place call that fails gives its input back. */
static dscomm_status_t save_input(struct dscomm_comm *comm, const struct dsc_overlap *input)
{
    if (!comm->config.preserve_input || input->bytes == 0)
        return DSCOMM_OK;
    if (comm->saved_bytes < input->bytes) { /* once per largest shape */
        dsc_free(comm->saved_input);
        comm->saved_input = dsc_calloc(DSC_MEM_COMM, 1, input->bytes);
        comm->saved_bytes = comm->saved_input == NULL ? 0 : input->bytes;
        if (comm->saved_input == NULL)
            return dsc_fail(DSCOMM_ERR_NO_MEMORY, "copy of %zu input bytes", input->bytes);
    }
    memcpy(comm->saved_input, input->memory, input->bytes);
    return DSCOMM_OK;
}

static void undo(struct dscomm_comm *comm, const struct dsc_call_args *a,
                 const struct dsc_overlap *input)
{
    if (comm->config.preserve_input && input->bytes > 0)
        memcpy(input->memory, comm->saved_input, input->bytes);
    if (a->feedback != NULL)
        dsc_feedback_abandon(a->feedback);
}

dscomm_status_t dsc_comm_execute(struct dscomm_comm *comm, struct dsc_plan_entry *entry,
                                 struct dsc_call *call)
{
    int bad_rank = -1;
    dscomm_status_t st;

    call->draw = (struct dsc_draw){ comm->config.seed, comm->sequence, (uint32_t)comm->rank, 0 };
    st = dsc_exec_call(entry->run, call, comm->sequence, &bad_rank);
    if (st < 0)
        return dsc_comm_fail(comm, entry, st, bad_rank);
    comm->sequence++;
    return DSCOMM_OK;
}

static dscomm_status_t run_plan(struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct dsc_overlap input = dsc_call_overlap(comm, a);
    struct dsc_call call = { .send = a->send, .recv = a->recv, .feedback = a->feedback != NULL };
    struct dsc_plan_entry *entry = NULL;
    dscomm_status_t st;

    DSC_TRY(dsc_comm_plan(comm, &a->shape, &entry));
    st = save_input(comm, &input);
    if (st < 0)
        return dsc_comm_fail(comm, entry, st, -1);
    if (a->feedback != NULL)
        dsc_feedback_begin(a->feedback, &call.residual);
    st = dsc_comm_execute(comm, entry, &call);
    if (st < 0)
        undo(comm, a, &input);
    else if (a->feedback != NULL)
        dsc_feedback_finish(a->feedback, dsc_exec_wrote_residual(entry->run));
    return st;
}

dscomm_status_t dsc_comm_run(struct dscomm_comm *comm, uint32_t ticket,
                             const struct dsc_call_args *args)
{
    dscomm_status_t st;
    uint64_t start;

    dsc_log_set_rank(comm->rank, comm->n_ranks);
    dsc_turns_wait(&comm->turns, ticket);
    start = dsc_now_ns();
    st = dsc_comm_check(comm);
    if (st == DSCOMM_OK)
        st = args->batch != NULL ? dsc_batch_run(comm, args) : run_plan(comm, args);
    if (st == DSCOMM_OK)
        atomic_fetch_add_explicit(&comm->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->call_ns, dsc_now_ns() - start, memory_order_relaxed);
    if (args->batch != NULL)
        dsc_batch_give(args->batch);
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

/* ---- public ---- */

/* Checks a call and runs it, queues it, or keeps it for the end of its group. */
static dscomm_status_t issue(struct dscomm_comm *comm, dscomm_stream_t *stream,
                             const struct dsc_call_args *args)
{
    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(dsc_shape_check(comm, &args->shape));
    DSC_TRY(dsc_call_check(comm, args));
    if (dsc_group_is_open())
        return dsc_group_add(comm, stream, args);
    if (stream != NULL)
        return dsc_stream_add(stream, comm, dsc_turns_take(&comm->turns), args);
    return dsc_comm_run(comm, dsc_turns_take(&comm->turns), args);
}

dscomm_status_t dscomm_allreduce_compressed(const void *send, void *recv, size_t count,
                                            dscomm_dtype_t dtype, dscomm_op_t op,
                                            const dscomm_codec_t *codec,
                                            dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                            dscomm_stream_t *stream)
{
    const struct dsc_call_args args = { .send = send,
                                        .recv = recv,
                                        .shape = dsc_shape_make(DSC_ALLREDUCE, count, dtype, op,
                                                                codec, feedback != NULL),
                                        .feedback = feedback };

    return issue(comm, stream, &args);
}

dscomm_status_t dscomm_reduce_scatter_compressed(const void *send, void *recv, size_t recv_count,
                                                 dscomm_dtype_t dtype, dscomm_op_t op,
                                                 const dscomm_codec_t *codec,
                                                 dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                                 dscomm_stream_t *stream)
{
    const struct dsc_call_args args = { .send = send,
                                        .recv = recv,
                                        .shape = dsc_shape_make(DSC_REDUCE_SCATTER, recv_count,
                                                                dtype, op, codec, feedback != NULL),
                                        .feedback = feedback };

    return issue(comm, stream, &args);
}

dscomm_status_t dscomm_all_gather_compressed(const void *send, void *recv, size_t send_count,
                                             dscomm_dtype_t dtype, const dscomm_codec_t *codec,
                                             dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                             dscomm_stream_t *stream)
{
    const struct dsc_call_args args = { .send = send,
                                        .recv = recv,
                                        .shape =
                                            dsc_shape_make(DSC_ALL_GATHER, send_count, dtype,
                                                           DSCOMM_SUM, codec, feedback != NULL),
                                        .feedback = feedback };

    return issue(comm, stream, &args);
}

dscomm_status_t dscomm_broadcast(const void *send, void *recv, size_t count, dscomm_dtype_t dtype,
                                 int root, const dscomm_codec_t *codec, dscomm_comm_t *comm,
                                 dscomm_stream_t *stream)
{
    struct dsc_call_args args = { .send = send,
                                  .recv = recv,
                                  .shape = dsc_shape_make(DSC_BROADCAST, count, dtype, DSCOMM_SUM,
                                                          codec, false) };

    args.shape.root = root;
    if (comm != NULL && comm->rank != root) /* not looked at */
        args.send = recv;
    return issue(comm, stream, &args);
}

dscomm_status_t dscomm_all_to_all_compressed(const void *send, void *recv, size_t count,
                                             dscomm_dtype_t dtype, const dscomm_codec_t *codec,
                                             dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                             dscomm_stream_t *stream)
{
    const struct dsc_call_args args = {
        .send = send,
        .recv = recv,
        .shape = dsc_shape_make(DSC_ALL_TO_ALL, count, dtype, DSCOMM_SUM, codec, feedback != NULL),
        .feedback = feedback
    };

    return issue(comm, stream, &args);
}

dscomm_status_t dscomm_plan_create(dscomm_comm_t *comm, size_t count, dscomm_dtype_t dtype,
                                   dscomm_op_t op, const dscomm_codec_t *codec, int with_feedback,
                                   const dscomm_plan_t **plan_out)
{
    const struct dsc_shape shape =
        dsc_shape_make(DSC_ALLREDUCE, count, dtype, op, codec, with_feedback != 0);
    struct dsc_plan_entry *entry = NULL;
    dscomm_status_t st;
    uint32_t ticket;

    if (plan_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "plan_out is NULL");
    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(dsc_shape_check(comm, &shape));
    dsc_log_set_rank(comm->rank, comm->n_ranks);
    ticket = dsc_turns_take(&comm->turns);
    dsc_turns_wait(&comm->turns, ticket);
    st = dsc_comm_check(comm); /* a call before this one may have failed */
    if (st == DSCOMM_OK)
        st = dsc_comm_plan(comm, &shape, &entry);
    if (st == DSCOMM_OK) {
        entry->pinned = true;
        *plan_out = entry->plan;
    }
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

dscomm_status_t dscomm_comm_abort(dscomm_comm_t *comm)
{
    uint32_t ticket;

    if (comm == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm is NULL");
    dsc_net_abort(comm->net);
    if (!dsc_turns_try(&comm->turns, &ticket))
        return DSCOMM_OK; /* the running call sees it and tells the peers */
    if (dsc_net_progress(comm->net) < 0)
        dsc_comm_fail(comm, NULL, DSCOMM_ERR_ABORTED, -1);
    dsc_turns_end(&comm->turns, ticket);
    return DSCOMM_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host backend: a call runs on the caller's thread or on that of a dscomm_stream_t, through the
 * host executor and a network endpoint. An error is told to the peers.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

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

static void host_tell(struct dscomm_comm *comm, const struct dsc_plan_entry *entry,
                      dscomm_status_t st, int bad_rank, char *text, size_t text_bytes)
{
    if (st != DSCOMM_ERR_MISMATCH || entry == NULL || entry->plan == NULL)
        tell_peers(comm, entry == NULL ? NULL : entry->run, st, text, text_bytes);
    else
        dsc_comm_explain_mismatch(comm, entry->plan->descriptor,
                                  bad_rank < 0 ? dsc_net_error_rank(comm->net) : bad_rank, text,
                                  text_bytes);
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

    call->note = dsc_notes_own(comm, &entry->plan->params);
    call->draw = (struct dsc_draw){ comm->config.seed, comm->sequence, (uint32_t)comm->rank, 0 };
    st = dsc_exec_call(entry->run, call, comm->sequence, &bad_rank);
    if (st < 0)
        return dsc_comm_fail(comm, entry, st, bad_rank);
    comm->sequence++;
    dsc_notes_finish(comm, entry->plan, dsc_exec_outcome(entry->run));
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

/* ---- the backend ---- */

static dscomm_status_t host_check_shape(const struct dscomm_comm *comm,
                                        const struct dsc_shape *shape)
{
    (void)comm, (void)shape; /* it runs all that there is */
    return DSCOMM_OK;
}

static dscomm_status_t host_check(const struct dscomm_comm *comm, dscomm_stream_t *stream,
                                  const struct dsc_call_args *args)
{
    (void)comm, (void)stream;
    if (args->feedback != NULL && dsc_feedback_memory(args->feedback) != &dsc_host_memory)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "feedback object in %s memory, must be in host memory: this communicator "
                        "runs on CPUs",
                        dsc_feedback_memory(args->feedback)->name);
    return DSCOMM_OK;
}

static dscomm_status_t host_issue(struct dscomm_comm *comm, dscomm_stream_t *stream,
                                  const struct dsc_call_args *args)
{
    const uint32_t ticket = dsc_turns_take(&comm->turns);

    if (stream != NULL)
        return dsc_stream_add(stream, comm, ticket, args);
    return dsc_comm_run(comm, ticket, args);
}

static dscomm_status_t host_prepare(struct dscomm_comm *comm, struct dsc_plan_entry *entry)
{
    struct dsc_exec_run *run = NULL;
    const dscomm_status_t st = dsc_exec_prepare(comm->exec, entry->plan, &run);

    entry->run = run;
    return st;
}

static void host_drop(struct dsc_plan_entry *entry)
{
    dsc_exec_run_destroy(entry->run);
}

static void host_abort(struct dscomm_comm *comm)
{
    uint32_t ticket;

    dsc_net_abort(comm->net);
    if (!dsc_turns_try(&comm->turns, &ticket))
        return; /* the running call sees it and tells the peers */
    if (dsc_net_progress(comm->net) < 0)
        dsc_comm_fail(comm, NULL, DSCOMM_ERR_ABORTED, -1);
    dsc_turns_end(&comm->turns, ticket);
}

static void host_stats(const struct dscomm_comm *comm, dscomm_stats_t *stats)
{
    const struct dsc_exec_stats *const exec = dsc_exec_stats(comm->exec);

    stats->wire_tx_bytes = dsc_net_wire_tx_bytes(comm->net);
    stats->wire_rx_bytes = dsc_net_wire_rx_bytes(comm->net);
    stats->payload_tx_bytes = atomic_load(&exec->payload_tx_bytes);
    stats->nonfinite_elems = atomic_load(&exec->nonfinite_elems);
    stats->wait_ns = atomic_load(&exec->wait_ns);
}

static dscomm_status_t host_close(struct dscomm_comm *comm)
{
    dsc_comm_drop_plans(comm);
    dsc_exec_destroy(comm->exec);
    dsc_net_destroy(comm->net);
    dsc_batches_destroy(comm);
    dsc_free(comm->saved_input);
    return DSCOMM_OK;
}

const struct dsc_backend dsc_backend_host = {
    .name = "host",
    .fuses = true,
    .has_slots = true,
    .check_shape = host_check_shape,
    .check = host_check,
    .issue = host_issue,
    .prepare = host_prepare,
    .drop = host_drop,
    .tell = host_tell,
    .abort = host_abort,
    .stats = host_stats,
    .gather = dsc_comm_gather,
    .measure = dsc_comm_measure,
    .split = dsc_comm_split_host,
    .close = host_close,
};

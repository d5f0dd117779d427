/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public collectives: each checks its call and hands it to the communicator's backend. And what
 * happens to a communicator whose call failed.
 */
#include "comm/comm.h"

#include <stdio.h>

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

void dsc_comm_set_failed(struct dscomm_comm *comm, dscomm_status_t status, const char *text)
{
    if (atomic_exchange(&comm->failing, true))
        return;
    snprintf(comm->error_text, sizeof(comm->error_text), "%s", text);
    atomic_store(&comm->failed, status);
}

dscomm_status_t dsc_comm_fail(struct dscomm_comm *comm, const struct dsc_plan_entry *entry,
                              dscomm_status_t st, int bad_rank)
{
    char text[DSC_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s", dscomm_last_error());
    comm->backend->tell(comm, entry, st, bad_rank, text, sizeof(text));
    dsc_set_last_error(text);
    dsc_comm_set_failed(comm, st, text);
    return st;
}

/* ---- public ---- */

/* Checks a call and runs it, queues it, or keeps it for the end of its group. */
static dscomm_status_t issue(struct dscomm_comm *comm, dscomm_stream_t *stream,
                             const struct dsc_call_args *args)
{
    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(dsc_shape_check(comm, &args->shape));
    DSC_TRY(comm->backend->check_shape(comm, &args->shape));
    DSC_TRY(dsc_call_check(comm, args));
    DSC_TRY(comm->backend->check(comm, stream, args));
    if (dsc_group_is_open())
        return dsc_group_add(comm, stream, args);
    return comm->backend->issue(comm, stream, args);
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
    DSC_TRY(comm->backend->check_shape(comm, &shape));
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
    if (comm == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm is NULL");
    comm->backend->abort(comm);
    return DSCOMM_OK;
}

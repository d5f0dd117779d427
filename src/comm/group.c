/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped calls: those of a thread between start and end are kept, and run at the end. Small
 * allreduces that agree in type, operation, codec and feedback become one (batch.c); all else runs
 * by itself, in the order of issue. What is fused follows from shapes alone, so it is the same on
 * all ranks.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

/* Larger vectors gain nothing from being fused and would be copied. */
#define FUSED_BYTES_MAX ((size_t)1 << 20)
/* Of one batch. */
#define BATCH_BYTES_MAX ((size_t)16 << 20)

/* This thread's open group: how deep, and the communicators that calls were kept for. */
static _Thread_local int depth;
static _Thread_local struct dscomm_comm *first_comm;

bool dsc_group_is_open(void)
{
    return depth > 0;
}

/* ---- keeping calls ---- */

/* False: out of memory. */
static bool append(struct dsc_calls *calls, const struct dsc_call_args *args)
{
    if (calls->n == calls->capacity) {
        const size_t capacity = calls->capacity == 0 ? 16 : 2 * calls->capacity;
        struct dsc_call_args *larger = dsc_calloc(DSC_MEM_COMM, capacity, sizeof(*larger));

        if (larger == NULL)
            return false;
        if (calls->n > 0)
            memcpy(larger, calls->args, calls->n * sizeof(*larger));
        dsc_free(calls->args);
        calls->args = larger;
        calls->capacity = capacity;
    }
    calls->args[calls->n++] = *args;
    return true;
}

/* The last of the list keeps its place: calls of communicators run in the order of first use. */
static void enlist(struct dscomm_comm *comm)
{
    struct dscomm_comm **at = &first_comm;

    while (*at != NULL && *at != comm)
        at = &(*at)->group.next;
    *at = comm;
}

void dsc_group_forget(struct dscomm_comm *comm)
{
    for (struct dscomm_comm **at = &first_comm; *at != NULL; at = &(*at)->group.next)
        if (*at == comm) {
            *at = comm->group.next;
            break;
        }
    comm->group.next = NULL;
    comm->group.calls.n = 0;
}

static bool is_exempt(const struct dscomm_comm *comm, const struct dsc_shape *shape)
{
    return shape->collective == DSC_ALLREDUCE &&
           shape->count * dsc_dtype_bytes(shape->dtype) < comm->config.min_bytes;
}

/* The residual that a call leaves is what the next one starts from: side by side, one would be
 * lost. */
static dscomm_status_t check_not_shared(const struct dsc_calls *calls, const dscomm_feedback_t *fb)
{
    for (size_t i = 0; fb != NULL && i < calls->n; i++)
        if (calls->args[i].feedback == fb)
            return dsc_fail(DSCOMM_ERR_INVALID,
                            "feedback %p is that of call %zu of this group, must be another object",
                            (const void *)fb, i);
    return DSCOMM_OK;
}

dscomm_status_t dsc_group_add(struct dscomm_comm *comm, dscomm_stream_t *stream,
                              const struct dsc_call_args *args)
{
    struct dsc_group *const group = &comm->group;
    struct dsc_call_args kept = *args;

    if (group->calls.n > 0 && group->stream != stream)
        return dsc_fail(
            DSCOMM_ERR_INVALID,
            "stream %p, must be that of the group's first call on this communicator, %p",
            (void *)stream, (void *)group->stream);
    DSC_TRY(check_not_shared(&group->calls, kept.feedback));
    if (is_exempt(comm, &kept.shape))
        kept.shape.codec = dscomm_codec("none");
    if (!append(&group->calls, &kept))
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "group of %zu calls", group->calls.n + 1);
    group->stream = stream;
    enlist(comm);
    return DSCOMM_OK;
}

/* ---- running them ---- */

/* Stochastic codecs draw by an element's place in the call's vector, which fusing would change. */
static bool may_fuse(const struct dsc_call_args *a)
{
    const struct dsc_shape *const s = &a->shape;

    return s->collective == DSC_ALLREDUCE &&
           s->count * dsc_dtype_bytes(s->dtype) <= FUSED_BYTES_MAX &&
           s->codec->tile_align <= DSC_PIECE_ALIGN && !s->codec->stochastic &&
           dsc_batch_takes(a->feedback);
}

static bool may_fuse_with(const struct dsc_call_args *a, const struct dsc_call_args *b)
{
    return may_fuse(b) && a->shape.dtype == b->shape.dtype && a->shape.op == b->shape.op &&
           a->shape.codec == b->shape.codec &&
           dsc_choice_equal(&a->shape.choice, &b->shape.choice) &&
           dsc_batch_agrees(a->feedback, b->feedback);
}

static dscomm_status_t run_one(struct dscomm_comm *comm, const struct dsc_call_args *args)
{
    return comm->backend->issue(comm, comm->group.stream, args);
}

/* Takes the calls from `first` on that fuse with it out of the group, into a batch. */
static dscomm_status_t fill_batch(struct dscomm_comm *comm, size_t first, struct dsc_batch **out)
{
    struct dsc_calls *const calls = &comm->group.calls;
    struct dsc_batch *const batch = dsc_batch_take(comm);
    size_t bytes = 0;

    if (batch == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "batch of fused calls");
    for (size_t i = first; i < calls->n; i++) {
        struct dsc_call_args *const a = &calls->args[i];
        const size_t more = a->shape.count * dsc_dtype_bytes(a->shape.dtype);

        if (a->is_taken || !may_fuse_with(&calls->args[first], a) || bytes + more > BATCH_BYTES_MAX)
            continue;
        if (!append(&batch->calls, a)) {
            dsc_batch_give(batch);
            return dsc_fail(DSCOMM_ERR_NO_MEMORY, "batch of fused calls");
        }
        a->is_taken = true;
        bytes += more;
    }
    *out = batch;
    return DSCOMM_OK;
}

static dscomm_status_t run_fused(struct dscomm_comm *comm, size_t first)
{
    struct dsc_batch *batch = NULL;
    struct dsc_call_args args;

    DSC_TRY(fill_batch(comm, first, &batch));
    if (batch->calls.n == 1) { /* as it would be without a group */
        args = batch->calls.args[0];
        dsc_batch_give(batch);
        return run_one(comm, &args);
    }
    args = dsc_batch_args(batch);
    return run_one(comm, &args); /* which gives the batch back */
}

/* An error leaves the rest out: the communicator has failed, or there is no memory. */
static dscomm_status_t run_group(struct dscomm_comm *comm)
{
    const struct dsc_calls *const calls = &comm->group.calls;
    dscomm_status_t st = DSCOMM_OK;

    for (size_t i = 0; st == DSCOMM_OK && i < calls->n; i++) {
        if (calls->args[i].is_taken)
            continue;
        st = comm->backend->fuses && may_fuse(&calls->args[i]) ? run_fused(comm, i)
                                                               : run_one(comm, &calls->args[i]);
    }
    return st;
}

/* ---- public ---- */

dscomm_status_t dscomm_group_start(void)
{
    depth++;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_group_end(void)
{
    dscomm_status_t first = DSCOMM_OK;
    char text[DSC_ERROR_TEXT_MAX] = "";

    if (depth == 0)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "group end without a group start in this thread");
    if (--depth > 0)
        return DSCOMM_OK;
    while (first_comm != NULL) {
        struct dscomm_comm *const comm = first_comm;
        const dscomm_status_t st = run_group(comm);

        if (st < 0 && first == DSCOMM_OK) {
            first = st;
            snprintf(text, sizeof(text), "%s", dscomm_last_error());
        }
        dsc_group_forget(comm);
    }
    if (first < 0)
        dsc_set_last_error(text);
    return first;
}

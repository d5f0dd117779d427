/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of collectives: everything is checked before anything is touched, so that a bad one
 * leaves the communicator usable.
 */
#include "comm/comm.h"

/* Chunks of a larger vector would not fit their 32-bit sizes. */
#define COUNT_MAX ((size_t)1 << 44)

struct dsc_shape dsc_shape_make(enum dsc_collective collective, size_t count, dscomm_dtype_t dtype,
                                dscomm_op_t op, const dscomm_codec_t *codec, bool feedback)
{
    return (struct dsc_shape){ .collective = collective,
                               .count = count,
                               .dtype = dtype,
                               .op = op,
                               .codec = codec != NULL ? codec : dscomm_codec("none"),
                               .feedback = feedback };
}

/* The largest count whose shares together are within COUNT_MAX. */
static size_t count_max(const struct dscomm_comm *comm, enum dsc_collective collective)
{
    const struct dsc_collective_traits *const traits = dsc_collective_traits(collective);

    return traits->sends_shares || traits->recvs_shares ? COUNT_MAX / (size_t)comm->n_ranks
                                                        : COUNT_MAX;
}

/* Codecs that are not for every call. */
static dscomm_status_t check_codec(const struct dsc_shape *s)
{
    const struct dsc_collective_traits *const traits = dsc_collective_traits(s->collective);

    if (s->codec->is_auto && s->collective != DSC_ALLREDUCE)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s with codec %s, which is for allreduce alone",
                        traits->name, s->codec->spec);
    if (s->codec->sums_only && !traits->is_of_sums)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s with codec %s, which leaves values out: they would arrive as 0; it is "
                        "for allreduce, reduce_scatter and all_gather",
                        traits->name, s->codec->spec);
    if (s->codec->sums_only && s->op != DSCOMM_SUM && s->op != DSCOMM_AVG)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %s with codec %s, which takes sum and avg alone",
                        dsc_op_name(s->op), s->codec->spec);
    if (s->feedback && s->codec->stochastic)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "codec %s with a feedback object: feedback already takes care of the mean, "
                        "and stochastic rounding would only leave more behind; leave out ,sr or "
                        "pass NULL",
                        s->codec->spec);
    return DSCOMM_OK;
}

dscomm_status_t dsc_shape_check(const struct dscomm_comm *comm, const struct dsc_shape *s)
{
    if (dsc_dtype_bytes(s->dtype) == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "dtype %d, must be 0 (fp32), 1 (fp16) or 2 (bf16)",
                        (int)s->dtype);
    if ((unsigned)s->op > DSCOMM_MIN)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %d, must be 0 (sum), 1 (avg), 2 (max) or 3 (min)",
                        (int)s->op);
    if (s->root < 0 || s->root >= comm->n_ranks)
        return dsc_fail(DSCOMM_ERR_INVALID, "root %d, must be 0 to %d", s->root, comm->n_ranks - 1);
    if (s->count > count_max(comm, s->collective))
        return dsc_fail(DSCOMM_ERR_INVALID, "count %zu, at most %zu", s->count,
                        count_max(comm, s->collective));
    if (s->feedback && s->op != DSCOMM_SUM && s->op != DSCOMM_AVG)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %s has no error feedback; pass NULL",
                        dsc_op_name(s->op));
    return check_codec(s);
}

/* The caller's vectors as address ranges; of the plan's vector, where its element 0 would be. */
struct places {
    uintptr_t send, recv;
    uintptr_t send_origin, recv_origin;
    size_t send_bytes, recv_bytes;
};

static struct places places_of(const struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct dsc_plan_params params = dsc_shape_params(comm, &a->shape);
    const size_t elem = dsc_dtype_bytes(a->shape.dtype);
    struct places p = { .send = (uintptr_t)a->send,
                        .recv = (uintptr_t)a->recv,
                        .send_bytes = dsc_plan_send_elems(&params) * elem,
                        .recv_bytes = dsc_plan_recv_elems(&params) * elem };

    p.send_origin = p.send - dsc_plan_send_base(&params) * elem;
    p.recv_origin = p.recv - dsc_plan_recv_base(&params) * elem;
    return p;
}

/* In place as NCCL defines it: an element of both vectors has one address. */
static bool is_in_place(const struct places *p)
{
    return p->send_origin == p->recv_origin;
}

static dscomm_status_t check_feedback(const struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct dsc_plan_params params = dsc_shape_params(comm, &a->shape);
    const size_t want = dsc_plan_send_elems(&params);

    if (a->feedback != NULL && dscomm_feedback_count(a->feedback) != want)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "feedback object of %zu elements for a call that sends from %zu",
                        dscomm_feedback_count(a->feedback), want);
    if (a->feedback != NULL && dsc_feedback_has_momentum(a->feedback) &&
        a->shape.collective != DSC_ALLREDUCE && a->shape.collective != DSC_REDUCE_SCATTER)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s with the momentum of a feedback object, which is for allreduce and "
                        "reduce_scatter",
                        dsc_collective_traits(a->shape.collective)->name);
    return DSCOMM_OK;
}

static dscomm_status_t check_address(const char *name, uintptr_t address, size_t elem)
{
    if (address == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", name);
    if (address % elem != 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s 0x%zx is not aligned to its %zu-byte elements",
                        name, (size_t)address, elem);
    return DSCOMM_OK;
}

dscomm_status_t dsc_call_check(const struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct places p = places_of(comm, a);
    const size_t elem = dsc_dtype_bytes(a->shape.dtype);

    DSC_TRY(check_feedback(comm, a));
    if (a->shape.count == 0)
        return DSCOMM_OK;
    DSC_TRY(check_address("recv", p.recv, elem));
    DSC_TRY(check_address("send", p.send, elem));
    if (!is_in_place(&p) && p.send < p.recv + p.recv_bytes && p.recv < p.send + p.send_bytes)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "send %p and recv %p overlap; %s allows recv at send %+td bytes, or apart",
                        a->send, (const void *)a->recv,
                        dsc_collective_traits(a->shape.collective)->name,
                        (ptrdiff_t)((p.recv - p.recv_origin) - (p.send - p.send_origin)));
    return DSCOMM_OK;
}

struct dsc_overlap dsc_call_overlap(const struct dscomm_comm *comm, const struct dsc_call_args *a)
{
    const struct places p = places_of(comm, a);
    const bool send_is_part = p.send_bytes <= p.recv_bytes;

    if (!is_in_place(&p))
        return (struct dsc_overlap){ NULL, 0 };
    /* send, where it is the part, lies in recv, which is the caller's to write */
    return (struct dsc_overlap){ send_is_part ? (uint8_t *)a->recv + (p.send - p.recv) : a->recv,
                                 send_is_part ? p.send_bytes : p.recv_bytes };
}

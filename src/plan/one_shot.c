/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-shot: one lossy step, for small vectors. Every rank's codes reach every rank, which sums all
 * decoded vectors in rank order. Up to 8 ranks each sends to each. Above, Bruck's pattern: in step
 * t a rank passes on all it has to the rank 2^t below, so that a message crosses at most ceil(log2
 * n) links and a rank talks to ceil(log2 n) others each way.
 *
 * On the wire the stage is the step and the chunk is chunk * n_ranks + origin.
 *
 * Kept messages lie in a ring of a few chunks: a place is used again once the sum that read it is
 * done and the message was passed on.
 */
#include "plan/builder.h"
#include "plan/pieces.h"

#define RING_CHUNKS 4u

struct one_shot {
    struct dsc_builder *b;
    int n, me, tier;
    size_t count, chunk;
    bool forwards;                /* Bruck */
    uint32_t sum_id[RING_CHUNKS]; /* of the chunk in each place of the ring */
};

static int wrap(const struct one_shot *w, int rank)
{
    return (rank % w->n + w->n) % w->n;
}

static uint64_t key_of(const struct one_shot *w, uint32_t c, uint32_t step, int origin)
{
    return dsc_msg_key(c, step, c * (uint32_t)w->n + (uint32_t)origin);
}

static size_t kept_at(const struct one_shot *w, uint32_t c, int origin)
{
    const size_t at = c % RING_CHUNKS;
    const size_t place = w->forwards ? at * (size_t)w->n + (size_t)origin : at;

    return place * w->b->plan->gather_stride;
}

static struct dsc_place place_of(const struct one_shot *w, int rank)
{
    return (struct dsc_place){ (uint16_t)rank, (uint16_t)w->n };
}

/* An operation on chunk c, its message that of the rank `origin`. */
static struct dsc_op span_op(const struct one_shot *w, enum dsc_op_kind kind, uint32_t c,
                             int origin)
{
    const size_t start = (size_t)c * w->chunk;
    const size_t n = dsc_min_size(w->chunk, w->count - start);
    struct dsc_codec made;
    const size_t bytes = dsc_codec_message_bytes(
        dsc_codec_at(w->b->plan->codecs[w->tier], place_of(w, origin), &made), n);

    return (struct dsc_op){ .kind = kind,
                            .tier = w->tier,
                            .start = start,
                            .n = (uint32_t)n,
                            .place = place_of(w, origin),
                            .msg_bytes = (uint32_t)bytes,
                            .own_partial = DSC_NO_BUFFER };
}

/* The operation takes over a place of the ring: SUM is done after all that kept messages there. */
static void wait_for_place(struct one_shot *w, uint32_t c)
{
    if (c >= RING_CHUNKS)
        dsc_builder_dep(w->b, w->sum_id[c % RING_CHUNKS]);
}

/* Passes a message that lies `distance` ranks above this one (0: own) on from step `step`. */
static void add_steps(struct one_shot *w, uint32_t c, int distance, uint32_t step)
{
    const int origin = wrap(w, w->me + distance);

    for (uint32_t t = step; (1 << t) < w->n; t++)
        if (distance + (1 << t) < w->n)
            dsc_builder_send(w->b, wrap(w, w->me - (1 << t)), key_of(w, c, t, origin));
}

static uint32_t add_encode(struct one_shot *w, uint32_t c)
{
    struct dsc_op op = span_op(w, DSC_OP_ENCODE, c, w->me);
    uint32_t id;

    op.keep = kept_at(w, c, w->me);
    id = dsc_builder_op(w->b, &op, key_of(w, c, 0, w->me), 0);
    if (w->forwards)
        add_steps(w, c, 0, 0);
    else
        for (int k = 1; k < w->n; k++)
            dsc_builder_send(w->b, wrap(w, w->me + k), key_of(w, c, 0, w->me));
    wait_for_place(w, c);
    return id;
}

/* Bruck: the message of the rank `distance` above comes in step floor(log2(distance)). */
static void add_gather(struct one_shot *w, uint32_t c, int distance)
{
    const int origin = wrap(w, w->me + distance);
    struct dsc_op op = span_op(w, DSC_OP_GATHER, c, origin);
    uint32_t step = 0;

    while ((2 << step) <= distance)
        step++;
    op.keep = kept_at(w, c, origin);
    dsc_builder_op(w->b, &op, key_of(w, c, step, origin), 0);
    dsc_builder_recv(w->b, wrap(w, w->me + (1 << step)), key_of(w, c, step, origin), op.msg_bytes,
                     0);
    add_steps(w, c, distance, step + 1);
    wait_for_place(w, c);
}

static uint32_t add_sum(struct one_shot *w, uint32_t c, uint32_t first_id, uint32_t n_ids)
{
    struct dsc_op op = span_op(w, DSC_OP_SUM, c, w->me);
    const size_t end = op.start + op.n;
    const size_t mine = dsc_cut(0, w->count, w->n, w->me);
    const size_t mine_end = dsc_cut(0, w->count, w->n, w->me + 1);
    uint32_t id;

    op.own_at = w->me;
    op.keep = w->forwards ? kept_at(w, c, 0) : kept_at(w, c, w->me);
    op.own_start = mine > op.start ? dsc_min_size(mine, end) : op.start;
    op.own_end = mine_end > op.start ? dsc_min_size(mine_end, end) : op.start;
    id = dsc_builder_op(w->b, &op, dsc_msg_key(c, UINT16_MAX, 0), 0);
    for (int q = 0; !w->forwards && q < w->n; q++)
        if (q != w->me)
            dsc_builder_recv(w->b, q, key_of(w, c, 0, q), span_op(w, DSC_OP_SUM, c, q).msg_bytes,
                             0);
    for (uint32_t i = 0; i < n_ids; i++)
        dsc_builder_dep(w->b, first_id + i);
    return id;
}

dscomm_status_t dsc_build_one_shot(struct dsc_builder *b)
{
    const struct dsc_plan_params *params = b->params;
    struct one_shot w = { .b = b,
                          .n = params->n_ranks,
                          .me = params->rank,
                          .tier = params->n_tiers - 1,
                          .count = params->count,
                          .chunk = b->plan->chunk_elems,
                          .forwards = params->n_ranks > DSC_BRUCK_RANKS };
    struct dsc_codec made;
    uint32_t n_chunks;

    while (dsc_ceil_div(w.count, w.chunk) > DSC_MAX_CHUNKS / (size_t)w.n)
        w.chunk *= 2;
    b->plan->chunk_elems = w.chunk;
    /* Count 0 still says hello, so that a rank with another count is noticed. */
    n_chunks = w.count == 0 ? 1 : (uint32_t)dsc_ceil_div(w.count, w.chunk);
    b->plan->gather_stride = dsc_round_up(
        dsc_codec_message_bytes(dsc_codec_at(b->plan->codecs[w.tier], DSC_LAST_PLACE, &made),
                                dsc_min_size(w.chunk, w.count)),
        64);
    b->plan->gather_bytes = b->plan->gather_stride * dsc_min_size(n_chunks, RING_CHUNKS) *
                            (w.forwards ? (size_t)w.n : 1);
    for (uint32_t c = 0; c < n_chunks; c++) {
        const uint32_t id = add_encode(&w, c);

        for (int k = 1; w.forwards && k < w.n; k++)
            add_gather(&w, c, k);
        w.sum_id[c % RING_CHUNKS] = add_sum(&w, c, id, w.forwards ? (uint32_t)w.n : 1);
    }
    return DSCOMM_OK;
}

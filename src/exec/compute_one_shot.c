/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-shot: every rank has every rank's message and sums them all.
 */
#include "exec/compute_internal.h"

#include <math.h>

/* Message of the k-th rank: received, or kept in the gather buffer. */
static struct dsc_msg rank_message(const struct dsc_compute *ctx, const struct dsc_op *op,
                                   const uint8_t *const *msgs, int k, const struct dsc_tiles *t)
{
    const bool all_kept = op->n_recvs == 0; /* Bruck keeps every rank's message */
    uint8_t *bytes;

    if (all_kept)
        bytes = ctx->gather + op->keep + (size_t)k * ctx->plan->gather_stride;
    else if (k == op->own_at)
        bytes = ctx->gather + op->keep;
    else
        bytes = (uint8_t *)msgs[k < op->own_at ? k : k - 1];
    return (struct dsc_msg){
        .bytes = bytes, .n = op->n, .exponent = op->exponent, .flaw = t->flaw, .source = k
    };
}

/* The owner of an element adds S - A*o to its r', in a second rounding. */
static void add_owner_residual(const struct dsc_compute *ctx, const struct dsc_op *op, size_t at,
                               const float *sum, const float *o, size_t n,
                               const struct dsc_tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    const struct dsc_residual *r = &ctx->call->residual;
    const size_t start = at > op->own_start ? at : op->own_start;
    const size_t end = dsc_min_size(at + n, op->own_end);
    const size_t skip = start - at;

    if (start >= end || ctx->idle[op->tier])
        return;
    n = end - start;
    k->residual(t->fresh, sum + skip, o + skip, ctx->ranks, n);
    for (size_t i = 0; i < n; i++) /* one vector: the sender's part stays where o is not finite */
        t->fresh[i] = isfinite(o[skip + i] * ctx->ranks) ? t->fresh[i] : 0.0f;
    k->add(t->fresh, dsc_load_residual(ctx, r->out, start, n, t->residual), n);
    dsc_store_residual(ctx, start, t->fresh, n);
}

size_t dsc_compute_sum(const struct dsc_compute *ctx, const struct dsc_op *op,
                       const uint8_t *const *msgs, const struct dsc_tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *mean, *o;
        size_t bad;

        for (int q = 0; q < ctx->plan->params.n_ranks; q++) {
            const struct dsc_msg msg = rank_message(ctx, op, msgs, q, t);
            const struct dsc_place place = { (uint16_t)q, (uint16_t)ctx->plan->params.n_ranks };
            struct dsc_codec made;
            const struct dsc_codec *codec = dsc_codec_at(ctx->plan->codecs[op->tier], place, &made);

            if (q == 0)
                codec->ops->decode(codec, &msg, i, n, t->value, 0);
            else
                dsc_combine_message(ctx, codec, &msg, i, n, t->value, t->fresh);
        }
        mean = dsc_divided(ctx, n, t);
        o = dsc_store_output(ctx, at, mean, n, t->decoded);
        bad = k->count_nonfinite(o, ctx->ranks, n);
        add_owner_residual(ctx, op, at, t->value, o, n, t);
        if (bad > 0)
            dsc_restore_residual(ctx, at, o, n);
        n_bad += bad;
    }
    return n_bad;
}

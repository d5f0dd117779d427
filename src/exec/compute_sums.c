/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums (maxima, minima) of the values of all members of a piece, a tile at a time.
 */
#include "exec/compute_internal.h"

#include <string.h>

/* acc op= x */
static void combine(const struct dsc_compute *ctx, float *acc, const float *x, size_t n)
{
    const struct dsc_kernels *k = ctx->k;

    switch (ctx->plan->params.op) {
    case DSCOMM_MAX:
        k->max(acc, x, n);
        return;
    case DSCOMM_MIN:
        k->min(acc, x, n);
        return;
    default:
        k->add(acc, x, n);
    }
}

struct dsc_msg dsc_received(const struct dsc_compute *ctx, const struct dsc_op *op, uint32_t k,
                            const uint8_t *payload, const struct dsc_tiles *t)
{
    const struct dsc_plan_msg *const m = &ctx->plan->recvs[op->first_recv + k];

    return (struct dsc_msg){ .bytes = (uint8_t *)payload,
                             .n = op->n,
                             .exponent = m->exponent,
                             .flaw = t->flaw,
                             .source = ctx->plan->peers[m->conn] };
}

void dsc_combine_message(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                         const struct dsc_msg *msg, size_t first, size_t n, float *acc, float *tile)
{
    if (ctx->plan->params.op == DSCOMM_SUM || ctx->plan->params.op == DSCOMM_AVG) {
        codec->ops->decode_add(codec, msg, first, n, acc);
        return;
    }
    codec->ops->decode(codec, msg, first, n, tile, 0);
    combine(ctx, acc, tile, n);
}

void dsc_sum_tile(const struct dsc_compute *ctx, const struct dsc_op *op,
                  const uint8_t *const *msgs, size_t first, size_t n, const struct dsc_tiles *t)
{
    const int n_values = (int)op->n_recvs + 1;
    uint32_t next = 0;

    for (int k = 0; k < n_values; k++) {
        if (k == op->own_at) {
            const float *own = dsc_own_value(ctx, op, first, n, k == 0 ? t->value : t->fresh);

            if (k > 0)
                combine(ctx, t->value, own, n);
            else if (own != t->value)
                memcpy(t->value, own, n * sizeof(float));
            continue;
        }
        struct dsc_codec made;
        const struct dsc_codec *codec = dsc_codec_at(
            ctx->plan->codecs[op->tier], ctx->plan->recvs[op->first_recv + next].place, &made);
        const struct dsc_msg msg = dsc_received(ctx, op, next, msgs[next], t);

        next++;
        if (k == 0)
            codec->ops->decode(codec, &msg, first, n, t->value, 0);
        else
            dsc_combine_message(ctx, codec, &msg, first, n, t->value, t->fresh);
    }
}

const float *dsc_divided(const struct dsc_compute *ctx, size_t n, const struct dsc_tiles *t)
{
    if (ctx->ranks == 1.0f)
        return t->value;
    ctx->k->div(t->scaled, t->value, ctx->ranks, n);
    return t->scaled;
}

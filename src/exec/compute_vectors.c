/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing the caller's vectors and the residual, whatever their types.
 */
#include "exec/compute_internal.h"

#include <math.h>

bool dsc_has_momentum(const struct dsc_compute *ctx)
{
    return ctx->call->feedback && ctx->call->residual.velocity_in != NULL;
}

bool dsc_own_value_is_there(const struct dsc_compute *ctx, const struct dsc_op *op)
{
    return op->own_partial != DSC_NO_BUFFER ||
           (ctx->plan->params.dtype == DSCOMM_FLOAT32 && !dsc_has_momentum(ctx));
}

/* Elements [at, at + n) of the caller's input. */
static const float *input(const struct dsc_compute *ctx, size_t at, size_t n, float *tile)
{
    const dscomm_dtype_t dtype = ctx->plan->params.dtype;
    const uint8_t *const bits =
        (const uint8_t *)ctx->call->send + dsc_send_index(ctx, at) * dsc_dtype_bytes(dtype);

    if (dtype == DSCOMM_FLOAT32)
        return (const float *)(const void *)bits;
    dsc_dtype_load(dtype, tile, bits, n);
    return tile;
}

const float *dsc_own_value(const struct dsc_compute *ctx, const struct dsc_op *op, size_t first,
                           size_t n, float *tile)
{
    const struct dsc_residual *const r = &ctx->call->residual;
    const size_t at = op->start + first;
    float *own;

    if (op->own_partial != DSC_NO_BUFFER)
        return ctx->partial + op->own_partial + first;
    if (!dsc_has_momentum(ctx))
        return input(ctx, at, n, tile);
    own = r->velocity_out + dsc_send_index(ctx, at);
    ctx->k->axpy(own, input(ctx, at, n, tile), r->velocity_in + dsc_send_index(ctx, at),
                 r->momentum, n);
    return own;
}

void dsc_clear_sent(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                    const struct dsc_msg *msg, size_t first, size_t n, size_t at)
{
    if (dsc_has_momentum(ctx) && codec->ops->clear_sent != NULL)
        codec->ops->clear_sent(codec, msg, first, n,
                               ctx->call->residual.velocity_out + dsc_send_index(ctx, at));
}

const float *dsc_load_residual(const struct dsc_compute *ctx, const void *vector, size_t at,
                               size_t n, float *tile)
{
    at = dsc_send_index(ctx, at);
    if (ctx->call->residual.type == DSCOMM_RESIDUAL_FP32)
        return (const float *)vector + at;
    ctx->k->bf16_load(tile, (const uint16_t *)vector + at, n);
    return tile;
}

/* Element `at` of the residual stays as it was before the call. */
static void keep_old(const struct dsc_residual *r, size_t at)
{
    if (r->type == DSCOMM_RESIDUAL_FP32)
        ((float *)r->out)[at] = ((const float *)r->in)[at];
    else
        ((uint16_t *)r->out)[at] = ((const uint16_t *)r->in)[at];
}

void dsc_store_residual(const struct dsc_compute *ctx, size_t at, const float *fresh, size_t n)
{
    const struct dsc_residual *r = &ctx->call->residual;

    at = dsc_send_index(ctx, at);
    if (r->type == DSCOMM_RESIDUAL_FP32) {
        for (size_t i = 0; i < n; i++)
            if (isfinite(fresh[i]))
                ((float *)r->out)[at + i] = fresh[i];
            else
                keep_old(r, at + i);
        return;
    }
    ctx->k->bf16_store((uint16_t *)r->out + at, fresh, n);
    for (size_t i = 0; i < n; i++)
        if ((((const uint16_t *)r->out)[at + i] & 0x7f80) == 0x7f80)
            keep_old(r, at + i);
}

/* Element k of u stays as it was before the call. */
static void keep_old_momentum(const struct dsc_compute *ctx, size_t k)
{
    const struct dsc_residual *const r = &ctx->call->residual;

    if (dsc_has_momentum(ctx))
        r->velocity_out[k] = r->velocity_in[k];
}

static void keep_all_old(const struct dsc_compute *ctx, size_t k)
{
    keep_old(&ctx->call->residual, k);
    keep_old_momentum(ctx, k);
}

void dsc_restore_residual(const struct dsc_compute *ctx, size_t at, const float *o, size_t n)
{
    const struct dsc_residual *r = &ctx->call->residual;

    if (!ctx->call->feedback || r->in == r->out)
        return;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(o[i] * ctx->ranks))
            keep_all_old(ctx, dsc_send_index(ctx, at + i));
}

void dsc_mark_nonfinite(const struct dsc_compute *ctx, uint8_t *marks, size_t first, const float *o,
                        size_t n)
{
    for (size_t i = 0; i < n; i += DSC_MARK_ELEMS) {
        const size_t unit = (first + i) / DSC_MARK_ELEMS;

        if (ctx->k->count_nonfinite(o + i, ctx->ranks, dsc_min_size(DSC_MARK_ELEMS, n - i)) > 0)
            marks[unit / 8] |= (uint8_t)(1u << unit % 8);
    }
}

void dsc_restore_marked(const struct dsc_compute *ctx, size_t at, const uint8_t *marks, size_t n)
{
    const struct dsc_residual *r = &ctx->call->residual;

    if (!ctx->call->feedback || r->in == r->out)
        return;
    for (size_t i = 0; i < n; i++)
        if (marks[i / DSC_MARK_ELEMS / 8] >> i / DSC_MARK_ELEMS % 8 & 1)
            keep_all_old(ctx, dsc_send_index(ctx, at + i));
}

const float *dsc_store_output(const struct dsc_compute *ctx, size_t at, const float *src, size_t n,
                              float *tile)
{
    const dscomm_dtype_t dtype = ctx->plan->params.dtype;
    uint8_t *out = (uint8_t *)ctx->call->recv + dsc_recv_index(ctx, at) * dsc_dtype_bytes(dtype);

    dsc_dtype_store(dtype, out, src, n);
    if (dtype == DSCOMM_FLOAT32)
        return (const float *)(const void *)out;
    dsc_dtype_load(dtype, tile, out, n);
    return tile;
}

void dsc_keep_owner_residual(const struct dsc_compute *ctx, size_t at, const float *x,
                             const float *o, const float *old, size_t n, size_t n_bad,
                             const struct dsc_tiles *t)
{
    const struct dsc_residual *r = &ctx->call->residual;
    const bool direct = r->type == DSCOMM_RESIDUAL_FP32 && r->in != r->out && n_bad == 0;
    float *fresh = direct ? (float *)r->out + dsc_send_index(ctx, at) : t->fresh;

    ctx->k->residual(fresh, x, o, ctx->ranks, n);
    if (direct)
        return;
    for (size_t i = 0; n_bad > 0 && i < n; i++)
        if (!isfinite(o[i] * ctx->ranks)) {
            fresh[i] = old[i];
            keep_old_momentum(ctx, dsc_send_index(ctx, at + i));
        }
    dsc_store_residual(ctx, at, fresh, n);
}

float *dsc_decoded_at(const struct dsc_compute *ctx, size_t at, const struct dsc_tiles *t)
{
    return ctx->plan->params.dtype == DSCOMM_FLOAT32
               ? (float *)ctx->call->recv + dsc_recv_index(ctx, at)
               : t->decoded;
}

const float *dsc_output_of(const struct dsc_compute *ctx, size_t at, const float *d, size_t n,
                           const struct dsc_tiles *t)
{
    if (ctx->plan->params.dtype == DSCOMM_FLOAT32)
        return d;
    return dsc_store_output(ctx, at, d, n, t->decoded);
}

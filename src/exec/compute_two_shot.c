/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What senders, owners and receivers of the two-shot algorithm do, at any tier.
 */
#include "exec/compute_internal.h"

#include <string.h>

struct dsc_msg dsc_own_message(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out)
{
    struct dsc_msg msg = {
        .bytes = out, .n = op->n, .exponent = op->exponent, .draw = ctx->call->draw
    };

    msg.draw.first = dsc_send_index(ctx, op->start);
    if (ctx->plan->codecs[op->tier]->reuses)
        msg.thresholds = ctx->thresholds + op->first_threshold;
    return msg;
}

/* ---- senders ---- */

/* A sender without conversions encodes its span at once, which primitives do best. */
static size_t step_elems(const struct dsc_op *op, bool is_direct, const struct dsc_tiles *t)
{
    return is_direct ? op->n : t->elems;
}

static void encode_plain(const struct dsc_compute *ctx, const struct dsc_op *op,
                         const struct dsc_msg *msg, const struct dsc_tiles *t)
{
    struct dsc_codec made;
    const struct dsc_codec *codec = dsc_op_codec(ctx, op, &made);
    const size_t step = step_elems(op, dsc_own_value_is_there(ctx, op), t);

    for (size_t i = 0; i < op->n; i += step) {
        const size_t n = dsc_min_size(step, op->n - i);

        codec->ops->encode(codec, msg, i, n, dsc_own_value(ctx, op, i, n, t->value), NULL);
    }
}

static void encode_with_residual(const struct dsc_compute *ctx, const struct dsc_op *op,
                                 const struct dsc_msg *msg, const struct dsc_tiles *t)
{
    struct dsc_codec made;
    const struct dsc_codec *codec = dsc_op_codec(ctx, op, &made);
    const struct dsc_residual *r = &ctx->call->residual;
    const bool direct = r->type == DSCOMM_RESIDUAL_FP32;
    const size_t step = step_elems(op, direct && dsc_own_value_is_there(ctx, op), t);

    for (size_t i = 0; i < op->n; i += step) {
        const size_t n = dsc_min_size(step, op->n - i), at = op->start + i;
        const float *v = dsc_own_value(ctx, op, i, n, t->value);
        const float *old = dsc_load_residual(ctx, ctx->call->residual.in, at, n, t->residual);
        float *fresh = direct ? (float *)r->out + dsc_send_index(ctx, at) : t->fresh;

        codec->ops->encode_feedback(codec, msg, i, n, v, old, r->beta, fresh,
                                    direct ? ctx->residual_flags
                                           : ctx->residual_flags & ~DSC_STREAM);
        if (!direct)
            dsc_store_residual(ctx, at, fresh, n);
        dsc_clear_sent(ctx, codec, msg, i, n, at);
    }
}

size_t dsc_compute_send(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                        const struct dsc_tiles *t)
{
    const struct dsc_msg msg = dsc_own_message(ctx, op, out);

    if (ctx->idle[op->tier])
        encode_plain(ctx, op, &msg, t);
    else
        encode_with_residual(ctx, op, &msg, t);
    return 0;
}

/* ---- owners ---- */

size_t dsc_compute_reduce(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, const struct dsc_tiles *t)
{
    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i);

        dsc_sum_tile(ctx, op, msgs, i, n, t);
        memcpy(ctx->partial + op->out_partial + i, t->value, n * sizeof(float));
    }
    return 0;
}

/*
 * With A = 1 and o = D, both in float32, r' = x - A*o is what a sender keeps: x - D. Reading back
 * what has been packed takes longer than the steps that this saves.
 */
static bool final_owner_is_sender(const struct dsc_compute *ctx, const struct dsc_op *op)
{
    return !ctx->idle[op->tier] && ctx->ranks == 1.0f && !ctx->plan->codecs[op->tier]->variable &&
           ctx->plan->params.dtype == DSCOMM_FLOAT32 &&
           ctx->call->residual.type == DSCOMM_RESIDUAL_FP32;
}

/* A receiver's step where D is the output: elements [first, first + n) of the message. */
static size_t decode_float32(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                             const struct dsc_msg *msg, size_t first, size_t n, size_t at,
                             bool restores)
{
    float *const o = (float *)ctx->call->recv + dsc_recv_index(ctx, at);
    const size_t n_bad = dsc_codec_decode_output(codec, msg, first, n, o, ctx->ranks, ctx->stream);

    if (n_bad > 0 && restores)
        dsc_restore_residual(ctx, at, o, n);
    return n_bad;
}

/* The final owner in two fused steps, a sender's and a receiver's. */
static size_t compute_final_fused(const struct dsc_compute *ctx, const struct dsc_op *op,
                                  const uint8_t *const *msgs, const struct dsc_msg *msg,
                                  const struct dsc_tiles *t)
{
    struct dsc_codec made;
    const struct dsc_codec *codec = dsc_op_codec(ctx, op, &made);
    const struct dsc_residual *r = &ctx->call->residual;
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const size_t k = dsc_send_index(ctx, at);

        dsc_sum_tile(ctx, op, msgs, i, n, t);
        codec->ops->encode_feedback(codec, msg, i, n, t->value, (const float *)r->in + k, r->beta,
                                    (float *)r->out + k, ctx->residual_flags);
        dsc_clear_sent(ctx, codec, msg, i, n, at);
        n_bad += decode_float32(ctx, codec, msg, i, n, at, true);
    }
    return n_bad;
}

/* The sum in t->value becomes x = sum + beta*r. Returns r; NULL: it is left alone. */
static const float *add_residual(const struct dsc_compute *ctx, const struct dsc_op *op, size_t at,
                                 size_t n, const struct dsc_tiles *t)
{
    const struct dsc_residual *r = &ctx->call->residual;
    const float *old;

    if (ctx->idle[op->tier])
        return NULL;
    old = dsc_load_residual(ctx, r->in, at, n, t->residual);
    ctx->k->axpy(t->value, t->value, old, r->beta, n);
    return old;
}

size_t dsc_compute_final(const struct dsc_compute *ctx, const struct dsc_op *op,
                         const uint8_t *const *msgs, uint8_t *out, const struct dsc_tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    struct dsc_codec made;
    const struct dsc_codec *codec = dsc_op_codec(ctx, op, &made);
    const struct dsc_msg msg = dsc_own_message(ctx, op, out);
    size_t n_bad = 0;

    if (final_owner_is_sender(ctx, op))
        return compute_final_fused(ctx, op, msgs, &msg, t);
    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        float *d = dsc_decoded_at(ctx, at, t);
        const float *old, *y, *o;
        size_t bad;

        dsc_sum_tile(ctx, op, msgs, i, n, t);
        old = add_residual(ctx, op, at, n, t);
        y = dsc_divided(ctx, n, t);
        codec->ops->encode(codec, &msg, i, n, y, d);
        dsc_clear_sent(ctx, codec, &msg, i, n, at);
        o = dsc_output_of(ctx, at, d, n, t);
        bad = k->count_nonfinite(o, ctx->ranks, n);
        if (old != NULL)
            dsc_keep_owner_residual(ctx, at, t->value, o, old, n, bad, t);
        n_bad += bad;
    }
    return n_bad;
}

size_t dsc_compute_result(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, uint8_t *marks, const struct dsc_tiles *t)
{
    size_t n_bad = 0;

    if (marks != NULL)
        memset(marks, 0, op->msg_bytes);
    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *old, *o;
        size_t bad;

        dsc_sum_tile(ctx, op, msgs, i, n, t);
        old = add_residual(ctx, op, at, n, t);
        o = dsc_store_output(ctx, at, dsc_divided(ctx, n, t), n, t->decoded);
        bad = ctx->k->count_nonfinite(o, ctx->ranks, n);
        if (old != NULL)
            dsc_keep_owner_residual(ctx, at, t->value, o, old, n, bad, t);
        if (bad > 0 && marks != NULL)
            dsc_mark_nonfinite(ctx, marks, i, o, n);
        n_bad += bad;
    }
    if (n_bad > 0 && marks != NULL)
        dsc_restore_marked(ctx, op->start, marks, op->n);
    return n_bad;
}

size_t dsc_compute_decode(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, const struct dsc_tiles *t)
{
    struct dsc_codec made;
    const struct dsc_codec *codec = dsc_op_codec(ctx, op, &made);
    const struct dsc_msg msg = dsc_received(ctx, op, 0, msgs[0], t);
    /* elsewhere what a rank receives is not what it had a part in */
    const bool restores = ctx->plan->params.collective == DSC_ALLREDUCE;
    size_t n_bad = 0;

    if (ctx->plan->params.dtype == DSCOMM_FLOAT32)
        return decode_float32(ctx, codec, &msg, 0, op->n, op->start, restores);
    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *o;
        size_t bad;

        codec->ops->decode(codec, &msg, i, n, t->decoded, 0);
        o = dsc_output_of(ctx, at, t->decoded, n, t);
        bad = ctx->k->count_nonfinite(o, ctx->ranks, n);
        if (bad > 0 && restores)
            dsc_restore_residual(ctx, at, o, n);
        n_bad += bad;
    }
    return n_bad;
}

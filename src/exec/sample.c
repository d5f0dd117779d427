/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call's numbers look like: error of what was encoded, size and zeros of what came out. Seen
 * in samples, right after an operation, while what it read and wrote is in the caches. Values in,
 * none out: no bit of a call depends on it.
 */
#include "exec/compute_internal.h"

#include <math.h>

#define LANES 16 /* sums side by side, as vector units have them */

static double sum_of(const float lanes[LANES])
{
    double sum = 0;

    for (int j = 0; j < LANES; j++)
        sum += (double)lanes[j];
    return sum;
}

static bool in_range(double sum_sq)
{
    return sum_sq > 1e-24 && sum_sq < 1e30;
}

static double precise_norm_sq(const float *a, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)a[i];
    return sum;
}

/* ||a||^2; in float32, whose range some vectors leave: then it is done again in double. */
static double norm_sq(const float *a, size_t n)
{
    float lanes[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * a[i + j];
    for (size_t j = 0; i < n; i++, j++)
        lanes[j] += a[i] * a[i];
    return in_range(sum_of(lanes)) ? sum_of(lanes) : precise_norm_sq(a, n);
}

/* A span of what a sender encoded. d: what it decodes to, or NULL where r is still there. */
static void sample_encoded(const struct dsc_compute *ctx, const struct dsc_op *op, size_t first,
                           size_t n, const float *d, const struct dsc_tiles *t,
                           struct dsc_sample *sample)
{
    const struct dsc_residual *const r = &ctx->call->residual;
    const size_t at = op->start + first;
    const float *const v = dsc_own_value(ctx, op, first, n, t->value);
    const float *error, *x = v;
    double error_sq, encoded_sq, input_sq = 0;

    if (ctx->idle[op->tier]) { /* v - D */
        ctx->k->residual(t->scaled, v, d, 1.0f, n);
        error = t->scaled;
    } else {
        error = dsc_load_residual(ctx, r->out, at, n, t->residual);
        if (d != NULL) /* x = D + r' */
            ctx->k->axpy(t->scaled, d, error, 1.0f, n);
        else
            ctx->k->axpy(t->scaled, v, dsc_load_residual(ctx, r->in, at, n, t->scaled), r->beta, n);
        x = t->scaled;
        input_sq = norm_sq(v, n);
    }
    error_sq = norm_sq(error, n);
    encoded_sq = norm_sq(x, n);
    if (!isfinite(error_sq + encoded_sq + input_sq)) /* news, but no error of the codec */
        return;
    sample->error_sq += error_sq;
    sample->encoded_sq += encoded_sq;
    sample->input_sq += input_sq;
}

/* Messages whose spans of DSC_SAMPLE_ELEMS can be decoded by themselves. */
static bool decodes_anywhere(const struct dsc_codec *codec)
{
    return !codec->variable && DSC_SAMPLE_ELEMS % codec->tile_align == 0;
}

static void sample_sent(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                        const struct dsc_tiles *t, struct dsc_sample *sample)
{
    struct dsc_codec made;
    const struct dsc_codec *const codec = dsc_op_codec(ctx, op, &made);
    const struct dsc_msg msg = dsc_own_message(ctx, op, out);
    const bool two_vectors =
        !ctx->idle[op->tier] && ctx->call->residual.in != ctx->call->residual.out;

    if (codec->lossless || ctx->plan->params.codecs[op->tier]->by_dtype || dsc_has_momentum(ctx) ||
        (!two_vectors && !decodes_anywhere(codec)))
        return;
    for (size_t i = 0; i < op->n; i += DSC_SAMPLE_STRIDE) {
        const size_t n = dsc_min_size(DSC_SAMPLE_ELEMS, op->n - i);

        if (!two_vectors)
            codec->ops->decode(codec, &msg, i, n, t->decoded, 0);
        sample_encoded(ctx, op, i, n, two_vectors ? NULL : t->decoded, t, sample);
    }
}

static void sample_output(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const struct dsc_tiles *t, struct dsc_sample *sample)
{
    const dscomm_dtype_t dtype = ctx->plan->params.dtype;

    for (size_t i = 0; i < op->n; i += DSC_SAMPLE_STRIDE) {
        const size_t n = dsc_min_size(DSC_SAMPLE_ELEMS, op->n - i);
        const uint8_t *const bits = (const uint8_t *)ctx->call->recv +
                                    dsc_recv_index(ctx, op->start + i) * dsc_dtype_bytes(dtype);
        const float *o = (const float *)(const void *)bits;
        double output_sq;
        uint32_t n_zeros = 0;

        if (dtype != DSCOMM_FLOAT32) {
            dsc_dtype_load(dtype, t->decoded, bits, n);
            o = t->decoded;
        }
        for (size_t j = 0; j < n; j++)
            n_zeros += o[j] == 0.0f;
        output_sq = norm_sq(o, n);
        sample->output_sq += isfinite(output_sq) ? output_sq : 0;
        sample->n_outputs += n;
        sample->n_zeros += n_zeros;
    }
}

void dsc_sample_op(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                   float *scratch, struct dsc_sample *sample)
{
    const struct dsc_tiles t = dsc_split_scratch(ctx, scratch, NULL);

    switch (op->kind) {
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        sample_sent(ctx, op, out, &t, sample);
        break;
    case DSC_OP_RESULT:
    case DSC_OP_FINAL:
    case DSC_OP_DECODE:
    case DSC_OP_SUM:
        sample_output(ctx, op, &t, sample);
        break;
    case DSC_OP_RESTORE:
    case DSC_OP_REDUCE:
    case DSC_OP_GATHER:
        break;
    }
}

void dsc_sample_add(struct dsc_sample *into, const struct dsc_sample *other)
{
    into->error_sq += other->error_sq;
    into->encoded_sq += other->encoded_sq;
    into->input_sq += other->input_sq;
    into->output_sq += other->output_sq;
    into->n_outputs += other->n_outputs;
    into->n_zeros += other->n_zeros;
    into->n_nonfinite += other->n_nonfinite;
}

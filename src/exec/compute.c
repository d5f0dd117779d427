/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one equation of error feedback, for every role and codec, each operation rounded separately:
 *     x = v + beta*r;  y = x, or x/A at the final encode of AVG;  D = decode(encode(y))
 *     a sender keeps r' = x - D;  the final owner keeps r' = x - A*o, o = D rounded to the output
 * type An element whose A*o is not finite keeps the r it had before the call, on every rank.
 */
#include "exec/compute.h"

#include <math.h>
#include <string.h>

/* Tiles of a thread's scratch memory. */
struct tiles {
    size_t elems;
    float *value;    /* own value, or the sum */
    float *residual; /* r, when it is not stored as float32 */
    float *scaled;   /* y = x/A */
    float *decoded;  /* D, then o */
    float *fresh;    /* r' before it is stored, or a decoded input of max and min */
};

static size_t tile_elems(const struct dscomm_plan *plan)
{
    size_t elems = DSC_TILE_ELEMS;

    for (int t = 0; t < plan->params.n_tiers; t++)
        if (plan->codecs[t]->tile_align > elems)
            elems = plan->codecs[t]->tile_align;
    return elems;
}

size_t dsc_compute_scratch_floats(const struct dscomm_plan *plan)
{
    return DSC_SCRATCH_TILES * tile_elems(plan);
}

static struct tiles split_scratch(const struct dsc_compute *ctx, float *scratch)
{
    const size_t n = tile_elems(ctx->plan);

    return (
        struct tiles){ n, scratch, scratch + n, scratch + 2 * n, scratch + 3 * n, scratch + 4 * n };
}

/* `none` leaves a residual alone that is known to be zero: else -0 would become +0. */
void dsc_compute_begin(struct dsc_compute *ctx, const struct dscomm_plan *plan,
                       const struct dsc_call *call, float *partial, uint8_t *gather)
{
    ctx->k = dsc_kernels_get();
    ctx->plan = plan;
    ctx->call = call;
    ctx->partial = partial;
    ctx->gather = gather;
    ctx->ranks = plan->params.op == DSCOMM_AVG ? (float)plan->params.n_ranks : 1.0f;
    for (int t = 0; t < plan->params.n_tiers; t++)
        ctx->idle[t] =
            !call->feedback || (call->residual.known_zero && plan->params.codecs[t]->is_none);
}

bool dsc_compute_writes_residual(const struct dsc_compute *ctx)
{
    for (int t = 0; t < ctx->plan->params.n_tiers; t++)
        if (!ctx->idle[t])
            return true;
    return false;
}

/* ---- reading and writing the caller's vectors ---- */

/* Own value of elements [first, first + n) of the op's span: in place, or loaded into `tile`. */
static const float *own_value(const struct dsc_compute *ctx, const struct dsc_op *op, size_t first,
                              size_t n, float *tile)
{
    const dscomm_dtype_t dtype = ctx->plan->params.dtype;
    const uint8_t *input = ctx->call->send;

    if (op->own_partial != DSC_NO_BUFFER)
        return ctx->partial + op->own_partial + first;
    input += (op->start + first) * dsc_dtype_bytes(dtype);
    if (dtype == DSCOMM_FLOAT32)
        return (const float *)(const void *)input;
    dsc_dtype_load(dtype, tile, input, n);
    return tile;
}

/* Elements [at, at + n) of one of the residual's vectors: in place, or loaded into `tile`. */
static const float *load_residual(const struct dsc_compute *ctx, const void *vector, size_t at,
                                  size_t n, float *tile)
{
    if (ctx->call->residual.type == DSCOMM_RESIDUAL_FP32)
        return (const float *)vector + at;
    ctx->k->bf16_load(tile, (const uint16_t *)vector + at, n);
    return tile;
}

/* Element `at` stays as it was before the call. */
static void keep_old(const struct dsc_residual *r, size_t at)
{
    if (r->type == DSCOMM_RESIDUAL_FP32)
        ((float *)r->out)[at] = ((const float *)r->in)[at];
    else
        ((uint16_t *)r->out)[at] = ((const uint16_t *)r->in)[at];
}

/* Stores r'; where it is not finite as stored the old r stays. */
static void store_residual(const struct dsc_compute *ctx, size_t at, const float *fresh, size_t n)
{
    const struct dsc_residual *r = &ctx->call->residual;

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

/* Elements whose A*o is not finite get back the r from before the call. */
static void restore_residual(const struct dsc_compute *ctx, size_t at, const float *o, size_t n)
{
    const struct dsc_residual *r = &ctx->call->residual;

    if (!ctx->call->feedback || r->in == r->out)
        return;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(o[i] * ctx->ranks))
            keep_old(r, at + i);
}

/* Rounds to the output type and stores. Returns the stored values; src may be the result. */
static const float *store_output(const struct dsc_compute *ctx, size_t at, const float *src,
                                 size_t n, float *tile)
{
    const dscomm_dtype_t dtype = ctx->plan->params.dtype;
    uint8_t *out = (uint8_t *)ctx->call->recv + at * dsc_dtype_bytes(dtype);

    dsc_dtype_store(dtype, out, src, n);
    if (dtype == DSCOMM_FLOAT32)
        return (const float *)(const void *)out;
    dsc_dtype_load(dtype, tile, out, n);
    return tile;
}

/* ---- senders ---- */

static void encode_plain(const struct dsc_compute *ctx, const struct dsc_op *op,
                         const struct dsc_msg *msg, const struct tiles *t)
{
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i);

        codec->ops->encode(codec, msg, i, n, own_value(ctx, op, i, n, t->value), NULL);
    }
}

static void encode_with_residual(const struct dsc_compute *ctx, const struct dsc_op *op,
                                 const struct dsc_msg *msg, const struct tiles *t)
{
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];
    const struct dsc_residual *r = &ctx->call->residual;
    const bool direct = r->type == DSCOMM_RESIDUAL_FP32;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *v = own_value(ctx, op, i, n, t->value);
        const float *old = load_residual(ctx, ctx->call->residual.in, at, n, t->residual);
        float *fresh = direct ? (float *)r->out + at : t->fresh;

        codec->ops->encode_feedback(codec, msg, i, n, v, old, r->beta, fresh, r->in == r->out);
        if (!direct)
            store_residual(ctx, at, fresh, n);
    }
}

static size_t compute_send(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                           const struct tiles *t)
{
    const struct dsc_msg msg = { out, op->n, op->exponent };

    if (ctx->idle[op->tier])
        encode_plain(ctx, op, &msg, t);
    else
        encode_with_residual(ctx, op, &msg, t);
    return 0;
}

/* ---- sums ---- */

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

static void combine_message(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                            const struct dsc_msg *msg, size_t first, size_t n, float *acc,
                            float *tile)
{
    if (ctx->plan->params.op == DSCOMM_SUM || ctx->plan->params.op == DSCOMM_AVG) {
        codec->ops->decode_add(codec, msg, first, n, acc);
        return;
    }
    codec->ops->decode(codec, msg, first, n, tile);
    combine(ctx, acc, tile, n);
}

/* Sum of all members' values in ascending rank, the own one in its place, into t->value. */
static void sum_tile(const struct dsc_compute *ctx, const struct dsc_op *op,
                     const uint8_t *const *msgs, size_t first, size_t n, const struct tiles *t)
{
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];
    const int n_values = (int)op->n_recvs + 1;
    uint32_t next = 0;

    for (int k = 0; k < n_values; k++) {
        if (k == op->own_at) {
            const float *own = own_value(ctx, op, first, n, k == 0 ? t->value : t->fresh);

            if (k > 0)
                combine(ctx, t->value, own, n);
            else if (own != t->value)
                memcpy(t->value, own, n * sizeof(float));
            continue;
        }
        const struct dsc_plan_msg *m = &ctx->plan->recvs[op->first_recv + next];
        const struct dsc_msg msg = { (uint8_t *)msgs[next], op->n, m->exponent };

        next++;
        if (k == 0)
            codec->ops->decode(codec, &msg, first, n, t->value);
        else
            combine_message(ctx, codec, &msg, first, n, t->value, t->fresh);
    }
}

static size_t compute_reduce(const struct dsc_compute *ctx, const struct dsc_op *op,
                             const uint8_t *const *msgs, const struct tiles *t)
{
    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i);

        sum_tile(ctx, op, msgs, i, n, t);
        memcpy(ctx->partial + op->out_partial + i, t->value, n * sizeof(float));
    }
    return 0;
}

/* x and o of a tile are known: r' = x - A*o, or the old r where A*o is not finite. */
static void keep_owner_residual(const struct dsc_compute *ctx, size_t at, const float *x,
                                const float *o, const float *old, size_t n, size_t n_bad,
                                const struct tiles *t)
{
    const struct dsc_residual *r = &ctx->call->residual;
    const bool direct = r->type == DSCOMM_RESIDUAL_FP32 && r->in != r->out && n_bad == 0;
    float *fresh = direct ? (float *)r->out + at : t->fresh;

    ctx->k->residual(fresh, x, o, ctx->ranks, n);
    if (direct)
        return;
    for (size_t i = 0; n_bad > 0 && i < n; i++)
        if (!isfinite(o[i] * ctx->ranks))
            fresh[i] = old[i];
    store_residual(ctx, at, fresh, n);
}

/* The tile's value over A: the value itself unless AVG. */
static const float *divided(const struct dsc_compute *ctx, size_t n, const struct tiles *t)
{
    if (ctx->ranks == 1.0f)
        return t->value;
    ctx->k->div(t->scaled, t->value, ctx->ranks, n);
    return t->scaled;
}

static size_t compute_final(const struct dsc_compute *ctx, const struct dsc_op *op,
                            const uint8_t *const *msgs, uint8_t *out, const struct tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];
    const struct dsc_msg msg = { out, op->n, op->exponent };
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *old = NULL, *y, *o;
        size_t bad;

        sum_tile(ctx, op, msgs, i, n, t);
        if (!ctx->idle[op->tier]) {
            old = load_residual(ctx, ctx->call->residual.in, at, n, t->residual);
            k->axpy(t->value, t->value, old, ctx->call->residual.beta, n);
        }
        y = divided(ctx, n, t);
        codec->ops->encode(codec, &msg, i, n, y, t->decoded);
        o = store_output(ctx, at, t->decoded, n, t->decoded);
        bad = k->count_nonfinite(o, ctx->ranks, n);
        if (old != NULL)
            keep_owner_residual(ctx, at, t->value, o, old, n, bad, t);
        n_bad += bad;
    }
    return n_bad;
}

static size_t compute_decode(const struct dsc_compute *ctx, const struct dsc_op *op,
                             const uint8_t *const *msgs, const struct tiles *t)
{
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];
    const bool direct = ctx->plan->params.dtype == DSCOMM_FLOAT32;
    const struct dsc_msg msg = { (uint8_t *)msgs[0], op->n, op->exponent };
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        float *o = direct ? (float *)ctx->call->recv + at : t->decoded;
        size_t bad;

        codec->ops->decode(codec, &msg, i, n, o);
        if (!direct)
            store_output(ctx, at, o, n, o);
        bad = ctx->k->count_nonfinite(o, ctx->ranks, n);
        if (bad > 0)
            restore_residual(ctx, at, o, n);
        n_bad += bad;
    }
    return n_bad;
}

/* ---- one-shot ---- */

/* Message of the k-th rank: received, or kept in the gather buffer. */
static struct dsc_msg rank_message(const struct dsc_compute *ctx, const struct dsc_op *op,
                                   const uint8_t *const *msgs, int k)
{
    const bool all_kept = op->n_recvs == 0; /* Bruck keeps every rank's message */
    uint8_t *bytes;

    if (all_kept)
        bytes = ctx->gather + op->keep + (size_t)k * ctx->plan->gather_stride;
    else if (k == op->own_at)
        bytes = ctx->gather + op->keep;
    else
        bytes = (uint8_t *)msgs[k < op->own_at ? k : k - 1];
    return (struct dsc_msg){ bytes, op->n, op->exponent };
}

/* The owner of an element adds S - A*o to its r', in a second rounding. */
static void add_owner_residual(const struct dsc_compute *ctx, const struct dsc_op *op, size_t at,
                               const float *sum, const float *o, size_t n, const struct tiles *t)
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
    k->add(t->fresh, load_residual(ctx, r->out, start, n, t->residual), n);
    store_residual(ctx, start, t->fresh, n);
}

static size_t compute_sum(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, const struct tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    const struct dsc_codec *codec = ctx->plan->codecs[op->tier];
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *mean, *o;
        size_t bad;

        for (int q = 0; q < ctx->plan->params.n_ranks; q++) {
            const struct dsc_msg msg = rank_message(ctx, op, msgs, q);

            if (q == 0)
                codec->ops->decode(codec, &msg, i, n, t->value);
            else
                combine_message(ctx, codec, &msg, i, n, t->value, t->fresh);
        }
        mean = divided(ctx, n, t);
        o = store_output(ctx, at, mean, n, t->decoded);
        bad = k->count_nonfinite(o, ctx->ranks, n);
        add_owner_residual(ctx, op, at, t->value, o, n, t);
        if (bad > 0)
            restore_residual(ctx, at, o, n);
        n_bad += bad;
    }
    return n_bad;
}

/* ---- one rank ---- */

static size_t compute_local(const struct dsc_compute *ctx, const struct dsc_op *op,
                            const struct tiles *t)
{
    const struct dsc_kernels *k = ctx->k;
    size_t n_bad = 0;

    for (size_t i = 0; i < op->n; i += t->elems) {
        const size_t n = dsc_min_size(t->elems, op->n - i), at = op->start + i;
        const float *v = own_value(ctx, op, i, n, t->value), *old = NULL, *o;
        size_t bad;

        if (!ctx->idle[op->tier]) {
            old = load_residual(ctx, ctx->call->residual.in, at, n, t->residual);
            k->axpy(t->value, v, old, ctx->call->residual.beta, n);
        } else if (v != t->value) {
            memcpy(t->value, v, n * sizeof(float));
        }
        o = store_output(ctx, at, t->value, n, t->decoded);
        bad = k->count_nonfinite(o, ctx->ranks, n);
        if (old != NULL)
            keep_owner_residual(ctx, at, t->value, o, old, n, bad, t);
        n_bad += bad;
    }
    return n_bad;
}

size_t dsc_compute_op(const struct dsc_compute *ctx, const struct dsc_op *op,
                      const uint8_t *const *msgs, uint8_t *out, float *scratch)
{
    const struct tiles t = split_scratch(ctx, scratch);

    switch (op->kind) {
    case DSC_OP_LOCAL:
        return compute_local(ctx, op, &t);
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        return compute_send(ctx, op, out, &t);
    case DSC_OP_REDUCE:
        return compute_reduce(ctx, op, msgs, &t);
    case DSC_OP_FINAL:
        return compute_final(ctx, op, msgs, out, &t);
    case DSC_OP_DECODE:
        return compute_decode(ctx, op, msgs, &t);
    case DSC_OP_GATHER:
        memcpy(out, msgs[0], op->msg_bytes);
        return 0;
    case DSC_OP_SUM:
        return compute_sum(ctx, op, msgs, &t);
    }
    return 0;
}

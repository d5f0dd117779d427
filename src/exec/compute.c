/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one equation of error feedback, for every role and codec, each operation rounded separately:
 *     x = v + beta*r;  y = x, or x/A at the final encode of AVG;  D = decode(encode(y))
 *     a sender keeps r' = x - D
 *     the final owner keeps r' = x - A*o, o = D rounded to the output type
 * An element whose A*o is not finite keeps the r it had before the call, on every rank. In
 * reduce-scatter alone, where only the owner sees o, that goes for 256 elements together.
 */
#include "exec/compute_internal.h"

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

struct dsc_tiles dsc_split_scratch(const struct dsc_compute *ctx, float *scratch,
                                   struct dsc_flaw *flaw)
{
    const size_t n = tile_elems(ctx->plan);

    return (struct dsc_tiles){
        n, scratch, scratch + n, scratch + 2 * n, scratch + 3 * n, scratch + 4 * n, flaw
    };
}

/*
 * Whether a sender leaves r where its own D is not finite: with one vector there is nothing to
 * restore from later, and in an all-to-all nobody says later what was not finite.
 */
static bool keeps_old(const struct dscomm_plan *plan, const struct dsc_call *call)
{
    return call->residual.in == call->residual.out || plan->params.collective == DSC_ALL_TO_ALL;
}

/*
 * `none` and `lossless` leave a residual alone that is known to be zero: else -0 would become +0.
 */
void dsc_compute_begin(struct dsc_compute *ctx, const struct dscomm_plan *plan,
                       const struct dsc_call *call, float *partial, uint8_t *gather,
                       uint32_t *thresholds)
{
    ctx->k = dsc_kernels_get();
    ctx->plan = plan;
    ctx->call = call;
    ctx->partial = partial;
    ctx->gather = gather;
    ctx->thresholds = thresholds;
    ctx->ranks = plan->params.op == DSCOMM_AVG ? (float)plan->params.n_ranks : 1.0f;
    ctx->stream = plan->params.count >= DSC_STREAM_BYTES / sizeof(float) ? DSC_STREAM : 0;
    ctx->residual_flags = ctx->stream | (keeps_old(plan, call) ? DSC_KEEP_OLD : 0);
    for (int t = 0; t < plan->params.n_tiers; t++)
        ctx->idle[t] =
            !call->feedback || (call->residual.known_zero && plan->params.codecs[t]->by_dtype);
}

bool dsc_compute_writes_residual(const struct dsc_compute *ctx)
{
    for (int t = 0; t < ctx->plan->params.n_tiers; t++)
        if (!ctx->idle[t])
            return true;
    return false;
}

size_t dsc_compute_op(const struct dsc_compute *ctx, const struct dsc_op *op,
                      const uint8_t *const *msgs, uint8_t *out, float *scratch,
                      struct dsc_flaw *flaw)
{
    const struct dsc_tiles t = dsc_split_scratch(ctx, scratch, flaw);

    switch (op->kind) {
    case DSC_OP_RESULT:
        return dsc_compute_result(ctx, op, msgs, out, &t);
    case DSC_OP_RESTORE:
        dsc_restore_marked(ctx, op->start, msgs[0], op->n);
        return 0;
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        return dsc_compute_send(ctx, op, out, &t);
    case DSC_OP_REDUCE:
        return dsc_compute_reduce(ctx, op, msgs, &t);
    case DSC_OP_FINAL:
        return dsc_compute_final(ctx, op, msgs, out, &t);
    case DSC_OP_DECODE:
        return dsc_compute_decode(ctx, op, msgs, &t);
    case DSC_OP_GATHER:
        return 0;
    case DSC_OP_SUM:
        return dsc_compute_sum(ctx, op, msgs, &t);
    }
    return 0;
}

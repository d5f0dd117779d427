/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a plan: the size of its chunks, the algorithm's operations, then order and texts. Its
 * end is here too.
 */
#include "plan/builder.h"

int dsc_log2_up(int n)
{
    int e = 0;

    while (e < 31 && (1u << e) < (unsigned)n)
        e++;
    return e;
}

/* Chunks start on blocks, segments and cut points alike. */
static size_t fit_chunk_elems(const struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    size_t unit = DSC_PIECE_ALIGN;

    for (int t = 0; t < params->n_tiers; t++)
        if (plan->codecs[t]->tile_align > unit)
            unit = plan->codecs[t]->tile_align;
    return dsc_round_up(params->chunk_elems == 0 ? unit : params->chunk_elems, unit);
}

static void build_local(struct dsc_builder *b)
{
    size_t chunk = b->plan->chunk_elems;

    while (dsc_ceil_div(b->params->count, chunk) > DSC_MAX_CHUNKS)
        chunk *= 2;
    b->plan->chunk_elems = chunk;
    for (size_t start = 0; start < b->params->count; start += chunk) {
        const struct dsc_op op = { .kind = DSC_OP_RESULT,
                                   .tier = b->params->n_tiers - 1,
                                   .start = start,
                                   .n = (uint32_t)dsc_min_size(chunk, b->params->count - start),
                                   .own_partial = DSC_NO_BUFFER };

        dsc_builder_op(b, &op, (uint64_t)(start / chunk) << 32, 0);
    }
}

static dscomm_status_t build_ops(struct dsc_builder *b)
{
    switch (b->params->algorithm) {
    case DSC_ALG_LOCAL:
        build_local(b);
        return DSCOMM_OK;
    case DSC_ALG_AUTO:
    case DSC_ALG_TIERED:
        break;
    case DSC_ALG_ONE_SHOT:
        return dsc_build_one_shot(b);
    case DSC_ALG_TWO_SHOT:
        return dsc_build_two_shot(b);
    case DSC_ALG_DIRECT:
        return b->params->collective == DSC_BROADCAST ? dsc_build_broadcast(b)
                                                      : dsc_build_all_to_all(b);
    }
    return dsc_fail(DSCOMM_ERR_INVALID, "algorithm %d", (int)b->params->algorithm);
}

/*
 * Of a whole chunk in any tier's codec from the last place in a group, so the same on all ranks,
 * whatever their own pieces are.
 */
static size_t largest_message(const struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const size_t n = dsc_min_size(plan->chunk_elems, params->count);
    size_t most = 0;

    for (int t = 0; params->algorithm != DSC_ALG_LOCAL && t < params->n_tiers; t++)
        most = dsc_max_size(most, dsc_longest_message(plan->codecs[t], n));
    if (params->collective == DSC_REDUCE_SCATTER && params->feedback)
        most = dsc_max_size(most, dsc_mark_bytes(plan->chunk_elems));
    return most;
}

dscomm_status_t dsc_plan_build(const struct dsc_plan_params *params, struct dscomm_plan **plan_out)
{
    struct dsc_builder b = { .params = params };
    dscomm_status_t st;

    if (params->n_tiers < 1 || params->n_tiers > DSC_MAX_TIERS)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d tiers, must be 1 to %d", params->n_tiers,
                        DSC_MAX_TIERS);
    b.plan = dsc_calloc(DSC_MEM_PLAN, 1, sizeof(*b.plan));
    if (b.plan == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %zu elements", params->count);
    b.plan->params = *params;
    b.plan->params.groups = NULL;
    b.plan->send_base = dsc_plan_send_base(params);
    b.plan->recv_base = dsc_plan_recv_base(params);
    for (int t = 0; t < params->n_tiers; t++)
        b.plan->codecs[t] = dsc_codec_resolve(params->codecs[t], params->dtype);
    b.plan->chunk_elems = fit_chunk_elems(b.plan, params);

    DSC_TRY_GOTO(err, build_ops(&b));
    b.plan->max_msg_bytes = largest_message(b.plan, params);
    if (b.failed || !dsc_builder_assemble(&b) || !dsc_plan_describe(b.plan, params)) {
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %zu elements with %u operations",
                      params->count, b.n_ops);
        goto err;
    }
    dsc_plan_write_explain(b.plan, params);
    dsc_builder_fini(&b);
    *plan_out = b.plan;
    return DSCOMM_OK;

err:
    dsc_builder_fini(&b);
    dsc_plan_destroy(b.plan);
    return st;
}

void dsc_plan_destroy(struct dscomm_plan *plan)
{
    if (plan == NULL)
        return;
    dsc_free(plan->descriptor);
    dsc_free(plan->explain);
    dsc_free(plan->peers);
    dsc_free(plan->n_tx);
    dsc_free(plan->n_rx);
    dsc_free(plan->ops);
    dsc_free(plan->recvs);
    dsc_free(plan->sends);
    dsc_free(plan->deps);
    dsc_free(plan);
}

const char *dscomm_plan_explain(const dscomm_plan_t *plan)
{
    return plan == NULL ? "" : plan->explain;
}

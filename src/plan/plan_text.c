/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's two texts: the descriptor, which all ranks must agree on, and the line for people.
 */
#include "plan/builder.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 1024
#define TIERS_SHOWN_BYTES 128
#define CODEC_LIST_BYTES (DSC_MAX_TIERS * 65) /* specs and separators */

static void codec_list(const struct dsc_plan_params *params, char *text, size_t bytes)
{
    size_t used = 0;

    for (int t = 0; t < params->n_tiers && used < bytes; t++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", t > 0 ? ";" : "",
                                 params->codecs[t]->spec);
}

static uint64_t groups_hash(const struct dsc_plan_params *params)
{
    uint64_t h = 0;

    for (int i = 0; params->groups != NULL && i < params->n_tiers * params->n_ranks; i++)
        h = (h ^ (uint64_t)(uint32_t)params->groups[i]) * 0x100000001b3u;
    return h;
}

bool dsc_plan_describe(struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const size_t bytes = TEXT_BYTES;
    char codecs[CODEC_LIST_BYTES];

    plan->descriptor = dsc_calloc(DSC_MEM_PLAN, 1, bytes);
    plan->explain = dsc_calloc(DSC_MEM_PLAN, 1, bytes);
    if (plan->descriptor == NULL || plan->explain == NULL)
        return false;
    codec_list(params, codecs, sizeof(codecs));
    snprintf(plan->descriptor, bytes,
             "collective=%s root=%d count=%zu dtype=%s op=%s codec=%s feedback=%d algorithm=%s "
             "chunk=%zu "
             "ranks=%d tiers=%d groups=%" PRIx64 " tensors=%d sizes=%" PRIx64,
             dsc_collective_traits(params->collective)->name, params->root, dsc_plan_share(params),
             dsc_dtype_name(params->dtype), dsc_op_name(params->op), codecs, params->feedback,
             dsc_algorithm_name(params->algorithm), plan->chunk_elems, params->n_ranks,
             params->n_tiers, groups_hash(params), params->n_tensors, params->sizes);
    plan->hash = dsc_hash_text(plan->descriptor);
    return true;
}

/* Times of the vector that a rank would send uncompressed with the same algorithm. */
static double plain_share(const struct dsc_plan_params *params)
{
    const double others = (double)(params->n_ranks - 1);

    if (params->algorithm == DSC_ALG_ONE_SHOT)
        return others;
    if (params->collective == DSC_BROADCAST)
        return params->rank == params->root ? 1.0 : (others - 1.0) / others;
    return (params->collective == DSC_ALLREDUCE ? 2.0 : 1.0) * others / params->n_ranks;
}

static bool has_variable_codec(const struct dscomm_plan *plan)
{
    for (int t = 0; t < plan->params.n_tiers; t++)
        if (plan->codecs[t]->variable)
            return true;
    return false;
}

/* ", tiers 0-2|3-6/0-6"; nothing for one tier. */
static void tiers_shown(const struct dsc_plan_params *params, char text[TIERS_SHOWN_BYTES])
{
    static const char begin[] = ", tiers ", cut[] = "...";
    const struct dsc_tiers tiers = { .n_tiers = params->n_tiers,
                                     .n_ranks = params->n_ranks,
                                     .groups = (int *)params->groups };
    const size_t room = TIERS_SHOWN_BYTES - sizeof(begin) + 1;

    text[0] = '\0';
    if (params->n_tiers == 1)
        return;
    memcpy(text, begin, sizeof(begin));
    if (dsc_tiers_text(&tiers, text + sizeof(begin) - 1, room) >= room)
        memcpy(text + TIERS_SHOWN_BYTES - sizeof(cut), cut, sizeof(cut));
}

void dsc_plan_write_explain(struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const double plain =
        plain_share(params) * (double)params->count * (double)dsc_dtype_bytes(params->dtype);
    char codecs[CODEC_LIST_BYTES];
    char tiers[TIERS_SHOWN_BYTES];

    codec_list(params, codecs, sizeof(codecs));
    tiers_shown(params, tiers);
    snprintf(plan->explain, TEXT_BYTES,
             "%s %s of %zu %s %s, codec %s%s, feedback %s, chunks of %zu elements, %s%" PRIu64
             " payload bytes sent, ratio %.2f, %d peers",
             dsc_algorithm_name(params->n_tiers > 1 ? DSC_ALG_TIERED : params->algorithm),
             dsc_collective_traits(params->collective)->name, dsc_plan_share(params),
             dsc_dtype_name(params->dtype), dsc_op_name(params->op), codecs, tiers,
             params->feedback ? "on" : "off", plan->chunk_elems,
             has_variable_codec(plan) ? "at most " : "", plan->payload_tx_bytes,
             plan->payload_tx_bytes == 0 ? 1.0 : plain / (double)plan->payload_tx_bytes,
             plan->n_peers);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What may be chosen about a plan. */
#include "plan/plan.h"

#include <string.h>

static const char *const algorithm_names[] = {
    [DSC_ALG_AUTO] = "auto",        [DSC_ALG_TIERED] = "tiered",    [DSC_ALG_LOCAL] = "local",
    [DSC_ALG_ONE_SHOT] = "oneshot", [DSC_ALG_TWO_SHOT] = "twoshot", [DSC_ALG_DIRECT] = "direct",
};

const char *dsc_algorithm_name(enum dsc_algorithm algorithm)
{
    return algorithm_names[algorithm];
}

bool dsc_algorithm_find(const char *name, enum dsc_algorithm *algorithm_out)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(algorithm_names); i++)
        if (strcmp(name, algorithm_names[i]) == 0) {
            *algorithm_out = (enum dsc_algorithm)i;
            return true;
        }
    return false;
}

/*
 * A chunk of float32, as no codec's message is longer. Codecs that make something of a whole
 * segment have chunks of whole segments; where chunks are nearly that, one of them fits as well,
 * for tiers that send float32 beside such a codec.
 */
size_t dsc_slot_bytes(size_t chunk_bytes)
{
    const size_t whole = dsc_round_up(chunk_bytes, DSC_LARGEST_UNIT * sizeof(float));

    return whole - chunk_bytes <= chunk_bytes / 16 ? whole : dsc_round_up(chunk_bytes, 1024);
}

/* Codecs are interned: equal ones are the same object. */
bool dsc_choice_equal(const struct dsc_choice *a, const struct dsc_choice *b)
{
    bool is_equal = a->algorithm == b->algorithm && a->chunk_elems == b->chunk_elems &&
                    a->n_tiers == b->n_tiers;

    for (int t = 0; t < DSC_MAX_TIERS; t++)
        is_equal = is_equal && a->codecs[t] == b->codecs[t];
    return is_equal;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether groups of ranks can be tiers: who shares a group in one tier must do so in all slower
 * ones, and the last has one group.
 */
#include "plan/pieces.h"

#include <stdlib.h>

/* A rank's groups in two tiers, to be sorted by the lower one. */
struct groups_of_rank {
    int lower, upper, rank;
};

static int compare_groups(const void *a, const void *b)
{
    const struct groups_of_rank *x = a, *y = b;

    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    return x->rank - y->rank;
}

/* Who is joined in tier t - 1 must be in tier t. */
static dscomm_status_t check_nesting(const struct dsc_plan_params *params, int t,
                                     struct groups_of_rank *pairs)
{
    const int n = params->n_ranks;

    for (int r = 0; r < n; r++)
        pairs[r] = (struct groups_of_rank){ params->groups[(t - 1) * n + r],
                                            params->groups[t * n + r], r };
    qsort(pairs, (size_t)n, sizeof(*pairs), compare_groups);
    for (int i = 1; i < n; i++)
        if (pairs[i].lower == pairs[i - 1].lower && pairs[i].upper != pairs[i - 1].upper)
            return dsc_fail(DSCOMM_ERR_INVALID,
                            "ranks %d and %d share a group of tier %d but not of tier %d",
                            pairs[i - 1].rank, pairs[i].rank, t - 1, t);
    return DSCOMM_OK;
}

dscomm_status_t dsc_tree_check(const struct dsc_plan_params *params)
{
    const int n = params->n_ranks;
    struct groups_of_rank *pairs;
    dscomm_status_t st = DSCOMM_OK;

    if (params->groups == NULL)
        return params->n_tiers == 1
                   ? DSCOMM_OK
                   : dsc_fail(DSCOMM_ERR_INVALID, "%d tiers without groups", params->n_tiers);
    pairs = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*pairs));
    if (pairs == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %d ranks", n);
    for (int t = 1; st >= 0 && t < params->n_tiers; t++)
        st = check_nesting(params, t, pairs);
    dsc_free(pairs);
    DSC_TRY(st);
    for (int r = 1; r < n; r++)
        if (params->groups[(params->n_tiers - 1) * n + r] !=
            params->groups[(params->n_tiers - 1) * n])
            return dsc_fail(DSCOMM_ERR_INVALID, "the last tier must have one group");
    return DSCOMM_OK;
}

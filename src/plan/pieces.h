/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/plan: who owns which span at which tier, as a list that is the same on all ranks.
 */
#ifndef DSC_PLAN_PIECES_H
#define DSC_PLAN_PIECES_H

#include "plan/plan.h"

/* A span with its owner at one tier: the members send their sums of it to the owner. */
struct dsc_stage {
    size_t start, end;
    int owner;
    int tier;         /* 0: fastest; selects the codec */
    int level;        /* 2*tier + 1, or 2*tier for the rows of a virtual tier */
    int join;         /* stages with the same number cut the vector among the same ranks */
    int n_members;    /* 1: nothing is sent */
    int first_member; /* in members, ascending global rank */
};

struct dsc_member {
    int rank;
    int weight; /* ranks summed in what it sends */
    int below;  /* stage that made its partial sum, -1: its own input */
};

struct dsc_tree {
    struct dsc_stage *stages; /* in dependency order */
    int n_stages;
    struct dsc_member *members;
    int n_members;
    int n_joins;
    int *finals; /* stages whose spans, ascending, cover the vector: their owners encode the sum */
    int n_finals;
};

/*
 * DSCOMM_ERR_INVALID    groups that do not nest
 * DSCOMM_ERR_NO_MEMORY
 */
dscomm_status_t dsc_tree_build(const struct dsc_plan_params *params, struct dsc_tree *tree_out);
void dsc_tree_fini(struct dsc_tree *tree);

/* Part k of m of [start, end): from dsc_cut(.., k) to dsc_cut(.., k + 1). */
size_t dsc_cut(size_t start, size_t end, int m, int k);

/* ---- tier_groups.c ---- */

/* DSCOMM_ERR_INVALID names ranks and tier. */
dscomm_status_t dsc_tree_check(const struct dsc_plan_params *params);

#endif

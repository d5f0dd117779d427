/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to two_shot.c: the tree of groups with its chunks numbered, as all ranks have it alike,
 * and this rank's place in it.
 */
#ifndef DSC_TWO_SHOT_WALK_H
#define DSC_TWO_SHOT_WALK_H

#include "plan/builder.h"
#include "plan/pieces.h"

struct dsc_walk {
    struct dsc_builder *b;
    const struct dsc_plan_params *params;
    struct dsc_tree tree;
    size_t chunk;          /* elements */
    uint32_t *position;    /* of each chunk of each stage, see first_chunk */
    uint32_t *first_chunk; /* [n_stages] index in position */
    uint32_t *base;        /* [n_stages] number of the stage's chunk 0 on the wire */
    /* this rank's */
    int *real;          /* [n_stages] of mine: stage whose REDUCE made the sum; -1: input */
    uint32_t *first_op; /* [n_stages] of mine: id of the REDUCE of chunk 0 */
    size_t *partial;    /* [n_stages] of mine: place of the sum in the partial buffer */
    bool *is_final;     /* [n_stages] */
    int *mine;          /* [n_mine] stages that this rank is a member of, ascending */
    int n_mine;
    int *forwards; /* [n_forwards] stages that the current final's messages go down to */
    int n_forwards;
};

static inline uint32_t dsc_walk_n_chunks(const struct dsc_walk *w, const struct dsc_stage *s)
{
    return (uint32_t)dsc_ceil_div(s->end - s->start, w->chunk);
}

static inline size_t dsc_walk_start(const struct dsc_walk *w, const struct dsc_stage *s, uint32_t c)
{
    return s->start + (size_t)c * w->chunk;
}

static inline size_t dsc_walk_end(const struct dsc_walk *w, const struct dsc_stage *s, uint32_t c)
{
    return dsc_min_size(s->end, dsc_walk_start(w, s, c) + w->chunk);
}

/* NULL: the rank is no member of the stage. */
const struct dsc_member *dsc_walk_member(const struct dsc_walk *w, const struct dsc_stage *s,
                                         int rank);

/* Sets the plan's chunk size too. DSCOMM_ERR_INVALID, DSCOMM_ERR_NO_MEMORY */
dscomm_status_t dsc_walk_init(struct dsc_walk *w, struct dsc_builder *b);
void dsc_walk_fini(struct dsc_walk *w);

#endif

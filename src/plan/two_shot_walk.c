/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks know of a two-shot: the size of its chunks, their numbers, and their positions in
 * the pipeline. Every rank computes them for all stages, because messages are ordered by them.
 */
#include "plan/two_shot_walk.h"

const struct dsc_member *dsc_walk_member(const struct dsc_walk *w, const struct dsc_stage *s,
                                         int rank)
{
    const struct dsc_member *members = w->tree.members + s->first_member;

    for (int k = 0; k < s->n_members; k++)
        if (members[k].rank == rank)
            return &members[k];
    return NULL;
}

/* Doubles the chunk until every group's chunks can be numbered in the header. */
static void fit_chunk(struct dsc_walk *w)
{
    for (bool fits = false; !fits; w->chunk *= fits ? 1 : 2) {
        uint64_t n = 0;
        int join = -1;

        fits = true;
        for (int i = 0; i < w->tree.n_stages; i++) {
            n = w->tree.stages[i].join == join ? n : 0;
            join = w->tree.stages[i].join;
            n += dsc_ceil_div(w->tree.stages[i].end - w->tree.stages[i].start, w->chunk);
            fits = fits && n <= DSC_MAX_CHUNKS;
        }
    }
}

/* A chunk comes after all chunks that its members' partial sums are made of. */
static uint32_t chunk_position(const struct dsc_walk *w, const struct dsc_stage *s, uint32_t c)
{
    uint32_t position = c;

    for (int k = 0; k < s->n_members; k++) {
        const int below = w->tree.members[s->first_member + k].below;
        const struct dsc_stage *from;
        uint32_t last;

        if (below < 0)
            continue;
        from = &w->tree.stages[below];
        last = w->position[w->first_chunk[below] +
                           (dsc_walk_end(w, s, c) - 1 - from->start) / w->chunk];
        last += from->n_members > 1 ? DSC_STAGE_LAG : 0;
        position = last > position ? last : position;
    }
    return position;
}

static bool number_chunks(struct dsc_walk *w)
{
    const int n = w->tree.n_stages;
    uint32_t total = 0, base = 0;

    w->first_chunk = dsc_calloc(DSC_MEM_PLAN, (size_t)n + 1, sizeof(*w->first_chunk));
    w->base = dsc_calloc(DSC_MEM_PLAN, (size_t)n + 1, sizeof(*w->base));
    if (w->first_chunk == NULL || w->base == NULL)
        return false;
    for (int i = 0; i < n; i++) {
        if (i > 0 && w->tree.stages[i].join != w->tree.stages[i - 1].join)
            base = 0;
        w->first_chunk[i] = total;
        w->base[i] = base;
        total += dsc_walk_n_chunks(w, &w->tree.stages[i]);
        base += dsc_walk_n_chunks(w, &w->tree.stages[i]);
    }
    w->position = dsc_calloc(DSC_MEM_PLAN, (size_t)total + 1, sizeof(*w->position));
    if (w->position == NULL)
        return false;
    for (int i = 0; i < n; i++)
        for (uint32_t c = 0; c < dsc_walk_n_chunks(w, &w->tree.stages[i]); c++)
            w->position[w->first_chunk[i] + c] = chunk_position(w, &w->tree.stages[i], c);
    return true;
}

static bool alloc(struct dsc_walk *w)
{
    const size_t n = (size_t)w->tree.n_stages + 1;

    w->real = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->real));
    w->first_op = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->first_op));
    w->partial = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->partial));
    w->is_final = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->is_final));
    w->forwards = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->forwards));
    w->mine = dsc_calloc(DSC_MEM_PLAN, n, sizeof(*w->mine));
    if (w->real == NULL || w->first_op == NULL || w->partial == NULL || w->is_final == NULL ||
        w->forwards == NULL || w->mine == NULL)
        return false;
    for (int i = 0; i < w->tree.n_finals; i++)
        w->is_final[w->tree.finals[i]] = true;
    for (int i = 0; i < w->tree.n_stages; i++)
        if (dsc_walk_member(w, &w->tree.stages[i], w->params->rank) != NULL)
            w->mine[w->n_mine++] = i;
    return number_chunks(w);
}

void dsc_walk_fini(struct dsc_walk *w)
{
    dsc_tree_fini(&w->tree);
    dsc_free(w->position);
    dsc_free(w->first_chunk);
    dsc_free(w->base);
    dsc_free(w->real);
    dsc_free(w->first_op);
    dsc_free(w->partial);
    dsc_free(w->is_final);
    dsc_free(w->forwards);
    dsc_free(w->mine);
}

dscomm_status_t dsc_walk_init(struct dsc_walk *w, struct dsc_builder *b)
{
    *w = (struct dsc_walk){ .b = b, .params = b->params, .chunk = b->plan->chunk_elems };

    DSC_TRY(dsc_tree_build(b->params, &w->tree));
    fit_chunk(w);
    b->plan->chunk_elems = w->chunk;
    if (alloc(w))
        return DSCOMM_OK;

    const int n_stages = w->tree.n_stages;

    dsc_walk_fini(w);
    return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan with %d stages", n_stages);
}

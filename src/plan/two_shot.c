/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-shot over any number of tiers. Up: each rank sends each piece to its owner in its group, the
 * owner sums and becomes the sender in the tier above. The final owner encodes the sum once and
 * those bytes travel down unchanged: whoever owned a piece below forwards them to its members. So
 * an element has exactly one lossy role per rank, and all ranks decode the same bytes.
 *
 * Its halves are collectives too, with one tier and equal shares as pieces. Reduce-scatter goes up;
 * down go, if there is feedback, marks of what is not finite. All-gather goes down, and what its
 * owners encode is their own input.
 *
 * Stage numbers on the wire: a stage's level going up, 4*n_tiers - 1 - level going down.
 */
#include "plan/builder.h"

#include <string.h>

struct walk {
    struct dsc_builder *b;
    const struct dsc_plan_params *params;
    struct dsc_tree tree;
    size_t chunk;          /* elements */
    uint32_t *position;    /* of each chunk of each stage, see first_chunk */
    uint32_t *first_chunk; /* [n_stages] index in position */
    uint32_t *base;        /* [n_stages] number of the stage's chunk 0 on the wire */
    int *real;             /* [n_stages] of mine: stage whose REDUCE made the sum; -1: input */
    uint32_t *first_op;    /* [n_stages] of mine: id of the REDUCE of chunk 0 */
    size_t *partial;       /* [n_stages] of mine: place of the sum in the partial buffer */
    bool *is_final;        /* [n_stages] */
    int *mine;             /* [n_mine] stages that this rank is a member of, ascending */
    int n_mine;
    int *forwards; /* [n_forwards] stages that the current final's messages go down to */
    int n_forwards;
};

static uint32_t n_chunks(const struct walk *w, const struct dsc_stage *s)
{
    return (uint32_t)dsc_ceil_div(s->end - s->start, w->chunk);
}

static size_t chunk_start(const struct walk *w, const struct dsc_stage *s, uint32_t c)
{
    return s->start + (size_t)c * w->chunk;
}

static size_t chunk_end(const struct walk *w, const struct dsc_stage *s, uint32_t c)
{
    return dsc_min_size(s->end, chunk_start(w, s, c) + w->chunk);
}

static uint32_t down_stage(const struct walk *w, const struct dsc_stage *s)
{
    return (uint32_t)(4 * w->params->n_tiers - 1 - s->level);
}

static const struct dsc_member *member_of(const struct walk *w, const struct dsc_stage *s, int rank)
{
    const struct dsc_member *members = w->tree.members + s->first_member;

    for (int k = 0; k < s->n_members; k++)
        if (members[k].rank == rank)
            return &members[k];
    return NULL;
}

/* ---- the halves ---- */

static bool goes_up(const struct walk *w)
{
    return w->params->collective != DSC_ALL_GATHER;
}

static bool is_result(const struct walk *w)
{
    return w->params->collective == DSC_REDUCE_SCATTER;
}

static bool goes_down(const struct walk *w)
{
    return !is_result(w) || w->params->feedback;
}

/* ---- what all ranks know: chunk size, numbers and positions ---- */

/* Doubles the chunk until every group's chunks can be numbered in the header. */
static void fit_chunk(struct walk *w)
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
static uint32_t chunk_position(const struct walk *w, const struct dsc_stage *s, uint32_t c)
{
    uint32_t position = c;

    for (int k = 0; k < s->n_members; k++) {
        const int below = w->tree.members[s->first_member + k].below;
        const struct dsc_stage *from;
        uint32_t last;

        if (below < 0)
            continue;
        from = &w->tree.stages[below];
        last =
            w->position[w->first_chunk[below] + (chunk_end(w, s, c) - 1 - from->start) / w->chunk];
        last += from->n_members > 1 ? DSC_STAGE_LAG : 0;
        position = last > position ? last : position;
    }
    return position;
}

static bool number_chunks(struct walk *w)
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
        total += n_chunks(w, &w->tree.stages[i]);
        base += n_chunks(w, &w->tree.stages[i]);
    }
    w->position = dsc_calloc(DSC_MEM_PLAN, (size_t)total + 1, sizeof(*w->position));
    if (w->position == NULL)
        return false;
    for (int i = 0; i < n; i++)
        for (uint32_t c = 0; c < n_chunks(w, &w->tree.stages[i]); c++)
            w->position[w->first_chunk[i] + c] = chunk_position(w, &w->tree.stages[i], c);
    return true;
}

/* ---- this rank's operations ---- */

/* The own value of a chunk: input, or a place in the partial buffer that REDUCE ops fill. */
static size_t own_value(const struct walk *w, const struct dsc_member *me, size_t start)
{
    const int real = me->below < 0 ? -1 : w->real[me->below];

    if (real < 0)
        return DSC_NO_BUFFER;
    return w->partial[real] + (start - w->tree.stages[real].start);
}

static void depend_on_own(struct walk *w, const struct dsc_member *me, size_t start, size_t end)
{
    const int real = me->below < 0 ? -1 : w->real[me->below];
    const struct dsc_stage *from;

    if (real < 0)
        return;
    from = &w->tree.stages[real];
    for (size_t c = (start - from->start) / w->chunk; c <= (end - 1 - from->start) / w->chunk; c++)
        dsc_builder_dep(w->b, w->first_op[real] + (uint32_t)c);
}

static int sum_exponent(const struct walk *w, int n_ranks)
{
    return w->params->op == DSCOMM_SUM || w->params->op == DSCOMM_AVG ? dsc_log2_up(n_ranks) : 0;
}

static int final_exponent(const struct walk *w)
{
    return w->params->op == DSCOMM_SUM && goes_up(w) ? dsc_log2_up(w->params->n_ranks) : 0;
}

static uint64_t up_key(const struct walk *w, int stage, uint32_t c)
{
    return dsc_msg_key(w->position[w->first_chunk[stage] + c],
                       (uint32_t)w->tree.stages[stage].level, w->base[stage] + c);
}

static size_t message_bytes(const struct walk *w, int tier, size_t n, struct dsc_place place)
{
    struct dsc_codec made;

    return dsc_codec_message_bytes(dsc_codec_at(w->b->plan->codecs[tier], place, &made), n);
}

static struct dsc_place place_of(const struct walk *w, const struct dsc_stage *s, int rank)
{
    const struct dsc_member *const first = w->tree.members + s->first_member;

    return (struct dsc_place){ (uint16_t)(member_of(w, s, rank) - first), (uint16_t)s->n_members };
}

/* Of a message going down. */
static size_t down_bytes(const struct walk *w, size_t n, struct dsc_place place)
{
    if (is_result(w))
        return goes_down(w) ? dsc_mark_bytes(n) : 0;
    return message_bytes(w, w->params->n_tiers - 1, n, place);
}

static uint32_t rotation_to(const struct walk *w, int peer)
{
    const int n = w->params->n_ranks;

    return (uint32_t)((peer - w->params->rank + n) % n);
}

static void add_send(struct walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];

    for (uint32_t c = 0; c < n_chunks(w, s); c++) {
        const size_t start = chunk_start(w, s, c), end = chunk_end(w, s, c);
        const struct dsc_place place = place_of(w, s, me->rank);
        const struct dsc_op op = { .kind = DSC_OP_SEND,
                                   .tier = s->tier,
                                   .exponent = sum_exponent(w, me->weight),
                                   .place = place,
                                   .start = start,
                                   .n = (uint32_t)(end - start),
                                   .msg_bytes =
                                       (uint32_t)message_bytes(w, s->tier, end - start, place),
                                   .own_partial = own_value(w, me, start) };

        dsc_builder_op(w->b, &op, up_key(w, stage, c), rotation_to(w, s->owner));
        dsc_builder_send(w->b, s->owner, up_key(w, stage, c));
        depend_on_own(w, me, start, end);
    }
}

/* Receives of one chunk from all other members, in the order of summing. */
static void add_recvs(struct walk *w, int stage, uint32_t c)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const size_t n = chunk_end(w, s, c) - chunk_start(w, s, c);

    for (int k = 0; k < s->n_members; k++) {
        const struct dsc_member *m = &w->tree.members[s->first_member + k];

        const struct dsc_place place = { (uint16_t)k, (uint16_t)s->n_members };

        if (m->rank == w->params->rank)
            continue;
        dsc_builder_recv(w->b, m->rank, up_key(w, stage, c), message_bytes(w, s->tier, n, place),
                         sum_exponent(w, m->weight));
        dsc_builder_recv_from(w->b, place);
    }
}

static int own_place(const struct walk *w, const struct dsc_stage *s)
{
    return (int)(member_of(w, s, w->params->rank) - (w->tree.members + s->first_member));
}

/* An owner below the top. Its sum lies where its own partial sum was, if it had one. */
static void add_reduce(struct walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const size_t own = own_value(w, me, s->start);

    w->real[stage] = stage;
    w->partial[stage] = own != DSC_NO_BUFFER ? own : w->b->plan->partial_elems;
    if (own == DSC_NO_BUFFER)
        w->b->plan->partial_elems += s->end - s->start;
    for (uint32_t c = 0; c < n_chunks(w, s); c++) {
        const size_t start = chunk_start(w, s, c), end = chunk_end(w, s, c);
        const struct dsc_op op = { .kind = DSC_OP_REDUCE,
                                   .tier = s->tier,
                                   .own_at = own_place(w, s),
                                   .start = start,
                                   .n = (uint32_t)(end - start),
                                   .own_partial = own_value(w, me, start),
                                   .out_partial = w->partial[stage] + (start - s->start) };
        const uint32_t id = dsc_builder_op(w->b, &op, up_key(w, stage, c), 0);

        if (c == 0)
            w->first_op[stage] = id;
        add_recvs(w, stage, c);
        depend_on_own(w, me, start, end);
    }
}

/* Stages that this rank owns and that hold a final piece, from the top: the longest way first. */
static void find_forwards(struct walk *w, int final)
{
    const struct dsc_stage *f = &w->tree.stages[final];

    w->n_forwards = 0;
    for (int i = w->n_mine - 1; i >= 0; i--) {
        const struct dsc_stage *s = &w->tree.stages[w->mine[i]];

        if (w->mine[i] <= final && s->owner == w->params->rank && s->start <= f->start &&
            f->end <= s->end)
            w->forwards[w->n_forwards++] = w->mine[i];
    }
}

/* Sends of a final chunk to all members of those stages, rotated as the sends going up. */
static void add_forwards(struct walk *w, int final, uint32_t c)
{
    const uint32_t position = w->position[w->first_chunk[final] + c] + DSC_STAGE_LAG;

    for (int i = 0; i < w->n_forwards; i++) {
        const struct dsc_stage *s = &w->tree.stages[w->forwards[i]];
        const uint64_t key = dsc_msg_key(position, down_stage(w, s), w->base[final] + c);
        const int own = own_place(w, s);

        for (int k = 1; k < s->n_members; k++) {
            const int place = s->first_member + (own + k) % s->n_members;

            dsc_builder_send(w->b, w->tree.members[place].rank, key);
        }
    }
}

static void add_final(struct walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const int tier = w->params->n_tiers - 1;

    find_forwards(w, stage);
    for (uint32_t c = 0; c < n_chunks(w, s); c++) {
        const size_t start = chunk_start(w, s, c), end = chunk_end(w, s, c);
        const struct dsc_place place = place_of(w, s, s->owner);
        const struct dsc_op op = { .kind = is_result(w) ? DSC_OP_RESULT : DSC_OP_FINAL,
                                   .tier = tier,
                                   .exponent = final_exponent(w),
                                   .place = place,
                                   .own_at = goes_up(w) ? own_place(w, s) : 0,
                                   .start = start,
                                   .n = (uint32_t)(end - start),
                                   .msg_bytes = (uint32_t)down_bytes(w, end - start, place),
                                   .own_partial = own_value(w, me, start) };

        dsc_builder_op(w->b, &op, up_key(w, stage, c), 0);
        if (goes_up(w) && s->n_members > 1)
            add_recvs(w, stage, c);
        if (goes_down(w))
            add_forwards(w, stage, c);
        depend_on_own(w, me, start, end);
    }
}

/* The stage whose owner sends this rank the final message of a span. */
static int source_stage(const struct walk *w, int final)
{
    const struct dsc_stage *f = &w->tree.stages[final];

    for (int i = w->n_mine - 1; i >= 0; i--) {
        const struct dsc_stage *s = &w->tree.stages[w->mine[i]];

        if (w->mine[i] <= final && s->owner != w->params->rank && s->start <= f->start &&
            f->end <= s->end)
            return w->mine[i];
    }
    DSC_ASSERT(!"a rank without a role");
    return final;
}

/* What comes down: final codes, or marks. */
static void add_down(struct walk *w, int final)
{
    const struct dsc_stage *f = &w->tree.stages[final];
    const struct dsc_stage *s = &w->tree.stages[source_stage(w, final)];
    const int tier = w->params->n_tiers - 1;

    find_forwards(w, final);
    for (uint32_t c = 0; c < n_chunks(w, f); c++) {
        const size_t start = chunk_start(w, f, c), n = chunk_end(w, f, c) - start;
        const struct dsc_place place = place_of(w, f, f->owner);
        const size_t bytes = down_bytes(w, n, place);
        const uint64_t key = dsc_msg_key(w->position[w->first_chunk[final] + c] + DSC_STAGE_LAG,
                                         down_stage(w, s), w->base[final] + c);
        const struct dsc_op op = { .kind = is_result(w) ? DSC_OP_RESTORE : DSC_OP_DECODE,
                                   .tier = tier,
                                   .exponent = final_exponent(w),
                                   .place = place,
                                   .start = start,
                                   .n = (uint32_t)n,
                                   .msg_bytes = (uint32_t)bytes,
                                   .own_partial = DSC_NO_BUFFER };

        dsc_builder_op(w->b, &op, key, rotation_to(w, s->owner));
        dsc_builder_recv(w->b, s->owner, key, bytes, final_exponent(w));
        add_forwards(w, final, c);
    }
}

static void add_stage(struct walk *w, int stage)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const struct dsc_member *me = member_of(w, s, w->params->rank);

    w->real[stage] = -1;
    if (me == NULL)
        return;
    if (s->owner != w->params->rank && !goes_up(w))
        return;
    if (s->owner != w->params->rank)
        add_send(w, stage, me);
    else if (w->is_final[stage])
        add_final(w, stage, me);
    else if (s->n_members > 1)
        add_reduce(w, stage, me);
    else if (me->below >= 0) /* a group of one passes the sum on */
        w->real[stage] = w->real[me->below];
}

static bool walk_alloc(struct walk *w)
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
        if (member_of(w, &w->tree.stages[i], w->params->rank) != NULL)
            w->mine[w->n_mine++] = i;
    return number_chunks(w);
}

static void walk_fini(struct walk *w)
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

dscomm_status_t dsc_build_two_shot(struct dsc_builder *b)
{
    struct walk w = { .b = b, .params = b->params, .chunk = b->plan->chunk_elems };

    DSC_TRY(dsc_tree_build(b->params, &w.tree));
    fit_chunk(&w);
    b->plan->chunk_elems = w.chunk;
    if (!walk_alloc(&w)) {
        walk_fini(&w);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan with %d stages", w.tree.n_stages);
    }
    for (int i = 0; i < w.tree.n_stages; i++)
        add_stage(&w, i);
    for (int i = 0; goes_down(&w) && i < w.tree.n_finals; i++)
        if (w.tree.stages[w.tree.finals[i]].owner != b->params->rank)
            add_down(&w, w.tree.finals[i]);
    walk_fini(&w);
    return DSCOMM_OK;
}

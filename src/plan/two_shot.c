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
 * Here are this rank's operations; two_shot_walk.c has what all ranks know alike.
 *
 * Stage numbers on the wire: a stage's level going up, 4*n_tiers - 1 - level going down.
 */
#include "plan/two_shot_walk.h"

static uint32_t down_stage(const struct dsc_walk *w, const struct dsc_stage *s)
{
    return (uint32_t)(4 * w->params->n_tiers - 1 - s->level);
}

/* ---- the halves ---- */

static bool goes_up(const struct dsc_walk *w)
{
    return w->params->collective != DSC_ALL_GATHER;
}

static bool is_result(const struct dsc_walk *w)
{
    return w->params->collective == DSC_REDUCE_SCATTER;
}

static bool goes_down(const struct dsc_walk *w)
{
    return !is_result(w) || w->params->feedback;
}

/* The own value of a chunk: input, or a place in the partial buffer that REDUCE ops fill. */
static size_t own_value(const struct dsc_walk *w, const struct dsc_member *me, size_t start)
{
    const int real = me->below < 0 ? -1 : w->real[me->below];

    if (real < 0)
        return DSC_NO_BUFFER;
    return w->partial[real] + (start - w->tree.stages[real].start);
}

static void depend_on_own(struct dsc_walk *w, const struct dsc_member *me, size_t start, size_t end)
{
    const int real = me->below < 0 ? -1 : w->real[me->below];
    const struct dsc_stage *from;

    if (real < 0)
        return;
    from = &w->tree.stages[real];
    for (size_t c = (start - from->start) / w->chunk; c <= (end - 1 - from->start) / w->chunk; c++)
        dsc_builder_dep(w->b, w->first_op[real] + (uint32_t)c);
}

static int sum_exponent(const struct dsc_walk *w, int n_ranks)
{
    return w->params->op == DSCOMM_SUM || w->params->op == DSCOMM_AVG ? dsc_log2_up(n_ranks) : 0;
}

static int final_exponent(const struct dsc_walk *w)
{
    return w->params->op == DSCOMM_SUM && goes_up(w) ? dsc_log2_up(w->params->n_ranks) : 0;
}

static uint64_t up_key(const struct dsc_walk *w, int stage, uint32_t c)
{
    return dsc_msg_key(w->position[w->first_chunk[stage] + c],
                       (uint32_t)w->tree.stages[stage].level, w->base[stage] + c);
}

static size_t message_bytes(const struct dsc_walk *w, int tier, size_t n, struct dsc_place place)
{
    struct dsc_codec made;

    return dsc_codec_message_bytes(dsc_codec_at(w->b->plan->codecs[tier], place, &made), n);
}

static struct dsc_place place_of(const struct dsc_walk *w, const struct dsc_stage *s, int rank)
{
    const struct dsc_member *const first = w->tree.members + s->first_member;

    return (struct dsc_place){ (uint16_t)(dsc_walk_member(w, s, rank) - first),
                               (uint16_t)s->n_members };
}

/* Of a message going down. */
static size_t down_bytes(const struct dsc_walk *w, size_t n, struct dsc_place place)
{
    if (is_result(w))
        return goes_down(w) ? dsc_mark_bytes(n) : 0;
    return message_bytes(w, w->params->n_tiers - 1, n, place);
}

static uint32_t rotation_to(const struct dsc_walk *w, int peer)
{
    const int n = w->params->n_ranks;

    return (uint32_t)((peer - w->params->rank + n) % n);
}

static void add_send(struct dsc_walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];

    for (uint32_t c = 0; c < dsc_walk_n_chunks(w, s); c++) {
        const size_t start = dsc_walk_start(w, s, c), end = dsc_walk_end(w, s, c);
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
static void add_recvs(struct dsc_walk *w, int stage, uint32_t c)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const size_t n = dsc_walk_end(w, s, c) - dsc_walk_start(w, s, c);

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

static int own_place(const struct dsc_walk *w, const struct dsc_stage *s)
{
    return (int)(dsc_walk_member(w, s, w->params->rank) - (w->tree.members + s->first_member));
}

/* An owner below the top. Its sum lies where its own partial sum was, if it had one. */
static void add_reduce(struct dsc_walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const size_t own = own_value(w, me, s->start);

    w->real[stage] = stage;
    w->partial[stage] = own != DSC_NO_BUFFER ? own : w->b->plan->partial_elems;
    if (own == DSC_NO_BUFFER)
        w->b->plan->partial_elems += s->end - s->start;
    for (uint32_t c = 0; c < dsc_walk_n_chunks(w, s); c++) {
        const size_t start = dsc_walk_start(w, s, c), end = dsc_walk_end(w, s, c);
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
static void find_forwards(struct dsc_walk *w, int final)
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
static void add_forwards(struct dsc_walk *w, int final, uint32_t c)
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

static void add_final(struct dsc_walk *w, int stage, const struct dsc_member *me)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const int tier = w->params->n_tiers - 1;

    find_forwards(w, stage);
    for (uint32_t c = 0; c < dsc_walk_n_chunks(w, s); c++) {
        const size_t start = dsc_walk_start(w, s, c), end = dsc_walk_end(w, s, c);
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
static int source_stage(const struct dsc_walk *w, int final)
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
static void add_down(struct dsc_walk *w, int final)
{
    const struct dsc_stage *f = &w->tree.stages[final];
    const struct dsc_stage *s = &w->tree.stages[source_stage(w, final)];
    const int tier = w->params->n_tiers - 1;

    find_forwards(w, final);
    for (uint32_t c = 0; c < dsc_walk_n_chunks(w, f); c++) {
        const size_t start = dsc_walk_start(w, f, c), n = dsc_walk_end(w, f, c) - start;
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

static void add_stage(struct dsc_walk *w, int stage)
{
    const struct dsc_stage *s = &w->tree.stages[stage];
    const struct dsc_member *me = dsc_walk_member(w, s, w->params->rank);

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

dscomm_status_t dsc_build_two_shot(struct dsc_builder *b)
{
    struct dsc_walk w;

    DSC_TRY(dsc_walk_init(&w, b));
    for (int i = 0; i < w.tree.n_stages; i++)
        add_stage(&w, i);
    for (int i = 0; goes_down(&w) && i < w.tree.n_finals; i++)
        if (w.tree.stages[w.tree.finals[i]].owner != b->params->rank)
            add_down(&w, w.tree.finals[i]);
    dsc_walk_fini(&w);
    return DSCOMM_OK;
}

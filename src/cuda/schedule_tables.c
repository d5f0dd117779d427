/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations as kernels read them: where their messages lie, and the tiles that blocks take.
 */
#include "cuda/schedule_builder.h"

static struct dsc_gpu_facts facts_of(int exponent, struct dsc_place place)
{
    return (struct dsc_gpu_facts){ exponent, place.position, place.members };
}

static void add_recv(struct dsc_schedule_builder *b, const struct dsc_spot *spot, int exponent,
                     struct dsc_place place)
{
    b->s->recvs[b->s->n_recvs++] =
        (struct dsc_gpu_recv){ .at = spot->at, .facts = facts_of(exponent, place) };
}

/* Of a SUM: who encoded, or kept, the message of rank `origin`. */
static const struct dsc_spot *kept_place(const struct dsc_schedule_builder *b,
                                         const struct dsc_op *sum, int origin)
{
    const struct dscomm_plan *const plan = b->plan;

    for (uint32_t d = sum->first_dep; d < sum->first_dep + sum->n_deps; d++) {
        const struct dsc_op *const op = &plan->ops[plan->deps[d]];
        const bool is_own = op->kind == DSC_OP_ENCODE;

        if (is_own ? origin == plan->params.rank
                   : (int)(op->keep / plan->gather_stride % (size_t)plan->params.n_ranks) == origin)
            return b->places.of_op[plan->deps[d]];
    }
    DSC_ASSERT(!"a rank's message was not kept");
    return NULL;
}

/* Messages of all ranks: each rank's place is its number. */
static void add_recvs_of_sum(struct dsc_schedule_builder *b, const struct dsc_op *op)
{
    const int n_ranks = b->plan->params.n_ranks;
    uint32_t next = op->first_recv;

    for (int q = 0; q < n_ranks; q++) {
        const bool comes = op->n_recvs > 0 && q != op->own_at;

        add_recv(b, comes ? b->places.of_recv[next++] : kept_place(b, op, q), op->exponent,
                 (struct dsc_place){ (uint16_t)q, (uint16_t)n_ranks });
    }
}

static void add_recvs(struct dsc_schedule_builder *b, const struct dsc_op *op)
{
    if (op->kind == DSC_OP_SUM) {
        add_recvs_of_sum(b, op);
        return;
    }
    for (uint32_t i = op->first_recv; i < op->first_recv + op->n_recvs; i++) {
        const struct dsc_plan_msg *const m = &b->plan->recvs[i];

        /* a final message's place is the operation's: it may come by way of another rank */
        add_recv(b, b->places.of_recv[i], m->exponent,
                 op->kind == DSC_OP_DECODE ? op->place : m->place);
    }
}

static uint64_t partial_at(size_t offset)
{
    return offset == DSC_NO_BUFFER ? DSC_GPU_NONE : offset;
}

void dsc_schedule_add_op(struct dsc_schedule_builder *b, uint32_t index)
{
    const struct dscomm_plan *const plan = b->plan;
    const struct dsc_op *const op = &plan->ops[index];
    const struct dsc_spot *const out =
        op->kind == DSC_OP_DECODE || op->kind == DSC_OP_RESTORE ? NULL : b->places.of_op[index];
    struct dsc_gpu_op *const g = &b->s->ops[b->s->n_ops++];
    const uint32_t first_recv = b->s->n_recvs;

    add_recvs(b, op);
    *g = (struct dsc_gpu_op){ .start = op->start,
                              .send_at = op->start - plan->send_base,
                              .recv_at = op->start - plan->recv_base,
                              .out_at = out == NULL ? DSC_GPU_NONE : out->at,
                              .own_partial = partial_at(op->own_partial),
                              .out_partial =
                                  op->kind == DSC_OP_REDUCE ? op->out_partial : DSC_GPU_NONE,
                              .own_start = op->own_start,
                              .own_end = op->own_end,
                              .facts = facts_of(op->exponent, op->place),
                              .n = op->n,
                              .own_at = (uint32_t)op->own_at,
                              .first_recv = first_recv,
                              .n_recvs = b->s->n_recvs - first_recv };
    if (plan->params.collective == DSC_ALLREDUCE)
        g->flags |= DSC_GPU_OP_RESTORES;
    if (plan->params.collective == DSC_ALL_TO_ALL)
        g->flags |= DSC_GPU_OP_KEEPS_OLD;
}

void dsc_schedule_add_tiles(struct dsc_schedule_builder *b, const struct dsc_node *node,
                            uint32_t gpu_op, uint32_t n)
{
    const uint32_t step = dsc_gpu_tile_elems(node->stage, node->codec, b->plan->params.dtype);

    for (size_t first = 0; first < n; first += step)
        b->s->tiles[b->s->n_tiles++] = (struct dsc_gpu_tile){ gpu_op, (uint32_t)first };
}

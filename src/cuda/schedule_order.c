/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which step an operation belongs to, and what comes after what within a step.
 */
#include "cuda/schedule_builder.h"

#include <stdlib.h>

enum dsc_gpu_stage dsc_stage_of(const struct dsc_op *op)
{
    switch (op->kind) {
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        return DSC_GPU_ENCODE;
    case DSC_OP_REDUCE:
        return DSC_GPU_REDUCE;
    case DSC_OP_FINAL:
        return DSC_GPU_FINAL;
    case DSC_OP_DECODE:
        return DSC_GPU_DECODE;
    case DSC_OP_SUM:
        return DSC_GPU_SUM;
    case DSC_OP_RESULT:
        return DSC_GPU_RESULT;
    case DSC_OP_RESTORE:
        return DSC_GPU_RESTORE;
    case DSC_OP_GATHER:
        break;
    }
    return DSC_NO_STAGE;
}

/* ---- steps ---- */

bool dsc_op_leads(const struct dsc_op *op)
{
    return op->n_recvs == 0 && op->n_sends > 0;
}

/* Place of an operation's kernel in its step. */
static uint32_t order_of(const struct dsc_op *op)
{
    return (dsc_op_leads(op) ? 0 : DSC_GPU_N_STAGES + 1) + (uint32_t)dsc_stage_of(op);
}

/* The step that follows from an operation's own messages. */
static uint32_t own_step(const struct dscomm_plan *plan, const struct dsc_op *op)
{
    uint32_t step = 0;

    for (uint32_t i = 0; i < op->n_recvs; i++) {
        const uint32_t at = plan->recvs[op->first_recv + i].position + 1;

        step = at > step ? at : step;
    }
    if (op->n_recvs == 0 && op->n_sends > 0)
        step = plan->sends[op->first_send].position;
    return step;
}

/* Steps only grow; operations are nearly in the order of their dependencies. */
static void find_steps(struct dsc_schedule_builder *b)
{
    const struct dscomm_plan *const plan = b->plan;
    bool grew = true;

    for (uint32_t i = 0; i < plan->n_ops; i++)
        b->steps[i] = own_step(plan, &plan->ops[i]);
    while (grew) {
        grew = false;
        for (uint32_t i = 0; i < plan->n_ops; i++) {
            const struct dsc_op *const op = &plan->ops[i];

            for (uint32_t d = op->first_dep; d < op->first_dep + op->n_deps; d++) {
                const uint32_t dep = plan->deps[d];
                const bool before = order_of(&plan->ops[dep]) < order_of(op);
                const uint32_t least = b->steps[dep] + (before ? 0 : 1);

                grew = grew || b->steps[i] < least;
                b->steps[i] = b->steps[i] < least ? least : b->steps[i];
            }
        }
    }
}

/* ---- items, in their order ---- */

static int compare_item(const void *a, const void *b)
{
    const struct dsc_schedule_item *const x = a, *const y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    if (x->conn != y->conn)
        return x->conn < y->conn ? -1 : 1;
    if (x->message != y->message)
        return x->message < y->message ? -1 : 1;
    if (x->is_send != y->is_send)
        return x->is_send - y->is_send;
    return (x->index > y->index) - (x->index < y->index);
}

/* Tiers with one codec are one kernel: the first tier that has it stands for it. */
static uint32_t codec_class(const struct dscomm_plan *plan, int tier)
{
    for (int t = 0; t < tier; t++)
        if (plan->params.codecs[t] == plan->params.codecs[tier])
            return (uint32_t)t;
    return (uint32_t)tier;
}

static void list_messages(struct dsc_schedule_builder *b, const struct dsc_plan_msg *msgs,
                          uint32_t n, bool is_send)
{
    for (uint32_t i = 0; i < n; i++)
        if (msgs[i].bytes > 0) /* both ends know that there is nothing to say */
            b->messages[b->n_messages++] = (struct dsc_schedule_item){ .step = msgs[i].position,
                                                                       .order = msgs[i].stage,
                                                                       .index = i,
                                                                       .is_send = is_send,
                                                                       .conn = msgs[i].conn,
                                                                       .message = msgs[i].index };
}

static void list_items(struct dsc_schedule_builder *b)
{
    const struct dscomm_plan *const plan = b->plan;

    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const enum dsc_gpu_stage stage = dsc_stage_of(&plan->ops[i]);

        if (stage != DSC_NO_STAGE && plan->ops[i].n > 0)
            b->kernels[b->n_kernels++] =
                (struct dsc_schedule_item){ .step = b->steps[i],
                                            .order = order_of(&plan->ops[i]) * DSC_MAX_TIERS +
                                                     codec_class(plan, plan->ops[i].tier),
                                            .index = i };
    }
    list_messages(b, plan->sends, plan->n_sends, true);
    list_messages(b, plan->recvs, plan->n_recvs, false);
    if (b->n_kernels > 0)
        qsort(b->kernels, b->n_kernels, sizeof(*b->kernels), compare_item);
    if (b->n_messages > 0)
        qsort(b->messages, b->n_messages, sizeof(*b->messages), compare_item);
}

void dsc_schedule_order(struct dsc_schedule_builder *b)
{
    find_steps(b);
    list_items(b);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages sorted by direction, stage and position; those of one position lie side by side.
 */
#include "cuda/places.h"

#include <stdlib.h>

/* One more than is in use at a time: a sum of position p is sent at p + 2. */
#define SLOTS 3u
/* Stage of a message that is encoded and sent to nobody. */
#define UNSENT_STAGE 0x10000u

static bool is_encoded(const struct dsc_op *op)
{
    return op->msg_bytes > 0 && op->kind != DSC_OP_DECODE && op->kind != DSC_OP_RESTORE &&
           op->kind != DSC_OP_GATHER && op->kind != DSC_OP_SUM && op->kind != DSC_OP_REDUCE;
}

static void list(const struct dscomm_plan *plan, struct dsc_places *p)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct dsc_op *const op = &plan->ops[i];

        if (is_encoded(op)) {
            const struct dsc_plan_msg *const m =
                op->n_sends > 0 ? &plan->sends[op->first_send] : NULL;

            p->all[p->n++] = (struct dsc_spot){ .op = i,
                                                .recv = DSC_NO_RECV,
                                                .stage = m == NULL ? UNSENT_STAGE : m->stage,
                                                .position = m == NULL ? 0 : m->position,
                                                .bytes = op->msg_bytes };
        }
        for (uint32_t r = op->first_recv; r < op->first_recv + op->n_recvs; r++)
            if (plan->recvs[r].bytes > 0)
                p->all[p->n++] = (struct dsc_spot){ .op = i,
                                                    .recv = r,
                                                    .stage = plan->recvs[r].stage,
                                                    .position = plan->recvs[r].position,
                                                    .bytes = plan->recvs[r].bytes };
    }
}

static int compare_class(const struct dsc_spot *x, const struct dsc_spot *y)
{
    const bool x_comes = x->recv != DSC_NO_RECV, y_comes = y->recv != DSC_NO_RECV;

    if (x_comes != y_comes)
        return x_comes - y_comes;
    return (x->stage > y->stage) - (x->stage < y->stage);
}

static int compare_place(const void *a, const void *b)
{
    const struct dsc_spot *const x = a, *const y = b;
    const int class = compare_class(x, y);

    if (class != 0)
        return class;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    return (x->recv > y->recv) - (x->recv < y->recv);
}

/* Places [first, end) are of one class: offsets within their slots, then the slots. */
static void lay_out(struct dsc_places *p, uint32_t first, uint32_t end)
{
    size_t slot_bytes = 0, at = 0;
    uint32_t n_positions = 0;

    for (uint32_t i = first; i < end; i++) {
        struct dsc_spot *const x = &p->all[i];

        if (i == first || x->position != p->all[i - 1].position) {
            at = 0;
            n_positions++;
        }
        x->at = at;
        x->slot = (n_positions - 1) % SLOTS;
        at += dsc_round_up(x->bytes, 16);
        slot_bytes = dsc_max_size(slot_bytes, at);
    }
    slot_bytes = dsc_round_up(slot_bytes, 256);
    for (uint32_t i = first; i < end; i++) {
        p->all[i].at += p->bytes + p->all[i].slot * slot_bytes;
        p->all[i].slot += p->n_slots;
    }
    p->bytes += slot_bytes * dsc_min_size(SLOTS, n_positions);
    p->n_slots += SLOTS;
}

static void index_places(const struct dscomm_plan *plan, struct dsc_places *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct dsc_spot *const x = &p->all[i];
        const enum dsc_op_kind kind = plan->ops[x->op].kind;

        if (x->recv == DSC_NO_RECV)
            p->of_op[x->op] = x;
        else
            p->of_recv[x->recv] = x;
        /* what these forward is what they received, where it lies */
        if (kind == DSC_OP_GATHER || kind == DSC_OP_DECODE)
            p->of_op[x->op] = x;
    }
}

bool dsc_places_build(const struct dscomm_plan *plan, struct dsc_places *out)
{
    struct dsc_places *const p = out;
    uint32_t first = 0;

    *p = (struct dsc_places){ 0 };
    p->all = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_ops + plan->n_recvs + 1, sizeof(*p->all));
    p->of_op = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_ops + 1, sizeof(*p->of_op));
    p->of_recv = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_recvs + 1, sizeof(*p->of_recv));
    if (p->all == NULL || p->of_op == NULL || p->of_recv == NULL) {
        dsc_places_fini(p);
        return false;
    }
    list(plan, p);
    if (p->n > 0)
        qsort(p->all, p->n, sizeof(*p->all), compare_place);
    for (uint32_t i = 1; i <= p->n; i++)
        if (i == p->n || compare_class(&p->all[i], &p->all[first]) != 0) {
            lay_out(p, first, i);
            first = i;
        }
    index_places(plan, p);
    return true;
}

void dsc_places_fini(struct dsc_places *p)
{
    dsc_free(p->all);
    dsc_free(p->of_op);
    dsc_free(p->of_recv);
    *p = (struct dsc_places){ 0 };
}

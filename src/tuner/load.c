/* SPDX-License-Identifier: Apache-2.0 */
/* Walks a plan once and counts what is alike. Pieces have a few lengths, so lines are few. */
#include "tuner/load.h"

#include <string.h>

struct counter {
    struct dsc_load *load;
    const struct dscomm_plan *plan;
    const int *groups;
    int n_wires;
    uint8_t *wire_of; /* [n_peers] */
    uint32_t capacity_ops, capacity_msgs;
    bool failed;
};

/* The fastest tier of the machine that joins two ranks. */
static uint8_t wire_between(const struct counter *c, int a, int b)
{
    const int n = c->plan->params.n_ranks;

    for (int t = 0; c->groups != NULL && t < c->n_wires - 1; t++)
        if (c->groups[t * n + a] == c->groups[t * n + b])
            return (uint8_t)t;
    return (uint8_t)(c->n_wires - 1);
}

/* Room for one more; false: out of memory. */
static bool make_room(void **array, uint32_t n, uint32_t *capacity, size_t elem_bytes)
{
    const uint32_t larger = *capacity == 0 ? 32 : *capacity * 2;
    void *fresh;

    if (n < *capacity)
        return true;
    fresh = dsc_calloc(DSC_MEM_PLAN, larger, elem_bytes);
    if (fresh == NULL)
        return false;
    if (n > 0)
        memcpy(fresh, *array, n * elem_bytes);
    dsc_free(*array);
    *array = fresh;
    *capacity = larger;
    return true;
}

static struct dsc_load_ops *ops_line(struct counter *c, const struct dsc_op *op)
{
    struct dsc_load *const load = c->load;

    for (uint32_t i = load->n_ops; i-- > 0;)
        if (load->ops[i].kind == op->kind && load->ops[i].codec == op->tier &&
            load->ops[i].n == op->n)
            return &load->ops[i];
    if (!make_room((void **)&load->ops, load->n_ops, &c->capacity_ops, sizeof(*load->ops)))
        return NULL;
    load->ops[load->n_ops] =
        (struct dsc_load_ops){ .kind = op->kind, .codec = (uint8_t)op->tier, .n = op->n };
    return &load->ops[load->n_ops++];
}

static struct dsc_load_msgs *msgs_line(struct counter *c, const struct dsc_load_msgs *like)
{
    struct dsc_load *const load = c->load;

    for (uint32_t i = load->n_msgs; i-- > 0;) {
        const struct dsc_load_msgs *const line = &load->msgs[i];

        if (line->stage == like->stage && line->codec == like->codec && line->wire == like->wire &&
            line->is_tx == like->is_tx && line->n == like->n)
            return &load->msgs[i];
    }
    if (!make_room((void **)&load->msgs, load->n_msgs, &c->capacity_msgs, sizeof(*load->msgs)))
        return NULL;
    load->msgs[load->n_msgs] = *like;
    return &load->msgs[load->n_msgs++];
}

static void count_message(struct counter *c, const struct dsc_op *op,
                          const struct dsc_plan_msg *msg, bool is_tx)
{
    const uint8_t at = (uint8_t)(msg->stage % DSC_LOAD_STAGES);
    struct dsc_load_stage *const stage = &c->load->stages[at];
    struct dsc_load_msgs *const line =
        msgs_line(c, &(struct dsc_load_msgs){ .stage = at,
                                              .codec = (uint8_t)op->tier,
                                              .wire = c->wire_of[msg->conn],
                                              .is_tx = is_tx,
                                              .n = op->n });

    if (line == NULL) {
        c->failed = true;
        return;
    }
    line->count++;
    if (!stage->is_used || msg->position < stage->first)
        stage->first = msg->position;
    if (!stage->is_used || msg->position > stage->last)
        stage->last = msg->position;
    stage->is_used = true;
}

static void count_op(struct counter *c, const struct dsc_op *op)
{
    struct dsc_load_ops *const line = ops_line(c, op);

    if (line == NULL) {
        c->failed = true;
        return;
    }
    line->n_ops++;
    line->n_recvs += op->n_recvs;
    for (uint32_t i = 0; i < op->n_recvs; i++)
        count_message(c, op, &c->plan->recvs[op->first_recv + i], false);
    for (uint32_t i = 0; i < op->n_sends; i++)
        count_message(c, op, &c->plan->sends[op->first_send + i], true);
}

static dscomm_status_t count_all(struct counter *c)
{
    const struct dscomm_plan *const plan = c->plan;

    c->wire_of = dsc_calloc(DSC_MEM_PLAN, (size_t)plan->n_peers + 1, sizeof(*c->wire_of));
    c->failed = c->wire_of == NULL;
    for (int i = 0; !c->failed && i < plan->n_peers; i++)
        c->wire_of[i] = wire_between(c, plan->params.rank, plan->peers[i]);
    for (uint32_t i = 0; !c->failed && i < plan->n_ops; i++)
        count_op(c, &plan->ops[i]);
    dsc_free(c->wire_of);
    if (c->failed)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "load of a plan with %u operations", plan->n_ops);
    return DSCOMM_OK;
}

dscomm_status_t dsc_load_init(struct dsc_load *load, const struct dsc_plan_params *params,
                              const int *groups, int n_wires)
{
    struct counter c = { .load = load, .groups = groups, .n_wires = n_wires };
    struct dscomm_plan *plan = NULL;
    dscomm_status_t st;

    memset(load, 0, sizeof(*load));
    DSC_TRY(dsc_plan_build(params, &plan));
    c.plan = plan;
    load->chunk_elems = plan->chunk_elems;
    load->n_ranks = params->n_ranks;
    st = count_all(&c);
    dsc_plan_destroy(plan);
    if (st < 0)
        dsc_load_fini(load);
    return st;
}

void dsc_load_fini(struct dsc_load *load)
{
    dsc_free(load->ops);
    dsc_free(load->msgs);
    memset(load, 0, sizeof(*load));
}

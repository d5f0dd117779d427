/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of operations, their order, and who waits for whom. What waits for what follows from the
 * memory that nodes read and write (slots of places.h), not from the algorithm, so every plan
 * works.
 */
#include "cuda/schedule.h"

#include "cuda/places.h"

#include <stdlib.h>

#define NO_STAGE DSC_GPU_N_STAGES

static const char *const stage_names[] = {
    [DSC_GPU_ENCODE] = "ENCODE",   [DSC_GPU_REDUCE] = "REDUCE", [DSC_GPU_FINAL] = "FINAL",
    [DSC_GPU_DECODE] = "DECODE",   [DSC_GPU_SUM] = "SUM",       [DSC_GPU_RESULT] = "RESULT",
    [DSC_GPU_RESTORE] = "RESTORE", [DSC_GPU_SAVE] = "SAVE",     [DSC_GPU_UNDO] = "UNDO",
};

const char *dsc_gpu_stage_name(enum dsc_gpu_stage stage)
{
    return stage_names[stage];
}

/* What happens to a slot's memory, as node numbers; DSC_NO_NODE: nothing yet. */
struct slot_use {
    uint32_t kernel, group; /* the last that touched it */
};

/* An operation as part of a kernel, or a message as part of a group. */
struct item {
    uint32_t step, order; /* order: of kernels in a step; of a group, the wire's stage */
    uint32_t index;       /* in plan->ops; in plan->sends or plan->recvs */
    bool is_send;
    uint32_t conn, message; /* messages of a connection are in the order of their numbers */
};

struct builder {
    const struct dscomm_plan *plan;
    struct dsc_schedule *s;
    struct dsc_places places;
    uint32_t *steps; /* [n_ops] */
    struct item *kernels, *messages;
    uint32_t n_kernels, n_messages;
    struct slot_use *slots;
    uint32_t waited[2]; /* of each stream, the last node of the other that it has waited for */
};

static enum dsc_gpu_stage stage_of(const struct dsc_op *op)
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
    return NO_STAGE; /* nothing is computed */
}

/* ---- steps ---- */

/* It needs no message and sends some: its kernel comes before the groups of its step. */
static bool leads(const struct dsc_op *op)
{
    return op->n_recvs == 0 && op->n_sends > 0;
}

/* Place of an operation's kernel in its step. */
static uint32_t order_of(const struct dsc_op *op)
{
    return (leads(op) ? 0 : DSC_GPU_N_STAGES + 1) + (uint32_t)stage_of(op);
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
static void find_steps(struct builder *b)
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
    const struct item *const x = a, *const y = b;

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

static void list_messages(struct builder *b, const struct dsc_plan_msg *msgs, uint32_t n,
                          bool is_send)
{
    for (uint32_t i = 0; i < n; i++)
        if (msgs[i].bytes > 0) /* both ends know that there is nothing to say */
            b->messages[b->n_messages++] = (struct item){ .step = msgs[i].position,
                                                          .order = msgs[i].stage,
                                                          .index = i,
                                                          .is_send = is_send,
                                                          .conn = msgs[i].conn,
                                                          .message = msgs[i].index };
}

static void list_items(struct builder *b)
{
    const struct dscomm_plan *const plan = b->plan;

    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const enum dsc_gpu_stage stage = stage_of(&plan->ops[i]);

        if (stage != NO_STAGE && plan->ops[i].n > 0)
            b->kernels[b->n_kernels++] =
                (struct item){ .step = b->steps[i],
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

/* ---- device tables ---- */

static struct dsc_gpu_facts facts_of(int exponent, struct dsc_place place)
{
    return (struct dsc_gpu_facts){ exponent, place.position, place.members };
}

static void add_recv(struct builder *b, const struct dsc_spot *spot, int exponent,
                     struct dsc_place place)
{
    b->s->recvs[b->s->n_recvs++] =
        (struct dsc_gpu_recv){ .at = spot->at, .facts = facts_of(exponent, place) };
}

/* Of a SUM: who encoded, or kept, the message of rank `origin`. */
static const struct dsc_spot *kept_place(const struct builder *b, const struct dsc_op *sum,
                                         int origin)
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
static void add_recvs_of_sum(struct builder *b, const struct dsc_op *op)
{
    const int n_ranks = b->plan->params.n_ranks;
    uint32_t next = op->first_recv;

    for (int q = 0; q < n_ranks; q++) {
        const bool comes = op->n_recvs > 0 && q != op->own_at;

        add_recv(b, comes ? b->places.of_recv[next++] : kept_place(b, op, q), op->exponent,
                 (struct dsc_place){ (uint16_t)q, (uint16_t)n_ranks });
    }
}

static void add_recvs(struct builder *b, const struct dsc_op *op)
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

static void add_op(struct builder *b, uint32_t index)
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

static void add_tiles(struct builder *b, const struct dsc_node *node, uint32_t gpu_op, uint32_t n)
{
    const uint32_t step = dsc_gpu_tile_elems(node->stage, node->codec, b->plan->params.dtype);

    for (size_t first = 0; first < n; first += step)
        b->s->tiles[b->s->n_tiles++] = (struct dsc_gpu_tile){ gpu_op, (uint32_t)first };
}

/* ---- nodes ---- */

enum { COMPUTE, COMMUNICATION };

/* The node is to be after `other` of the other stream. */
static void wait_for(uint32_t other, uint32_t *waits)
{
    if (other != DSC_NO_NODE && (*waits == DSC_NO_NODE || other > *waits))
        *waits = other;
}

/* Ends a node: what it waits for, unless its stream has waited for that, or more, before. */
static void end_node(struct builder *b, uint32_t waits)
{
    struct dsc_node *const node = &b->s->nodes[b->s->n_nodes++];
    const int stream = node->is_group ? COMMUNICATION : COMPUTE;

    node->waits = DSC_NO_NODE;
    if (waits != DSC_NO_NODE && (b->waited[stream] == DSC_NO_NODE || waits > b->waited[stream])) {
        node->waits = b->waited[stream] = waits;
        b->s->nodes[waits].is_waited = true;
    }
}

static void use_from_kernel(struct builder *b, const struct dsc_spot *place, uint32_t *waits)
{
    struct slot_use *const use = &b->slots[place->slot];

    wait_for(use->group, waits);
    use->kernel = b->s->n_nodes;
}

static void use_from_group(struct builder *b, const struct dsc_spot *place, uint32_t *waits)
{
    struct slot_use *const use = &b->slots[place->slot];

    wait_for(use->kernel, waits);
    use->group = b->s->n_nodes;
}

static void use_messages(struct builder *b, uint32_t index, uint32_t *waits)
{
    const struct dscomm_plan *const plan = b->plan;
    const struct dsc_op *const op = &plan->ops[index];

    for (uint32_t r = op->first_recv; r < op->first_recv + op->n_recvs; r++)
        use_from_kernel(b, b->places.of_recv[r], waits);
    if (b->places.of_op[index] != NULL)
        use_from_kernel(b, b->places.of_op[index], waits);
    if (op->kind == DSC_OP_SUM)
        for (uint32_t d = op->first_dep; d < op->first_dep + op->n_deps; d++)
            use_from_kernel(b, b->places.of_op[plan->deps[d]], waits);
}

/* One kernel of the items [first, end), which agree in step and order. */
static void add_kernel(struct builder *b, uint32_t first, uint32_t end)
{
    const struct dsc_op *const op = &b->plan->ops[b->kernels[first].index];
    struct dsc_node *const node = &b->s->nodes[b->s->n_nodes];
    uint32_t waits = DSC_NO_NODE;

    *node = (struct dsc_node){ .position = b->kernels[first].step,
                               .stage = stage_of(op),
                               .codec = b->plan->params.codecs[op->tier],
                               .first = b->s->n_tiles };
    for (uint32_t i = first; i < end; i++) {
        add_tiles(b, node, b->s->n_ops, b->plan->ops[b->kernels[i].index].n);
        add_op(b, b->kernels[i].index);
        use_messages(b, b->kernels[i].index, &waits);
    }
    node->n = b->s->n_tiles - node->first;
    b->s->last_kernel = b->s->n_nodes;
    b->s->n_kernels++;
    end_node(b, waits);
}

static void add_group(struct builder *b, const uint32_t *senders, uint32_t first, uint32_t end)
{
    const struct dscomm_plan *const plan = b->plan;
    struct dsc_node *const node = &b->s->nodes[b->s->n_nodes];
    uint32_t waits = DSC_NO_NODE;

    *node = (struct dsc_node){ .is_group = true,
                               .position = b->messages[first].step,
                               .wire_stage = b->messages[first].order,
                               .first = b->s->n_transfers,
                               .n = end - first };
    for (uint32_t i = first; i < end; i++) {
        const struct item *const x = &b->messages[i];
        const struct dsc_plan_msg *const m =
            x->is_send ? &plan->sends[x->index] : &plan->recvs[x->index];
        const struct dsc_spot *const place =
            x->is_send ? b->places.of_op[senders[x->index]] : b->places.of_recv[x->index];

        b->s->transfers[b->s->n_transfers++] = (struct dsc_transfer){
            .peer = plan->peers[m->conn], .is_send = x->is_send, .at = place->at, .bytes = m->bytes
        };
        *(x->is_send ? &b->s->tx_bytes : &b->s->rx_bytes) += m->bytes;
        use_from_group(b, place, &waits);
    }
    b->s->n_groups++;
    end_node(b, waits);
}

static bool same_node(const struct item *x, const struct item *y)
{
    return x->step == y->step && x->order == y->order;
}

static uint32_t end_of(const struct item *items, uint32_t n, uint32_t first)
{
    uint32_t end = first + 1;

    while (end < n && same_node(&items[first], &items[end]))
        end++;
    return end;
}

/* Kernels of step p that lead, groups of position p, the other kernels of step p. */
static void add_nodes(struct builder *b, const uint32_t *senders)
{
    uint32_t k = 0, m = 0;

    while (k < b->n_kernels || m < b->n_messages) {
        const uint32_t step_k = k < b->n_kernels ? b->kernels[k].step : UINT32_MAX;
        const uint32_t step_m = m < b->n_messages ? b->messages[m].step : UINT32_MAX;
        const bool is_first = k < b->n_kernels && leads(&b->plan->ops[b->kernels[k].index]);

        if (step_k < step_m || (step_k == step_m && is_first)) {
            const uint32_t end = end_of(b->kernels, b->n_kernels, k);

            add_kernel(b, k, end);
            k = end;
        } else {
            const uint32_t end = end_of(b->messages, b->n_messages, m);

            add_group(b, senders, m, end);
            m = end;
        }
    }
}

/* A call without kernels ends too: it counts, and random numbers go on. */
static void add_empty_kernel(struct builder *b)
{
    if (b->s->n_kernels > 0)
        return;
    b->s->nodes[b->s->n_nodes] =
        (struct dsc_node){ .stage = DSC_GPU_RESULT, .codec = b->plan->params.codecs[0] };
    b->s->last_kernel = b->s->n_nodes;
    b->s->n_kernels++;
    end_node(b, DSC_NO_NODE);
}

/* ---- building ---- */

static uint64_t count_tiles(const struct dscomm_plan *plan)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct dsc_op *const op = &plan->ops[i];

        if (stage_of(op) != NO_STAGE)
            n += dsc_ceil_div(op->n, dsc_gpu_tile_elems(stage_of(op), plan->params.codecs[op->tier],
                                                        plan->params.dtype));
    }
    return n;
}

static size_t count_recvs(const struct dscomm_plan *plan)
{
    size_t n = plan->n_recvs;

    for (uint32_t i = 0; i < plan->n_ops; i++)
        n += plan->ops[i].kind == DSC_OP_SUM ? (size_t)plan->params.n_ranks : 0;
    return n;
}

static bool alloc_all(struct builder *b, uint64_t n_tiles, uint32_t **senders_out)
{
    const struct dscomm_plan *const plan = b->plan;
    const size_t n_messages = (size_t)plan->n_sends + plan->n_recvs;
    struct dsc_schedule *const s = b->s;

    if (!dsc_places_build(plan, &b->places))
        return false;
    b->steps = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_ops + 1, sizeof(*b->steps));
    b->kernels = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_ops + 1, sizeof(*b->kernels));
    b->messages = dsc_calloc(DSC_MEM_EXEC, n_messages + 1, sizeof(*b->messages));
    b->slots = dsc_calloc(DSC_MEM_EXEC, (size_t)b->places.n_slots + 1, sizeof(*b->slots));
    *senders_out = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_sends + 1, sizeof(**senders_out));
    s->nodes = dsc_calloc(DSC_MEM_EXEC, plan->n_ops + n_messages + 1, sizeof(*s->nodes));
    s->ops = dsc_calloc(DSC_MEM_EXEC, (size_t)plan->n_ops + 1, sizeof(*s->ops));
    s->recvs = dsc_calloc(DSC_MEM_EXEC, count_recvs(plan) + 1, sizeof(*s->recvs));
    s->tiles = dsc_calloc(DSC_MEM_EXEC, (size_t)n_tiles + 1, sizeof(*s->tiles));
    s->transfers = dsc_calloc(DSC_MEM_EXEC, n_messages + 1, sizeof(*s->transfers));
    return b->steps != NULL && b->kernels != NULL && b->messages != NULL && b->slots != NULL &&
           *senders_out != NULL && s->nodes != NULL && s->ops != NULL && s->recvs != NULL &&
           s->tiles != NULL && s->transfers != NULL;
}

static void find_senders(const struct dscomm_plan *plan, uint32_t *senders)
{
    for (uint32_t i = 0; i < plan->n_ops; i++)
        for (uint32_t k = 0; k < plan->ops[i].n_sends; k++)
            senders[plan->ops[i].first_send + k] = i;
}

static void builder_fini(struct builder *b, uint32_t *senders)
{
    dsc_places_fini(&b->places);
    dsc_free(b->steps);
    dsc_free(b->kernels);
    dsc_free(b->messages);
    dsc_free(b->slots);
    dsc_free(senders);
}

dscomm_status_t dsc_schedule_build(const struct dscomm_plan *plan, struct dsc_schedule *out)
{
    struct builder b = { .plan = plan, .s = out, .waited = { DSC_NO_NODE, DSC_NO_NODE } };
    const uint64_t n_tiles = count_tiles(plan);
    uint32_t *senders = NULL;

    *out = (struct dsc_schedule){ 0 };
    if (n_tiles >= UINT32_MAX)
        return dsc_fail(DSCOMM_ERR_LIMIT, "count %zu is too large for a device",
                        plan->params.count);
    if (!alloc_all(&b, n_tiles, &senders)) {
        builder_fini(&b, senders);
        dsc_schedule_fini(out);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "schedule of %u operations", plan->n_ops);
    }
    for (uint32_t i = 0; i < b.places.n_slots; i++)
        b.slots[i] = (struct slot_use){ DSC_NO_NODE, DSC_NO_NODE };
    find_senders(plan, senders);
    find_steps(&b);
    list_items(&b);
    add_nodes(&b, senders);
    add_empty_kernel(&b);
    out->messages_bytes = b.places.bytes;
    builder_fini(&b, senders);
    return DSCOMM_OK;
}

void dsc_schedule_fini(struct dsc_schedule *s)
{
    dsc_free(s->nodes);
    dsc_free(s->ops);
    dsc_free(s->recvs);
    dsc_free(s->tiles);
    dsc_free(s->transfers);
    *s = (struct dsc_schedule){ 0 };
}

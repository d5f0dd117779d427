/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes, and who waits for whom. What waits for what follows from the memory that nodes read and
 * write (slots of places.h), not from the algorithm, so every plan works.
 */
#include "cuda/schedule_builder.h"

static const char *const stage_names[] = {
    [DSC_GPU_ENCODE] = "ENCODE",   [DSC_GPU_REDUCE] = "REDUCE", [DSC_GPU_FINAL] = "FINAL",
    [DSC_GPU_DECODE] = "DECODE",   [DSC_GPU_SUM] = "SUM",       [DSC_GPU_RESULT] = "RESULT",
    [DSC_GPU_RESTORE] = "RESTORE", [DSC_GPU_SAVE] = "SAVE",     [DSC_GPU_UNDO] = "UNDO",
};

const char *dsc_gpu_stage_name(enum dsc_gpu_stage stage)
{
    return stage_names[stage];
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
static void end_node(struct dsc_schedule_builder *b, uint32_t waits)
{
    struct dsc_node *const node = &b->s->nodes[b->s->n_nodes++];
    const int stream = node->is_group ? COMMUNICATION : COMPUTE;

    node->waits = DSC_NO_NODE;
    if (waits != DSC_NO_NODE && (b->waited[stream] == DSC_NO_NODE || waits > b->waited[stream])) {
        node->waits = b->waited[stream] = waits;
        b->s->nodes[waits].is_waited = true;
    }
}

static void use_from_kernel(struct dsc_schedule_builder *b, const struct dsc_spot *place,
                            uint32_t *waits)
{
    struct dsc_slot_use *const use = &b->slots[place->slot];

    wait_for(use->group, waits);
    use->kernel = b->s->n_nodes;
}

static void use_from_group(struct dsc_schedule_builder *b, const struct dsc_spot *place,
                           uint32_t *waits)
{
    struct dsc_slot_use *const use = &b->slots[place->slot];

    wait_for(use->kernel, waits);
    use->group = b->s->n_nodes;
}

static void use_messages(struct dsc_schedule_builder *b, uint32_t index, uint32_t *waits)
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
static void add_kernel(struct dsc_schedule_builder *b, uint32_t first, uint32_t end)
{
    const struct dsc_op *const op = &b->plan->ops[b->kernels[first].index];
    struct dsc_node *const node = &b->s->nodes[b->s->n_nodes];
    uint32_t waits = DSC_NO_NODE;

    *node = (struct dsc_node){ .position = b->kernels[first].step,
                               .stage = dsc_stage_of(op),
                               .codec = b->plan->params.codecs[op->tier],
                               .first = b->s->n_tiles };
    for (uint32_t i = first; i < end; i++) {
        dsc_schedule_add_tiles(b, node, b->s->n_ops, b->plan->ops[b->kernels[i].index].n);
        dsc_schedule_add_op(b, b->kernels[i].index);
        use_messages(b, b->kernels[i].index, &waits);
    }
    node->n = b->s->n_tiles - node->first;
    b->s->last_kernel = b->s->n_nodes;
    b->s->n_kernels++;
    end_node(b, waits);
}

static void add_group(struct dsc_schedule_builder *b, const uint32_t *senders, uint32_t first,
                      uint32_t end)
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
        const struct dsc_schedule_item *const x = &b->messages[i];
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

static bool same_node(const struct dsc_schedule_item *x, const struct dsc_schedule_item *y)
{
    return x->step == y->step && x->order == y->order;
}

static uint32_t end_of(const struct dsc_schedule_item *items, uint32_t n, uint32_t first)
{
    uint32_t end = first + 1;

    while (end < n && same_node(&items[first], &items[end]))
        end++;
    return end;
}

/* Kernels of step p that lead, groups of position p, the other kernels of step p. */
static void add_nodes(struct dsc_schedule_builder *b, const uint32_t *senders)
{
    uint32_t k = 0, m = 0;

    while (k < b->n_kernels || m < b->n_messages) {
        const uint32_t step_k = k < b->n_kernels ? b->kernels[k].step : UINT32_MAX;
        const uint32_t step_m = m < b->n_messages ? b->messages[m].step : UINT32_MAX;
        const bool is_first = k < b->n_kernels && dsc_op_leads(&b->plan->ops[b->kernels[k].index]);

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
static void add_empty_kernel(struct dsc_schedule_builder *b)
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

        if (dsc_stage_of(op) != DSC_NO_STAGE)
            n += dsc_ceil_div(op->n,
                              dsc_gpu_tile_elems(dsc_stage_of(op), plan->params.codecs[op->tier],
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

static bool alloc_all(struct dsc_schedule_builder *b, uint64_t n_tiles, uint32_t **senders_out)
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

static void builder_fini(struct dsc_schedule_builder *b, uint32_t *senders)
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
    struct dsc_schedule_builder b = { .plan = plan,
                                      .s = out,
                                      .waited = { DSC_NO_NODE, DSC_NO_NODE } };
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
        b.slots[i] = (struct dsc_slot_use){ DSC_NO_NODE, DSC_NO_NODE };
    find_senders(plan, senders);
    dsc_schedule_order(&b);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an algorithm's draft to a plan: operations in an order that cannot deadlock, messages
 * numbered per connection, and the number of staging buffers.
 *
 * Why no window deadlocks: take the smallest key of a message that was not released by its
 * receiver. All its sender needs has smaller keys, so it is sent. The receiver's operation may also
 * have to send; if a window is full then it computes into a staging buffer and releases what it
 * received. It is among the first n_staging unfinished operations of that kind, because all before
 * it have a smaller receive key and a larger send key, and n_staging is the most such intervals at
 * one point.
 */
#include "plan/builder.h"

#include <stdlib.h>

/* ---- numbering messages per connection ---- */

static int compare_draft_msg(const void *a, const void *b)
{
    const struct dsc_draft_msg *x = *(const struct dsc_draft_msg *const *)a;
    const struct dsc_draft_msg *y = *(const struct dsc_draft_msg *const *)b;

    if (x->msg.conn != y->msg.conn)
        return x->msg.conn < y->msg.conn ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Sets index, and conn from a rank to an index in peers. counts: [n_peers] messages. */
static bool number_messages(const struct dscomm_plan *plan, struct dsc_draft_msg *msgs, uint32_t n,
                            uint32_t *counts)
{
    struct dsc_draft_msg **order =
        dsc_calloc(DSC_MEM_PLAN, (size_t)n + 1, sizeof(struct dsc_draft_msg *));
    uint32_t conn = 0;

    if (order == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++)
        order[i] = &msgs[i];
    qsort(order, n, sizeof(*order), compare_draft_msg);
    for (uint32_t i = 0; i < n; i++) {
        while ((uint32_t)plan->peers[conn] != order[i]->msg.conn)
            conn++;
        order[i]->msg.conn = conn;
        order[i]->msg.index = counts[conn]++;
    }
    dsc_free(order);
    return true;
}

static bool find_peers(struct dsc_builder *b)
{
    const int n = b->params->n_ranks;
    struct dscomm_plan *plan = b->plan;
    bool *used = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*used));

    plan->peers = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*plan->peers));
    plan->n_tx = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*plan->n_tx));
    plan->n_rx = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*plan->n_rx));
    if (used == NULL || plan->peers == NULL || plan->n_tx == NULL || plan->n_rx == NULL) {
        dsc_free(used);
        return false;
    }
    for (uint32_t i = 0; i < b->n_recvs; i++)
        used[b->recvs[i].msg.conn] = true;
    for (uint32_t i = 0; i < b->n_sends; i++)
        used[b->sends[i].msg.conn] = true;
    for (int r = 0; r < n; r++)
        if (used[r])
            plan->peers[plan->n_peers++] = r;
    dsc_free(used);
    return true;
}

/* ---- ordering operations ---- */

static int compare_draft_op(const void *a, const void *b)
{
    const struct dsc_draft_op *x = a, *y = b;
    const uint64_t kx = x->key >> 16,
                   ky = y->key >> 16; /* without the chunk: rotation comes first */

    if (kx != ky)
        return kx < ky ? -1 : 1;
    if (x->rotation != y->rotation)
        return x->rotation < y->rotation ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The most operations whose interval [receive key, send key] covers one point. Ops are sorted. */
static bool count_staging(struct dsc_builder *b)
{
    uint64_t *send_keys = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_ops + 1, sizeof(*send_keys));
    uint32_t n = 0, done = 0, open = 0;

    if (send_keys == NULL)
        return false;
    for (uint32_t i = 0; i < b->n_ops; i++)
        if (dsc_op_may_stage(&b->ops[i].op))
            send_keys[n++] = b->ops[i].send_key;
    qsort(send_keys, n, sizeof(*send_keys), dsc_compare_u64);
    for (uint32_t i = 0; i < b->n_ops; i++) {
        if (!dsc_op_may_stage(&b->ops[i].op))
            continue;
        open++;
        while (done < n && send_keys[done] < b->ops[i].key) {
            done++;
            open--;
        }
        if (open > b->plan->n_staging)
            b->plan->n_staging = open;
    }
    dsc_free(send_keys);
    return true;
}

/* One per segment of the message that an operation encodes. */
static void number_thresholds(struct dscomm_plan *plan, struct dsc_op *op)
{
    const struct dsc_codec *const codec = plan->codecs[op->tier];

    if (!codec->reuses ||
        (op->kind != DSC_OP_SEND && op->kind != DSC_OP_ENCODE && op->kind != DSC_OP_FINAL))
        return;
    op->first_threshold = plan->n_thresholds;
    plan->n_thresholds += (uint32_t)dsc_ceil_div(op->n, codec->tile_align);
}

static bool copy_out(struct dsc_builder *b)
{
    struct dscomm_plan *plan = b->plan;
    uint32_t *place = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_ops + 1, sizeof(*place));

    plan->ops = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_ops + 1, sizeof(*plan->ops));
    plan->recvs = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_recvs + 1, sizeof(*plan->recvs));
    plan->sends = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_sends + 1, sizeof(*plan->sends));
    plan->deps = dsc_calloc(DSC_MEM_PLAN, (size_t)b->n_deps + 1, sizeof(*plan->deps));
    if (place == NULL || plan->ops == NULL || plan->recvs == NULL || plan->sends == NULL ||
        plan->deps == NULL) {
        dsc_free(place);
        return false;
    }
    for (uint32_t i = 0; i < b->n_ops; i++) {
        plan->ops[i] = b->ops[i].op;
        number_thresholds(plan, &plan->ops[i]);
        place[b->ops[i].id] = i;
    }
    for (uint32_t i = 0; i < b->n_deps; i++)
        plan->deps[i] = place[b->deps[i]];
    for (uint32_t i = 0; i < b->n_recvs; i++) {
        plan->recvs[i] = b->recvs[i].msg;
        DSC_ASSERT(plan->recvs[i].bytes <= plan->max_msg_bytes);
    }
    for (uint32_t i = 0; i < b->n_sends; i++) {
        plan->sends[i] = b->sends[i].msg;
        plan->payload_tx_bytes += b->sends[i].msg.bytes;
        DSC_ASSERT(plan->sends[i].bytes <= plan->max_msg_bytes);
    }
    plan->n_ops = b->n_ops;
    plan->n_recvs = b->n_recvs;
    plan->n_sends = b->n_sends;
    plan->n_deps = b->n_deps;
    dsc_free(place);
    return true;
}

bool dsc_builder_assemble(struct dsc_builder *b)
{
    if (!find_peers(b) || !number_messages(b->plan, b->recvs, b->n_recvs, b->plan->n_rx) ||
        !number_messages(b->plan, b->sends, b->n_sends, b->plan->n_tx))
        return false;
    if (b->n_ops > 0)
        qsort(b->ops, b->n_ops, sizeof(*b->ops), compare_draft_op);
    return count_staging(b) && copy_out(b);
}

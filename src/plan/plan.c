/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an algorithm's draft to a plan: operations in an order that cannot deadlock, messages
 * numbered per connection, the buffers that are needed, and the texts.
 *
 * Why no window deadlocks: take the smallest key of a message that was not released by its
 * receiver. All its sender needs has smaller keys, so it is sent. The receiver's operation may also
 * have to send; if a window is full then it computes into a staging buffer and releases what it
 * received. It is among the first n_staging unfinished operations of that kind, because all before
 * it have a smaller receive key and a larger send key, and n_staging is the most such intervals at
 * one point.
 */
#include "plan/builder.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dsc_grow(void **array, size_t used, size_t more, size_t elem_bytes)
{
    void *larger;
    size_t capacity = 16;

    while (capacity < used)
        capacity *= 2;
    if (*array != NULL && used + more <= capacity)
        return true;
    while (capacity < used + more)
        capacity *= 2;
    larger = dsc_calloc(DSC_MEM_PLAN, capacity, elem_bytes);
    if (larger == NULL)
        return false;
    if (used > 0)
        memcpy(larger, *array, used * elem_bytes);
    dsc_free(*array);
    *array = larger;
    return true;
}

/* ---- the caller's vectors ---- */

static const struct dsc_collective_traits collectives[] = {
    [DSC_ALLREDUCE] = { "allreduce", false, false, true },
    [DSC_REDUCE_SCATTER] = { "reduce_scatter", true, false, true },
    [DSC_ALL_GATHER] = { "all_gather", false, true, true },
    [DSC_BROADCAST] = { "broadcast", false, false, false },
    [DSC_ALL_TO_ALL] = { "all_to_all", true, true, false },
};

const struct dsc_collective_traits *dsc_collective_traits(enum dsc_collective collective)
{
    return &collectives[collective];
}

static bool has_shares(const struct dsc_plan_params *params)
{
    const struct dsc_collective_traits *const traits = &collectives[params->collective];

    return traits->sends_shares || traits->recvs_shares;
}

size_t dsc_plan_share(const struct dsc_plan_params *params)
{
    return has_shares(params) ? params->count / (size_t)params->n_ranks : params->count;
}

size_t dsc_plan_send_elems(const struct dsc_plan_params *params)
{
    return collectives[params->collective].sends_shares ? params->count : dsc_plan_share(params);
}

size_t dsc_plan_recv_elems(const struct dsc_plan_params *params)
{
    return collectives[params->collective].recvs_shares ? params->count : dsc_plan_share(params);
}

/* A vector with one share holds the rank's. */
static size_t base_of(const struct dsc_plan_params *params, size_t elems)
{
    return elems == params->count ? 0 : (size_t)params->rank * elems;
}

size_t dsc_plan_send_base(const struct dsc_plan_params *params)
{
    return base_of(params, dsc_plan_send_elems(params));
}

size_t dsc_plan_recv_base(const struct dsc_plan_params *params)
{
    return base_of(params, dsc_plan_recv_elems(params));
}

/* ---- drafting ---- */

uint32_t dsc_builder_op(struct dsc_builder *b, const struct dsc_op *op, uint64_t key,
                        uint32_t rotation)
{
    const uint32_t id = b->n_ops;

    b->failed = b->failed || !dsc_grow((void **)&b->ops, id, 1, sizeof(*b->ops));
    if (b->failed)
        return 0;
    b->ops[id] = (struct dsc_draft_op){
        .op = *op, .key = key, .send_key = key, .rotation = rotation, .id = id
    };
    b->ops[id].op.first_recv = b->n_recvs;
    b->ops[id].op.first_send = b->n_sends;
    b->ops[id].op.first_dep = b->n_deps;
    b->n_ops++;
    return id;
}

static struct dsc_draft_msg draft_msg(int peer, uint64_t key, size_t bytes, int exponent)
{
    return (struct dsc_draft_msg){ .msg = { .conn = (uint32_t)peer,
                                            .position = (uint32_t)(key >> 32),
                                            .bytes = (uint32_t)bytes,
                                            .stage = (uint16_t)(key >> 16),
                                            .chunk = (uint16_t)key,
                                            .exponent = (int8_t)exponent },
                                   .key = key };
}

void dsc_builder_recv(struct dsc_builder *b, int peer, uint64_t key, size_t bytes, int exponent)
{
    b->failed = b->failed || !dsc_grow((void **)&b->recvs, b->n_recvs, 1, sizeof(*b->recvs));
    if (b->failed)
        return;
    b->recvs[b->n_recvs++] = draft_msg(peer, key, bytes, exponent);
    b->ops[b->n_ops - 1].op.n_recvs++;
}

void dsc_builder_recv_from(struct dsc_builder *b, struct dsc_place place)
{
    if (!b->failed)
        b->recvs[b->n_recvs - 1].msg.place = place;
}

void dsc_builder_send(struct dsc_builder *b, int peer, uint64_t key)
{
    struct dsc_draft_op *op;

    b->failed = b->failed || !dsc_grow((void **)&b->sends, b->n_sends, 1, sizeof(*b->sends));
    if (b->failed)
        return;
    op = &b->ops[b->n_ops - 1];
    b->sends[b->n_sends++] = draft_msg(peer, key, op->op.msg_bytes, op->op.exponent);
    op->op.n_sends++;
    op->send_key = key > op->send_key ? key : op->send_key;
}

void dsc_builder_dep(struct dsc_builder *b, uint32_t id)
{
    b->failed = b->failed || !dsc_grow((void **)&b->deps, b->n_deps, 1, sizeof(*b->deps));
    if (b->failed)
        return;
    b->deps[b->n_deps++] = id;
    b->ops[b->n_ops - 1].op.n_deps++;
}

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

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
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
    qsort(send_keys, n, sizeof(*send_keys), compare_u64);
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

static bool assemble(struct dsc_builder *b)
{
    if (!find_peers(b) || !number_messages(b->plan, b->recvs, b->n_recvs, b->plan->n_rx) ||
        !number_messages(b->plan, b->sends, b->n_sends, b->plan->n_tx))
        return false;
    if (b->n_ops > 0)
        qsort(b->ops, b->n_ops, sizeof(*b->ops), compare_draft_op);
    return count_staging(b) && copy_out(b);
}

/* ---- texts ---- */

#define TEXT_BYTES 1024
#define TIERS_SHOWN_BYTES 128
#define CODEC_LIST_BYTES (DSC_MAX_TIERS * 65) /* specs and separators */

static void codec_list(const struct dsc_plan_params *params, char *text, size_t bytes)
{
    size_t used = 0;

    for (int t = 0; t < params->n_tiers && used < bytes; t++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", t > 0 ? ";" : "",
                                 params->codecs[t]->spec);
}

static uint64_t groups_hash(const struct dsc_plan_params *params)
{
    uint64_t h = 0;

    for (int i = 0; params->groups != NULL && i < params->n_tiers * params->n_ranks; i++)
        h = (h ^ (uint64_t)(uint32_t)params->groups[i]) * 0x100000001b3u;
    return h;
}

/* What ranks must agree on, as "key=value key=value"; mismatch.c compares two of them. */
static bool describe(struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const size_t bytes = TEXT_BYTES;
    char codecs[CODEC_LIST_BYTES];

    plan->descriptor = dsc_calloc(DSC_MEM_PLAN, 1, bytes);
    plan->explain = dsc_calloc(DSC_MEM_PLAN, 1, bytes);
    if (plan->descriptor == NULL || plan->explain == NULL)
        return false;
    codec_list(params, codecs, sizeof(codecs));
    snprintf(plan->descriptor, bytes,
             "collective=%s root=%d count=%zu dtype=%s op=%s codec=%s feedback=%d algorithm=%s "
             "chunk=%zu "
             "ranks=%d tiers=%d groups=%" PRIx64 " tensors=%d sizes=%" PRIx64,
             collectives[params->collective].name, params->root, dsc_plan_share(params),
             dsc_dtype_name(params->dtype), dsc_op_name(params->op), codecs, params->feedback,
             dsc_algorithm_name(params->algorithm), plan->chunk_elems, params->n_ranks,
             params->n_tiers, groups_hash(params), params->n_tensors, params->sizes);
    plan->hash = dsc_hash_text(plan->descriptor);
    return true;
}

/* Times of the vector that a rank would send uncompressed with the same algorithm. */
static double plain_share(const struct dsc_plan_params *params)
{
    const double others = (double)(params->n_ranks - 1);

    if (params->algorithm == DSC_ALG_ONE_SHOT)
        return others;
    if (params->collective == DSC_BROADCAST)
        return params->rank == params->root ? 1.0 : (others - 1.0) / others;
    return (params->collective == DSC_ALLREDUCE ? 2.0 : 1.0) * others / params->n_ranks;
}

static bool has_variable_codec(const struct dscomm_plan *plan)
{
    for (int t = 0; t < plan->params.n_tiers; t++)
        if (plan->codecs[t]->variable)
            return true;
    return false;
}

/* ", tiers 0-2|3-6/0-6"; nothing for one tier. */
static void tiers_shown(const struct dsc_plan_params *params, char text[TIERS_SHOWN_BYTES])
{
    static const char begin[] = ", tiers ", cut[] = "...";
    const struct dsc_tiers tiers = { .n_tiers = params->n_tiers,
                                     .n_ranks = params->n_ranks,
                                     .groups = (int *)params->groups };
    const size_t room = TIERS_SHOWN_BYTES - sizeof(begin) + 1;

    text[0] = '\0';
    if (params->n_tiers == 1)
        return;
    memcpy(text, begin, sizeof(begin));
    if (dsc_tiers_text(&tiers, text + sizeof(begin) - 1, room) >= room)
        memcpy(text + TIERS_SHOWN_BYTES - sizeof(cut), cut, sizeof(cut));
}

static void explain(struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const double plain =
        plain_share(params) * (double)params->count * (double)dsc_dtype_bytes(params->dtype);
    char codecs[CODEC_LIST_BYTES];

    char tiers[TIERS_SHOWN_BYTES];

    codec_list(params, codecs, sizeof(codecs));
    tiers_shown(params, tiers);
    snprintf(
        plan->explain, TEXT_BYTES,
        "%s %s of %zu %s %s, codec %s%s, feedback %s, chunks of %zu elements, %s%" PRIu64
        " payload bytes sent, ratio %.2f, %d peers",
        dsc_algorithm_name(params->n_tiers > 1 ? DSC_ALG_TIERED : params->algorithm),
        collectives[params->collective].name, dsc_plan_share(params), dsc_dtype_name(params->dtype),
        dsc_op_name(params->op), codecs, tiers, params->feedback ? "on" : "off", plan->chunk_elems,
        has_variable_codec(plan) ? "at most " : "", plan->payload_tx_bytes,
        plan->payload_tx_bytes == 0 ? 1.0 : plain / (double)plan->payload_tx_bytes, plan->n_peers);
}

/* ---- building ---- */

/* Chunks start on blocks, segments and cut points alike. */
static size_t fit_chunk_elems(const struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    size_t unit = DSC_PIECE_ALIGN;

    for (int t = 0; t < params->n_tiers; t++)
        if (plan->codecs[t]->tile_align > unit)
            unit = plan->codecs[t]->tile_align;
    return dsc_round_up(params->chunk_elems == 0 ? unit : params->chunk_elems, unit);
}

static void build_local(struct dsc_builder *b)
{
    size_t chunk = b->plan->chunk_elems;

    while (dsc_ceil_div(b->params->count, chunk) > DSC_MAX_CHUNKS)
        chunk *= 2;
    b->plan->chunk_elems = chunk;
    for (size_t start = 0; start < b->params->count; start += chunk) {
        const struct dsc_op op = { .kind = DSC_OP_RESULT,
                                   .tier = b->params->n_tiers - 1,
                                   .start = start,
                                   .n = (uint32_t)dsc_min_size(chunk, b->params->count - start),
                                   .own_partial = DSC_NO_BUFFER };

        dsc_builder_op(b, &op, (uint64_t)(start / chunk) << 32, 0);
    }
}

static dscomm_status_t build_ops(struct dsc_builder *b)
{
    switch (b->params->algorithm) {
    case DSC_ALG_LOCAL:
        build_local(b);
        return DSCOMM_OK;
    case DSC_ALG_AUTO:
    case DSC_ALG_TIERED:
        break;
    case DSC_ALG_ONE_SHOT:
        return dsc_build_one_shot(b);
    case DSC_ALG_TWO_SHOT:
        return dsc_build_two_shot(b);
    case DSC_ALG_DIRECT:
        return b->params->collective == DSC_BROADCAST ? dsc_build_broadcast(b)
                                                      : dsc_build_all_to_all(b);
    }
    return dsc_fail(DSCOMM_ERR_INVALID, "algorithm %d", (int)b->params->algorithm);
}

/*
 * Of a whole chunk in any tier's codec from the last place in a group, so the same on all ranks,
 * whatever their own pieces are.
 */
static size_t largest_message(const struct dscomm_plan *plan, const struct dsc_plan_params *params)
{
    const size_t n = dsc_min_size(plan->chunk_elems, params->count);
    size_t most = 0;

    for (int t = 0; params->algorithm != DSC_ALG_LOCAL && t < params->n_tiers; t++)
        most = dsc_max_size(most, dsc_longest_message(plan->codecs[t], n));
    if (params->collective == DSC_REDUCE_SCATTER && params->feedback)
        most = dsc_max_size(most, dsc_mark_bytes(plan->chunk_elems));
    return most;
}

static void builder_fini(struct dsc_builder *b)
{
    dsc_free(b->ops);
    dsc_free(b->recvs);
    dsc_free(b->sends);
    dsc_free(b->deps);
}

dscomm_status_t dsc_plan_build(const struct dsc_plan_params *params, struct dscomm_plan **plan_out)
{
    struct dsc_builder b = { .params = params };
    dscomm_status_t st;

    if (params->n_tiers < 1 || params->n_tiers > DSC_MAX_TIERS)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d tiers, must be 1 to %d", params->n_tiers,
                        DSC_MAX_TIERS);
    b.plan = dsc_calloc(DSC_MEM_PLAN, 1, sizeof(*b.plan));
    if (b.plan == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %zu elements", params->count);
    b.plan->params = *params;
    b.plan->params.groups = NULL;
    b.plan->send_base = dsc_plan_send_base(params);
    b.plan->recv_base = dsc_plan_recv_base(params);
    for (int t = 0; t < params->n_tiers; t++)
        b.plan->codecs[t] = dsc_codec_resolve(params->codecs[t], params->dtype);
    b.plan->chunk_elems = fit_chunk_elems(b.plan, params);

    DSC_TRY_GOTO(err, build_ops(&b));
    b.plan->max_msg_bytes = largest_message(b.plan, params);
    if (b.failed || !assemble(&b) || !describe(b.plan, params)) {
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %zu elements with %u operations",
                      params->count, b.n_ops);
        goto err;
    }
    explain(b.plan, params);
    builder_fini(&b);
    *plan_out = b.plan;
    return DSCOMM_OK;

err:
    builder_fini(&b);
    dsc_plan_destroy(b.plan);
    return st;
}

void dsc_plan_destroy(struct dscomm_plan *plan)
{
    if (plan == NULL)
        return;
    dsc_free(plan->descriptor);
    dsc_free(plan->explain);
    dsc_free(plan->peers);
    dsc_free(plan->n_tx);
    dsc_free(plan->n_rx);
    dsc_free(plan->ops);
    dsc_free(plan->recvs);
    dsc_free(plan->sends);
    dsc_free(plan->deps);
    dsc_free(plan);
}

const char *dscomm_plan_explain(const dscomm_plan_t *plan)
{
    return plan == NULL ? "" : plan->explain;
}

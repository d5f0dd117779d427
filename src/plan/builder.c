/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How algorithms draft a plan: operations, and after each its messages and dependencies. Out of
 * memory is noted in the builder; nothing is added from then on.
 */
#include "plan/builder.h"

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

void dsc_builder_fini(struct dsc_builder *b)
{
    dsc_free(b->ops);
    dsc_free(b->recvs);
    dsc_free(b->sends);
    dsc_free(b->deps);
}

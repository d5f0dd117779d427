/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/plan: how the algorithms hand operations over. An algorithm adds operations and,
 * after each, its receives, sends and dependencies. Messages carry a key that both ends compute
 * alike; per connection they are numbered in the order of their keys.
 */
#ifndef DSC_PLAN_BUILDER_H
#define DSC_PLAN_BUILDER_H

#include "plan/plan.h"

/* Final messages of chunk c are sent after the partial sums of chunk c + LAG: keeps links busy. */
#define DSC_STAGE_LAG 2

struct dsc_draft_msg {
    struct dsc_plan_msg msg; /* conn holds the peer's rank until assemble.c numbers connections */
    uint64_t key;
};

struct dsc_draft_op {
    struct dsc_op op;
    uint64_t key;      /* of what it receives, else of what it sends */
    uint64_t send_key; /* largest key of its sends */
    uint32_t rotation; /* among equal keys: spreads ranks over receivers */
    uint32_t id;       /* order of adding; deps refer to it */
};

struct dsc_builder {
    const struct dsc_plan_params *params;
    struct dscomm_plan *plan;
    struct dsc_draft_op *ops;
    struct dsc_draft_msg *recvs, *sends;
    uint32_t *deps;
    uint32_t n_ops, n_recvs, n_sends, n_deps;
    bool failed; /* an allocation failed; checked once at the end */
};

/* Orders messages: chunk position first, then stage, then chunk number. */
static inline uint64_t dsc_msg_key(uint32_t position, uint32_t stage, uint32_t chunk)
{
    return (uint64_t)position << 32 | (uint64_t)stage << 16 | chunk;
}

/* The id for deps. `op` needs kind, span and codec; counts of messages are filled in here. */
uint32_t dsc_builder_op(struct dsc_builder *b, const struct dsc_op *op, uint64_t key,
                        uint32_t rotation);
/* To the operation added last. */
void dsc_builder_recv(struct dsc_builder *b, int peer, uint64_t key, size_t bytes, int exponent);
/* Of whom the message received last is; else of nobody in particular. */
void dsc_builder_recv_from(struct dsc_builder *b, struct dsc_place place);
void dsc_builder_send(struct dsc_builder *b, int peer, uint64_t key);
void dsc_builder_dep(struct dsc_builder *b, uint32_t id);

/* Room for `more` elements behind `used`; *array may be NULL at first. False: out of memory. */
bool dsc_grow(void **array, size_t used, size_t more, size_t elem_bytes);

void dsc_builder_fini(struct dsc_builder *b);

/* Orders what was drafted and makes the plan's arrays of it. False: out of memory. */
bool dsc_builder_assemble(struct dsc_builder *b);

/* What ranks must agree on, as "key=value key=value"; comm/mismatch.c compares two of them. Makes
 * room for the other text too. False: out of memory. */
bool dsc_plan_describe(struct dscomm_plan *plan, const struct dsc_plan_params *params);
/* The line for people, of a plan that is complete. */
void dsc_plan_write_explain(struct dscomm_plan *plan, const struct dsc_plan_params *params);

/* The algorithms. */
dscomm_status_t dsc_build_two_shot(struct dsc_builder *b);
dscomm_status_t dsc_build_one_shot(struct dsc_builder *b);
dscomm_status_t dsc_build_broadcast(struct dsc_builder *b);
dscomm_status_t dsc_build_all_to_all(struct dsc_builder *b);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/cuda: a schedule that is being made. */
#ifndef DSC_CUDA_SCHEDULE_BUILDER_H
#define DSC_CUDA_SCHEDULE_BUILDER_H

#include "cuda/places.h"
#include "cuda/schedule.h"

#define DSC_NO_STAGE DSC_GPU_N_STAGES

/* What happens to a slot's memory, as node numbers; DSC_NO_NODE: nothing yet. */
struct dsc_slot_use {
    uint32_t kernel, group; /* the last that touched it */
};

/* An operation as part of a kernel, or a message as part of a group. */
struct dsc_schedule_item {
    uint32_t step, order; /* order: of kernels in a step; of a group, the wire's stage */
    uint32_t index;       /* in plan->ops; in plan->sends or plan->recvs */
    bool is_send;
    uint32_t conn, message; /* messages of a connection are in the order of their numbers */
};

struct dsc_schedule_builder {
    const struct dscomm_plan *plan;
    struct dsc_schedule *s;
    struct dsc_places places;
    uint32_t *steps; /* [n_ops] */
    struct dsc_schedule_item *kernels, *messages;
    uint32_t n_kernels, n_messages;
    struct dsc_slot_use *slots;
    uint32_t waited[2]; /* of each stream, the last node of the other that it has waited for */
};

/* DSC_NO_STAGE: nothing is computed. */
enum dsc_gpu_stage dsc_stage_of(const struct dsc_op *op);
/* It needs no message and sends some: its kernel comes before the groups of its step. */
bool dsc_op_leads(const struct dsc_op *op);
/* Fills steps, kernels and messages; the two lists in the order of enqueuing. */
void dsc_schedule_order(struct dsc_schedule_builder *b);

/* Rows of the device's tables for operation `index` of the plan. */
void dsc_schedule_add_op(struct dsc_schedule_builder *b, uint32_t index);
/* Tiles of n elements that row gpu_op of the operations has. */
void dsc_schedule_add_tiles(struct dsc_schedule_builder *b, const struct dsc_node *node,
                            uint32_t gpu_op, uint32_t n);

#endif

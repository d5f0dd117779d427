/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as kernels and groups of transfers for two streams. Operations of one kind, codec and step
 * are one kernel; messages of one position and stage, which both ends know alike, are one group.
 * In step p, in the order of enqueuing:
 *
 *   computing stream      E(p)                      F(p-1)  D(p-3)
 *   communication stream        G(p)  H(p-2)
 *
 * E encodes what leaves in G(p); F sums what came in G(p-1) and encodes what leaves in H(p-1), at
 * position p+1; D decodes what came in H(p-3), at position p-1. So while F and D compute, the
 * next group has all it needs. A node waits for what it reads and for whoever still uses the memory
 * it writes; all that it waits for was enqueued before it, and groups are in the same order on all
 * ranks, so nothing waits in a circle.
 *
 * A pure function of the plan; tests look at it without a device.
 */
#ifndef DSC_CUDA_SCHEDULE_H
#define DSC_CUDA_SCHEDULE_H

#include "kernels/stage.h"
#include "plan/plan.h"

#define DSC_NO_NODE UINT32_MAX

struct dsc_transfer {
    int peer; /* rank */
    bool is_send;
    uint64_t at; /* bytes in `messages` */
    uint32_t bytes;
};

/* A kernel, or a group of transfers. */
struct dsc_node {
    bool is_group;
    bool is_waited;              /* the other stream waits for it */
    uint32_t waits;              /* node of the other stream that must be over, DSC_NO_NODE: none */
    uint32_t position;           /* of the messages of a group; step of a kernel */
    enum dsc_gpu_stage stage;    /* kernel */
    const dscomm_codec_t *codec; /* kernel, as the caller named it */
    uint32_t wire_stage;         /* group */
    uint32_t first, n;           /* in tiles, or in transfers */
};

struct dsc_schedule {
    struct dsc_node *nodes; /* in the order of enqueuing; the last kernel ends the call */
    uint32_t n_nodes, last_kernel;
    uint32_t n_kernels, n_groups;
    struct dsc_gpu_op *ops;
    struct dsc_gpu_recv *recvs;
    struct dsc_gpu_tile *tiles;
    struct dsc_transfer *transfers;
    uint32_t n_ops, n_recvs, n_tiles, n_transfers;
    size_t messages_bytes;
    uint64_t tx_bytes, rx_bytes; /* per call */
};

/* DSCOMM_ERR_NO_MEMORY, or DSCOMM_ERR_LIMIT: more tiles than 32 bits count. */
dscomm_status_t dsc_schedule_build(const struct dscomm_plan *plan, struct dsc_schedule *out);
void dsc_schedule_fini(struct dsc_schedule *s); /* zeroed too */

/* "FINAL", ... for people. */
const char *dsc_gpu_stage_name(enum dsc_gpu_stage stage);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/tuner. What a plan asks of one rank, whatever the codecs: how many messages of how
 * many elements over which tier of the machine, and which operations. Plans of one algorithm, tiers
 * and chunk differ in their codecs by the size of messages alone, so one load prices all codecs.
 */
#ifndef DSC_TUNER_LOAD_H
#define DSC_TUNER_LOAD_H

#include "tuner/tuner.h"

#define DSC_LOAD_STAGES 64

/* Operations alike. */
struct dsc_load_ops {
    enum dsc_op_kind kind;
    uint8_t codec; /* tier of the plan, whose codec it has */
    uint32_t n;    /* elements of each */
    uint64_t n_ops;
    uint64_t n_recvs; /* of all of them */
};

/* Messages alike. */
struct dsc_load_msgs {
    uint8_t stage, codec;
    uint8_t wire; /* tier of the machine that they cross */
    bool is_tx;
    uint32_t n;
    uint64_t count;
};

/* A stage of messages depends on the one before: its number is a step of latency. */
struct dsc_load_stage {
    bool is_used;
    uint32_t first, last; /* positions in the pipeline */
};

struct dsc_load {
    struct dsc_load_ops *ops;
    uint32_t n_ops;
    struct dsc_load_msgs *msgs;
    uint32_t n_msgs;
    struct dsc_load_stage stages[DSC_LOAD_STAGES];
    size_t chunk_elems; /* that the plan took */
    int n_ranks;
};

/*
 * Builds the plan and walks it. groups: of the machine, [n_wires][n_ranks], NULL: one tier.
 * DSCOMM_ERR_NO_MEMORY, DSCOMM_ERR_INVALID as dsc_plan_build().
 */
dscomm_status_t dsc_load_init(struct dsc_load *load, const struct dsc_plan_params *params,
                              const int *groups, int n_wires);
void dsc_load_fini(struct dsc_load *load);

#endif

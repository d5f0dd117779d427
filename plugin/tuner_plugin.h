/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner plugin inside. NCCL computes a table of costs per collective call, the tuner may change
 * it. Every rank must give the same answer to the same call, so answers follow from NCCL's
 * arguments and from files that were read at init(), never from what this rank has measured
 * meanwhile; and no function ever fails, since NCCL would end the job.
 */
#ifndef DSC_TUNER_PLUGIN_H
#define DSC_TUNER_PLUGIN_H

#include "core/core.h"
#include "transport/nccl_abi.h"

#define TUNER_ROWS_MAX 4096
#define TUNER_ANY (-1)

/* One line of NCCL's format, as its example plugin reads it. */
struct tuner_row {
    int func, algo, proto;
    uint64_t bytes_min, bytes_max;
    int n_channels;                                 /* TUNER_ANY: NCCL's choice */
    int64_t n_nodes, n_ranks, n_pipe_ops, reg_buff; /* TUNER_ANY: all */
    int line;
};

/* What the files say. Zeroed: nothing. */
struct tuner_config {
    struct tuner_row *rows;
    size_t n_rows;
    double net_latency_us; /* one way, of the profile; 0: unknown */
    uint64_t hash;         /* of both files' contents; 0: no file */
    char names[96];        /* of both, shortened; "none" */
};

/*
 * Reads NCCL_TUNER_CONFIG_FILE and DSCOMM_PROFILE where they name files. What is wrong with them is
 * a warning, and they, or the line, count as not there.
 */
void tuner_config_read(struct tuner_config *config);
void tuner_config_free(struct tuner_config *config);

#endif

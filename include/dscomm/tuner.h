/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What would be chosen on a machine, and why: for every size, data type and error budget the whole
 * table of candidates with their predicted times. The machine is this host as a profile knows it,
 * one that a profile was written on, or one that a topology file describes, times a number of
 * nodes. docs/tuner.md has the model.
 *
 * Threads: a tuner is never changed after its creation: queries from any thread.
 */
#ifndef DSCOMM_TUNER_H
#define DSCOMM_TUNER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dscomm/dscomm.h"
#include "dscomm/topo.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dscomm_tuner dscomm_tuner_t;

/* At most one of profile and topo; neither: the profile of this host. */
typedef struct {
    size_t struct_bytes; /* sizeof(dscomm_tuner_config_t) */
    const char *profile; /* file that link_perf wrote: measured rates */
    const char *topo;    /* file as for dscomm_topo_load(): declared rates, assumed latencies */
    dscomm_topo_config_t topo_config;
    int nodes;         /* of the same kind; 0: 1 */
    int local;         /* ranks per node; 0: the topology's GPUs, the profile's ranks per host */
    const char *tiers; /* ranks to tiers as DSCOMM_TIERS does; NULL: by nodes and their links */
    /* With topo: what a GPU's memory moves, which codecs go by; 0: usual for its generation. */
    uint64_t memory_bytes_per_s;
} dscomm_tuner_config_t;

#define DSCOMM_TUNER_CONFIG_INIT                                                          \
    {                                                                                     \
        sizeof(dscomm_tuner_config_t), NULL, NULL, DSCOMM_TOPO_CONFIG_INIT, 0, 0, NULL, 0 \
    }

typedef struct {
    size_t struct_bytes; /* sizeof(dscomm_tuner_query_t) */
    size_t count;        /* elements of an allreduce */
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    int feedback;       /* 1: with a feedback object */
    const char *budget; /* exact high balanced aggressive, or a relative error such as 0.01 */
    int overlap;        /* 1: stages of a call overlap; 0: not; -1: as the machine's rates say */
} dscomm_tuner_query_t;

#define DSCOMM_TUNER_QUERY_INIT                                                        \
    {                                                                                  \
        sizeof(dscomm_tuner_query_t), 0, DSCOMM_FLOAT32, DSCOMM_SUM, 1, "balanced", -1 \
    }

typedef enum {
    DSCOMM_EXPLAIN_TEXT = 0, /* a table, cheapest first, one line per codec and algorithm */
    DSCOMM_EXPLAIN_JSON = 1, /* all candidates, one object */
} dscomm_explain_format_t;

/**
 * Learn a machine.
 *
 * @param config    Borrowed for the call; NULL for the profile of this host.
 * @param tuner_out Owned by the caller; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID    bad config (field, value, allowed), or there is no profile, or the
 *                               file does not say what is needed: names what is missing
 *         DSCOMM_ERR_ENV        tiers, or a variable of the environment, is malformed
 *         DSCOMM_ERR_SYSTEM, DSCOMM_ERR_CORRUPT, DSCOMM_ERR_LIMIT as dscomm_topo_load()
 *         DSCOMM_ERR_NO_MEMORY
 */
DSCOMM_API dscomm_status_t dscomm_tuner_create(const dscomm_tuner_config_t *config,
                                               dscomm_tuner_t **tuner_out);

/** Frees the object. NULL is allowed. */
DSCOMM_API void dscomm_tuner_destroy(dscomm_tuner_t *tuner);

/** Number of ranks and of tiers. */
DSCOMM_API int dscomm_tuner_n_ranks(const dscomm_tuner_t *tuner);
DSCOMM_API int dscomm_tuner_n_tiers(const dscomm_tuner_t *tuner);

/**
 * Write the table for a call: every candidate's predicted time, its parts, its nominal error,
 * whether the budget admits it, and what is chosen and why. Where a tier's rate is unknown no codec
 * is chosen, and the table says so.
 *
 * @param query Borrowed for the call.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID    bad query (field, value, allowed)
 *         DSCOMM_ERR_SYSTEM     writing failed
 *         DSCOMM_ERR_NO_MEMORY
 */
DSCOMM_API dscomm_status_t dscomm_tuner_explain(const dscomm_tuner_t *tuner,
                                                const dscomm_tuner_query_t *query,
                                                dscomm_explain_format_t format, FILE *out);

/**
 * The same into memory, as a text that ends with a NUL.
 *
 * @param buf        [buf_bytes]; gets nothing that does not fit whole. NULL with 0 bytes: ask for
 *                   the length.
 * @param needed_out Bytes of the text, NUL included; NULL: not asked for.
 *
 * @return as above, and DSCOMM_ERR_LIMIT: it needs more than buf_bytes
 */
DSCOMM_API dscomm_status_t dscomm_tuner_explain_text(const dscomm_tuner_t *tuner,
                                                     const dscomm_tuner_query_t *query,
                                                     dscomm_explain_format_t format, char *buf,
                                                     size_t buf_bytes, size_t *needed_out);

/**
 * The table by which a communicator chooses for codec "auto" right now: with the rates of its
 * ranks, and what it has learned from calls. Waits for queued calls. Equal on all ranks.
 *
 * @param comm  Has made an allreduce with codec "auto".
 * @param query Borrowed for the call.
 *
 * @return as dscomm_tuner_explain()
 *         DSCOMM_ERR_BAD_STATE  no call with codec "auto" was made, or the communicator has failed
 */
DSCOMM_API dscomm_status_t dscomm_comm_explain(dscomm_comm_t *comm,
                                               const dscomm_tuner_query_t *query,
                                               dscomm_explain_format_t format, FILE *out);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host executor: runs a plan on a communicator's endpoint, on the calling thread and, for large
 * calls, on worker threads.
 */
#ifndef DSC_EXEC_H
#define DSC_EXEC_H

#include "exec/compute.h"
#include "transport/transport.h"

struct dsc_exec;     /* per communicator */
struct dsc_exec_run; /* per plan: connections, buffers, state of operations */

struct dsc_exec_params {
    int n_threads; /* the caller included */
    int timeout_ms;
    uint64_t spin_ns;
    size_t slot_bytes;   /* payload of a connection's slots: no plan may need more */
    size_t inline_bytes; /* calls up to this (float32 bytes) leave the workers asleep */
};

struct dsc_exec_stats {
    _Atomic uint64_t nonfinite_elems, wait_ns, payload_tx_bytes;
};

/* What the last call of a run was like. */
struct dsc_exec_outcome {
    uint32_t note; /* merged: of an allreduce, the same on all ranks */
    uint64_t ns, wait_ns, payload_tx_bytes;
    struct dsc_sample sample;
};

/* net is borrowed. */
dscomm_status_t dsc_exec_create(struct dsc_net *net, const struct dsc_exec_params *params,
                                struct dsc_exec **exec_out);
void dsc_exec_destroy(struct dsc_exec *exec); /* NULL allowed */

/*
 * Connects the plan's peers and makes its buffers. Collective. plan is borrowed. DSCOMM_ERR_LIMIT:
 * its chunks were enlarged, because there are too many, and no longer fit in a slot.
 */
dscomm_status_t dsc_exec_prepare(struct dsc_exec *exec, const struct dscomm_plan *plan,
                                 struct dsc_exec_run **run_out);
void dsc_exec_run_destroy(struct dsc_exec_run *run); /* NULL allowed */

/**
 * Runs one call to its end. On an error the endpoint has not been told: the caller decides what to
 * tell the peers. DSCOMM_ERR_MISMATCH: a message of another call came from rank *bad_rank_out.
 */
dscomm_status_t dsc_exec_call(struct dsc_exec_run *run, const struct dsc_call *call,
                              uint32_t sequence, int *bad_rank_out);

/* The rank that the failed call waited for first, -1 if for none. */
int dsc_exec_missing_rank(struct dsc_exec_run *run);

/* Of a call that has succeeded. */
const struct dsc_exec_outcome *dsc_exec_outcome(const struct dsc_exec_run *run);

/* True if the last call of `run` wrote the residual. */
bool dsc_exec_wrote_residual(const struct dsc_exec_run *run);

const struct dsc_exec_stats *dsc_exec_stats(const struct dsc_exec *exec);

#endif

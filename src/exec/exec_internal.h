/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/exec: the inside of the host executor.
 *   exec_prepare.c   life, buffers and connections of a plan
 *   exec_host.c      the loop that drives a call, waiting and deadlines
 *   exec_ops.c       one operation: what it receives, its place, its states
 *   exec_send.c      what it sends                       compute*.c  its arithmetic
 *   workers.c        threads that compute                sample.c    what a call was like
 */
#ifndef DSC_EXEC_INTERNAL_H
#define DSC_EXEC_INTERNAL_H

#include "exec/exec.h"
#include "exec/workers.h"

#define DSC_LOOK_AHEAD_MAX 4096 /* operations that may be under way */

enum op_state {
    OP_WAITING, /* for messages, slots, other operations */
    OP_RUNNING, /* being computed by a worker */
    OP_SENDING, /* computed, still has messages to post */
    OP_DONE,
};

struct dsc_buffer {
    void *memory;
    size_t bytes;
};

/* Each on a cache line of its own. */
struct thread_sample {
    struct dsc_sample sample;
    uint64_t pad;
};

struct dsc_exec {
    struct dsc_net *net;
    struct dsc_exec_params params;
    struct dsc_workers *workers;
    struct dsc_exec_stats stats;
    uint32_t next_sequence; /* of the call that a plan is prepared for */
    /* Calls never overlap, so all plans share these; they grow when a plan is prepared. */
    struct dsc_buffer scratch;     /* [n_threads] of scratch_floats float32 */
    struct dsc_buffer partial;     /* float32 partial sums */
    struct dsc_buffer gather;      /* one-shot: kept messages */
    struct dsc_buffer staging;     /* [n_staging] of a plan's staging_stride bytes */
    size_t scratch_floats;         /* per thread */
    struct thread_sample *samples; /* [n_threads] of the running call */
};

struct dsc_exec_run {
    struct dsc_exec *exec;
    const struct dscomm_plan *plan;
    struct dsc_compute compute;
    struct dsc_conn **conns;     /* [n_peers] */
    uint64_t *tx_base, *rx_base; /* [n_peers] number of this call's first message */
    uint8_t *state;              /* [n_ops] enum op_state */
    _Atomic uint8_t *computed;   /* [n_ops] set by workers */
    uint8_t **bytes;             /* [n_ops] message that the op encodes or forwards */
    uint32_t *used;              /* [n_ops] its bytes: known before unless the codec is variable */
    struct dsc_flaw *flaws;      /* [n_ops] of what it received */
    const uint8_t **payloads;    /* [n_recvs] arrived messages */
    uint32_t *payload_bytes;     /* [n_recvs] */
    uint8_t *posted;             /* [n_sends] */
    size_t staging_stride;
    uint8_t *staging_used; /* [n_staging] */
    int16_t *op_staging;   /* [n_ops] buffer in use, -1 none */
    uint32_t *thresholds;  /* [n_thresholds] kept from call to call */
    uint32_t first, n_done, n_running, sequence, look_ahead;
    bool use_workers;
    struct dsc_exec_outcome outcome; /* so far: note, wait, payload of the messages posted */
    uint64_t idle_since, seen_bytes; /* for the deadline: see idle_ns() */
    int bad_rank;
};

/* ---- exec_ops.c ---- */

/*
 * One pass over the unfinished operations within the look-ahead. *moved_out: something happened.
 * Errors: of the endpoint, or a message that does not fit the plan.
 */
dscomm_status_t dsc_ops_scan(struct dsc_exec_run *run, bool *moved_out);
/* A job of the workers: computes one operation. ctx is the run. */
void dsc_ops_job(void *ctx, uint32_t op_index, int thread);

/* Of the messages that an op receives: marks are no codec's. */
static inline bool dsc_op_receives_variable(const struct dsc_exec_run *run, const struct dsc_op *op)
{
    return run->plan->codecs[op->tier]->variable && op->kind != DSC_OP_RESTORE;
}

static inline bool dsc_op_sends_variable(const struct dsc_exec_run *run, const struct dsc_op *op)
{
    return dsc_op_receives_variable(run, op) && op->kind != DSC_OP_RESULT;
}

/* ---- exec_send.c. send: index in plan->sends ---- */

/* Memory of a message; NULL: its slot is taken. */
static inline uint8_t *dsc_send_slot(struct dsc_exec_run *run, uint32_t send)
{
    const struct dsc_plan_msg *m = &run->plan->sends[send];
    struct dsc_conn *conn = run->conns[m->conn];

    return conn->ops->tx_slot(conn, run->tx_base[m->conn] + m->index);
}

/* payload: NULL, or where it lies if not in the slot. */
void dsc_send_post(struct dsc_exec_run *run, uint32_t send, uint32_t bytes, const uint8_t *payload);
/* Copies the op's message to every slot that is free now. True when nothing is left to post. */
bool dsc_send_copies(struct dsc_exec_run *run, uint32_t op_index);
/*
 * As above where the message lies in the first send's slot: that one is posted last, because its
 * memory is the receiver's from then on.
 */
void dsc_send_from_first_slot(struct dsc_exec_run *run, uint32_t op_index);
/*
 * Where the op's message lies already, byte for byte: in the input, which nobody writes before the
 * message is out, in place neither: its sum comes back from who has received it (but not so in an
 * all-to-all). NULL: nowhere (not looked into where it is not finite, as a NaN is sent in one form
 * only), or the transport would copy it anyway, which workers do better.
 */
const uint8_t *dsc_send_in_input(const struct dsc_exec_run *run, const struct dsc_op *op);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to plugin/net_wrap*.c: compression and metering in front of another net, ours or any
 * plugin's. A message becomes one or two of the inner net:
 *
 *     announcement  | bytes u64 | packed bytes u64 | sequence u32 | codec u8 | flags u8 | 0 u16 |
 *                     and, if it is short, the message itself
 *     payload       the message as it is, straight from and to the caller's memory, or packed
 *
 * The inner net is FIFO, and an announcement tells whether a payload follows, so the receiver
 * always knows what comes next: it posts one announcement at a time. Packing and unpacking are jobs
 * of net_workers.h.
 */
#ifndef DSC_NET_WRAP_H
#define DSC_NET_WRAP_H

#include "net.h"
#include "net_codec.h"
#include "net_workers.h"

#define WRAP_INLINE_MAX 2048
#define WRAP_HEAD_BYTES 24
#define WRAP_AT_ONCE_MAX (128 << 10)
#define WRAP_FRAMES 8              /* messages of a connection that are packed at a time */
#define WRAP_PLANES_MIN (16 << 10) /* below, planes cost more than they save */

enum wrap_state {
    WRAP_PACKING,   /* sending: a job */
    WRAP_READY,     /* its announcement can go */
    WRAP_ANNOUNCED, /* sending: gone; receiving: here, and payload follows */
    WRAP_POSTED,    /* all that there is, is in the inner net's hands */
    WRAP_UNPACKING, /* receiving: a job */
    WRAP_DONE,
};

struct wrap_request {
    struct net_job job; /* first: the job is its request */
    struct wrap_comm *comm;
    enum wrap_state state;
    bool used;
    void *data, *mr, *mark;
    size_t bytes; /* of the message; receiving: its room until the announcement is here */
    size_t packed;
    enum net_codec codec;
    int frame; /* -1: none */
    int tag;
    const char *wrong;            /* what the peer's bytes are, by the job */
    void *announcement, *payload; /* requests of the inner net; NULL: none (any more) */
};

struct wrap_frame {
    uint8_t *bytes;
    size_t room;
    void *mr;
    bool used;
};

/*
 * Whether packing pays: by trial, some megabytes as they are, some packed, then the better one for
 * a while. The rates are those of the whole path, link and codec and CPUs, as they are right now.
 */
struct wrap_trial {
    int phase;        /* 0 raw, 1 packed, 2 the winner */
    uint64_t bytes;   /* of messages that were begun in this phase */
    uint64_t warm_ns; /* when the measured part began; 0: not yet */
    double rates[2];  /* bytes of messages per nanosecond */
    bool packs;
};

struct wrap_meter {
    uint64_t messages, bytes, wire_bytes;
    uint64_t busy_ns, busy_since; /* while something was in flight */
    int in_flight;
};

struct wrap_comm {
    void *inner;
    bool sends;
    bool has_workers;
    nccl_result_t failed;
    uint64_t next_seq;      /* of the next isend() or irecv() */
    uint64_t announced_seq; /* whose announcement is the next to go or to come */
    enum net_codec planes;  /* that served last; RAW: none did */
    int planes_left;        /* messages until they are looked for again */
    struct wrap_trial trial;
    struct wrap_meter meter;
    struct wrap_request requests[NCCL_REQUESTS_MAX];
    struct wrap_frame frames[WRAP_FRAMES];
    uint8_t announcements[NCCL_REQUESTS_MAX][WRAP_HEAD_BYTES + WRAP_INLINE_MAX];
    void *announcements_mr;
};

static inline struct wrap_request *wrap_request_of(struct wrap_comm *comm, uint64_t seq)
{
    return &comm->requests[seq % NCCL_REQUESTS_MAX];
}

static inline uint8_t *wrap_announcement_of(struct wrap_comm *comm, uint64_t seq)
{
    return comm->announcements[seq % NCCL_REQUESTS_MAX];
}

const struct nccl_net_v12 *wrap_inner(void);

/* ---- net_wrap_comm.c ---- */

/* Takes the inner connection over; on failure too, it is closed then. */
nccl_result_t wrap_comm_make(void *inner_comm, bool sends, void **comm_out);
nccl_result_t wrap_close(void *comm);
/* A frame with so much room; -1: all are in use, or there is no memory. */
int wrap_frame_take(struct wrap_comm *comm, size_t room);
void wrap_frame_give(struct wrap_comm *comm, struct wrap_request *request);
/* On a worker; at once where that is as short as a copy: lines of a few packets, which are waited
 * for. */
void wrap_job_start(struct wrap_request *request, void (*run)(struct net_job *job));
nccl_result_t wrap_fail(struct wrap_comm *comm, nccl_result_t result, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* net_wrap_tx.c, net_wrap_rx.c: begin a request, then whatever can be done without waiting. */
void wrap_send_begin(struct wrap_comm *comm, struct wrap_request *request);
nccl_result_t wrap_send_progress(struct wrap_comm *comm);
nccl_result_t wrap_recv_progress(struct wrap_comm *comm);

/* net_meter.c */
void wrap_meter_begin(struct wrap_meter *meter);
void wrap_meter_end(struct wrap_meter *meter, size_t bytes, size_t wire_bytes);
/* Appends a line of JSON to DSCOMM_NET_METER. */
void wrap_meter_write(const struct wrap_comm *comm);

#endif

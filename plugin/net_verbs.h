/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to plugin/net_verbs*.c. A connection is one reliable queue pair, and the socket by which
 * its sides have proved themselves.
 *
 *   receiver to sender   a credit per irecv(), in their order: where the message may be written
 *                        | sequence u32 | flags u32 | address u64 | room u64 | key u32 | read u32 |
 *   sender to receiver   the message, written there; the immediate data of its last piece is its
 *                        size. A short message is written to the next place of the receiver's inbox
 *                        instead, without a credit; `read` tells how many it has taken out.
 *                        VERBS_ASKS_FRAME: nothing is written, the message is of lines and wants a
 *                        frame. VERBS_ASKS_CREDIT: after some short messages in a row the receiver
 *                        has ceased to send credits, and this one is not short
 *   socket               each side's end of the pair, with the inbox; from the sender one byte when it can take
 *                        credits; from the receiver, when it closes, how many messages it has. Its
 *                        end is the peer's
 *
 * Lines (net_lines.h) go to the inbox or to a frame of the receiver and are published from there:
 * nothing promises that a device writes them in order into memory that somebody polls. A receiver offers frames unasked where it expects lines: NCCL marks such receives, and
 * memory that got lines once gets more. Memory of a GPU gets them directly.
 *
 * Whoever calls test() polls the device. There are no threads.
 */
#ifndef DSC_NET_VERBS_H
#define DSC_NET_VERBS_H

#include "net_kind.h"
#include "transport/verbs_qp.h"

#define VERBS_WIRE_VERSION 1u
#define VERBS_BYTES_MAX ((size_t)1 << 30) /* of a message */
#define VERBS_KINDS 0xc0000000u /* of immediate data; neither bit or the lower one: a size */
#define VERBS_ASKS_FRAME 0x80000000u
#define VERBS_SHORT 0xc0000000u
#define VERBS_ASKS_CREDIT 0xe0000000u
#define VERBS_SHORT_MAX ((size_t)1024)
#define VERBS_PLACES NCCL_REQUESTS_MAX /* of the inbox */
#define VERBS_SHORTS_IN_A_ROW 4
#define VERBS_PAGE_BYTES ((size_t)4096) /* of memory; the inbox follows */
#define VERBS_CREDIT_BYTES 32
#define VERBS_CREDIT_ORDERED 1u /* lines may be written there */
#define VERBS_CREDIT_NONE 2u    /* it only tells what was read */
#define VERBS_RECEIVES (2 * NCCL_REQUESTS_MAX)
#define VERBS_SENDS (4 * NCCL_REQUESTS_MAX)
#define VERBS_FLUSHED_AT (VERBS_RECEIVES * VERBS_CREDIT_BYTES) /* in memory, after credits */
#define VERBS_NOTE_AT (VERBS_FLUSHED_AT + VERBS_CREDIT_BYTES)
#define VERBS_FRAMES 9 /* the last one is for who asks: only the oldest message can */
#define VERBS_FRAME_UNASKED_MAX ((size_t)1 << 20)
#define VERBS_END_BYTES 56

/* Ids of requests to the device: a place in the pool, or one of these. */
#define VERBS_ID_OTHER ((uint64_t)NCCL_REQUESTS_MAX)
#define VERBS_ID_FLUSH ((uint64_t)1 << 31)
#define VERBS_ID_RECEIVE ((uint64_t)1 << 32) /* plus the place of its memory */

/* Registered memory of a device, shared by all who register it. */
struct verbs_region {
    struct verbs_region *next;
    uintptr_t begin, end;
    bool is_gpu;
    int users;
    struct ibv_mr *mr;
};

struct verbs_device {
    struct net_device base;
    const struct dsc_verbs *verbs;
    struct dsc_verbs_port port; /* without a context while there are no users */
    pthread_mutex_t lock;       /* of what follows */
    int users;
    struct ibv_pd *pd;
    struct verbs_region *regions;
    _Atomic uint64_t asked_ns; /* when the port was asked about its state */
    _Atomic bool is_down;
};

/* What reg_mr() gives out. */
struct verbs_mr {
    struct verbs_region *region;
    _Atomic int in_flight; /* requests that use it */
    _Atomic bool gets_lines;
};

struct verbs_request {
    struct verbs_comm *comm;
    struct verbs_mr *mr;
    uint8_t *data;
    size_t bytes;  /* of the message; of a receive its room until the message is there */
    size_t posted; /* sending: bytes given to the device */
    int pieces;    /* sending: given to the device, not yet complete */
    int frame;     /* receiving: -1 none */
    bool used, done;
    bool is_posted; /* sending: all of it */
    bool is_lines;  /* sending: they are; receiving: they are expected */
    bool has_asked; /* sending: for a frame */
    bool has_asked_credit;
    bool is_flush;
};

struct verbs_credit {
    uint64_t next; /* the message's number + 1; 0: there is none */
    uint64_t address, room;
    uint32_t key, flags;
};

struct verbs_frame {
    uint8_t *bytes;
    size_t room;
    struct verbs_region *region;
    bool used;
};

struct verbs_comm {
    bool sends;
    struct verbs_device *device;
    nccl_result_t failed; /* NCCL_SUCCESS: it works */
    uint64_t timeout_ns;
    uint64_t patience_ns; /* so long packets are repeated, and a port that is down is waited for */

    int fd;
    char peer[DSC_ADDR_TEXT_BYTES];
    uint8_t in[VERBS_END_BYTES]; /* from the socket, until it is whole */
    size_t n_in;
    bool is_joined;       /* the pair can be used */
    bool peer_is_ready;   /* receiving: the sender's pair, too */
    bool peer_left;       /* the socket has ended */
    uint64_t deadline_ns; /* of joining */
    uint32_t n_polls;
    uint64_t look_ns;    /* not before is the socket read again */
    uint64_t failure_ns; /* when the failure of a request is told; 0: there is none */
    enum ibv_wc_status failure;
    const char *failed_what;
    uint64_t waits_ns; /* since when a port that is down is waited for; 0: it is not */

    struct ibv_cq *cq;
    struct ibv_qp *qp; /* NULL: stopped */
    struct ibv_qp *flush_qp;
    uint32_t psn, max_inline;
    uint32_t n_sending; /* requests to the device, not complete */
    uint8_t *memory;    /* a page: credits to receive, or to send; then the inbox */
    struct ibv_mr *memory_mr;

    uint64_t inbox_address; /* sending: the receiver's; key 0: it has none */
    uint32_t inbox_key;
    uint32_t n_put, n_read, n_told; /* short messages put into the inbox, taken out, and told so */
    uint32_t n_short;               /* in a row */
    uint16_t inbox_bytes[VERBS_PLACES];

    uint64_t next_seq; /* of the next isend() or irecv() */
    uint64_t at_seq;   /* sending: the first that is not all posted; receiving: has no credit yet */
    uint64_t come_seq; /* receiving: the next message to come */
    struct verbs_request requests[NCCL_REQUESTS_MAX];
    struct verbs_credit credits[NCCL_REQUESTS_MAX]; /* sending */
    struct verbs_frame frames[VERBS_FRAMES];        /* receiving */
    struct verbs_request flushes[NCCL_REQUESTS_MAX];
};

static inline struct verbs_request *verbs_request_of(struct verbs_comm *comm, uint64_t seq)
{
    return &comm->requests[seq % NCCL_REQUESTS_MAX];
}

/* Says what went wrong, once; the connection is of no use from then on. Returns result. */
nccl_result_t verbs_fail(struct verbs_comm *comm, nccl_result_t result, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- net_verbs_device.c ---- */

/* The ports there are, once per process. *n_out 0: none, for the reason in text. */
nccl_result_t verbs_devices_find(int *n_out, char text[DSC_VERBS_TEXT_BYTES]);
struct verbs_device *verbs_device(int dev); /* NULL: no such */
int verbs_n_devices(void);
/* Opened for the first user, closed with the last. False: has said why. */
bool verbs_device_acquire(struct verbs_device *device);
void verbs_device_release(struct verbs_device *device);
/* As its port was some milliseconds ago. */
bool verbs_device_is_down(struct verbs_device *device, uint64_t now_ns);

/* ---- net_verbs_mr.c ---- */

/* NULL: has said why. fd: of a dma-buf, at offset; -1: none. */
struct verbs_region *verbs_region_take(struct verbs_device *device, void *data, size_t bytes,
                                       bool is_gpu, int fd, uint64_t offset);
void verbs_region_give(struct verbs_device *device, struct verbs_region *region);
void verbs_regions_drop(struct verbs_device *device); /* the last user is gone */

/* ---- net_verbs_pair.c ---- */

void *verbs_open_comm(int dev, bool sends, const int *fds, int n_socks);
nccl_result_t verbs_settle(void *comm, bool *done);
nccl_result_t verbs_close(void *comm);
/* The device lets go of all memory; nothing is sent or received any more. */
void verbs_stop(struct verbs_comm *comm);
/* Reads the socket, joins when the peer's end is there. */
nccl_result_t verbs_look(struct verbs_comm *comm);
/* True: there is a pair by which memory of GPUs is flushed. */
bool verbs_open_flush(struct verbs_comm *comm);

/* ---- net_verbs_queue.c: requests to the device, and their completions ---- */

/* Posts receiving request number i. */
int verbs_post_receive(struct verbs_comm *comm, uint32_t i);
/* False: the send queue is full. */
bool verbs_can_post(const struct verbs_comm *comm);
nccl_result_t verbs_post(struct verbs_comm *comm, struct ibv_send_wr *request, const void *from,
                         size_t bytes, const struct ibv_mr *mr);
/* Takes what has completed; also reads the socket from time to time. */
nccl_result_t verbs_poll(struct verbs_comm *comm);
/* Whether to post now; a port that is down is waited for, for a while. */
nccl_result_t verbs_may_post(struct verbs_comm *comm, bool *may);

/* ---- net_verbs_tx.c, net_verbs_rx.c ---- */

/* Polls, then posts what can be; _posts() and _offers() only post. */
nccl_result_t verbs_send_progress(struct verbs_comm *comm);
nccl_result_t verbs_send_posts(struct verbs_comm *comm);
nccl_result_t verbs_take_credit(struct verbs_comm *comm, const uint8_t *bytes, uint32_t n);
nccl_result_t verbs_recv_progress(struct verbs_comm *comm);
nccl_result_t verbs_recv_offers(struct verbs_comm *comm);
nccl_result_t verbs_take_arrival(struct verbs_comm *comm, uint32_t immediate);
void verbs_frames_free(struct verbs_comm *comm);

#endif

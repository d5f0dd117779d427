/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to plugin/net_tcp*.c. A connection is 1 to 16 sockets in one direction. Message number s
 * begins on socket s % n with its header; it may be cut into stripes, the j-th goes to socket
 * (s + j) % n. Both ends know the order of everything on every socket, so no stripe has a header.
 * Where messages follow each other closely they keep all sockets busy, and each goes whole: a stripe
 * costs a call, a short packet at its end and an answer to that one.
 *
 *     header: | bytes u64 | sequence u32 | flags u8 | stripes at most u8 | 0 u16 |   little endian
 *
 *     3 sockets, 2 stripes        socket 0   h0 0.0 | 2.1    | h3 3.0
 *     per message:                socket 1   0.1    | h1 1.0 | 3.1
 *                                 socket 2            1.1    | h2 2.0
 *
 * Whoever calls test() moves bytes, directly from and to the caller's memory. There are no threads.
 */
#ifndef DSC_NET_TCP_H
#define DSC_NET_TCP_H

#include "net_kind.h"

#define TCP_SOCKS_MAX NET_SOCKS_MAX
#define TCP_WIRE_VERSION 2u
#define TCP_HEADER_BYTES 16
#define TCP_STRIPE_MIN ((size_t)512 << 10) /* below, a stripe costs more than it spreads */
#define TCP_STRIPE_ALIGN 128               /* no line is cut */
#define TCP_FLAG_LINES 1u /* of the header: the content is polled, publish in order */

struct tcp_request {
    struct tcp_comm *comm;
    uint8_t *data;
    size_t bytes; /* of the message; of a receive its room until the header is there */
    size_t left;  /* bytes that have not been moved, the header's included */
    int stripes;  /* at most; of a receive when the header is there */
    bool used;
    bool started; /* receive: the header is there */
    bool ordered; /* receive: publish in order */
};

/* Where a socket is: in which message, and how much of its part of that one is done. */
struct tcp_cursor {
    uint64_t seq;
    size_t done; /* of header (if it has one) and stripe */
};

struct tcp_sock {
    int fd;
    struct tcp_cursor at;
    /* Receiving: bytes that came with others; tcp_rx.c. */
    uint8_t *buf;
    size_t begin, end;
};

struct tcp_comm {
    bool sends;
    int n_socks;
    nccl_result_t failed; /* NCCL_SUCCESS: it works */
    uint64_t next_seq;    /* of the next isend() or irecv() */
    int n_unsent;         /* sending: messages of which something is left */
    uint64_t retry_ns;    /* sending: sockets were full; not before */
    uint64_t begun_ns;    /* sending: the last message */
    struct tcp_request requests[NCCL_REQUESTS_MAX];
    struct tcp_sock socks[TCP_SOCKS_MAX];
    char peer[DSC_ADDR_TEXT_BYTES];
};

/* A part of a message on one socket. */
struct tcp_part {
    size_t header; /* TCP_HEADER_BYTES or 0 */
    size_t offset; /* of the stripe in the message */
    size_t bytes;  /* of the stripe */
};

static inline struct tcp_part tcp_part_of(const struct tcp_comm *comm, int sock, uint64_t seq,
                                          const struct tcp_request *request)
{
    const size_t n = (size_t)comm->n_socks, bytes = request->bytes;
    const size_t share = dsc_ceil_div(bytes, (size_t)request->stripes);
    const size_t unit = dsc_round_up(dsc_max_size(share, TCP_STRIPE_MIN), TCP_STRIPE_ALIGN);
    const size_t stripe = ((size_t)sock + n - (size_t)(seq % n)) % n;
    const size_t offset = dsc_min_size(stripe * unit, bytes);

    return (struct tcp_part){ .header = stripe == 0 ? TCP_HEADER_BYTES : 0,
                              .offset = offset,
                              .bytes = dsc_min_size(unit, bytes - offset) };
}

static inline struct tcp_request *tcp_request_of(struct tcp_comm *comm, uint64_t seq)
{
    return &comm->requests[seq % NCCL_REQUESTS_MAX];
}

/* Says what went wrong, once; the connection is of no use from then on. Returns result. */
nccl_result_t tcp_fail(struct tcp_comm *comm, nccl_result_t result, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A send() or recv() that gave an error, or 0 for the end of the stream. */
nccl_result_t tcp_fail_socket(struct tcp_comm *comm, ssize_t moved, int error);

/* Move what can be moved without waiting. */
nccl_result_t tcp_send_progress(struct tcp_comm *comm);
nccl_result_t tcp_recv_progress(struct tcp_comm *comm);

/* ---- net_tcp_comm.c ---- */

extern const struct net_kind net_tcp_kind; /* net_tcp.c */
/* As net_kind has it. */
void *tcp_open_comm(int dev, bool sends, const int *fds, int n_socks);
void tcp_comm_destroy(struct tcp_comm *comm); /* NULL allowed */

#endif

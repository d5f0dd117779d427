/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to tcp.c and tcp_rx.c. Message i goes over data socket i % n_socks, so each socket
 * carries its messages in ascending order and knows which one comes next without being told.
 *
 *   slot in memory    | 32 unused | header 32 | payload, to a multiple of 64 |
 *                                  ^ what is on the wire, in one piece ... ^
 *
 * A slot is ready for message `next` and no other, until that message is full (posted or received)
 * and then done (sent or released).
 */
#ifndef DSC_TCP_INTERNAL_H
#define DSC_TCP_INTERNAL_H

#include "transport/net_internal.h"

struct tcp_slot {
    uint64_t next;
    bool full;
};

struct tcp_conn;

struct tcp_link {
    struct dsc_source source;
    struct tcp_conn *tcp;
    uint64_t tx_at;  /* message to send next */
    size_t tx_done;  /* bytes of it that are sent */
    uint64_t rx_at;  /* message to receive next */
    size_t rx_got;   /* bytes of it that are here */
    size_t rx_bytes; /* its size, header included; 0: not known yet */
    size_t rx_hint;  /* payload of the last one, if small: probably of the next one too */
    uint8_t *stash;  /* [DSC_TCP_HINT_MAX] bytes that came with the message before */
    size_t stash_at, stash_end;
    bool rx_ready;    /* may read without being told by epoll */
    bool rx_muted;    /* has found nothing that it may read into */
    int broken_errno; /* 0: works; -1: ended */
    uint64_t broken_ns;
};

/* Below this a message is read in one call on the guess that it is as long as the last one. */
#define DSC_TCP_HINT_MAX 16384

struct tcp_conn {
    struct dsc_conn base;
    struct dsc_control control;
    uint32_t n_links;
    uint32_t n_unsent; /* posted, not yet all in the kernel */
    bool crc;
    size_t stride;
    uint8_t *tx_memory, *rx_memory;             /* [n_slots] of stride bytes */
    struct tcp_slot *tx_slots, *rx_slots;       /* [n_slots] */
    struct dsc_header *tx_headers, *rx_headers; /* [n_slots] */
    struct tcp_link links[DSC_NET_SOCKS_MAX];
};

static inline struct tcp_conn *dsc_tcp_of(struct dsc_conn *conn)
{
    return (struct tcp_conn *)conn; /* its first member */
}

static inline struct tcp_link *dsc_tcp_link_of(struct tcp_conn *tcp, uint64_t index)
{
    return &tcp->links[index % tcp->n_links];
}

/* Where message `index` starts as it is on the wire. */
static inline uint8_t *dsc_tcp_wire(const struct tcp_conn *tcp, uint8_t *memory, uint64_t index)
{
    return memory + (index % tcp->base.n_slots) * tcp->stride + 64 - DSC_HEADER_BYTES;
}

/* The socket gave an error (or -1 for its end): the control link will say why. */
void dsc_tcp_broken(struct tcp_link *link, int error);

/* Receives until there is nothing more or no slot to put it. */
void dsc_tcp_receive(struct tcp_link *link);
const struct dsc_header *dsc_tcp_rx_msg(struct dsc_conn *conn, uint64_t index,
                                        const uint8_t **payload_out);
void dsc_tcp_rx_release(struct dsc_conn *conn, uint64_t index);
void dsc_tcp_rx_expect(struct dsc_conn *conn, uint64_t end);

#endif

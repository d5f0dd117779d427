/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to tcp.c, tcp_tx.c and tcp_rx.c. Message i goes over data socket i % n_socks, so each
 * socket carries its messages in ascending order and knows which one comes next without being told.
 *
 *   slot in memory    | 32 unused | header 32 | payload, to a multiple of 64 |
 *                                  ^ what is on the wire, in one piece ... ^
 *
 * A slot is ready for message `next` and no other, until that message is full (posted or received)
 * and then done (sent or released). Its memory is lent to it for that time, the place that was
 * given back last: it is still in the cache, and places that are never needed cost no memory.
 */
#ifndef DSC_TCP_INTERNAL_H
#define DSC_TCP_INTERNAL_H

#include "transport/net_internal.h"

#define DSC_TCP_NO_PLACE UINT32_MAX

struct tcp_slot {
    uint64_t next;
    uint32_t place; /* of its memory, DSC_TCP_NO_PLACE until the message begins */
    bool full;
    const uint8_t *payload; /* in the memory of whoever posted it; NULL: in the place */
};

/* One direction of a connection. */
struct tcp_side {
    uint8_t *memory; /* [n_slots] places of stride bytes */
    size_t stride;
    struct tcp_slot *slots;     /* [n_slots] */
    struct dsc_header *headers; /* [n_slots] */
    uint32_t *places;           /* [n_places] that are free, the last one given next */
    uint32_t n_places, n_slots;
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
    bool rx_muted;    /* has found no slot that it may read into */
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
    struct tcp_side tx, rx;
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

static inline struct tcp_slot *dsc_tcp_slot(const struct tcp_side *side, uint64_t index)
{
    return &side->slots[index % side->n_slots];
}

/* Is message `index` waiting for the socket, wholly or in part? */
static inline bool dsc_tcp_is_posted(const struct tcp_conn *tcp, uint64_t index)
{
    const struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);

    return slot->next == index && slot->full;
}

static inline struct dsc_header *dsc_tcp_header(const struct tcp_side *side, uint64_t index)
{
    return &side->headers[index % side->n_slots];
}

/* Gives the slot memory, unless it has some. */
static inline void dsc_tcp_lend(struct tcp_side *side, struct tcp_slot *slot)
{
    if (slot->place == DSC_TCP_NO_PLACE)
        slot->place = side->places[--side->n_places];
}

/* The slot's message is done: takes the memory back, the slot waits for its next message. */
static inline void dsc_tcp_finish(struct tcp_side *side, struct tcp_slot *slot)
{
    side->places[side->n_places++] = slot->place;
    *slot = (struct tcp_slot){ .next = slot->next + side->n_slots, .place = DSC_TCP_NO_PLACE };
}

/* Where message `index`, which has memory, starts as it is on the wire. */
static inline uint8_t *dsc_tcp_wire(const struct tcp_side *side, uint64_t index)
{
    return side->memory + dsc_tcp_slot(side, index)->place * side->stride + 64 - DSC_HEADER_BYTES;
}

/* The socket gave an error (or -1 for its end): the control link will say why. */
void dsc_tcp_broken(struct tcp_link *link, int error);

/* As dsc_source_want(), for a data socket. */
void dsc_tcp_want(struct tcp_link *link, uint32_t events);

/* Sends what is posted until the socket is full. */
void dsc_tcp_send(struct tcp_link *link);
uint8_t *dsc_tcp_tx_slot(struct dsc_conn *conn, uint64_t index);
void dsc_tcp_tx_post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header);
void dsc_tcp_tx_post_from(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                          const uint8_t *payload);
void dsc_tcp_settle(struct dsc_conn *conn);

/* Receives until there is nothing more or no slot to put it. `told`: epoll says there is. */
void dsc_tcp_receive(struct tcp_link *link, bool told);
const struct dsc_header *dsc_tcp_rx_msg(struct dsc_conn *conn, uint64_t index,
                                        const uint8_t **payload_out);
void dsc_tcp_rx_release(struct dsc_conn *conn, uint64_t index);
void dsc_tcp_rx_expect(struct dsc_conn *conn, uint64_t end);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. Messages through memory that two ranks share, and the bell that wakes
 * the one who sleeps. No locks: a slot's stamp says whose it is.
 *
 *   one direction   | slot 0 | slot 1 | ... | slot n_slots - 1 |        message i: slot i % n_slots
 *   slot            | stamp 8 | not before 8 | - 16 | header 32 | payload, to a multiple of 64 |
 *
 *   stamp == 2 * i        free for message i: the sender's
 *   stamp == 2 * i + 1    full with message i: the receiver's, until it stores 2 * (i + n_slots)
 *
 * Each side keeps its own view (sizes, addresses), so nothing that the other side may write is ever
 * used as a length or an offset.
 */
#ifndef DSC_RING_H
#define DSC_RING_H

#include "transport/transport.h"

#define DSC_RING_SLOT_OVERHEAD 64

struct dsc_ring {
    uint8_t *base; /* 64-byte aligned; borrowed */
    size_t slot_bytes;
    size_t stride;
    uint32_t n_slots;
};

/* Memory of one direction. */
size_t dsc_ring_bytes(uint32_t n_slots, size_t slot_bytes);
/* A view of memory that dsc_ring_format() was or will be called on, once for both sides. */
void dsc_ring_init(struct dsc_ring *ring, void *memory, uint32_t n_slots, size_t slot_bytes);
/* Makes all slots free, the first message is number 0. */
void dsc_ring_format(const struct dsc_ring *ring);

/* Sender. Payload memory of message `index`, NULL while the slot is taken. */
uint8_t *dsc_ring_tx_slot(const struct dsc_ring *ring, uint64_t index);
/* The same without a look at the stamp. */
uint8_t *dsc_ring_payload(const struct dsc_ring *ring, uint64_t index);
/* not_before_ns: dsc_now_ns() before which the message is not shown; 0: at once. */
void dsc_ring_post(const struct dsc_ring *ring, uint64_t index, const struct dsc_header *header,
                   uint64_t not_before_ns);

/* Receiver. Payload of message `index` and a private copy of its header, NULL until it is there. */
const uint8_t *dsc_ring_rx_msg(const struct dsc_ring *ring, uint64_t index,
                               struct dsc_header *header_out);
void dsc_ring_release(const struct dsc_ring *ring, uint64_t index);
/* Is a slot still waiting for a message below `end`? */
bool dsc_ring_lacks(const struct dsc_ring *ring, uint64_t end);

/* ---- bell: counts events for one waiter ---- */

enum dsc_bell_state { DSC_BELL_AWAKE = 0, DSC_BELL_FUTEX = 1, DSC_BELL_EPOLL = 2 };

struct dsc_bell {
    _Atomic uint32_t word;     /* events so far; the futex */
    _Atomic uint32_t sleeping; /* enum dsc_bell_state, and above it the count that was slept on */
    uint8_t pad[56];           /* a cache line of its own */
};
_Static_assert(sizeof(struct dsc_bell) == 64, "a bell is a cache line");

/* True: the waiter sleeps in epoll, where only a descriptor wakes it; the caller sees to that. */
bool dsc_bell_ring(struct dsc_bell *bell);
/* The two halves of dsc_bell_ring(): counts, and wakes who slept on the count `before`. Anything may
 * happen between them: the waiter may have seen the count by itself and sleep again, on a later one.
 */
uint32_t dsc_bell_count_one(struct dsc_bell *bell);
bool dsc_bell_wake(struct dsc_bell *bell, uint32_t before);
/* Says how the waiter will sleep. False: something happened since the count was `seen`. */
bool dsc_bell_arm(struct dsc_bell *bell, enum dsc_bell_state how, uint32_t seen);
void dsc_bell_disarm(struct dsc_bell *bell);
uint32_t dsc_bell_count(const struct dsc_bell *bell);

#endif

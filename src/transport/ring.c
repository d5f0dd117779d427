/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of slots and the bell. The release store of a stamp publishes what it guards, the
 * acquire load on the other side sees it; slots do not depend on each other, so posts and releases
 * may be out of order inside the window.
 */
#include "transport/ring.h"

#include <string.h>

#include "transport/header.h"

struct slot {
    _Atomic uint64_t stamp;
    uint64_t not_before_ns;
    uint8_t pad[16];
    uint8_t header[DSC_HEADER_BYTES];
};
_Static_assert(sizeof(struct slot) == DSC_RING_SLOT_OVERHEAD, "payload starts 64-byte aligned");

static struct slot *slot_of(const struct dsc_ring *ring, uint64_t index)
{
    return (struct slot *)(void *)(ring->base + (index % ring->n_slots) * ring->stride);
}

static uint8_t *payload_of(struct slot *slot)
{
    return (uint8_t *)slot + sizeof(*slot);
}

static uint64_t stamp_free(uint64_t index)
{
    return 2 * index;
}

static uint64_t stamp_full(uint64_t index)
{
    return 2 * index + 1;
}

size_t dsc_ring_bytes(uint32_t n_slots, size_t slot_bytes)
{
    return n_slots * (DSC_RING_SLOT_OVERHEAD + dsc_round_up(slot_bytes, 64));
}

void dsc_ring_init(struct dsc_ring *ring, void *memory, uint32_t n_slots, size_t slot_bytes)
{
    *ring = (struct dsc_ring){
        .base = memory,
        .slot_bytes = slot_bytes,
        .stride = DSC_RING_SLOT_OVERHEAD + dsc_round_up(slot_bytes, 64),
        .n_slots = n_slots,
    };
}

void dsc_ring_format(const struct dsc_ring *ring)
{
    for (uint32_t i = 0; i < ring->n_slots; i++)
        atomic_store_explicit(&slot_of(ring, i)->stamp, stamp_free(i), memory_order_release);
}

uint8_t *dsc_ring_tx_slot(const struct dsc_ring *ring, uint64_t index)
{
    struct slot *const slot = slot_of(ring, index);

    if (atomic_load_explicit(&slot->stamp, memory_order_acquire) != stamp_free(index))
        return NULL;
    return payload_of(slot);
}

uint8_t *dsc_ring_payload(const struct dsc_ring *ring, uint64_t index)
{
    return payload_of(slot_of(ring, index));
}

void dsc_ring_post(const struct dsc_ring *ring, uint64_t index, const struct dsc_header *header,
                   uint64_t not_before_ns)
{
    struct slot *const slot = slot_of(ring, index);

    slot->not_before_ns = not_before_ns;
    dsc_header_encode(header, slot->header);
    atomic_store_explicit(&slot->stamp, stamp_full(index), memory_order_release);
}

const uint8_t *dsc_ring_rx_msg(const struct dsc_ring *ring, uint64_t index,
                               struct dsc_header *header_out)
{
    struct slot *const slot = slot_of(ring, index);

    if (atomic_load_explicit(&slot->stamp, memory_order_acquire) != stamp_full(index))
        return NULL;
    if (slot->not_before_ns != 0 && dsc_now_ns() < slot->not_before_ns)
        return NULL;
    dsc_header_decode(slot->header, header_out);
    return payload_of(slot);
}

void dsc_ring_release(const struct dsc_ring *ring, uint64_t index)
{
    atomic_store_explicit(&slot_of(ring, index)->stamp, stamp_free(index + ring->n_slots),
                          memory_order_release);
}

bool dsc_ring_lacks(const struct dsc_ring *ring, uint64_t end)
{
    for (uint32_t i = 0; i < ring->n_slots; i++) {
        const uint64_t stamp = atomic_load_explicit(&slot_of(ring, i)->stamp, memory_order_acquire);

        if (stamp % 2 == 0 && stamp < stamp_free(end))
            return true;
    }
    return false;
}

/*
 * Ringing counts first and looks at `sleeping` second; arming says `sleeping` first and looks at
 * the count second. In the one order of sequentially consistent operations one of the two sees the
 * other.
 */
#define STATE_BITS 2
#define STATE_MASK 3u

/* A ring answers only for the sleep that it ended, so `sleeping` is the waiter's alone to write: a
 * ringer that took it back late would take the mark of the next sleep, which nobody would end.
 */
static uint32_t sleep_mark(uint32_t how, uint32_t seen)
{
    return how | seen << STATE_BITS;
}

uint32_t dsc_bell_count_one(struct dsc_bell *bell)
{
    return atomic_fetch_add(&bell->word, 1);
}

bool dsc_bell_wake(struct dsc_bell *bell, uint32_t before)
{
    const uint32_t mark = atomic_load(&bell->sleeping);
    const uint32_t how = mark & STATE_MASK;

    if (how == DSC_BELL_AWAKE || mark != sleep_mark(how, before))
        return false;
    if (how == DSC_BELL_FUTEX)
        dsc_futex_wake(&bell->word, 1);
    return how == DSC_BELL_EPOLL;
}

bool dsc_bell_ring(struct dsc_bell *bell)
{
    return dsc_bell_wake(bell, dsc_bell_count_one(bell));
}

bool dsc_bell_arm(struct dsc_bell *bell, enum dsc_bell_state how, uint32_t seen)
{
    atomic_store(&bell->sleeping, sleep_mark((uint32_t)how, seen));
    return atomic_load(&bell->word) == seen;
}

void dsc_bell_disarm(struct dsc_bell *bell)
{
    atomic_store_explicit(&bell->sleeping, DSC_BELL_AWAKE, memory_order_relaxed);
}

uint32_t dsc_bell_count(const struct dsc_bell *bell)
{
    return atomic_load_explicit(&bell->word, memory_order_acquire);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Somebody waits" lives in the same word as the turn, so that ending a turn is one exchange and
 * touches nothing afterwards: whoever waited may already be freeing the communicator.
 */
#include "comm/turns.h"

#define WAITED 0x80000000u
#define TICKETS 0x7fffffffu
#define SLEEP_NS 1000000000u

uint32_t dsc_turns_take(struct dsc_turns *turns)
{
    return atomic_fetch_add(&turns->next, 1) & TICKETS;
}

void dsc_turns_wait(struct dsc_turns *turns, uint32_t ticket)
{
    uint32_t now = atomic_load(&turns->serving);

    while ((now & TICKETS) != ticket) {
        if ((now & WAITED) != 0 ||
            atomic_compare_exchange_strong(&turns->serving, &now, now | WAITED))
            dsc_futex_wait(&turns->serving, now | WAITED, SLEEP_NS);
        now = atomic_load(&turns->serving);
    }
}

bool dsc_turns_try(struct dsc_turns *turns, uint32_t *ticket_out)
{
    uint32_t next = atomic_load(&turns->next);

    if ((atomic_load(&turns->serving) & TICKETS) != (next & TICKETS))
        return false;
    *ticket_out = next & TICKETS;
    return atomic_compare_exchange_strong(&turns->next, &next, next + 1);
}

void dsc_turns_end(struct dsc_turns *turns, uint32_t ticket)
{
    _Atomic uint32_t *const word = &turns->serving;

    if (atomic_exchange(word, (ticket + 1) & TICKETS) & WAITED)
        dsc_futex_wake(word, INT32_MAX); /* by address, the memory is not read */
}

void dsc_turns_drain(struct dsc_turns *turns)
{
    dsc_turns_wait(turns, atomic_load(&turns->next) & TICKETS);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of calls on a communicator: each takes a ticket when it is issued and runs when the
 * ticket's turn comes. Private to src/comm.
 */
#ifndef DSC_TURNS_H
#define DSC_TURNS_H

#include "core/core.h"

struct dsc_turns {
    _Atomic uint32_t next;    /* ticket of the next call to be issued; 31 bits count */
    _Atomic uint32_t serving; /* ticket whose turn it is, and whether somebody sleeps for another */
};

uint32_t dsc_turns_take(struct dsc_turns *turns);
void dsc_turns_wait(struct dsc_turns *turns, uint32_t ticket);
/* Takes a ticket whose turn it is at once; false if a call runs or is queued. */
bool dsc_turns_try(struct dsc_turns *turns, uint32_t *ticket_out);
/* The ticket's call is over. The last access to the memory: the next in line may free it. */
void dsc_turns_end(struct dsc_turns *turns, uint32_t ticket);
/* Waits until everything issued so far is over. */
void dsc_turns_drain(struct dsc_turns *turns);

#endif

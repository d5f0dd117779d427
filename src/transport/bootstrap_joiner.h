/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to a rank's side of the rendezvous: one that is on its way into a communicator.
 */
#ifndef DSC_BOOTSTRAP_JOINER_H
#define DSC_BOOTSTRAP_JOINER_H

#include "transport/bootstrap_internal.h"

struct dsc_joiner {
    const struct dsc_bootstrap_params *params;
    const struct dsc_env *env;
    union dsc_addr root;
    bool is_rank0s; /* the service is another process's: rank 0's */
    char root_text[DSC_ADDR_TEXT_BYTES];
    uint8_t key[DSC_SECRET_BYTES];
    uint64_t deadline_ns;
    int fd;            /* to the service, -1: none */
    char trouble[256]; /* of the last attempt */
};

/* ---- bootstrap_reach.c ---- */

/* Leaves a proved connection in j->fd. */
dscomm_status_t dsc_joiner_reach(struct dsc_joiner *j);
/* Moves all n bytes over it: DSCOMM_ERR_TIMEOUT or DSCOMM_ERR_PEER_LOST, without text. */
dscomm_status_t dsc_joiner_move(struct dsc_joiner *j, bool sending, void *buf, size_t n);

/* ---- bootstrap_meet.c ---- */

/* Reaches the service, tells it who this rank is, and fills boot's listener, job and table. */
dscomm_status_t dsc_joiner_meet(struct dsc_joiner *j, struct dsc_bootstrap *boot);

#endif

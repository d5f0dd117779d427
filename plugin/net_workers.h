/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that pack and unpack, so that NCCL's progress thread, which serves all channels, does
 * not. They exist while somebody has asked for them, and are joined when the last one lets go: the
 * library may be unloaded right after.
 */
#ifndef DSC_NET_WORKERS_H
#define DSC_NET_WORKERS_H

#include <stdatomic.h>
#include <stdbool.h>

struct net_job {
    void (*run)(struct net_job *job);
    struct net_job *next;
    _Atomic bool is_done; /* all that run() wrote is visible */
};

/* False: there are no threads to be had. */
bool net_workers_acquire(int n_threads);
void net_workers_release(void);
void net_workers_submit(struct net_job *job);

#endif

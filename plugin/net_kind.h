/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to plugin/. Connections of every kind of network begin with TCP sockets, which prove the
 * key; what is done with them is the kind's.
 */
#ifndef DSC_NET_KIND_H
#define DSC_NET_KIND_H

#include "net.h"
#include "transport/handshake.h"

#define NET_SOCKS_MAX 16

struct net_kind {
    const char *name;
    uint32_t id;                                 /* in handles */
    uint32_t version;                            /* of what peers say to each other */
    const struct net_device *(*device)(int dev); /* NULL: no such */
    int (*n_devices)(void);
    int (*n_socks)(const struct dsc_env *env); /* that the connecting side opens */
    /* Takes the sockets over, or returns NULL and has said why. */
    void *(*open_comm)(int dev, bool sends, const int *fds, int n_socks);
    /* What the sides still have to tell each other; NULL: nothing. Never waits. */
    nccl_result_t (*settle)(void *comm, bool *done);
    nccl_result_t (*close)(void *comm);
};

/* As NCCL's functions of these names. */
nccl_result_t net_listen(const struct net_kind *kind, void *ctx, int dev, void *handle,
                         void **listen_comm);
nccl_result_t net_connect(const struct net_kind *kind, void *ctx, int dev, void *handle,
                          void **send_comm);
nccl_result_t net_accept(void *listen_comm, void **recv_comm, struct nccl_device_handle **device);
nccl_result_t net_close_listen(void *listen_comm);
/* Drops connections that were begun and never finished: NCCL has no call to say so. */
void net_connect_abandon_all(void);

#endif

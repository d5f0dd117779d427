/* SPDX-License-Identifier: Apache-2.0 */
/* A connection that has come about: its memory. */
#include <unistd.h>

#include "net_tcp.h"
#include "net_tcp_rx.h"

void *tcp_open_comm(int dev, bool sends, const int *fds, int n_socks)
{
    struct tcp_comm *const comm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*comm));

    (void)dev;
    if (comm == NULL)
        return NULL;
    comm->sends = sends;
    for (int i = 0; i < n_socks && !sends; i++) {
        comm->socks[i].buf = dsc_calloc(DSC_MEM_TRANSPORT, 1, RX_BUF_BYTES);
        if (comm->socks[i].buf == NULL) {
            tcp_comm_destroy(comm);
            return NULL;
        }
    }
    comm->n_socks = n_socks;
    for (int i = 0; i < n_socks; i++)
        comm->socks[i].fd = fds[i];
    dsc_addr_of_peer(fds[0], comm->peer);
    return comm;
}

void tcp_comm_destroy(struct tcp_comm *comm)
{
    if (comm == NULL)
        return;
    for (int i = 0; i < comm->n_socks; i++)
        close(comm->socks[i].fd);
    for (int i = 0; i < TCP_SOCKS_MAX; i++)
        dsc_free(comm->socks[i].buf);
    dsc_free(comm);
}

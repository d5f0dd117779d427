/* SPDX-License-Identifier: Apache-2.0 */
/* A connection that has come about: its sockets' options and its memory. */
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_tcp_meet.h"
#include "net_tcp_rx.h"

static void set_options(int fd, uint64_t timeout_ms, int traffic_class)
{
    const int one = 1, idle_s = 30, interval_s = 10;
    const unsigned user_ms = (unsigned)dsc_min_u64(timeout_ms, 3600000);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
    if (traffic_class != NCCL_UNDEFINED) {
        setsockopt(fd, IPPROTO_IP, IP_TOS, &traffic_class, sizeof(traffic_class));
        setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &traffic_class, sizeof(traffic_class));
    }
}

struct tcp_comm *tcp_comm_create(bool sends, const int *fds, int n_socks)
{
    struct tcp_comm *const comm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*comm));

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

struct tcp_comm *tcp_comm_make(bool sends, struct dsc_handshake **socks, int n, int traffic_class,
                               uint64_t timeout_ms)
{
    int fds[TCP_SOCKS_MAX] = { 0 };
    struct tcp_comm *comm;

    for (int i = 0; i < n; i++) {
        fds[i] = dsc_handshake_take_fd(socks[i]);
        set_options(fds[i], timeout_ms, traffic_class);
        dsc_handshake_destroy(socks[i]);
        socks[i] = NULL;
    }
    comm = tcp_comm_create(sends, fds, n);
    for (int i = 0; i < n && comm == NULL; i++)
        close(fds[i]);
    return comm;
}

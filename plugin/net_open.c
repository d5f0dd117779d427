/* SPDX-License-Identifier: Apache-2.0 */
/* From sockets that have proved the key to a connection of their kind. */
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_meet.h"

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

void *net_open_comm(const struct net_kind *kind, int dev, bool sends, struct dsc_handshake **socks,
                    int n, int traffic_class, uint64_t timeout_ms)
{
    int fds[NET_SOCKS_MAX] = { 0 };
    void *comm;

    for (int i = 0; i < n; i++) {
        fds[i] = dsc_handshake_take_fd(socks[i]);
        set_options(fds[i], timeout_ms, traffic_class);
        dsc_handshake_destroy(socks[i]);
        socks[i] = NULL;
    }
    comm = kind->open_comm(dev, sends, fds, n);
    for (int i = 0; i < n && comm == NULL; i++)
        close(fds[i]);
    return comm;
}

nccl_result_t net_settle(const struct net_kind *kind, void **comm, void **comm_out)
{
    bool done = true;
    const nccl_result_t result =
        kind->settle != NULL ? kind->settle(*comm, &done) : (nccl_result_t)NCCL_SUCCESS;

    if (result == NCCL_SUCCESS && !done)
        return result;
    if (result == NCCL_SUCCESS)
        *comm_out = *comm;
    else
        (void)kind->close(*comm);
    *comm = NULL;
    return result;
}

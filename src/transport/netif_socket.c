/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of TCP, and why one could not be opened: a process that is out of descriptors is told the
 * limit to raise.
 */
#include "transport/netif.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

dscomm_status_t dsc_fail_open(const char *what)
{
    struct rlimit limit = { 0, 0 };

    if (errno != EMFILE)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "%s", what);
    getrlimit(RLIMIT_NOFILE, &limit);
    return dsc_fail(DSCOMM_ERR_LIMIT,
                    "%s: all %llu descriptors that this process may open are in use; raise "
                    "RLIMIT_NOFILE (ulimit -n)",
                    what, (unsigned long long)limit.rlim_cur);
}

dscomm_status_t dsc_socket_create(int family, int *fd_out)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return dsc_fail_open("cannot open a socket");
    *fd_out = fd;
    return DSCOMM_OK;
}

dscomm_status_t dsc_netif_listen(union dsc_addr *addr, int *fd_out)
{
    union dsc_addr bound = { 0 };
    socklen_t len = sizeof(bound);
    char text[DSC_ADDR_TEXT_BYTES];
    const int one = 1;
    dscomm_status_t st;
    int fd = -1;

    dsc_addr_text(addr, text);
    DSC_TRY(dsc_socket_create(addr->any.sa_family, &fd));
    /* A port in TIME_WAIT after the last job is free; one that somebody listens on is still not. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (addr->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, &addr->any, dsc_addr_len(addr)) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, &bound.any, &len) == 0) {
        *addr = bound;
        *fd_out = fd;
        return DSCOMM_OK;
    }

    if (errno == EADDRINUSE)
        st = dsc_fail(DSCOMM_ERR_SYSTEM, "port %u is in use (address %s); is another job on it?",
                      dsc_addr_port(addr), text);
    else
        st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot listen at %s", text);
    close(fd);
    return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of TCP: their congestion control, and why one could not be opened: a process that is out
 * of descriptors is told the limit to raise.
 */
#include "transport/netif.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
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

/* ---- congestion control ---- */

#define NAME_BYTES 16 /* of the kernel's names, TCP_CA_NAME_MAX */

static bool take(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

/*
 * BBR sends at the rate that it has measured. A call's messages come in bursts, and the last bytes
 * of one are acknowledged late: it takes that for a slow link and spreads the next burst over tens
 * of milliseconds. Other algorithms send what the window admits.
 */
static void avoid_bbr(int fd)
{
    static atomic_bool is_said;
    char name[NAME_BYTES + 1] = "";
    socklen_t len = NAME_BYTES;
    const char *instead = "cubic";

    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) != 0 ||
        strncmp(name, "bbr", 3) != 0)
        return;
    if (!take(fd, instead)) /* without privileges only what the system allows */
        instead = take(fd, "reno") ? "reno" : name;
    if (!atomic_exchange(&is_said, true))
        dsc_log_info(NET,
                     "TCP connections have congestion control %s, the system's is %s "
                     "(DSCOMM_SOCKET_CONGESTION=system keeps it)",
                     instead, name);
}

static dscomm_status_t fail_congestion(const char *wanted)
{
    char known[256] = "unknown";
    const int error = errno;
    FILE *const file = fopen("/proc/sys/net/ipv4/tcp_available_congestion_control", "re");

    if (file != NULL) {
        if (fgets(known, sizeof(known), file) != NULL)
            known[strcspn(known, "\n")] = '\0';
        fclose(file);
    }
    return dsc_fail(DSCOMM_ERR_ENV,
                    "DSCOMM_SOCKET_CONGESTION is \"%s\", which the kernel refuses (%s); it must be "
                    "auto, system, or of what this kernel has: %s",
                    wanted, strerror(error), known);
}

dscomm_status_t dsc_socket_congestion(int fd, const char *wanted)
{
    if (strcmp(wanted, "auto") == 0)
        avoid_bbr(fd);
    else if (strcmp(wanted, "system") != 0 && !take(fd, wanted))
        return fail_congestion(wanted);
    return DSCOMM_OK;
}

/* ---- sockets ---- */

dscomm_status_t dsc_socket_create(int family, int *fd_out)
{
    const struct dsc_env *env;
    dscomm_status_t st;
    int fd;

    DSC_TRY(dsc_env_get(&env));
    fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return dsc_fail_open("cannot open a socket");
    st = dsc_socket_congestion(fd, env->socket_congestion);
    if (st != DSCOMM_OK) {
        close(fd);
        return st;
    }
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

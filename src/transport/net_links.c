/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets on their way to being believed: the listener, outgoing connects and a handshake for each.
 * They are in the epoll set only while connections are being made. One whose peer is proved but not
 * called for yet (its plan may be ahead of ours) stays, unwatched, until it is.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/netif.h"

/* A rank answers at once; whoever needs longer is not one. */
#define STRANGER_NS 5000000000u
/* Beyond as many as the ranks themselves may open at once, the oldest makes room. */
#define STRANGERS_MAX 64u

/* Events 0 takes the socket out of the set: a muted one would still report its end, again and
 * again. */
static void watch_link(struct dsc_link *link, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = &link->source };
    const int fd = dsc_handshake_fd(link->hs);

    if (link->source.events == events)
        return;
    if (events == 0)
        (void)epoll_ctl(link->net->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    else
        (void)epoll_ctl(link->net->epoll_fd,
                        link->source.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
    link->source.events = events;
}

static uint32_t wanted_events(const struct dsc_link *link)
{
    const short events = dsc_handshake_events(link->hs);

    return (events & POLLIN ? EPOLLIN : 0u) | (events & POLLOUT ? EPOLLOUT : 0u);
}

void dsc_link_end(struct dsc_link *link)
{
    watch_link(link, 0);
    link->is_dead = true;
}

static void failed(struct dsc_link *link, dscomm_status_t status)
{
    struct dsc_net *const net = link->net;
    const char *const why = dsc_handshake_error(link->hs);

    dsc_link_end(link);
    if (link->peer >= 0) {
        char peer[DSC_PEER_TEXT_BYTES];

        dsc_net_set_error(net, status, link->peer, "no connection with %s: %s",
                          dsc_net_peer_text(net, link->peer, net->transport, peer), why);
        return;
    }
    if (status == DSCOMM_ERR_PEER_LOST) { /* maybe a peer whose look at this rank is over */
        dsc_log_debug(NET, "dropped a connection: %s", why);
        return;
    }
    if (!net->warned_stranger)
        dsc_log_warn(NET, "dropped a connection: %s (said once)", why);
    net->warned_stranger = true;
}

static void refuse(struct dsc_link *link, const char *why)
{
    if (!link->net->warned_stranger)
        dsc_log_warn(NET, "dropped a connection that proved its key: %s (said once)", why);
    link->net->warned_stranger = true;
    dsc_link_end(link);
}

/* Who it is is known now; the answer waits until dsc_net_connect() is asked for this peer. */
static void proved(struct dsc_link *link)
{
    const struct dsc_hello *const hello = dsc_handshake_peer(link->hs);
    const char *const why = dsc_setup_check_hello(link->net, hello);

    if (why != NULL) {
        refuse(link, why);
        return;
    }
    link->peer = hello->rank;
    link->index = hello->index;
    if (link->net->n_reports > 0)
        dsc_link_reply_error(link);
    else if (link->index == DSC_LINK_WATCH && link->net->peers[link->peer].conn != NULL)
        dsc_link_end(link); /* came late */
}

static void step(struct dsc_link *link)
{
    const dscomm_status_t st = dsc_handshake_step(link->hs);

    if (st < 0) {
        failed(link, st);
        return;
    }
    if (st == DSCOMM_OK) {
        watch_link(link, 0);
        dsc_setup_link_done(link);
        link->is_dead = true;
        return;
    }
    watch_link(link, wanted_events(link));
    if (link->peer < 0 && dsc_handshake_wants_reply(link->hs))
        proved(link);
}

void dsc_link_reply(struct dsc_link *link, const struct dsc_hello *mine)
{
    dsc_handshake_reply(link->hs, mine);
    step(link);
}

/* True: the socket never connected, for a reason that is gone once it has been read. */
static bool connect_failed(struct dsc_link *link)
{
    struct dsc_net *const net = link->net;
    char peer[DSC_PEER_TEXT_BYTES];
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(dsc_handshake_fd(link->hs), SOL_SOCKET, SO_ERROR, &error, &len) < 0 ||
        error == 0)
        return false;
    dsc_link_end(link);
    dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, link->peer, "no connection with %s: %s",
                      dsc_net_peer_text(net, link->peer, net->transport, peer), strerror(error));
    return true;
}

static void on_link(struct dsc_source *source, uint32_t events)
{
    struct dsc_link *const link = (struct dsc_link *)source; /* its first member */

    if (link->is_dead || (!link->acceptor && (events & EPOLLERR) != 0 && connect_failed(link)))
        return;
    step(link);
}

static dscomm_status_t add_link(struct dsc_net *net, int fd, bool acceptor,
                                const struct dsc_hello *hello, uint64_t deadline_ns,
                                struct dsc_link **link_out)
{
    struct dsc_link *const link = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*link));

    if (link == NULL) {
        close(fd);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a link");
    }
    const dscomm_status_t st =
        dsc_handshake_create(fd, acceptor, net->key, hello, deadline_ns, &link->hs);

    if (st < 0) {
        close(fd);
        dsc_free(link);
        return st;
    }
    link->source.on_event = on_link;
    link->source.fd = fd;
    dsc_held_add(&link->source.held, &link->source.fd);
    link->net = net;
    link->peer = -1;
    link->acceptor = acceptor;
    link->drop_ns = dsc_now_ns() + STRANGER_NS;
    link->next = net->links;
    net->links = link;
    *link_out = link;
    return DSCOMM_OK;
}

/* Sockets of all connections of this endpoint. */
static unsigned n_socks_of_ranks(const struct dsc_net *net)
{
    return (unsigned)(net->n_ranks - 1) * (1 + net->params.n_socks);
}

/* With some for the program. */
static unsigned descriptors_needed(const struct dsc_net *net)
{
    return n_socks_of_ranks(net) + 16;
}

/* Links are listed newest first. NULL: no strangers. */
static struct dsc_link *oldest_stranger(const struct dsc_net *net, unsigned *n_out)
{
    struct dsc_link *oldest = NULL;

    *n_out = 0;
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->acceptor && link->peer < 0 && !link->is_dead) {
            oldest = link;
            ++*n_out;
        }
    return oldest;
}

/* False: it had no descriptor any more. */
static bool close_dead(struct dsc_link *link)
{
    if (dsc_handshake_take_fd(link->hs) < 0)
        return false;
    dsc_held_close(&link->source.held);
    return true;
}

/* Gives descriptors back at once, those of links that have ended first. False: nobody had one. */
static bool drop_oldest_stranger(struct dsc_net *net)
{
    bool closed = false;
    unsigned n;

    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->is_dead && close_dead(link))
            closed = true;
    if (closed)
        return true;
    for (;;) {
        struct dsc_link *const link = oldest_stranger(net, &n);

        if (link == NULL)
            return false;
        step(link); /* a rank's proof may have arrived since */
        if (link->is_dead && close_dead(link))
            return true;
        if (link->is_dead || link->peer >= 0)
            continue;
        if (!net->warned_stranger)
            dsc_log_warn(NET, "dropped the oldest of %u connections that said nothing (said once)",
                         n);
        net->warned_stranger = true;
        dsc_link_end(link);
        return close_dead(link);
    }
}

static void accept_failed(struct dsc_net *net, int error)
{
    struct rlimit limit = { 0 };

    if (error == EMFILE || error == ENFILE) {
        (void)getrlimit(RLIMIT_NOFILE, &limit);
        dsc_net_set_error(net, DSCOMM_ERR_LIMIT, net->rank,
                          "no descriptor for a connection: RLIMIT_NOFILE is %llu, rank %d needs %u",
                          (unsigned long long)limit.rlim_cur, net->rank, descriptors_needed(net));
    } else if (error == ENOMEM || error == ENOBUFS) {
        dsc_net_set_error(net, DSCOMM_ERR_SYSTEM, net->rank, "accept: %s", strerror(error));
    }
    /* Everything else is about one connection that went away before it was accepted. */
}

void dsc_net_on_listener(struct dsc_source *source, uint32_t events)
{
    struct dsc_net *const net =
        (struct dsc_net *)(void *)((char *)source - offsetof(struct dsc_net, listener));

    (void)events;
    for (int i = 0; i < 64; i++) {
        struct dsc_link *link;
        unsigned n_strangers;
        const int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0 && errno == EINTR)
            continue;
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            const int error = errno;

            if (drop_oldest_stranger(net))
                continue;
            accept_failed(net, error);
            return;
        }
        if (fd < 0) {
            accept_failed(net, errno);
            return;
        }
        const dscomm_status_t st = add_link(net, fd, true, NULL, UINT64_MAX, &link);

        if (st < 0) {
            dsc_net_set_error(net, st, net->rank, "cannot accept a connection");
            return;
        }
        step(link);
        while (oldest_stranger(net, &n_strangers) != NULL &&
               n_strangers > STRANGERS_MAX + n_socks_of_ranks(net) && drop_oldest_stranger(net))
            continue;
    }
}

dscomm_status_t dsc_net_open_link(struct dsc_net *net, int peer, uint32_t index,
                                  const struct dsc_hello *hello, uint64_t deadline_ns)
{
    union dsc_addr addr;
    struct dsc_link *link;
    int fd;

    memcpy(addr.bytes, net->infos[peer].addr, sizeof(addr.bytes));
    dscomm_status_t st = dsc_socket_create(addr.any.sa_family, &fd);

    while (st == DSCOMM_ERR_LIMIT && drop_oldest_stranger(net))
        st = dsc_socket_create(addr.any.sa_family, &fd);
    if (st == DSCOMM_ERR_LIMIT) {
        accept_failed(net, EMFILE);
        return net->error;
    }
    DSC_TRY(st);
    if (connect(fd, &addr.any, dsc_addr_len(&addr)) < 0 && errno != EINPROGRESS) {
        char text[DSC_PEER_TEXT_BYTES];
        const int error = errno;

        close(fd);
        dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, peer, "cannot connect to %s: %s",
                          dsc_net_peer_text(net, peer, hello->transport, text), strerror(error));
        return net->error;
    }
    DSC_TRY(add_link(net, fd, false, hello, deadline_ns, &link));
    link->peer = peer;
    link->index = index;
    watch_link(link, wanted_events(link));
    return DSCOMM_OK;
}

void dsc_net_watch_links(struct dsc_net *net, bool watch)
{
    dsc_source_want(net, &net->listener, watch ? EPOLLIN : 0);
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        watch_link(link, watch && !link->is_dead ? wanted_events(link) : 0);
}

void dsc_net_reap_links(struct dsc_net *net)
{
    const uint64_t now_ns = dsc_now_ns();
    struct dsc_link **at = &net->links;

    while (*at != NULL) {
        struct dsc_link *const link = *at;

        if (!link->is_dead && link->peer < 0 && now_ns >= link->drop_ns) {
            if (!net->warned_stranger)
                dsc_log_warn(NET, "dropped a connection that said nothing for %u s (said once)",
                             (unsigned)(STRANGER_NS / 1000000000u));
            net->warned_stranger = true;
            dsc_link_end(link);
        }
        if (!link->is_dead) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        (void)close_dead(link);
        dsc_handshake_destroy(link->hs);
        dsc_free(link);
    }
}

void dsc_net_drop_links(struct dsc_net *net)
{
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (!link->is_dead)
            dsc_link_end(link);
    dsc_net_reap_links(net);
}

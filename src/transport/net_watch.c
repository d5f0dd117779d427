/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that end before a connection stands. Whoever waits for a peer holds a socket to it: the
 * connector its control link, the acceptor, when it has waited a while, a watch link to the peer's
 * listener. A peer that dies or fails closes its end, even if it never accepted.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* For peers whose request waits in the listener's backlog; they answer at once. */
#define TELL_NS 200000000u
/* Most peers come sooner, and a watch link costs both sides a descriptor. */
#define PATIENCE_NS 200000000u

/* The connector opens its data sockets at once; if it ended instead, its control link shows it. */
static void look_at_control(struct dsc_net *net, int peer)
{
    const int fd = net->peers[peer].setup.control_fd;
    char text[DSC_PEER_TEXT_BYTES];
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
        return;
    dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, peer, "lost %s: connection closed",
                      dsc_net_peer_text(net, peer, "tcp", text));
}

void dsc_setup_look(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_hello hello;

    if (setup->state == DSC_SETUP_MEET)
        dsc_loopback_look(net, peer);
    if (setup->state == DSC_SETUP_DATA)
        look_at_control(net, peer);
    /* An error is told over the connection as it is. */
    if (setup->state == DSC_SETUP_JOIN &&
        (!net->peers[peer].conn->is_joining || net->error != DSCOMM_OK))
        setup->state = DSC_SETUP_NONE;
    if (setup->state != DSC_SETUP_CONTROL || setup->watched || net->rank > peer ||
        dsc_now_ns() - setup->begin_ns < PATIENCE_NS)
        return;
    setup->watched = true;
    dsc_hello_init(net, &hello);
    hello.index = DSC_LINK_WATCH;
    (void)dsc_net_open_link(net, peer, DSC_LINK_WATCH, &hello, setup->deadline_ns);
}

bool dsc_setup_take_error(struct dsc_net *net, int peer, const struct dsc_hello *answer)
{
    dscomm_status_t status;
    int rank;

    if (strcmp(answer->transport, DSC_HELLO_ERROR) != 0)
        return false;
    const char *const text = dsc_error_get(answer->detail, net->n_ranks, &status, &rank);

    if (text == NULL || status >= DSCOMM_OK)
        dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, peer, "rank %d has failed", peer);
    else
        dsc_net_heard(net, NULL, status, rank, text);
    return true;
}

void dsc_link_reply_error(struct dsc_link *link)
{
    const struct dsc_net *const net = link->net;
    const struct dsc_report *const report =
        &net->reports[net->own_report < 0 ? 0 : net->own_report];
    struct dsc_hello hello;

    /*
     * Of ranks that differ one report is not enough: who is waited for here gets a connection, over
     * which it hears all; who is not is in another call, and this rank's own text says in which.
     */
    if (report->status == DSCOMM_ERR_MISMATCH && link->index != DSC_LINK_WATCH &&
        (net->peers[link->peer].setup.state != DSC_SETUP_NONE || net->own_report < 0))
        return;
    link->told = true;

    dsc_hello_init(net, &hello);
    memcpy(hello.transport, DSC_HELLO_ERROR, sizeof(DSC_HELLO_ERROR));
    dsc_error_put(hello.detail, sizeof(hello.detail), report->status, report->rank, report->text);
    dsc_link_reply(link, &hello);
}

static void tell_links(struct dsc_net *net)
{
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->acceptor && link->peer >= 0 && !link->is_dead &&
            dsc_handshake_wants_reply(link->hs))
            dsc_link_reply_error(link);
}

void dsc_setup_tell_all(struct dsc_net *net, dscomm_status_t status, int rank, const char *text)
{
    tell_links(net);
    dsc_loopback_tell(net, status, rank, text);
}

static bool any_to_tell(const struct dsc_net *net)
{
    for (const struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->acceptor && !link->is_dead)
            return true;
    for (int peer = 0; peer < net->n_ranks; peer++)
        if (peer != net->error_rank && net->peers[peer].setup.state != DSC_SETUP_NONE &&
            net->peers[peer].setup.state != DSC_SETUP_REFUSED)
            return true;
    return false;
}

void dsc_setup_tell_waiting(struct dsc_net *net)
{
    const uint64_t until_ns = dsc_now_ns() + TELL_NS;

    if (net->n_reports == 0)
        return;
    tell_links(net);
    dsc_net_watch_links(net, true);
    dsc_net_poll(net);
    while (any_to_tell(net) && dsc_now_ns() < until_ns) {
        dsc_net_wait_sockets(net, 1000000);
        dsc_net_poll(net);
        if (net->n_setups > 0)
            dsc_net_advance(net);
    }
    dsc_net_watch_links(net, net->n_setups > 0);
    dsc_net_reap_links(net);
}

void dsc_setup_drop_watches(struct dsc_net *net, int peer)
{
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->peer == peer && link->index == DSC_LINK_WATCH && !link->is_dead)
            dsc_link_end(link);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsc_net_connect(): starts a setup per missing connection and moves all of them, the existing
 * connections and strangers at the door, until every setup is a connection or the deadline passes.
 */
#include "transport/net_internal.h"

#include <stdio.h>
#include <string.h>

/* Between looks at what no descriptor or bell reports: strangers who say nothing. */
#define SLICE_NS 50000000u

static bool is_waiting(const struct dsc_net *net, int peer)
{
    return net->peers[peer].setup.state != DSC_SETUP_NONE;
}

/* The new connection takes the place of the old. Saying goodbye on the old one tells the peer that
 * its end is no death. */
static void install(struct dsc_net *net, int peer, struct dsc_conn *conn)
{
    struct dsc_conn *const old = net->peers[peer].conn;

    net->peers[peer].conn = conn;
    if (old == NULL) {
        net->conns[net->n_conns++] = conn;
        return;
    }
    for (int i = 0; i < net->n_conns; i++)
        if (net->conns[i] == old)
            net->conns[i] = conn;
    old->ops->notify(old, DSCOMM_OK, net->rank, "");
    old->ops->shut(old);
    old->ops->destroy(old);
}

static dscomm_status_t open_conn(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    const struct dsc_transport_ops *const ops = net->peers[peer].setup.ops;

    if (ops == &dsc_transport_loopback)
        return dsc_loopback_open(net, peer, conn_out);
    if (ops == &dsc_transport_shm)
        return dsc_shm_open(net, peer, conn_out);
    return dsc_tcp_open(net, peer, conn_out);
}

static void finish(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_conn *conn;
    const dscomm_status_t st = open_conn(net, peer, &conn);

    if (st < 0)
        dsc_net_set_error(net, st, peer, "no connection with rank %d", peer);
    else
        install(net, peer, conn);
    dsc_setup_fini(setup);
    dsc_setup_drop_watches(net, peer);
    if (st >= 0)
        dsc_log_debug(NET, "rank %d reaches rank %d over %s, %u slots of %zu bytes", net->rank,
                      peer, conn->ops->name, conn->n_slots, conn->slot_bytes);
}

/*
 * The old connection of a peer that has not spoken yet. If the peer left, it will not come; if it
 * sends data there, it has begun a call for which the old slots are large enough: another call than
 * this rank's.
 */
static dscomm_status_t check_old(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_conn *const old = net->peers[peer].conn;
    const uint8_t *payload;

    if (old == NULL)
        return DSCOMM_OK;
    if (old->peer_left && !(setup->state == DSC_SETUP_MEET && dsc_loopback_met(net, peer)) &&
        (setup->state == DSC_SETUP_MEET || net->rank < peer)) {
        dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, peer, "rank %d left instead of connecting",
                          peer);
        return net->error;
    }
    old->ops->rx_expect(old, old->rx_next + 1);
    if (!old->peer_left && old->ops->rx_msg(old, old->rx_next, &payload) != NULL)
        return dsc_fail(DSCOMM_ERR_MISMATCH,
                        "rank %d began a call whose messages fit in %zu bytes, this rank's call "
                        "needs %zu: ranks called with different arguments",
                        peer, old->slot_bytes, setup->slot_bytes);
    return DSCOMM_OK;
}

/* One round over the listed peers; how many still wait comes out. */
static dscomm_status_t advance(struct dsc_net *net, const int *peers, int n_peers, int *n_left_out)
{
    *n_left_out = 0;
    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->acceptor && link->peer >= 0 && !link->is_dead &&
            dsc_handshake_wants_reply(link->hs))
            dsc_setup_answer(link);
    for (int i = 0; i < n_peers; i++) {
        struct dsc_setup *const setup = &net->peers[peers[i]].setup;

        if (!is_waiting(net, peers[i]))
            continue;
        if (!setup->heard && net->error == DSCOMM_OK)
            DSC_TRY(check_old(net, peers[i]));
        if (setup->state == DSC_SETUP_MEET && dsc_loopback_met(net, peers[i]))
            setup->state = DSC_SETUP_READY;
        if (setup->state == DSC_SETUP_READY) {
            finish(net, peers[i]);
        } else {
            dsc_setup_look(net, peers[i]);
            ++*n_left_out;
        }
    }
    return net->error;
}

static void timed_out(struct dsc_net *net, const int *peers, int n_peers)
{
    char text[256] = "";
    size_t n = 0;
    int first = -1;

    for (int i = 0; i < n_peers && n < sizeof(text) - 16; i++) {
        if (!is_waiting(net, peers[i]))
            continue;
        if (first < 0)
            first = peers[i];
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s %d", n > 0 ? "," : "", peers[i]);
    }
    dsc_net_set_error(net, DSCOMM_ERR_TIMEOUT, first,
                      "waited %.1f s for a connection with rank%s%s", net->params.timeout_ms / 1e3,
                      strchr(text, ',') != NULL ? "s" : "", text);
}

static dscomm_status_t wait_for_all(struct dsc_net *net, const int *peers, int n_peers,
                                    uint64_t deadline_ns)
{
    int n_left;

    for (;;) {
        DSC_TRY(dsc_net_progress(net));
        dsc_net_poll(net);
        DSC_TRY(advance(net, peers, n_peers, &n_left));
        dsc_net_reap_links(net);
        if (n_left == 0)
            return net->error;

        const uint64_t now_ns = dsc_now_ns();

        if (now_ns >= deadline_ns) {
            timed_out(net, peers, n_peers);
            return net->error;
        }
        dsc_net_wait_sockets(net, dsc_min_u64(deadline_ns - now_ns, SLICE_NS));
    }
}

dscomm_status_t dsc_net_connect(struct dsc_net *net, const int *peers, int n_peers,
                                size_t slot_bytes)
{
    const uint64_t deadline_ns = dsc_deadline_ns(net->params.timeout_ms);
    const size_t rounded = dsc_round_up(slot_bytes, 64);
    dscomm_status_t st = net->error;
    int n_begun = 0;

    for (int i = 0; i < n_peers && st >= 0; i++) {
        const struct dsc_conn *const conn = dsc_net_conn(net, peers[i]);

        if (peers[i] == net->rank || is_waiting(net, peers[i]) ||
            (conn != NULL && conn->slot_bytes >= rounded))
            continue;
        if (n_begun++ == 0)
            dsc_net_watch_links(net, true);
        st = dsc_setup_begin(net, peers[i], rounded, deadline_ns);
    }
    if (st >= 0 && n_begun > 0)
        st = wait_for_all(net, peers, n_peers, deadline_ns);
    /* After an error they stay: dsc_net_fail() has yet to tell those who wait at the other end. */
    for (int i = 0; i < n_peers && net->error == DSCOMM_OK; i++)
        dsc_setup_fini(&net->peers[peers[i]].setup);
    if (n_begun > 0)
        dsc_net_watch_links(net, false);
    return st;
}

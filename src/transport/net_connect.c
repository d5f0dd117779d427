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
/* A rank that waits longer may wait for one that is in another call. */
#define TELL_CALL_NS 200000000u

static bool is_waiting(const struct dsc_net *net, int peer)
{
    return net->peers[peer].setup.state != DSC_SETUP_NONE;
}

static dscomm_status_t open_conn(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    const struct dsc_transport_ops *const ops = net->peers[peer].setup.ops;

    if (ops == &dsc_transport_loopback)
        return dsc_loopback_open(net, peer, conn_out);
    if (ops == &dsc_transport_shm)
        return dsc_shm_open(net, peer, conn_out);
    if (ops == &dsc_transport_verbs)
        return dsc_verbs_open(net, peer, conn_out);
    if (ops == &dsc_transport_nccl_net)
        return dsc_nccl_net_open(net, peer, conn_out);
    return dsc_tcp_open(net, peer, conn_out);
}

static void finish(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_conn *conn;
    const dscomm_status_t st = open_conn(net, peer, &conn);

    dsc_setup_fini(setup);
    dsc_setup_drop_watches(net, peer);
    if (st < 0) {
        dsc_net_set_error(net, st, peer, "no connection with rank %d", peer);
        return;
    }
    net->peers[peer].conn = conn;
    net->conns[net->n_conns++] = conn;
    if (conn->is_joining)
        setup->state = DSC_SETUP_JOIN;
    for (size_t i = 0; i < net->n_reports; i++) /* what the others were told before */
        conn->ops->notify(conn, net->reports[i].status, net->reports[i].rank, net->reports[i].text);
    dsc_log_debug(NET, "rank %d reaches rank %d over %s, %u slots of %zu bytes", net->rank, peer,
                  conn->ops->name, conn->n_slots, conn->slot_bytes);
}

void dsc_net_advance(struct dsc_net *net)
{
    int n_left = 0;

    for (struct dsc_link *link = net->links; link != NULL; link = link->next)
        if (link->acceptor && link->peer >= 0 && !link->is_dead &&
            dsc_handshake_wants_reply(link->hs))
            dsc_setup_answer(link);
    for (int peer = 0; peer < net->n_ranks; peer++) {
        struct dsc_setup *const setup = &net->peers[peer].setup;

        if (!is_waiting(net, peer))
            continue;
        if (setup->state == DSC_SETUP_MEET && dsc_loopback_met(net, peer))
            setup->state = DSC_SETUP_READY;
        if (setup->state == DSC_SETUP_READY)
            finish(net, peer);
        else
            dsc_setup_look(net, peer);
        n_left += is_waiting(net, peer);
    }
    net->n_setups = n_left;
    dsc_net_reap_links(net);
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
    uint64_t tell_ns = dsc_now_ns() + TELL_CALL_NS;

    for (;;) {
        DSC_TRY(dsc_net_progress(net));
        if (net->n_setups == 0)
            return DSCOMM_OK;

        const uint64_t now_ns = dsc_now_ns();

        if (now_ns >= deadline_ns) {
            timed_out(net, peers, n_peers);
            return net->error;
        }
        if (now_ns >= tell_ns) { /* again and again: a peer may have been between calls */
            tell_ns = now_ns + TELL_CALL_NS;
            dsc_net_tell_call(net);
        }
        dsc_net_wait_sockets(net, dsc_min_u64(deadline_ns - now_ns, SLICE_NS));
    }
}

bool dsc_net_is_connecting(const struct dsc_net *net)
{
    return net->n_setups > 0;
}

dscomm_status_t dsc_net_connect(struct dsc_net *net, const int *peers, int n_peers)
{
    const uint64_t deadline_ns = dsc_deadline_ns(net->params.timeout_ms);
    dscomm_status_t st = net->error;
    int n_begun = 0;

    for (int i = 0; i < n_peers && st >= 0; i++) {
        if (peers[i] == net->rank || is_waiting(net, peers[i]) ||
            dsc_net_conn(net, peers[i]) != NULL)
            continue;
        if (n_begun++ == 0)
            dsc_net_watch_links(net, true);
        st = dsc_setup_begin(net, peers[i], deadline_ns);
    }
    if (st >= 0 && n_begun > 0)
        st = wait_for_all(net, peers, n_peers, deadline_ns);
    /* After an error they go on, in progress: those at the other end have yet to tell and hear. */
    for (int i = 0; i < n_peers && net->error == DSCOMM_OK; i++)
        dsc_setup_fini(&net->peers[peers[i]].setup);
    if (net->error == DSCOMM_OK)
        net->n_setups = 0;
    if (n_begun > 0)
        dsc_net_watch_links(net, net->n_setups > 0);
    return st;
}

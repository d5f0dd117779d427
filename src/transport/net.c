/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's endpoint: what it owns, how it moves, how it ends. Descriptors report to their sources;
 * memory reports through bells. The listener is served only while connections are being made: else
 * requests wait in its backlog, so a call in progress neither allocates for a stranger nor is woken
 * by one.
 */
#include "transport/net_internal.h"
#include "transport/nccl_pair.h"
#include "transport/verbs_pair.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than any plan asks for; keeps sizes of slots and segments far from overflow. */
#define SLOT_BYTES_MAX ((size_t)1 << 32)

/* ---- life cycle ---- */

static dscomm_status_t copy_params(struct dsc_net *net, const struct dsc_net_params *params)
{
    size_t n_transports;
    const struct dsc_transport_ops *const *const all = dsc_transports(&n_transports);
    bool known = strcmp(params->transport, "auto") == 0;

    for (size_t i = 0; i < n_transports; i++)
        known = known || strcmp(params->transport, all[i]->name) == 0;
    if (!known)
        return dsc_fail(DSCOMM_ERR_INVALID, "transport \"%s\" is none of " DSC_TRANSPORT_WORDS,
                        params->transport);
    if (params->n_slots == 0 || params->n_socks == 0 || params->n_socks > DSC_NET_SOCKS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "window %u must be at least 1, sockets %u in 1 to %d",
                        params->n_slots, params->n_socks, DSC_NET_SOCKS_MAX);
    if (params->slot_bytes == 0 || params->slot_bytes > SLOT_BYTES_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "slots of %zu bytes must be of 1 to %zu",
                        params->slot_bytes, SLOT_BYTES_MAX);
    snprintf(net->transport, sizeof(net->transport), "%s", params->transport);
    net->params = *params;
    net->params.transport = net->transport;
    net->params.slot_bytes = dsc_round_up(params->slot_bytes, 64);
    return DSCOMM_OK;
}

static dscomm_status_t alloc_tables(struct dsc_net *net, const struct dsc_bootstrap *boot)
{
    const size_t n = (size_t)boot->n_ranks;

    net->infos = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*net->infos));
    net->peers = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*net->peers));
    net->conns = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(struct dsc_conn *));
    net->bells = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(struct dsc_bell *));
    net->seen = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*net->seen));
    if (net->infos == NULL || net->peers == NULL || net->conns == NULL || net->bells == NULL ||
        net->seen == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for the tables of %d ranks",
                        boot->n_ranks);
    memcpy(net->infos, boot->peers, n * sizeof(*net->infos));
    return DSCOMM_OK;
}

static void on_waker(struct dsc_source *source, uint32_t events)
{
    uint64_t n;

    (void)events;
    (void)!read(source->fd, &n, sizeof(n));
}

static dscomm_status_t open_waiting(struct dsc_net *net)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &net->waker };

    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (net->epoll_fd < 0)
        return dsc_fail_errno(errno == EMFILE ? DSCOMM_ERR_LIMIT : DSCOMM_ERR_SYSTEM,
                              "epoll_create of rank %d", net->rank);
    dsc_held_add(&net->epoll_held, &net->epoll_fd);
    DSC_TRY(dsc_local_bell_create(&net->bell));
    net->waker = (struct dsc_source){
        .on_event = on_waker,
        .events = EPOLLIN,
        .fd = net->bell->event_fd,
    };
    if (epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, net->waker.fd, &event) < 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "epoll_ctl add of an eventfd");
    dsc_net_add_bell(net, &net->bell->bell);

    net->listener.on_event = dsc_net_on_listener; /* watched inside dsc_net_connect() alone */
    return DSCOMM_OK;
}

dscomm_status_t dsc_net_create(const struct dsc_bootstrap *boot,
                               const struct dsc_net_params *params, struct dsc_net **net_out)
{
    struct dsc_net *const net = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*net));
    dscomm_status_t st;

    if (net == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for an endpoint");
    net->n_ranks = boot->n_ranks;
    net->rank = boot->rank;
    net->job = boot->job;
    memcpy(net->key, boot->key, sizeof(net->key));
    net->epoll_fd = -1;
    net->listener.fd = boot->listen_fd;
    net->error_rank = -1;
    net->own_report = -1;

    DSC_TRY_GOTO(err, copy_params(net, params));
    DSC_TRY_GOTO(err, alloc_tables(net, boot));
    DSC_TRY_GOTO(err, open_waiting(net));
    if (strcmp(net->transport, dsc_transport_nccl_net.name) == 0)
        DSC_TRY_GOTO(err, dsc_nccl_plugin_get(&net->nccl));
    dsc_held_add(&net->listener.held, &net->listener.fd);
    *net_out = net;
    return DSCOMM_OK;

err:
    net->listener.fd = -1; /* the caller's still */
    net->n_ranks = net->peers != NULL ? net->n_ranks : 0;
    dsc_net_destroy(net);
    return st;
}

static bool all_flushed(const struct dsc_net *net)
{
    for (int i = 0; i < net->n_conns; i++) {
        const struct dsc_conn *const conn = net->conns[i];

        if (!conn->ops->flushed(conn))
            return false;
    }
    return true;
}

static void flush(struct dsc_net *net)
{
    const uint64_t deadline_ns = dsc_deadline_ns(net->params.timeout_ms);

    while (!all_flushed(net)) {
        const uint64_t now_ns = dsc_now_ns();

        if (dsc_net_progress(net) < 0)
            return;
        if (now_ns >= deadline_ns) {
            dsc_log_warn(NET, "rank %d leaves with unsent messages after %d ms", net->rank,
                         net->params.timeout_ms);
            return;
        }
        dsc_net_wait(net, deadline_ns - now_ns);
    }
}

void dsc_net_destroy(struct dsc_net *net)
{
    if (net == NULL)
        return;
    if (net->error == DSCOMM_OK)
        flush(net);
    for (int i = 0; i < net->n_conns; i++)
        if (net->error == DSCOMM_OK)
            net->conns[i]->ops->notify(net->conns[i], DSCOMM_OK, net->rank, "");
    while (net->n_conns > 0) {
        struct dsc_conn *const conn = net->conns[--net->n_conns];

        conn->ops->shut(conn);
        conn->ops->destroy(conn);
    }
    for (int i = 0; i < net->n_ranks; i++)
        dsc_setup_fini(&net->peers[i].setup);
    dsc_net_drop_links(net);
    dsc_verbs_device_close(net->verbs);
    if (net->nccl != NULL)
        dsc_nccl_net_drop();
    dsc_held_close(&net->listener.held);
    dsc_held_close(&net->epoll_held);
    dsc_local_bell_release(net->bell);
    dsc_free(net->infos);
    dsc_free(net->peers);
    dsc_free(net->conns);
    dsc_free(net->bells);
    dsc_free(net->seen);
    dsc_free(net);
}

/* ---- movement ---- */

static bool is_poll_due(struct dsc_net *net)
{
    if (net->n_setups > 0 || !dsc_net_is_direct(net))
        return true;
    if (net->n_sockets == 0)
        return false;
    const uint64_t now_ns = dsc_now_ns();

    if (now_ns < net->next_poll_ns)
        return false;
    net->next_poll_ns = now_ns + DSC_NET_POLL_NS;
    return true;
}

dscomm_status_t dsc_net_progress(struct dsc_net *net)
{
    /* Before anything is looked at: what happens from here on ends the next wait at once. */
    for (uint32_t i = 0; i < net->n_bells; i++)
        net->seen[i] = dsc_bell_count(net->bells[i]);

    if (atomic_load_explicit(&net->aborted, memory_order_relaxed) != 0)
        dsc_net_set_error(net, DSCOMM_ERR_ABORTED, net->rank, "aborted on rank %d", net->rank);
    if (is_poll_due(net))
        dsc_net_poll(net);
    for (int i = 0; i < net->n_conns; i++)
        net->conns[i]->ops->progress(net->conns[i]);
    if (net->n_setups > 0)
        dsc_net_advance(net);
    net->error_shown = net->error != DSCOMM_OK;
    return net->error;
}

/* ---- getters ---- */

struct dsc_conn *dsc_net_conn(struct dsc_net *net, int peer)
{
    return net->peers[peer].conn;
}

const char *dsc_net_transport_name(struct dsc_net *net, int peer)
{
    const struct dsc_conn *const conn = net->peers[peer].conn;

    return conn != NULL ? conn->ops->name : "-";
}

uint64_t dsc_net_wire_tx_bytes(const struct dsc_net *net)
{
    return atomic_load_explicit(&net->wire_tx_bytes, memory_order_relaxed);
}

uint64_t dsc_net_wire_rx_bytes(const struct dsc_net *net)
{
    return atomic_load_explicit(&net->wire_rx_bytes, memory_order_relaxed);
}

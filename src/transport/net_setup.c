/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two ranks agree on a connection. The higher rank connects. Its first socket, the control
 * link, carries in its hello the transport it wants, the slot size and what the transport needs
 * (net_means.h), for shm the segment; the answer carries what becomes of it: tcp instead of shm if
 * the segment is of no use here, or of verbs if there is no queue pair. Slot sizes must be equal.
 * Data sockets follow, one by one, on an agreement that stands.
 *
 * Both sides choose the transport by the same rule from the same facts, so a difference is either a
 * fallback or ranks that were configured differently.
 */
#include "transport/net_means.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/netif.h"

/* A process that ends loses its entries in /proc a little before its sockets are closed. */
#define ENDING_MS 10

static bool is_auto(const struct dsc_net *net)
{
    return strcmp(net->transport, "auto") == 0;
}

/* ---- what is wanted ---- */

static const struct dsc_transport_ops *find_ops(const char *name)
{
    size_t n;
    const struct dsc_transport_ops *const *const all = dsc_transports(&n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

static const struct dsc_transport_ops *best_ops(const struct dsc_peer_info *self,
                                                const struct dsc_peer_info *peer)
{
    size_t n;
    const struct dsc_transport_ops *const *const all = dsc_transports(&n);
    const struct dsc_transport_ops *best = NULL;

    for (size_t i = 0; i < n; i++)
        if (all[i]->reaches(self, peer) && (best == NULL || all[i]->preference > best->preference))
            best = all[i];
    return best;
}

static dscomm_status_t choose(struct dsc_net *net, int peer, const struct dsc_transport_ops **out)
{
    const struct dsc_peer_info *const self = &net->infos[net->rank];
    const struct dsc_peer_info *const other = &net->infos[peer];
    const struct dsc_transport_ops *const ops =
        is_auto(net) ? best_ops(self, other) : find_ops(net->transport);

    if (!ops->reaches(self, other)) {
        dsc_net_set_error(net, DSCOMM_ERR_UNSUPPORTED, peer,
                          "transport %s does not reach rank %d: host \"%.64s\" pid %u here, host "
                          "\"%.64s\" pid %u there",
                          ops->name, peer, self->host_id, self->pid, other->host_id, other->pid);
        return net->error;
    }
    *out = ops;
    return DSCOMM_OK;
}

void dsc_hello_init(const struct dsc_net *net, struct dsc_hello *hello_out)
{
    *hello_out = (struct dsc_hello){
        .purpose = DSC_LINK_PEER,
        .rank = net->rank,
        .n_ranks = (uint32_t)net->n_ranks,
        .job = net->job,
        .slot_bytes = net->params.slot_bytes,
        .n_slots = net->params.n_slots,
        .n_socks = net->params.n_socks,
    };
}

static void fall_back(struct dsc_net *net, int peer, const char *why)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;

    if (!net->warned_fallback)
        dsc_log_warn(NET, "no %s with rank %d, using tcp: %s (said once)",
                     dsc_means_of(setup->ops)->what, peer, why);
    net->warned_fallback = true;
    dsc_means_drop(setup);
    setup->ops = &dsc_transport_tcp;
}

/* The connector's half of what the transport needs, and its description for the peer. */
static dscomm_status_t prepare(struct dsc_net *net, int peer, struct dsc_hello *hello)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const struct dsc_means *const means = dsc_means_of(setup->ops);
    char text[DSC_MEANS_TEXT_BYTES];
    const char *const why = means != NULL ? means->offer(net, peer, hello, text) : NULL;

    if (why == NULL)
        return DSCOMM_OK;
    if (is_auto(net)) {
        fall_back(net, peer, why);
        hello->detail[0] = '\0';
        return DSCOMM_OK;
    }
    dsc_net_set_error(net, means->status, net->rank, "%s with rank %d: %s", means->what, peer, why);
    return net->error;
}

static dscomm_status_t connect_control(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_hello hello;

    dsc_hello_init(net, &hello);
    DSC_TRY(prepare(net, peer, &hello));
    snprintf(hello.transport, sizeof(hello.transport), "%s", setup->ops->name);
    return dsc_net_open_link(net, peer, 0, &hello, setup->deadline_ns);
}

dscomm_status_t dsc_setup_begin(struct dsc_net *net, int peer, uint64_t deadline_ns)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;

    *setup = (struct dsc_setup){
        .deadline_ns = deadline_ns,
        .begin_ns = dsc_now_ns(),
        .control_fd = -1,
        .segment.fd = -1,
    };
    net->n_setups++;
    DSC_TRY(choose(net, peer, &setup->ops));
    if (setup->ops == &dsc_transport_loopback) {
        setup->state = DSC_SETUP_MEET;
        const dscomm_status_t st = dsc_loopback_offer(net, peer);

        if (st < 0)
            dsc_net_set_error(net, st, peer, "no loopback connection with rank %d", peer);
        return st;
    }
    setup->state = DSC_SETUP_CONTROL;
    return net->rank > peer ? connect_control(net, peer) : DSCOMM_OK;
}

/* ---- the acceptor ---- */

const char *dsc_setup_check_hello(const struct dsc_net *net, const struct dsc_hello *hello)
{
    if (hello->purpose != DSC_LINK_PEER || hello->job != net->job)
        return "it is of another job";
    if (hello->n_ranks != (uint32_t)net->n_ranks || hello->rank < 0 ||
        hello->rank >= net->n_ranks ||
        (hello->index == DSC_LINK_WATCH ? hello->rank >= net->rank : hello->rank <= net->rank))
        return "it claims a rank that cannot connect here";
    if (hello->n_slots != net->params.n_slots || hello->n_socks != net->params.n_socks)
        return "its window or number of sockets differ";
    if (hello->index > net->params.n_socks && hello->index != DSC_LINK_WATCH)
        return "its socket number is out of range";
    return NULL;
}

bool dsc_setup_check_slots(struct dsc_net *net, int peer, uint64_t slot_bytes)
{
    if (slot_bytes == net->params.slot_bytes)
        return true;
    dsc_net_set_error(net, DSCOMM_ERR_MISMATCH, peer,
                      "rank %d has slots of %llu bytes, rank %d of %zu bytes", peer,
                      (unsigned long long)slot_bytes, net->rank, net->params.slot_bytes);
    return false;
}

/* Takes over what the connector wants, as far as this rank was not told otherwise. */
static bool agree_on_transport(struct dsc_net *net, int peer, const struct dsc_hello *hello)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const struct dsc_transport_ops *const wanted = find_ops(hello->transport);

    if (wanted == setup->ops)
        return true;
    if (!is_auto(net) || wanted != &dsc_transport_tcp) {
        dsc_net_set_error(net, DSCOMM_ERR_MISMATCH, peer,
                          "rank %d wants transport \"%s\", this rank \"%s\"", peer,
                          hello->transport, setup->ops->name);
        return false;
    }
    setup->ops = wanted;
    return true;
}

/* The connector says nothing before it has its answer: what can be read is its end. */
static bool has_ended(const struct dsc_link *link, int wait_ms)
{
    struct pollfd end = { .fd = dsc_handshake_fd(link->hs), .events = POLLIN };
    char byte;

    (void)poll(&end, 1, wait_ms);
    const ssize_t n = recv(end.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* The acceptor's half. False: refused, and the reply says why. */
static bool accept_means(struct dsc_link *link, const struct dsc_hello *hello,
                         struct dsc_hello *reply)
{
    struct dsc_net *const net = link->net;
    const int peer = link->peer;
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const struct dsc_means *const means = dsc_means_of(setup->ops);
    char text[DSC_MEANS_TEXT_BYTES];
    const char *const why = means != NULL ? means->accept(net, peer, hello, reply, text) : NULL;

    if (why == NULL)
        return true;
    /* A pid that is unknown here says nothing: the peer may be in another PID namespace. */
    if (has_ended(link, net->warned_fallback ? 0 : ENDING_MS)) {
        char peer_text[DSC_PEER_TEXT_BYTES];

        dsc_net_set_error(net, DSCOMM_ERR_PEER_LOST, peer, "lost %s: connection closed",
                          dsc_net_peer_text(net, peer, setup->ops->name, peer_text));
        snprintf(reply->detail, sizeof(reply->detail), "connection closed");
        return false;
    }
    if (is_auto(net)) {
        fall_back(net, peer, why);
        return true;
    }
    dsc_net_set_error(net, means->status, net->rank, "%s with rank %d: %s", means->what, peer, why);
    snprintf(reply->detail, sizeof(reply->detail), "%.127s", why);
    return false;
}

static void answer_control(struct dsc_link *link)
{
    struct dsc_net *const net = link->net;
    struct dsc_setup *const setup = &net->peers[link->peer].setup;
    const struct dsc_hello hello = *dsc_handshake_peer(link->hs);
    struct dsc_hello reply;
    bool accepted = false;

    dsc_hello_init(net, &reply);
    setup->answered = true;
    if (!dsc_setup_check_slots(net, link->peer, hello.slot_bytes))
        snprintf(reply.detail, sizeof(reply.detail), "slot sizes differ"); /* the reply has ours */
    else if (!agree_on_transport(net, link->peer, &hello))
        snprintf(reply.detail, sizeof(reply.detail), "rank %d was told to use %s", net->rank,
                 setup->ops->name);
    else
        accepted = accept_means(link, &hello, &reply);
    if (!accepted)
        setup->state = DSC_SETUP_REFUSED;
    else
        snprintf(reply.transport, sizeof(reply.transport), "%s", setup->ops->name);
    dsc_link_reply(link, &reply);
}

void dsc_setup_answer(struct dsc_link *link)
{
    const struct dsc_setup *const setup = &link->net->peers[link->peer].setup;
    struct dsc_hello reply;

    if (link->index == 0 && setup->state == DSC_SETUP_CONTROL && !setup->answered)
        answer_control(link);
    if (link->index > 0 && link->index != DSC_LINK_WATCH && setup->state == DSC_SETUP_DATA) {
        dsc_hello_init(link->net, &reply);
        reply.index = link->index;
        dsc_link_reply(link, &reply);
    }
}

/* ---- both ---- */

/* Over verbs the one says that the connector can receive; it is closed again. */
static uint32_t n_data_links(const struct dsc_net *net, const struct dsc_setup *setup)
{
    if (setup->ops == &dsc_transport_shm || setup->ops == &dsc_transport_nccl_net)
        return 0;
    return setup->ops == &dsc_transport_verbs ? 1 : net->params.n_socks;
}

static void open_data_links(struct dsc_net *net, int peer)
{
    const struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_hello hello;

    dsc_hello_init(net, &hello);
    snprintf(hello.transport, sizeof(hello.transport), "%s", setup->ops->name);
    for (uint32_t i = 1; i <= n_data_links(net, setup); i++) {
        hello.index = i;
        const dscomm_status_t st = dsc_net_open_link(net, peer, i, &hello, setup->deadline_ns);

        if (st < 0) {
            dsc_net_set_error(net, st, peer, "no data connection with rank %d", peer);
            return;
        }
    }
}

/* The connector reads what became of its wishes. */
static bool take_answer(struct dsc_net *net, int peer, const struct dsc_hello *answer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const struct dsc_transport_ops *const ops = find_ops(answer->transport);
    char text[DSC_MEANS_TEXT_BYTES];

    if (!dsc_setup_check_slots(net, peer, answer->slot_bytes))
        return false;
    if (ops != setup->ops && !(is_auto(net) && ops == &dsc_transport_tcp)) {
        dsc_net_set_error(net, DSCOMM_ERR_MISMATCH, peer, "rank %d refuses transport %s: %s", peer,
                          setup->ops->name, answer->detail);
        return false;
    }
    if (ops != setup->ops)
        fall_back(net, peer, "the other side cannot map it");
    const struct dsc_means *const means = dsc_means_of(setup->ops);
    const char *const why = means != NULL ? means->join(net, peer, answer, text) : NULL;

    if (why != NULL)
        dsc_net_set_error(net, DSCOMM_ERR_SYSTEM, net->rank, "%s with rank %d: %s", means->what,
                          peer, why);
    return why == NULL;
}

static void control_done(struct dsc_link *link)
{
    struct dsc_net *const net = link->net;
    struct dsc_setup *const setup = &net->peers[link->peer].setup;

    if (setup->state != DSC_SETUP_CONTROL || setup->control_fd >= 0)
        return;
    if (!link->acceptor && !take_answer(net, link->peer, dsc_handshake_peer(link->hs)))
        return;
    setup->control_fd = dsc_handshake_take_fd(link->hs);
    dsc_held_add(&setup->control_held, &setup->control_fd);
    if (n_data_links(net, setup) == 0) {
        setup->state = DSC_SETUP_READY;
        return;
    }
    setup->state = DSC_SETUP_DATA;
    if (!link->acceptor)
        open_data_links(net, link->peer);
}

static void data_done(struct dsc_link *link)
{
    struct dsc_setup *const setup = &link->net->peers[link->peer].setup;
    const uint32_t at = link->index - 1;

    if (setup->state != DSC_SETUP_DATA || at >= n_data_links(link->net, setup) ||
        (setup->has_data & (1u << at)) != 0)
        return; /* nothing waits for it: the socket is closed with its handshake */
    setup->data_fds[at] = dsc_handshake_take_fd(link->hs);
    dsc_held_add(&setup->data_held[at], &setup->data_fds[at]);
    setup->has_data |= 1u << at;
    if (setup->has_data == (1u << n_data_links(link->net, setup)) - 1)
        setup->state = DSC_SETUP_READY;
}

void dsc_setup_link_done(struct dsc_link *link)
{
    if (link->told)
        return;
    if (!link->acceptor &&
        dsc_setup_take_error(link->net, link->peer, dsc_handshake_peer(link->hs)))
        return;
    if (link->index == 0)
        control_done(link);
    else if (link->index != DSC_LINK_WATCH)
        data_done(link);
}

void dsc_setup_fini(struct dsc_setup *setup)
{
    if (setup->state == DSC_SETUP_NONE)
        return;
    setup->state = DSC_SETUP_NONE;
    dsc_held_close(&setup->control_held); /* neither is closed if a connection has it */
    for (uint32_t i = 0; i < DSC_NET_SOCKS_MAX; i++)
        dsc_held_close(&setup->data_held[i]);
    setup->has_data = 0;
    dsc_means_drop(setup);
    dsc_loopback_withdraw(setup);
}

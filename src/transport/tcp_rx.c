/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of tcp. A message is read into its slot only when the slot is free and the
 * caller expects it; until then it stays in the kernel, whose flow control stops the sender. Small
 * messages are read header and payload in one call, guessing the size of the last one; what was too
 * much belongs to the next message and waits in the stash.
 */
#include "transport/tcp_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/header.h"

static bool may_start(const struct tcp_link *link)
{
    const struct tcp_slot *const slot = dsc_tcp_slot(&link->tcp->rx, link->rx_at);

    return link->rx_at < link->tcp->base.rx_end && slot->next == link->rx_at && !slot->full;
}

static void refuse(struct tcp_link *link, const char *wrong)
{
    const struct dsc_conn *const conn = &link->tcp->base;
    char peer[DSC_PEER_TEXT_BYTES];

    dsc_net_set_error(conn->net, DSCOMM_ERR_CORRUPT, conn->peer,
                      "message %llu from %s is damaged: %s", (unsigned long long)link->rx_at,
                      dsc_net_peer_text(conn->net, conn->peer, "tcp", peer), wrong);
    dsc_tcp_want(link, 0);
    link->broken_errno = -1;
}

/* Header complete: how long is the message? */
static bool take_header(struct tcp_link *link)
{
    struct tcp_conn *const tcp = link->tcp;
    struct dsc_header *const h = dsc_tcp_header(&tcp->rx, link->rx_at);

    dsc_header_decode(dsc_tcp_wire(&tcp->rx, link->rx_at), h);
    const char *wrong = dsc_header_check(h, tcp->base.slot_bytes);

    if (wrong == NULL && h->kind != DSC_MSG_DATA)
        wrong = "no data message";
    if (wrong != NULL) {
        refuse(link, wrong);
        return false;
    }
    link->rx_bytes = DSC_HEADER_BYTES + h->payload_bytes;
    return true;
}

/* Message complete, maybe with bytes of the next one behind it. */
static bool take_message(struct tcp_link *link)
{
    struct tcp_conn *const tcp = link->tcp;
    uint8_t *const wire = dsc_tcp_wire(&tcp->rx, link->rx_at);
    const struct dsc_header *const h = dsc_tcp_header(&tcp->rx, link->rx_at);

    if (tcp->crc && h->crc != dsc_header_crc(h, wire + DSC_HEADER_BYTES)) {
        refuse(link, "checksum");
        return false;
    }
    if (link->rx_got > link->rx_bytes) {
        link->stash_at = 0;
        link->stash_end = link->rx_got - link->rx_bytes;
        memcpy(link->stash, wire + link->rx_bytes, link->stash_end);
    }
    link->rx_hint = h->payload_bytes <= DSC_TCP_HINT_MAX ? h->payload_bytes : 0;
    dsc_tcp_slot(&tcp->rx, link->rx_at)->full = true;
    link->rx_at += tcp->n_links;
    link->rx_got = 0;
    link->rx_bytes = 0;
    return true;
}

/* How much to ask for; a guess only of the socket, so that nothing goes back into the stash. */
static size_t wanted_bytes(const struct tcp_link *link)
{
    if (link->rx_bytes > 0)
        return link->rx_bytes - link->rx_got;
    return DSC_HEADER_BYTES - link->rx_got +
           (link->stash_at == link->stash_end ? link->rx_hint : 0);
}

/* Bytes moved; 0: none for now, or the link is broken. */
static size_t fetch(struct tcp_link *link, uint8_t *dst, size_t n, bool *drained_out)
{
    const size_t stashed = dsc_min_size(n, link->stash_end - link->stash_at);

    *drained_out = false;
    if (stashed > 0) {
        memcpy(dst, link->stash + link->stash_at, stashed);
        link->stash_at += stashed;
        return stashed;
    }
    for (;;) {
        const ssize_t got = recv(link->source.fd, dst, n, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (got <= 0) {
            dsc_tcp_broken(link, got == 0 ? -1 : errno);
            return 0;
        }
        dsc_net_count(&link->tcp->base.net->wire_rx_bytes, (uint64_t)got);
        *drained_out = (size_t)got < n;
        return (size_t)got;
    }
}

/*
 * The socket leaves epoll's set only when it keeps reporting what may not be read yet. That is when
 * the peer is ahead; mostly nothing comes before it is wanted, and nothing has to be said.
 */
static void mute(struct tcp_link *link, bool reports_in_vain)
{
    link->rx_muted = true;
    if (reports_in_vain)
        dsc_tcp_want(link, link->source.events & ~(uint32_t)EPOLLIN);
}

void dsc_tcp_receive(struct tcp_link *link, bool told)
{
    struct tcp_conn *const tcp = link->tcp;
    bool drained = false;

    link->rx_ready = false;
    while (link->broken_errno == 0) {
        if (link->rx_got == 0 && !may_start(link)) {
            mute(link, told);
            return;
        }
        if (drained)
            break;
        dsc_tcp_lend(&tcp->rx, dsc_tcp_slot(&tcp->rx, link->rx_at));
        uint8_t *const wire = dsc_tcp_wire(&tcp->rx, link->rx_at);
        const size_t n = fetch(link, wire + link->rx_got, wanted_bytes(link), &drained);

        if (n == 0)
            break;
        told = false;
        link->rx_got += n;
        if (link->rx_bytes == 0 && link->rx_got >= DSC_HEADER_BYTES && !take_header(link))
            return;
        if (link->rx_bytes > 0 && link->rx_got >= link->rx_bytes && !take_message(link))
            return;
        drained = drained && link->stash_at == link->stash_end;
    }
    if (link->broken_errno == 0)
        dsc_tcp_want(link, link->source.events | EPOLLIN);
}

const struct dsc_header *dsc_tcp_rx_msg(struct dsc_conn *conn, uint64_t index,
                                        const uint8_t **payload_out)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    const struct tcp_slot *const slot = dsc_tcp_slot(&tcp->rx, index);

    if (slot->next != index || !slot->full)
        return NULL;
    *payload_out = dsc_tcp_wire(&tcp->rx, index) + DSC_HEADER_BYTES;
    return dsc_tcp_header(&tcp->rx, index);
}

/* What was refused for want of a slot or of expectation can go on, at the next progress. */
static void unmute(struct tcp_link *link)
{
    if (!link->rx_muted || !may_start(link))
        return;
    link->rx_muted = false;
    link->rx_ready = true;
    dsc_net_wake(link->tcp->base.net);
}

void dsc_tcp_rx_release(struct dsc_conn *conn, uint64_t index)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    struct tcp_slot *const slot = dsc_tcp_slot(&tcp->rx, index);

    DSC_ASSERT(slot->next == index && slot->full);
    dsc_tcp_finish(&tcp->rx, slot);
    unmute(dsc_tcp_link_of(tcp, slot->next));
}

void dsc_tcp_rx_expect(struct dsc_conn *conn, uint64_t end)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    conn->rx_end = end;
    for (uint32_t i = 0; i < tcp->n_links; i++)
        unmute(&tcp->links[i]);
}

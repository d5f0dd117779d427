/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a TCP connection: what is posted goes out as the socket takes it.
 */
#include "transport/header.h"
#include "transport/tcp_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define IOV_MAX_USED 8

static size_t wire_bytes(const struct tcp_conn *tcp, uint64_t index)
{
    return DSC_HEADER_BYTES + dsc_tcp_header(&tcp->tx, index)->payload_bytes;
}

/* What is left of a message after its first `done` bytes, in one part or two; their number. */
static int split_message(const struct tcp_conn *tcp, uint64_t index, size_t done,
                         struct iovec iov[2])
{
    const uint8_t *const payload = dsc_tcp_slot(&tcp->tx, index)->payload;
    uint8_t *const wire = dsc_tcp_wire(&tcp->tx, index);
    const size_t n_header = done < DSC_HEADER_BYTES ? DSC_HEADER_BYTES - done : 0;
    const size_t n_rest = wire_bytes(tcp, index) - done;

    if (payload == NULL || n_rest == n_header) {
        iov[0] = (struct iovec){ wire + done, n_rest };
        return 1;
    }
    iov[0] = (struct iovec){ wire + done, n_header };
    /* sendmsg() only reads: its vectors are those of readers too */
    iov[n_header > 0] =
        (struct iovec){ (void *)(uintptr_t)(payload + done + n_header - DSC_HEADER_BYTES),
                        n_rest - n_header };
    return n_header > 0 ? 2 : 1;
}

static int gather(const struct tcp_link *link, struct iovec iov[IOV_MAX_USED])
{
    const struct tcp_conn *const tcp = link->tcp;
    uint64_t index = link->tx_at;
    size_t done = link->tx_done;
    int n = 0;

    for (; n + 2 <= IOV_MAX_USED && dsc_tcp_is_posted(tcp, index); index += tcp->n_links, done = 0)
        n += split_message(tcp, index, done, iov + n);
    return n;
}

static void sent_bytes(struct tcp_link *link, size_t n)
{
    struct tcp_conn *const tcp = link->tcp;

    dsc_net_count(&tcp->base.net->wire_tx_bytes, n);
    link->tx_done += n;
    while (dsc_tcp_is_posted(tcp, link->tx_at) && link->tx_done >= wire_bytes(tcp, link->tx_at)) {
        link->tx_done -= wire_bytes(tcp, link->tx_at);
        dsc_tcp_finish(&tcp->tx, dsc_tcp_slot(&tcp->tx, link->tx_at));
        tcp->n_unsent--;
        link->tx_at += tcp->n_links;
    }
}

void dsc_tcp_send(struct tcp_link *link)
{
    struct iovec iov[IOV_MAX_USED];

    while (link->broken_errno == 0) {
        const int n_iov = gather(link, iov);
        const struct msghdr msg = { .msg_iov = iov, .msg_iovlen = (size_t)n_iov };

        if (n_iov == 0) {
            dsc_tcp_want(link, link->source.events & ~(uint32_t)EPOLLOUT);
            return;
        }
        const ssize_t n = sendmsg(link->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0) {
            sent_bytes(link, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            dsc_tcp_want(link, link->source.events | EPOLLOUT);
            return;
        } else if (errno != EINTR) {
            dsc_tcp_broken(link, errno);
        }
    }
}

uint8_t *dsc_tcp_tx_slot(struct dsc_conn *conn, uint64_t index)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);

    if (slot->next != index || slot->full)
        return NULL;
    dsc_tcp_lend(&tcp->tx, slot);
    return dsc_tcp_wire(&tcp->tx, index) + DSC_HEADER_BYTES;
}

/* payload: NULL, or where it is if not in the slot. */
static void post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                 const uint8_t *payload)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    struct dsc_header *const h = dsc_tcp_header(&tcp->tx, index);
    struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);
    uint8_t *const wire = dsc_tcp_wire(&tcp->tx, index);
    struct tcp_link *const link = dsc_tcp_link_of(tcp, index);

    *h = *header;
    h->magic = DSC_HEADER_MAGIC;
    h->version = DSC_HEADER_VERSION;
    h->kind = DSC_MSG_DATA;
    h->crc = 0;
    if (tcp->crc)
        h->crc = dsc_header_crc(h, payload != NULL ? payload : wire + DSC_HEADER_BYTES);
    dsc_header_encode(h, wire);
    slot->payload = payload;
    slot->full = true;
    tcp->n_unsent++;
    if ((link->source.events & EPOLLOUT) == 0) /* else the socket is full */
        dsc_tcp_send(link);
}

void dsc_tcp_tx_post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header)
{
    post(conn, index, header, NULL);
}

void dsc_tcp_tx_post_from(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                          const uint8_t *payload)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    dsc_tcp_lend(&tcp->tx, dsc_tcp_slot(&tcp->tx, index)); /* for the header */
    post(conn, index, header, payload);
}

void dsc_tcp_settle(struct dsc_conn *conn)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    for (uint32_t i = 0; i < conn->n_slots; i++) {
        struct tcp_slot *const slot = &tcp->tx.slots[i];

        if (!slot->full || slot->payload == NULL)
            continue;
        memcpy(dsc_tcp_wire(&tcp->tx, slot->next) + DSC_HEADER_BYTES, slot->payload,
               dsc_tcp_header(&tcp->tx, slot->next)->payload_bytes);
        slot->payload = NULL;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair, its memory and its end. The connector's hello and the acceptor's answer carry what
 * the other side must know; both are proved, and checked all the same. The connector's second
 * socket says that it can receive: the acceptor sends nothing before.
 */
#include "transport/verbs_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "transport/verbs_qp.h"

#define WANTED_INLINE 256 /* a small message travels with its request */

#define ELSE_HELPS ", or lower DSCOMM_WINDOW or DSCOMM_CHUNK_BYTES"

/* ---- memory ---- */

static const char *map_memory(struct verbs_conn *conn, char *text)
{
    const struct dsc_conn *const base = &conn->base;
    const char *const name = conn->device->port.name;
    char what[64];

    conn->stride = DSC_VERBS_PAYLOAD_AT + dsc_round_up(base->slot_bytes, 64);
    const size_t slots = base->n_slots * conn->stride;
    const size_t tx_bytes = dsc_round_up(slots + 64, 4096);
    const size_t rx_bytes = dsc_verbs_cells_bytes(base) + slots;

    conn->bytes = tx_bytes + dsc_round_up(rx_bytes, 4096);
    void *const memory =
        mmap(NULL, conn->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "no memory for %zu bytes of slots", conn->bytes);
        return text;
    }
    conn->memory = memory;
    /* a forked child would take away the pages that the device writes */
    (void)madvise(memory, conn->bytes, MADV_DONTFORK);
    conn->tx = conn->memory;
    conn->cell = conn->tx + slots;
    conn->rx = conn->memory + tx_bytes;
    conn->tx_mr = conn->verbs->reg_mr(conn->device->pd, conn->tx, tx_bytes, 0);
    if (conn->tx_mr != NULL)
        conn->rx_mr = conn->verbs->reg_mr(conn->device->pd, conn->rx, rx_bytes,
                                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (conn->rx_mr != NULL)
        return NULL;
    const int error = errno;

    snprintf(what, sizeof(what), "cannot register %zu KiB of slots", conn->bytes / 1024);
    dsc_verbs_say_limit(text, what, name, RLIMIT_MEMLOCK, error, ELSE_HELPS);
    return text;
}

static const char *alloc_slots(struct verbs_conn *conn)
{
    const uint32_t n = conn->base.n_slots;

    conn->tx_slots = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*conn->tx_slots));
    conn->rx_slots = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*conn->rx_slots));
    if (conn->tx_slots == NULL || conn->rx_slots == NULL)
        return "no memory for an RDMA connection";
    for (uint32_t i = 0; i < n; i++)
        conn->tx_slots[i].next = conn->rx_slots[i].next = i;
    return NULL;
}

/* ---- the queue pair ---- */

static void create_qp(struct verbs_conn *conn)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = conn->cq,
        .recv_cq = conn->cq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = conn->base.n_slots + 1,
                 .max_recv_wr = dsc_verbs_n_receives(&conn->base),
                 .max_send_sge = 1,
                 .max_recv_sge = 1,
                 .max_inline_data = WANTED_INLINE },
    };

    conn->qp = dsc_verbs_qp_create(conn->verbs, &conn->device->port, conn->device->pd, &attr,
                                   IBV_ACCESS_REMOTE_WRITE);
    conn->max_inline = attr.cap.max_inline_data;
}

static const char *create_queues(struct verbs_conn *conn, char *text)
{
    const struct dsc_verbs_port *const port = &conn->device->port;
    const int n = (int)(conn->base.n_slots + 1 + dsc_verbs_n_receives(&conn->base));

    errno = 0;
    conn->channel = conn->verbs->create_comp_channel(port->context);
    if (conn->channel != NULL) {
        dsc_held_add(&conn->channel_held, &conn->channel->fd);
        (void)fcntl(conn->channel->fd, F_SETFL, O_NONBLOCK);
        conn->cq = conn->verbs->create_cq(port->context, n, NULL, conn->channel, 0);
    }
    if (conn->cq != NULL)
        create_qp(conn);
    if (conn->qp == NULL) {
        dsc_verbs_say_limit(text, "no queue pair", port->name,
                            errno == EMFILE ? RLIMIT_NOFILE : RLIMIT_MEMLOCK, errno, ELSE_HELPS);
        return text;
    }
    const int error = dsc_verbs_post_receives(conn, dsc_verbs_n_receives(&conn->base));

    if (error != 0)
        dsc_verbs_say_limit(text, "no queue pair that is ready to connect", port->name,
                            RLIMIT_MEMLOCK, error, ELSE_HELPS);
    return error != 0 ? text : NULL;
}

const char *dsc_verbs_prepare(struct dsc_net *net, int peer, struct verbs_conn **conn_out,
                              char text[DSC_VERBS_TEXT_BYTES])
{
    const char *why = dsc_verbs_device_open(net, text);

    if (why != NULL)
        return why;
    if (net->params.n_slots > DSC_VERBS_WINDOW_MAX) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "a window of %u messages, at most %d",
                 net->params.n_slots, DSC_VERBS_WINDOW_MAX);
        return text;
    }
    struct verbs_conn *const conn = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*conn));

    if (conn == NULL)
        return "no memory for an RDMA connection";
    conn->base = (struct dsc_conn){
        .ops = &dsc_transport_verbs,
        .net = net,
        .peer = peer,
        .slot_bytes = net->params.slot_bytes,
        .n_slots = net->params.n_slots,
    };
    conn->device = net->verbs;
    conn->verbs = net->verbs->verbs;
    conn->psn = randombytes_random() & 0xffffff;
    conn->events.fd = -1;
    conn->control.conn = &conn->base;
    conn->control.source.fd = -1;
    why = alloc_slots(conn);
    if (why == NULL)
        why = map_memory(conn, text);
    if (why == NULL)
        why = create_queues(conn, text);
    if (why != NULL)
        dsc_verbs_discard(conn);
    else
        *conn_out = conn;
    return why;
}

/* ---- to the other side ---- */

#define PAIR_FORMAT "%x %x %x %x %x %" PRIx64 " "

void dsc_verbs_describe(const struct verbs_conn *conn, char detail[DSC_VERBS_DETAIL_BYTES])
{
    const struct dsc_verbs_port *const port = &conn->device->port;
    const int n =
        snprintf(detail, DSC_VERBS_DETAIL_BYTES, PAIR_FORMAT, conn->qp->qp_num, conn->psn,
                 port->lid, (unsigned)port->mtu, conn->rx_mr->rkey, (uint64_t)(uintptr_t)conn->rx);

    sodium_bin2hex(detail + n, DSC_VERBS_DETAIL_BYTES - (size_t)n, port->gid.raw,
                   sizeof(port->gid.raw));
}

struct far_end {
    struct dsc_verbs_end qp;
    uint32_t key;
    uint64_t address;
};

static bool read_detail(const char *detail, struct far_end *far)
{
    struct dsc_verbs_end *const qp = &far->qp;
    size_t n_gid = 0;
    int n = 0;

    return sscanf(detail, "%x %x %x %x %x %" SCNx64 " %n", &qp->qp_num, &qp->psn, &qp->lid,
                  &qp->mtu, &far->key, &far->address, &n) == 6 &&
           n > 0 && dsc_verbs_end_is_valid(qp) &&
           sodium_hex2bin(qp->gid.raw, sizeof(qp->gid.raw), detail + n, strlen(detail + n), NULL,
                          &n_gid, NULL) == 0 &&
           n_gid == sizeof(qp->gid.raw);
}

const char *dsc_verbs_join(struct verbs_conn *conn, const char *detail,
                           char text[DSC_VERBS_TEXT_BYTES])
{
    struct far_end far;

    if (!read_detail(detail, &far)) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "queue pair \"%.64s\" cannot be read", detail);
        return text;
    }
    const int error =
        dsc_verbs_qp_join(conn->verbs, &conn->device->port, conn->qp, conn->psn, &far.qp);

    if (error != 0) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s port %u finds no way to rank %d: %s",
                 conn->device->port.name, conn->device->port.number, conn->base.peer,
                 strerror(error));
        return text;
    }
    conn->peer_address = far.address;
    conn->peer_key = far.key;
    return NULL;
}

/* ---- the end ---- */

void dsc_verbs_discard(struct verbs_conn *conn)
{
    const struct dsc_verbs *verbs;

    if (conn == NULL)
        return;
    verbs = conn->verbs;
    dsc_source_close(conn->base.net, &conn->events);
    if (conn->qp != NULL) {
        dsc_verbs_qp_drain(verbs, conn->qp, conn->cq, conn->n_in_flight + conn->credit_in_flight,
                           DSC_VERBS_RECEIVE);
        verbs->destroy_qp(conn->qp);
    }
    if (conn->cq != NULL)
        verbs->destroy_cq(conn->cq);
    dsc_held_forget(&conn->channel_held);
    if (conn->channel != NULL)
        verbs->destroy_comp_channel(conn->channel);
    if (conn->rx_mr != NULL)
        verbs->dereg_mr(conn->rx_mr);
    if (conn->tx_mr != NULL)
        verbs->dereg_mr(conn->tx_mr);
    if (conn->memory != NULL)
        (void)munmap(conn->memory, conn->bytes);
    dsc_free(conn->tx_slots);
    dsc_free(conn->rx_slots);
    dsc_free(conn);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of one host. Messages and bells are in the pair's segment, everything else (errors, the
 * peer's death, waking an epoll sleeper) is the control link's. The peer is another process that
 * may write anything at any time: what it wrote is copied, then checked, and sizes and places come
 * from this side's own view.
 */
#include "transport/net_internal.h"

#include <string.h>

#include "transport/header.h"

struct shm_conn {
    struct dsc_conn base;
    struct dsc_control control;
    struct dsc_segment segment;
    struct dsc_bell *own_bell, *peer_bell;
    struct dsc_ring tx, rx;
    struct dsc_header *rx_headers; /* [n_slots] private copies */
    uint64_t *tx_free;             /* [n_slots] index + 1 of the message whose slot was seen free */
    uint64_t *rx_checked;          /* [n_slots] index + 1 of the message whose copy is good */
};

static struct shm_conn *shm_of(struct dsc_conn *conn)
{
    return (struct shm_conn *)conn; /* its first member */
}

/* ---- layout ---- */

size_t dsc_shm_bytes(uint32_t n_slots, size_t slot_bytes)
{
    return 2 * sizeof(struct dsc_bell) + 2 * dsc_ring_bytes(n_slots, slot_bytes);
}

static uint8_t *ring_at(uint8_t *memory, int side, uint32_t n_slots, size_t slot_bytes)
{
    return memory + 2 * sizeof(struct dsc_bell) +
           (size_t)side * dsc_ring_bytes(n_slots, slot_bytes);
}

void dsc_shm_format(uint8_t *memory, uint32_t n_slots, size_t slot_bytes)
{
    struct dsc_ring ring;

    for (int side = 0; side < 2; side++) {
        dsc_ring_init(&ring, ring_at(memory, side, n_slots, slot_bytes), n_slots, slot_bytes);
        dsc_ring_format(&ring);
    }
}

/* ---- messages ---- */

static void ring_peer(struct shm_conn *shm)
{
    if (dsc_bell_ring(shm->peer_bell))
        dsc_control_wake(&shm->control);
}

static uint8_t *shm_tx_slot(struct dsc_conn *conn, uint64_t index)
{
    struct shm_conn *const shm = shm_of(conn);
    uint64_t *const free_for = &shm->tx_free[index % conn->n_slots];

    if (*free_for == index + 1) /* once free it is ours until posted, whatever the peer writes */
        return dsc_ring_payload(&shm->tx, index);
    uint8_t *const payload = dsc_ring_tx_slot(&shm->tx, index);

    if (payload != NULL)
        *free_for = index + 1;
    else if (conn->peer_left)
        dsc_net_left(conn);
    return payload;
}

static void shm_tx_post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header)
{
    struct shm_conn *const shm = shm_of(conn);
    struct dsc_header sent = *header;

    sent.magic = DSC_HEADER_MAGIC;
    sent.version = DSC_HEADER_VERSION;
    sent.kind = DSC_MSG_DATA;
    sent.crc = 0;
    shm->tx_free[index % conn->n_slots] = 0;
    dsc_ring_post(&shm->tx, index, &sent, 0);
    dsc_net_count(&conn->net->wire_tx_bytes, DSC_HEADER_BYTES + sent.payload_bytes);
    ring_peer(shm);
}

static const struct dsc_header *shm_rx_msg(struct dsc_conn *conn, uint64_t index,
                                           const uint8_t **payload_out)
{
    struct shm_conn *const shm = shm_of(conn);
    struct dsc_header *const header = &shm->rx_headers[index % conn->n_slots];
    uint64_t *const checked = &shm->rx_checked[index % conn->n_slots];
    struct dsc_header copy;
    const uint8_t *const payload = dsc_ring_rx_msg(&shm->rx, index, &copy);

    if (payload == NULL)
        return NULL;
    *payload_out = payload;
    if (*checked == index + 1)
        return header; /* what the caller was shown stays as it was */
    const char *wrong = dsc_header_check(&copy, conn->slot_bytes);

    if (wrong == NULL && copy.kind != DSC_MSG_DATA)
        wrong = "no data message";
    if (wrong != NULL) {
        dsc_net_set_error(conn->net, DSCOMM_ERR_CORRUPT, conn->peer,
                          "message %llu from rank %d (shm) is damaged: %s",
                          (unsigned long long)index, conn->peer, wrong);
        return NULL;
    }
    *header = copy;
    *checked = index + 1;
    return header;
}

static void shm_rx_release(struct dsc_conn *conn, uint64_t index)
{
    struct shm_conn *const shm = shm_of(conn);

    dsc_net_count(&conn->net->wire_rx_bytes,
                  DSC_HEADER_BYTES + shm->rx_headers[index % conn->n_slots].payload_bytes);
    dsc_ring_release(&shm->rx, index);
    ring_peer(shm);
}

static void shm_rx_expect(struct dsc_conn *conn, uint64_t end)
{
    conn->rx_end = end;
}

/* ---- life cycle ---- */

static void shm_progress(struct dsc_conn *conn)
{
    if (conn->peer_left && dsc_ring_lacks(&shm_of(conn)->rx, conn->rx_end))
        dsc_net_left(conn);
}

static bool shm_flushed(const struct dsc_conn *conn)
{
    (void)conn;
    return true; /* a posted message is in memory that the peer holds too */
}

static void shm_notify(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text)
{
    struct shm_conn *const shm = shm_of(conn);

    dsc_control_notify(&shm->control, status, rank, text);
    (void)dsc_bell_ring(shm->peer_bell); /* a sleeper looks at its control links when it wakes */
}

static void shm_shut(struct dsc_conn *conn)
{
    dsc_control_shut(&shm_of(conn)->control);
}

static void shm_destroy(struct dsc_conn *conn)
{
    struct shm_conn *const shm = shm_of(conn);

    dsc_net_remove_bell(conn->net, shm->own_bell);
    dsc_control_close(&shm->control);
    dsc_segment_fini(&shm->segment);
    dsc_free(shm->tx_free);
    dsc_free(shm->rx_headers);
    dsc_free(shm->rx_checked);
    dsc_free(shm);
}

/* Takes over the setup's segment. */
static void use_segment(struct shm_conn *shm, struct dsc_setup *setup)
{
    const struct dsc_conn *const conn = &shm->base;
    const int side = conn->net->rank > conn->peer;
    uint8_t *const memory = setup->segment.memory;
    struct dsc_bell *const bells = (struct dsc_bell *)(void *)memory;

    shm->segment = setup->segment;
    setup->segment = (struct dsc_segment){ .fd = -1 };
    shm->own_bell = &bells[side];
    shm->peer_bell = &bells[!side];
    dsc_ring_init(&shm->tx, ring_at(memory, side, conn->n_slots, conn->slot_bytes), conn->n_slots,
                  conn->slot_bytes);
    dsc_ring_init(&shm->rx, ring_at(memory, !side, conn->n_slots, conn->slot_bytes), conn->n_slots,
                  conn->slot_bytes);
    dsc_net_add_bell(conn->net, shm->own_bell);
}

dscomm_status_t dsc_shm_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct shm_conn *const shm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*shm));
    const int fd = setup->control_fd;

    if (shm == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a shm connection");
    shm->base = (struct dsc_conn){
        .ops = &dsc_transport_shm,
        .net = net,
        .peer = peer,
        .slot_bytes = net->params.slot_bytes,
        .n_slots = net->params.n_slots,
    };
    shm->control.conn = &shm->base;
    shm->control.source.fd = -1;
    shm->rx_headers = dsc_calloc(DSC_MEM_TRANSPORT, shm->base.n_slots, sizeof(*shm->rx_headers));
    shm->rx_checked = dsc_calloc(DSC_MEM_TRANSPORT, shm->base.n_slots, sizeof(*shm->rx_checked));
    shm->tx_free = dsc_calloc(DSC_MEM_TRANSPORT, shm->base.n_slots, sizeof(*shm->tx_free));
    if (shm->rx_headers == NULL || shm->rx_checked == NULL || shm->tx_free == NULL) {
        dsc_free(shm->tx_free);
        dsc_free(shm->rx_headers);
        dsc_free(shm->rx_checked);
        dsc_free(shm);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for %u headers", net->params.n_slots);
    }
    use_segment(shm, setup);
    setup->control_fd = -1;
    const dscomm_status_t st = dsc_control_open(&shm->control, &shm->base, fd);

    if (st < 0) {
        shm_destroy(&shm->base);
        return st;
    }
    *conn_out = &shm->base;
    return DSCOMM_OK;
}

static bool shm_reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    return strncmp(self->host_id, peer->host_id, DSC_HOST_ID_BYTES) == 0;
}

const struct dsc_transport_ops dsc_transport_shm = {
    .name = "shm",
    .wants_crc = false,
    .preference = 20,
    .reaches = shm_reaches,
    .tx_slot = shm_tx_slot,
    .tx_post = shm_tx_post,
    .tx_post_from = dsc_transport_copy_post_from,
    .settle = dsc_transport_no_settle,
    .rx_msg = shm_rx_msg,
    .rx_release = shm_rx_release,
    .rx_expect = shm_rx_expect,
    .progress = shm_progress,
    .arm = dsc_transport_no_arm,
    .flushed = shm_flushed,
    .notify = shm_notify,
    .shut = shm_shut,
    .destroy = shm_destroy,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and connections of a pair. The higher rank connects first while the lower one accepts,
 * then the other way round: so a plugin whose connect() waits for the other side's accept(), which
 * it should not, finds that side there.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/nccl_net_internal.h"

/* ---- preparation ---- */

static const char *alloc_side(struct nccl_side *side, uint32_t n_slots)
{
    side->slots = dsc_calloc(DSC_MEM_TRANSPORT, n_slots, sizeof(*side->slots));
    if (side->slots == NULL)
        return "no memory for its slots";
    for (uint32_t i = 0; i < n_slots; i++)
        side->slots[i].next = i;
    return NULL;
}

static const char *alloc_memory(struct nccl_conn *conn)
{
    const uint32_t n = conn->base.n_slots;
    const char *why = alloc_side(&conn->tx, n);

    if (why == NULL)
        why = alloc_side(&conn->rx, n);
    conn->stride = 64 + dsc_round_up(conn->base.slot_bytes, 64);
    const size_t half = dsc_round_up(n * conn->stride, 4096);
    void *const memory =
        mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return "no memory for its slots";
    conn->bytes = 2 * half;
    conn->memory = conn->tx.memory = memory;
    conn->rx.memory = conn->memory + half;
    /* a forked child would take away the pages that a device writes */
    (void)madvise(memory, conn->bytes, MADV_DONTFORK);
    return why;
}

static bool handle_is_whole(const struct nccl_conn *conn)
{
    for (size_t i = NCCL_HANDLE_BYTES; i < sizeof(conn->handle); i++)
        if (conn->handle[i] != DSC_NCCL_GUARD)
            return false;
    return true;
}

static const char *listen_for_peer(struct nccl_conn *conn, char *text)
{
    const struct dsc_nccl_plugin *const plugin = conn->plugin;
    char result_text[DSC_NCCL_RESULT_BYTES];

    memset(conn->handle + NCCL_HANDLE_BYTES, DSC_NCCL_GUARD, DSC_NCCL_GUARD_BYTES);
    const nccl_result_t result =
        plugin->net->listen(plugin->ctx, plugin->device, conn->handle, &conn->listener);

    if (result == NCCL_SUCCESS && conn->listener != NULL && handle_is_whole(conn))
        return NULL;
    if (result == NCCL_SUCCESS)
        snprintf(text, DSC_NCCL_TEXT_BYTES, "%s: listen %s", plugin->text,
                 conn->listener == NULL ? "gives nothing to accept from"
                                        : "writes behind the 128 bytes of its handle");
    else
        snprintf(text, DSC_NCCL_TEXT_BYTES, "%s: listen: %.100s", plugin->text,
                 dsc_nccl_result_text(result, result_text));
    return text;
}

const char *dsc_nccl_prepare(struct dsc_net *net, int peer, struct nccl_conn **conn_out,
                             char text[DSC_NCCL_TEXT_BYTES])
{
    if (DSC_HEADER_BYTES + net->params.slot_bytes > net->nccl->max_bytes) {
        snprintf(text, DSC_NCCL_TEXT_BYTES, "%s: messages of %zu bytes, at most %zu",
                 net->nccl->text, DSC_HEADER_BYTES + net->params.slot_bytes, net->nccl->max_bytes);
        return text;
    }
    struct nccl_conn *const conn = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*conn));

    if (conn == NULL)
        return "no memory for a connection";
    conn->base = (struct dsc_conn){
        .ops = &dsc_transport_nccl_net,
        .net = net,
        .peer = peer,
        .slot_bytes = net->params.slot_bytes,
        .n_slots = net->params.n_slots,
        .is_joining = true,
    };
    conn->plugin = net->nccl;
    conn->crc = net->params.crc;
    conn->control.conn = &conn->base;
    conn->control.source.fd = -1;
    const char *why = alloc_memory(conn);

    if (why == NULL)
        why = listen_for_peer(conn, text);
    if (why != NULL)
        dsc_nccl_discard(conn);
    else
        *conn_out = conn;
    return why;
}

const void *dsc_nccl_handle(const struct nccl_conn *conn)
{
    return conn->handle;
}

void dsc_nccl_join(struct nccl_conn *conn, const void *handle)
{
    memcpy(conn->handle, handle, NCCL_HANDLE_BYTES);
}

/* ---- connections ---- */

static void register_side(struct nccl_conn *conn, struct nccl_side *side)
{
    const nccl_result_t result = conn->plugin->net->reg_mr(
        side->comm, side->memory, conn->bytes / 2, NCCL_PTR_HOST, &side->mr);

    if (result != NCCL_SUCCESS)
        dsc_nccl_failed(side, "regMr", result);
}

/* Called again and again with one handle, in which the plugin may keep what it has begun. */
static void connect_side(struct nccl_conn *conn)
{
    const struct dsc_nccl_plugin *const plugin = conn->plugin;
    struct nccl_device_handle *unused = NULL;
    const nccl_result_t result =
        plugin->net->connect(plugin->ctx, plugin->device, conn->handle, &conn->tx.comm, &unused);

    if (result != NCCL_SUCCESS)
        dsc_nccl_failed(&conn->tx, "connect", result);
    else if (conn->tx.comm != NULL)
        register_side(conn, &conn->tx);
}

static void accept_side(struct nccl_conn *conn)
{
    struct nccl_device_handle *unused = NULL;
    const nccl_result_t result = conn->plugin->net->accept(conn->listener, &conn->rx.comm, &unused);

    if (result != NCCL_SUCCESS)
        dsc_nccl_failed(&conn->rx, "accept", result);
    else if (conn->rx.comm != NULL)
        register_side(conn, &conn->rx);
}

static void close_listener(struct nccl_conn *conn)
{
    if (conn->listener != NULL)
        (void)conn->plugin->net->close_listen(conn->listener);
    conn->listener = NULL;
}

void dsc_nccl_connect(struct nccl_conn *conn)
{
    const bool connects_first = conn->base.net->rank > conn->base.peer;

    if (conn->tx.comm == NULL && (connects_first || conn->rx.comm != NULL))
        connect_side(conn);
    else if (conn->rx.comm == NULL)
        accept_side(conn);
    if (conn->tx.failed_call != NULL || conn->rx.failed_call != NULL || conn->tx.comm == NULL ||
        conn->rx.comm == NULL)
        return;
    close_listener(conn);
    conn->base.is_joining = false;
    conn->base.net->n_completions++;
}

/* ---- the end ---- */

/* Whatever is in flight is dropped by the plugin; an error changes nothing. */
static void close_side(struct nccl_conn *conn, struct nccl_side *side,
                       nccl_result_t (*close_comm)(void *comm), const char *call)
{
    char text[DSC_NCCL_RESULT_BYTES];

    dsc_free(side->slots);
    if (side->comm == NULL)
        return;
    if (side->mr != NULL)
        (void)conn->plugin->net->dereg_mr(side->comm, side->mr);
    const nccl_result_t result = close_comm(side->comm);

    if (result != NCCL_SUCCESS)
        dsc_log_warn(NET, "%s: %s with rank %d: %s", conn->plugin->text, call, conn->base.peer,
                     dsc_nccl_result_text(result, text));
}

void dsc_nccl_discard(struct nccl_conn *conn)
{
    if (conn == NULL)
        return;
    close_side(conn, &conn->tx, conn->plugin->net->close_send, "closeSend");
    close_side(conn, &conn->rx, conn->plugin->net->close_recv, "closeRecv");
    close_listener(conn);
    if (conn->memory != NULL)
        (void)munmap(conn->memory, conn->bytes);
    dsc_free(conn);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of one burst, through connections and their slots as the executor uses them. Receivers
 * time arrivals, because what a sender has posted may wait in the kernel for long.
 */
#include "comm/measure_burst.h"

#include <string.h>

#define WAIT_NS 20000000u

static dscomm_status_t check_header(const struct dsc_meter *m, const struct dsc_burst *b, int peer,
                                    const struct dsc_header *h)
{
    if (h->descriptor != m->hash || h->sequence != m->comm->sequence)
        return dsc_fail(DSCOMM_ERR_MISMATCH,
                        "rank %d is in another call than rank %d, which measures in call %u", peer,
                        m->comm->rank, m->comm->sequence);
    if (h->stage != b->stage || h->payload_bytes != b->bytes)
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "message from rank %d has stage %u bytes %u, expected %u %zu", peer,
                        h->stage, h->payload_bytes, b->stage, b->bytes);
    return DSCOMM_OK;
}

/* Posts what there are slots for. */
static bool send_some(const struct dsc_meter *m, const struct dsc_burst *b, struct dsc_conn *conn,
                      uint32_t *sent)
{
    const struct dsc_header header = { .magic = DSC_HEADER_MAGIC,
                                       .version = DSC_HEADER_VERSION,
                                       .kind = DSC_MSG_DATA,
                                       .sequence = m->comm->sequence,
                                       .descriptor = m->hash,
                                       .stage = b->stage,
                                       .payload_bytes = (uint32_t)b->bytes };
    bool moved = false;

    while (*sent < b->count) {
        uint8_t *const slot = conn->ops->tx_slot(conn, conn->tx_next);

        if (slot == NULL)
            break;
        if (!conn->ops->reads_once)
            memcpy(slot, b->source, b->bytes);
        conn->ops->tx_post(conn, conn->tx_next++, &header);
        (*sent)++;
        moved = true;
    }
    return moved;
}

struct arrivals {
    uint32_t n;
    uint64_t last_ns;
};

/* Takes what has come. Positive: something. */
static dscomm_status_t receive_some(const struct dsc_meter *m, const struct dsc_burst *b,
                                    struct dsc_conn *conn, struct arrivals *a)
{
    dscomm_status_t moved = DSCOMM_OK;

    while (a->n < b->count) {
        const uint8_t *payload;
        const struct dsc_header *const shared = conn->ops->rx_msg(conn, conn->rx_next, &payload);
        struct dsc_header header;

        if (shared == NULL)
            break;
        header = *shared; /* the peer may write to shared memory at any time */
        DSC_TRY(check_header(m, b, conn->peer, &header));
        if (!conn->ops->reads_once)
            memcpy(b->sink, payload, b->bytes);
        conn->ops->rx_release(conn, conn->rx_next++);
        a->last_ns = dsc_now_ns();
        a->n++;
        moved = DSCOMM_IN_PROGRESS;
    }
    return moved;
}

struct patience {
    uint64_t since_ns, bytes;
};

/* Nothing moved: waits, or gives up. Bytes of a message on a slow link are progress. */
static dscomm_status_t wait_for(struct dsc_meter *m, struct patience *p, int peer)
{
    struct dsc_net *const net = m->comm->net;
    const uint64_t bytes = dsc_net_wire_tx_bytes(net) + dsc_net_wire_rx_bytes(net);
    const uint64_t now = dsc_now_ns(), limit = (uint64_t)m->comm->config.timeout_ms * 1000000u;

    if (p->since_ns == 0 || bytes != p->bytes)
        *p = (struct patience){ now, bytes };
    if (now - p->since_ns > limit)
        return dsc_fail(DSCOMM_ERR_TIMEOUT,
                        "rank %d waits for rank %d: nothing came for %.1f s in a measurement",
                        m->comm->rank, peer, m->comm->config.timeout_ms / 1e3);
    dsc_net_wait(net, dsc_min_u64(WAIT_NS, limit));
    return DSCOMM_OK;
}

static dscomm_status_t drive(struct dsc_meter *m, struct dsc_burst *b, struct arrivals *arrivals)
{
    const struct dsc_pattern *const p = b->pattern;
    struct dsc_conn *const out = p->out < 0 ? NULL : dsc_net_conn(m->comm->net, p->out);
    struct patience patience = { 0 };
    uint32_t sent = 0;

    for (;;) {
        int missing = -1;
        bool moved = false;

        DSC_TRY(dsc_net_progress(m->comm->net));
        if (out != NULL) {
            moved = send_some(m, b, out, &sent);
            if (sent < b->count || !out->ops->flushed(out))
                missing = p->out;
        }
        for (int i = 0; i < p->n_in; i++) {
            const dscomm_status_t st =
                receive_some(m, b, dsc_net_conn(m->comm->net, p->in[i]), &arrivals[i]);

            DSC_TRY(st);
            moved = moved || st != DSCOMM_OK;
            if (arrivals[i].n < b->count)
                missing = p->in[i];
        }
        if (missing < 0)
            return DSCOMM_OK;
        if (moved)
            patience.since_ns = 0;
        else
            DSC_TRY(wait_for(m, &patience, missing));
    }
}

/*
 * Time of a message: of the burst as a whole, less the way of the first one. Of flows that share a
 * link unevenly those that are done early leave it to the others, and the last one has had its
 * share on average.
 */
static void judge(struct dsc_burst *b, const struct arrivals *arrivals, uint64_t start_ns)
{
    b->message_ns = 0;
    for (int i = 0; i < b->pattern->n_in; i++) {
        const uint64_t all = arrivals[i].last_ns - start_ns;
        const uint64_t ns = (all - dsc_min_u64(b->latency_ns, all / 2)) / b->count;

        b->message_ns = dsc_max_size(1, dsc_max_size(b->message_ns, ns));
    }
}

/* Every rank sends `count` messages to its target and takes those that are sent to it. */
static dscomm_status_t run_burst(struct dsc_meter *m, struct dsc_burst *b)
{
    struct arrivals *const arrivals =
        dsc_calloc(DSC_MEM_COMM, (size_t)b->pattern->n_in, sizeof(*arrivals));
    const uint64_t cpu = dsc_thread_cpu_ns(), start = dsc_now_ns();
    dscomm_status_t st;

    if (arrivals == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "arrivals of %d ranks", b->pattern->n_in);
    for (int i = 0; i < b->pattern->n_in; i++) {
        struct dsc_conn *const conn = dsc_net_conn(m->comm->net, b->pattern->in[i]);

        conn->ops->rx_expect(conn, conn->rx_next + b->count);
    }
    st = drive(m, b, arrivals);
    b->cpu_ns = dsc_thread_cpu_ns() - cpu;
    if (st == DSCOMM_OK)
        judge(b, arrivals, start);
    dsc_free(arrivals);
    return st;
}

dscomm_status_t dsc_burst_run(struct dsc_meter *m, struct dsc_burst *b)
{
    dscomm_status_t st;

    dsc_net_enter(m->comm->net, m->comm->sequence, m->hash, "measure");
    st = run_burst(m, b);
    dsc_net_leave(m->comm->net);
    return st < 0 ? dsc_comm_fail(m->comm, NULL, st, -1) : st;
}

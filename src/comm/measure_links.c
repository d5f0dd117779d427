/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of a tier, through connections and their slots as the executor uses them. Every rank sends
 * to one rank of another sub-group of its group; how many ranks send to it may differ. Receivers
 * time arrivals, because what a sender has posted may wait in the kernel for long.
 *
 * Transports through memory move nothing by themselves: there the sender writes a message and the
 * receiver reads it, as codecs would. What that costs in private memory is taken off the CPU time.
 */
#include "comm/measure.h"

#include <string.h>

#define SMALL_BYTES 64
#define COUNT_MIN 8      /* messages of a burst */
#define COUNT_MIN_SLOW 3 /* where a message takes longer than ... */
#define SLOW_NS 4000000u
#define COUNT_MAX 4096
#define PINGS_MIN 4
#define IN_FLIGHT 4 /* messages that a call may have under way on a connection, more or less */
#define PINGS_MAX 512
#define WAIT_NS 20000000u

/* Whom this rank talks to in a burst. */
struct pattern {
    int out; /* -1: to nobody */
    int n_in;
    const int *in;
};

struct links {
    struct dsc_meter *m;
    struct dscomm_comm *comm;
    int tier;
    struct pattern all;
    int *in;                   /* [n_ranks] memory of all.in */
    int first, second;         /* the pair that is measured alone */
    size_t big;                /* bytes of a large message */
    uint8_t *source, *sink;    /* [big] */
    uint64_t fill_ns, read_ns; /* CPU time of a large message in private memory */
};

struct burst {
    const struct pattern *pattern;
    size_t bytes;
    uint32_t count;
    uint16_t stage; /* in headers */
    /* What came of it. */
    uint64_t cpu_ns;
    uint64_t message_ns; /* of the slowest sender to this rank; 0: no sender */
};

/* ---- who talks to whom ---- */

static void find_pattern(struct links *l)
{
    l->all = (struct pattern){ dsc_measure_target(l->comm, l->tier, l->comm->rank), 0, l->in };
    l->first = -1;
    for (int r = 0; r < l->comm->n_ranks; r++) {
        const int target = dsc_measure_target(l->comm, l->tier, r);

        if (target == l->comm->rank)
            l->in[l->all.n_in++] = r;
        if (l->first < 0 && target >= 0) {
            l->first = r;
            l->second = target;
        }
    }
}

/* ---- a burst ---- */

static dscomm_status_t check_header(const struct links *l, const struct burst *b, int peer,
                                    const struct dsc_header *h)
{
    if (h->descriptor != l->m->hash || h->sequence != l->comm->sequence)
        return dsc_fail(DSCOMM_ERR_MISMATCH,
                        "rank %d is in another call than rank %d, which measures in call %u", peer,
                        l->comm->rank, l->comm->sequence);
    if (h->stage != b->stage || h->payload_bytes != b->bytes)
        return dsc_fail(DSCOMM_ERR_CORRUPT,
                        "message from rank %d has stage %u bytes %u, expected %u %zu", peer,
                        h->stage, h->payload_bytes, b->stage, b->bytes);
    return DSCOMM_OK;
}

/* Posts what there are slots for. */
static bool send_some(struct links *l, const struct burst *b, struct dsc_conn *conn, uint32_t *sent)
{
    const struct dsc_header header = { .magic = DSC_HEADER_MAGIC,
                                       .version = DSC_HEADER_VERSION,
                                       .kind = DSC_MSG_DATA,
                                       .sequence = l->comm->sequence,
                                       .descriptor = l->m->hash,
                                       .stage = b->stage,
                                       .payload_bytes = (uint32_t)b->bytes };
    bool moved = false;

    while (*sent < b->count) {
        uint8_t *const slot = conn->ops->tx_slot(conn, conn->tx_next);

        if (slot == NULL)
            break;
        if (!conn->ops->reads_once)
            memcpy(slot, l->source, b->bytes);
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
static dscomm_status_t receive_some(struct links *l, const struct burst *b, struct dsc_conn *conn,
                                    struct arrivals *a)
{
    dscomm_status_t moved = DSCOMM_OK;

    while (a->n < b->count) {
        const uint8_t *payload;
        const struct dsc_header *const shared = conn->ops->rx_msg(conn, conn->rx_next, &payload);
        struct dsc_header header;

        if (shared == NULL)
            break;
        header = *shared; /* the peer may write to shared memory at any time */
        DSC_TRY(check_header(l, b, conn->peer, &header));
        if (!conn->ops->reads_once)
            memcpy(l->sink, payload, b->bytes);
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
static dscomm_status_t wait_for(struct links *l, struct patience *p, int peer)
{
    struct dsc_net *const net = l->comm->net;
    const uint64_t bytes = dsc_net_wire_tx_bytes(net) + dsc_net_wire_rx_bytes(net);
    const uint64_t now = dsc_now_ns(), limit = (uint64_t)l->comm->config.timeout_ms * 1000000u;

    if (p->since_ns == 0 || bytes != p->bytes)
        *p = (struct patience){ now, bytes };
    if (now - p->since_ns > limit)
        return dsc_fail(DSCOMM_ERR_TIMEOUT,
                        "rank %d waits for rank %d: nothing came for %.1f s in a measurement",
                        l->comm->rank, peer, l->comm->config.timeout_ms / 1e3);
    dsc_net_wait(net, dsc_min_u64(WAIT_NS, limit));
    return DSCOMM_OK;
}

static dscomm_status_t drive(struct links *l, struct burst *b, struct arrivals *arrivals)
{
    const struct pattern *const p = b->pattern;
    struct dsc_conn *const out = p->out < 0 ? NULL : dsc_net_conn(l->comm->net, p->out);
    struct patience patience = { 0 };
    uint32_t sent = 0;

    for (;;) {
        int missing = -1;
        bool moved = false;

        DSC_TRY(dsc_net_progress(l->comm->net));
        if (out != NULL) {
            moved = send_some(l, b, out, &sent);
            if (sent < b->count || !out->ops->flushed(out))
                missing = p->out;
        }
        for (int i = 0; i < p->n_in; i++) {
            const dscomm_status_t st =
                receive_some(l, b, dsc_net_conn(l->comm->net, p->in[i]), &arrivals[i]);

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
            DSC_TRY(wait_for(l, &patience, missing));
    }
}

/*
 * Time of a message: of the burst as a whole, less the way of the first one. Of flows that share a
 * link unevenly those that are done early leave it to the others, and the last one has had its
 * share on average.
 */
static void judge(struct burst *b, const struct arrivals *arrivals, uint64_t start_ns,
                  uint64_t latency_ns)
{
    b->message_ns = 0;
    for (int i = 0; i < b->pattern->n_in; i++) {
        const uint64_t all = arrivals[i].last_ns - start_ns;
        const uint64_t ns = (all - dsc_min_u64(latency_ns, all / 2)) / b->count;

        b->message_ns = dsc_max_size(1, dsc_max_size(b->message_ns, ns));
    }
}

/* Every rank sends `count` messages to its target and takes those that are sent to it. */
static dscomm_status_t run_burst(struct links *l, struct burst *b)
{
    struct arrivals *const arrivals =
        dsc_calloc(DSC_MEM_COMM, (size_t)b->pattern->n_in, sizeof(*arrivals));
    const uint64_t cpu = dsc_thread_cpu_ns(), start = dsc_now_ns();
    dscomm_status_t st;

    if (arrivals == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "arrivals of %d ranks", b->pattern->n_in);
    for (int i = 0; i < b->pattern->n_in; i++) {
        struct dsc_conn *const conn = dsc_net_conn(l->comm->net, b->pattern->in[i]);

        conn->ops->rx_expect(conn, conn->rx_next + b->count);
    }
    st = drive(l, b, arrivals);
    b->cpu_ns = dsc_thread_cpu_ns() - cpu;
    if (st == DSCOMM_OK)
        judge(b, arrivals, start, l->m->rates->tiers[l->tier].latency_ns);
    dsc_free(arrivals);
    return st;
}

/* An error in it ends the communicator. */
static dscomm_status_t burst(struct links *l, struct burst *b)
{
    dscomm_status_t st;

    dsc_net_enter(l->comm->net, l->comm->sequence, l->m->hash, "measure");
    st = run_burst(l, b);
    dsc_net_leave(l->comm->net);
    return st < 0 ? dsc_comm_fail(l->comm, NULL, st, -1) : st;
}

/* ---- one pair ---- */

/* `n` round trips, the way there with `bytes`: the median of half of them. Of others: 0. */
static dscomm_status_t ping(struct links *l, size_t bytes, uint32_t n, uint64_t *ns_out)
{
    const bool is_first = l->comm->rank == l->first;
    const int peer = is_first ? l->second : l->first;
    const struct pattern to = { peer, 0, NULL }, from = { -1, 1, &peer };
    uint64_t trips[PINGS_MAX];

    *ns_out = 0;
    if (!is_first && l->comm->rank != l->second)
        return DSCOMM_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct burst there = { is_first ? &to : &from, bytes, 1, 0, 0, 0 };
        struct burst back = { is_first ? &from : &to, SMALL_BYTES, 1, 1, 0, 0 };
        const uint64_t start = dsc_now_ns();

        DSC_TRY(burst(l, &there));
        DSC_TRY(burst(l, &back));
        trips[i] = dsc_now_ns() - start;
    }
    if (is_first)
        *ns_out = dsc_max_size(1, dsc_median(trips, n) / 2);
    return DSCOMM_OK;
}

static dscomm_status_t agreed_ping(struct links *l, size_t bytes, uint32_t n, uint64_t *ns_out)
{
    struct dsc_agreed agreed;
    uint64_t ns;

    DSC_TRY(ping(l, bytes, n, &ns));
    DSC_TRY(dsc_meter_agree(l->m, ns, &agreed));
    *ns_out = agreed.most;
    return DSCOMM_OK;
}

/* ---- rounds ---- */

/* As many messages as fit in the time; what is passed in is agreed, so is the answer. */
static uint32_t fit_count(uint64_t ns, uint64_t message_ns, uint32_t most)
{
    const uint32_t least = message_ns > SLOW_NS ? COUNT_MIN_SLOW : COUNT_MIN;
    const uint64_t fits = ns / (message_ns + 1);

    return (uint32_t)dsc_min_u64(most, fits < least ? least : fits);
}

struct outcome {
    uint64_t message_ns; /* agreed: of the slowest rank */
    uint64_t cpu_ns;     /* agreed: likewise, of one message sent or received */
};

/*
 * Rounds of a burst until there are enough, or `ns` have passed. Of several, one goes before that
 * does not count: a link that was idle is slower at first, or faster. The lower quartile is taken:
 * whatever else runs on the machine makes a round slower, never faster.
 */
static dscomm_status_t rounds(struct links *l, struct burst *b, uint64_t ns, uint64_t private_ns,
                              struct outcome *outcome_out)
{
    const uint64_t start = dsc_now_ns();
    const uint64_t n_own =
        (uint64_t)b->count * ((uint64_t)(b->pattern->out >= 0) + (uint64_t)b->pattern->n_in);
    uint64_t times[DSC_ROUNDS_MAX], cpus[DSC_ROUNDS_MAX];
    struct dsc_agreed agreed = { 0 };
    uint32_t n = 0;

    if (ns > 0)
        DSC_TRY(burst(l, b));
    do {
        DSC_TRY(burst(l, b));
        times[n] = b->message_ns;
        cpus[n] = n_own == 0 ? 0 : b->cpu_ns / n_own;
        cpus[n] -= dsc_min_u64(private_ns, cpus[n]);
        n++;
        DSC_TRY(dsc_meter_agree(l->m, dsc_now_ns() - start, &agreed));
    } while (n < l->m->n_rounds && agreed.most + agreed.most / (n + 1) <= ns);
    DSC_TRY(dsc_meter_agree(l->m, dsc_quartile(times, n), &agreed));
    outcome_out->message_ns = dsc_max_size(1, agreed.most);
    DSC_TRY(dsc_meter_agree(l->m, dsc_quartile(cpus, n), &agreed));
    outcome_out->cpu_ns = agreed.most;
    return DSCOMM_OK;
}

/* Of bytes per message; at least 1. */
static uint64_t rate_of(size_t bytes, uint64_t message_ns)
{
    return dsc_max_size(1, (uint64_t)bytes * 1000000000u / message_ns);
}

static dscomm_status_t measure_pair(struct links *l, struct dsc_tier_rates *rates, uint64_t ns)
{
    const bool is_first = l->comm->rank == l->first, is_second = l->comm->rank == l->second;
    const struct pattern pattern = { is_first ? l->second : -1, is_second ? 1 : 0, &l->first };
    struct burst b = { &pattern, l->big, 0, 2, 0, 0 };
    uint64_t big_ns, small_ns;
    struct outcome outcome;

    DSC_TRY(agreed_ping(l, l->big, PINGS_MIN, &big_ns));
    DSC_TRY(agreed_ping(l, SMALL_BYTES, PINGS_MIN, &small_ns));
    DSC_TRY(
        agreed_ping(l, SMALL_BYTES, fit_count(ns / 6, small_ns, PINGS_MAX), &rates->latency_ns));
    b.count = fit_count(ns * 2 / 3 / (l->m->n_rounds + 1), big_ns, COUNT_MAX);
    DSC_TRY(rounds(l, &b, ns * 2 / 3, 0, &outcome));
    rates->bytes_per_s_alone = rate_of(l->big, outcome.message_ns);
    return DSCOMM_OK;
}

/* ---- all at once ---- */

/*
 * CPU time without spinning: what is left is work. Few messages at once, as calls send them: of
 * many the kernel copies more than caches hold.
 */
static dscomm_status_t measure_cpu(struct links *l, struct dsc_tier_rates *rates, uint64_t ns)
{
    const struct dsc_conn *const conn =
        l->all.out < 0 ? NULL : dsc_net_conn(l->comm->net, l->all.out);
    const bool by_memory = conn != NULL && !conn->ops->reads_once;
    struct burst small = { &l->all, SMALL_BYTES, 64, 3, 0, 0 };
    struct burst big = { &l->all, l->big, IN_FLIGHT, 4, 0, 0 };
    struct outcome of_small, of_big;
    uint64_t extra, fs;

    DSC_TRY(rounds(l, &small, ns / 4, 0, &of_small));
    DSC_TRY(rounds(l, &big, ns * 3 / 4, by_memory ? (l->fill_ns + l->read_ns) / 2 : 0, &of_big));
    extra = of_big.cpu_ns - dsc_min_u64(of_small.cpu_ns, of_big.cpu_ns);
    fs = extra * 1000000u / l->big;
    rates->message_ns = (uint32_t)dsc_min_u64(of_small.cpu_ns, 1000000000u);
    rates->byte_fs = (uint32_t)dsc_min_u64(fs, 1000000000u);
    rates->by_memory = conn == NULL || by_memory; /* who is alone in its group has no say */
    return DSCOMM_OK;
}

static dscomm_status_t measure_all(struct links *l, struct dsc_tier_rates *rates, uint64_t ns)
{
    const uint64_t alone_ns = (uint64_t)l->big * 1000000000u / rates->bytes_per_s_alone + 1;
    struct burst b = { &l->all, l->big, fit_count(ns / 20, alone_ns, COUNT_MAX), 5, 0, 0 };
    struct outcome outcome;
    uint64_t spin;
    dscomm_status_t st;

    DSC_TRY(rounds(l, &b, 0, 0, &outcome)); /* one, to see how long a burst may be */
    b.count = fit_count(ns * 3 / 5 / (l->m->n_rounds + 1), outcome.message_ns, COUNT_MAX);
    DSC_TRY(rounds(l, &b, ns * 3 / 5, 0, &outcome));
    rates->bytes_per_s = rate_of(l->big, outcome.message_ns);
    spin = dsc_net_set_spin(l->comm->net, 0);
    st = measure_cpu(l, rates, ns / 3);
    dsc_net_set_spin(l->comm->net, spin);
    return st;
}

/* ---- a tier ---- */

static dscomm_status_t connect_peers(struct links *l)
{
    struct dsc_net *const net = l->comm->net;
    int *const peers = dsc_calloc(DSC_MEM_COMM, (size_t)l->comm->n_ranks, sizeof(*peers));
    dscomm_status_t st;
    int n = 0;

    if (peers == NULL)
        return dsc_comm_fail(l->comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "a list of peers"), -1);
    for (int r = 0; r < l->comm->n_ranks; r++) {
        bool is_peer = r == l->all.out;

        for (int i = 0; i < l->all.n_in; i++)
            is_peer = is_peer || l->in[i] == r;
        if (is_peer)
            peers[n++] = r;
    }
    dsc_net_enter(net, l->comm->sequence, l->m->hash, "measure");
    st = dsc_net_connect(net, peers, n);
    dsc_net_leave(net);
    dsc_free(peers);
    return st < 0 ? dsc_comm_fail(l->comm, NULL, st, -1) : st;
}

static dscomm_status_t measure_tier(struct links *l, uint64_t ns)
{
    struct dsc_tier_rates *const rates = &l->m->rates->tiers[l->tier];

    find_pattern(l);
    if (l->first < 0)
        return DSCOMM_OK; /* joins nobody */
    DSC_TRY(connect_peers(l));
    DSC_TRY(measure_pair(l, rates, ns / 3));
    return measure_all(l, rates, ns * 2 / 3);
}

/* Writing and reading a large message in private memory. */
static void time_private(struct links *l)
{
    uint64_t fills[DSC_ROUNDS_MAX], reads[DSC_ROUNDS_MAX];

    for (size_t i = 0; i < DSC_ROUNDS_MAX; i++) {
        uint64_t t = dsc_thread_cpu_ns();

        memcpy(l->sink, l->source, l->big);
        fills[i] = dsc_thread_cpu_ns() - t;
        t = dsc_thread_cpu_ns();
        memcpy(l->source, l->sink, l->big);
        reads[i] = dsc_thread_cpu_ns() - t;
    }
    l->fill_ns = dsc_median(fills, DSC_ROUNDS_MAX);
    l->read_ns = dsc_median(reads, DSC_ROUNDS_MAX);
}

dscomm_status_t dsc_meter_links(struct dsc_meter *m, uint64_t budget_ns)
{
    struct dscomm_comm *const comm = m->comm;
    const size_t big = dsc_round_up(comm->chunk_elems * sizeof(float) / 2, 16);
    struct links l = { .m = m, .comm = comm, .big = big };
    dscomm_status_t st = DSCOMM_OK;

    l.in = dsc_calloc(DSC_MEM_COMM, (size_t)comm->n_ranks, sizeof(*l.in));
    l.source = dsc_calloc(DSC_MEM_COMM, 1, big);
    l.sink = dsc_calloc(DSC_MEM_COMM, 1, big);
    if (l.in == NULL || l.source == NULL || l.sink == NULL)
        st = dsc_comm_fail(comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "messages of %zu bytes", big),
                           -1);
    if (st == DSCOMM_OK) {
        memset(l.source, 1, big);
        time_private(&l);
    }
    for (l.tier = 0; st == DSCOMM_OK && l.tier < comm->tiers.n_tiers; l.tier++)
        st = measure_tier(&l, budget_ns / (uint64_t)comm->tiers.n_tiers);
    dsc_free(l.in);
    dsc_free(l.source);
    dsc_free(l.sink);
    return st;
}

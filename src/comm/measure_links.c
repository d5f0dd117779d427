/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of a tier. Every rank sends to one rank of another sub-group of its group; how many ranks
 * send to it may differ.
 *
 * Transports through memory move nothing by themselves: there the sender writes a message and the
 * receiver reads it, as codecs would. What that costs in private memory is taken off the CPU time.
 */
#include "comm/measure_burst.h"

#include <string.h>

#define SMALL_BYTES 64
#define COUNT_MIN 8      /* messages of a burst */
#define COUNT_MIN_SLOW 3 /* where a message takes longer than ... */
#define SLOW_NS 4000000u
#define COUNT_MAX 4096
#define PINGS_MIN 4
#define IN_FLIGHT 4 /* messages that a call may have under way on a connection, more or less */
#define PINGS_MAX 512

struct links {
    struct dsc_meter *m;
    struct dscomm_comm *comm;
    int tier;
    struct dsc_pattern all;
    int *in;                   /* [n_ranks] memory of all.in */
    int first, second;         /* the pair that is measured alone */
    size_t big;                /* bytes of a large message */
    uint8_t *source, *sink;    /* [big] */
    uint64_t fill_ns, read_ns; /* CPU time of a large message in private memory */
};

/* ---- who talks to whom ---- */

static void find_pattern(struct links *l)
{
    l->all = (struct dsc_pattern){ dsc_measure_target(l->comm, l->tier, l->comm->rank), 0, l->in };
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

static struct dsc_burst make_burst(const struct links *l, const struct dsc_pattern *pattern,
                                   size_t bytes, uint32_t count, uint16_t stage)
{
    return (struct dsc_burst){ .pattern = pattern,
                               .source = l->source,
                               .sink = l->sink,
                               .bytes = bytes,
                               .count = count,
                               .stage = stage,
                               .latency_ns = l->m->rates->tiers[l->tier].latency_ns };
}

/* ---- one pair ---- */

/* `n` round trips, the way there with `bytes`: the median of half of them. Of others: 0. */
static dscomm_status_t ping(struct links *l, size_t bytes, uint32_t n, uint64_t *ns_out)
{
    const bool is_first = l->comm->rank == l->first;
    const int peer = is_first ? l->second : l->first;
    const struct dsc_pattern to = { peer, 0, NULL }, from = { -1, 1, &peer };
    uint64_t trips[PINGS_MAX];

    *ns_out = 0;
    if (!is_first && l->comm->rank != l->second)
        return DSCOMM_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct dsc_burst there = make_burst(l, is_first ? &to : &from, bytes, 1, 0);
        struct dsc_burst back = make_burst(l, is_first ? &from : &to, SMALL_BYTES, 1, 1);
        const uint64_t start = dsc_now_ns();

        DSC_TRY(dsc_burst_run(l->m, &there));
        DSC_TRY(dsc_burst_run(l->m, &back));
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
static dscomm_status_t rounds(struct links *l, struct dsc_burst *b, uint64_t ns,
                              uint64_t private_ns, struct outcome *outcome_out)
{
    const uint64_t start = dsc_now_ns();
    const uint64_t n_own =
        (uint64_t)b->count * ((uint64_t)(b->pattern->out >= 0) + (uint64_t)b->pattern->n_in);
    uint64_t times[DSC_ROUNDS_MAX], cpus[DSC_ROUNDS_MAX];
    struct dsc_agreed agreed = { 0 };
    uint32_t n = 0;

    if (ns > 0)
        DSC_TRY(dsc_burst_run(l->m, b));
    do {
        DSC_TRY(dsc_burst_run(l->m, b));
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
    const struct dsc_pattern pattern = { is_first ? l->second : -1, is_second ? 1 : 0, &l->first };
    struct dsc_burst b;
    uint64_t big_ns, small_ns;
    struct outcome outcome;

    DSC_TRY(agreed_ping(l, l->big, PINGS_MIN, &big_ns));
    DSC_TRY(agreed_ping(l, SMALL_BYTES, PINGS_MIN, &small_ns));
    DSC_TRY(
        agreed_ping(l, SMALL_BYTES, fit_count(ns / 6, small_ns, PINGS_MAX), &rates->latency_ns));
    b = make_burst(l, &pattern, l->big,
                   fit_count(ns * 2 / 3 / (l->m->n_rounds + 1), big_ns, COUNT_MAX), 2);
    DSC_TRY(rounds(l, &b, ns * 2 / 3, 0, &outcome));
    rates->bytes_per_s_alone = rate_of(l->big, outcome.message_ns);
    return DSCOMM_OK;
}

/* ---- all at once ---- */

/* CPU time per byte, of messages in bursts of `count`; small_ns: of a message with next to none. */
static dscomm_status_t measure_bytes(struct links *l, uint32_t count, uint64_t small_ns,
                                     uint64_t ns, uint32_t *byte_fs_out)
{
    const struct dsc_conn *const conn =
        l->all.out < 0 ? NULL : dsc_net_conn(l->comm->net, l->all.out);
    const bool by_memory = conn != NULL && !conn->ops->reads_once;
    const uint64_t private_ns = by_memory ? (l->fill_ns + l->read_ns) / 2 : 0;
    struct dsc_burst b = make_burst(l, &l->all, l->big, count, 4);
    struct outcome outcome;

    DSC_TRY(rounds(l, &b, ns, private_ns, &outcome));
    outcome.cpu_ns -= dsc_min_u64(small_ns, outcome.cpu_ns);
    *byte_fs_out = (uint32_t)dsc_min_u64(outcome.cpu_ns * 1000000u / l->big, 1000000000u);
    return DSCOMM_OK;
}

/*
 * CPU time of messages and bytes, without spinning: what is left is work. Of few messages under way,
 * as short calls send them, and of `count`: so many that the kernel copies more than caches hold.
 */
static dscomm_status_t measure_cpu(struct links *l, struct dsc_tier_rates *rates, uint32_t count,
                                   uint64_t ns)
{
    const struct dsc_conn *const conn =
        l->all.out < 0 ? NULL : dsc_net_conn(l->comm->net, l->all.out);
    struct dsc_burst small = make_burst(l, &l->all, SMALL_BYTES, 64, 3);
    struct outcome outcome;

    rates->by_memory = conn == NULL || !conn->ops->reads_once; /* who is alone has no say */
    DSC_TRY(rounds(l, &small, ns / 4, 0, &outcome));
    rates->message_ns = (uint32_t)dsc_min_u64(outcome.cpu_ns, 1000000000u);
    DSC_TRY(measure_bytes(l, IN_FLIGHT, rates->message_ns, ns / 2, &rates->byte_fs));
    return measure_bytes(l, count, rates->message_ns, ns / 4, &rates->far_byte_fs);
}

static dscomm_status_t measure_all(struct links *l, struct dsc_tier_rates *rates, uint64_t ns)
{
    const uint64_t alone_ns = (uint64_t)l->big * 1000000000u / rates->bytes_per_s_alone + 1;
    struct dsc_burst b = make_burst(l, &l->all, l->big, fit_count(ns / 20, alone_ns, COUNT_MAX), 5);
    struct outcome outcome;
    uint64_t spin;
    dscomm_status_t st;

    DSC_TRY(rounds(l, &b, 0, 0, &outcome)); /* one, to see how long a burst may be */
    b.count = fit_count(ns * 3 / 5 / (l->m->n_rounds + 1), outcome.message_ns, COUNT_MAX);
    DSC_TRY(rounds(l, &b, ns * 3 / 5, 0, &outcome));
    rates->bytes_per_s = rate_of(l->big, outcome.message_ns);
    b.count = fit_count(ns / 12 / (l->m->n_rounds + 1), outcome.message_ns, COUNT_MAX);
    spin = dsc_net_set_spin(l->comm->net, 0);
    st = measure_cpu(l, rates, b.count, ns / 3);
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

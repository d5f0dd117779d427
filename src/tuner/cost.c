/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alpha-beta-gamma model: latency of messages that depend on each other, bytes per tier and
 * direction, and the CPU for codecs, messages and bytes. With overlap a call takes as long as the
 * busiest of these resources, and what the others need before it starts and after it ends: the
 * first and the last chunk's way. Without overlap, and with a single chunk, everything adds up.
 * Where ranks share a CPU it works for one while the other waits: a call takes no less than what
 * all of them need of it, and the more, the less time links leave for waiting.
 */
#include "tuner/cost.h"

#include <string.h>

#define NS_PER_S UINT64_C(1000000000)
#define FS_PER_NS UINT64_C(1000000)

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t mul(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t dsc_mul_div(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t whole = a / c;
    uint64_t rest = a % c;

    while (b != 0 && rest > UINT64_MAX / b) { /* rest < c, so c stays above 0 */
        rest /= 2;
        c /= 2;
    }
    return add(mul(whole, b), rest * b / c);
}

uint32_t dsc_mix_fs(uint32_t near_fs, uint32_t far_fs, uint64_t far_ppm)
{
    if (far_fs == 0)
        return near_fs;
    return (uint32_t)((near_fs * (DSC_MILLION - far_ppm) + far_fs * far_ppm) / DSC_MILLION);
}

/* How much longer a CPU takes that ranks share, in millionths. */
static uint64_t sharing_ppm(uint64_t ranks, uint64_t cpus)
{
    return ranks > cpus ? ranks * DSC_MILLION / cpus : DSC_MILLION;
}

struct sums {
    uint64_t tx[DSC_LOAD_STAGES][DSC_MAX_TIERS], rx[DSC_LOAD_STAGES][DSC_MAX_TIERS]; /* bytes */
    uint64_t moved_fs[DSC_LOAD_STAGES][DSC_MAX_TIERS]; /* CPU, of bytes */
    uint64_t message_ns, byte_fs;                      /* CPU, of all */
    bool crosses[DSC_LOAD_STAGES][DSC_MAX_TIERS];
};

/* Of a message from any place: the longest, with its header. */
static uint64_t message_bytes(const struct dsc_codec *codec, size_t n, uint64_t header_bytes)
{
    const uint64_t most = dsc_longest_message(codec, n);

    return add(codec->fill_ppm == 0 ? most : dsc_mul_div(most, codec->fill_ppm, DSC_MILLION),
               header_bytes);
}

static bool sum_messages(const struct dsc_load *load, const struct dsc_cost_codec *codecs,
                         const struct dsc_rates *rates, uint64_t far_ppm, struct sums *sums,
                         struct dsc_cost *cost, int *tier_out)
{
    for (uint32_t i = 0; i < load->n_msgs; i++) {
        const struct dsc_load_msgs *const line = &load->msgs[i];
        const struct dsc_tier_rates *const tier = &rates->tiers[line->wire];
        const uint64_t bytes = mul(
            line->count, message_bytes(codecs[line->codec].codec, line->n, rates->header_bytes));
        const uint64_t moved_fs = mul(bytes, dsc_mix_fs(tier->byte_fs, tier->far_byte_fs, far_ppm));
        uint64_t *const sum =
            line->is_tx ? &sums->tx[line->stage][line->wire] : &sums->rx[line->stage][line->wire];

        *tier_out = line->wire;
        if (tier->bytes_per_s == 0)
            return false;
        *sum = add(*sum, bytes);
        sums->crosses[line->stage][line->wire] = true;
        sums->message_ns = add(sums->message_ns, mul(line->count, tier->message_ns));
        sums->byte_fs = add(sums->byte_fs, moved_fs);
        sums->moved_fs[line->stage][line->wire] =
            add(sums->moved_fs[line->stage][line->wire], moved_fs);
        cost->messages += line->count;
        if (line->is_tx)
            cost->tx_bytes[line->wire] = add(cost->tx_bytes[line->wire], bytes);
    }
    return true;
}

/* Femtoseconds of all operations of a line. */
static uint64_t line_fs(const struct dsc_load *load, const struct dsc_load_ops *line,
                        const struct dsc_codec_speed *speed)
{
    const uint64_t n = line->n, ops = mul(n, line->n_ops);

    switch (line->kind) {
    case DSC_OP_SEND:
    case DSC_OP_ENCODE:
        return mul(ops, speed->send_fs);
    case DSC_OP_REDUCE: /* the own value comes from one vector, the sum goes to another: twice */
        return add(mul(mul(n, line->n_recvs), speed->add_fs), mul(mul(2, ops), speed->decode_fs));
    case DSC_OP_FINAL:
        return add(mul(mul(n, line->n_recvs), speed->add_fs), mul(ops, speed->own_fs));
    case DSC_OP_DECODE:
        return mul(ops, speed->decode_fs);
    case DSC_OP_SUM: /* of all ranks' messages, however they came; the first goes to the output */
        return add(mul(ops, speed->decode_fs),
                   mul(mul(ops, (uint64_t)load->n_ranks - 1), speed->add_fs));
    case DSC_OP_RESULT:
        return mul(ops, speed->own_fs);
    case DSC_OP_RESTORE:
    case DSC_OP_GATHER:
        break;
    }
    return 0;
}

/* Codecs' time, and the fixed time of operations on top. */
static void sum_ops(const struct dsc_load *load, const struct dsc_cost_codec *codecs,
                    const struct dsc_rates *rates, uint64_t *codec_fs, uint64_t *fixed_ns)
{
    for (uint32_t i = 0; i < load->n_ops; i++) {
        const struct dsc_load_ops *const line = &load->ops[i];

        *codec_fs = add(*codec_fs, line_fs(load, line, &codecs[line->codec].speed));
        *fixed_ns = add(*fixed_ns, mul(line->n_ops, rates->op_ns));
    }
}

static uint64_t wire_ns(const struct dsc_question *question, const struct dsc_rates *rates, int t,
                        uint64_t bytes)
{
    const uint32_t scale = question->scale_ppm[t];
    const uint64_t ns = dsc_mul_div(bytes, NS_PER_S, rates->tiers[t].bytes_per_s);

    return scale == 0 ? ns : dsc_mul_div(ns, scale, DSC_MILLION);
}

/* Bytes of one tier that take time after one another. */
static uint64_t serial_bytes(const struct sums *sums, int t, bool overlap)
{
    uint64_t tx = 0, rx = 0, by_stage = 0;

    for (int s = 0; s < DSC_LOAD_STAGES; s++) {
        tx = add(tx, sums->tx[s][t]);
        rx = add(rx, sums->rx[s][t]);
        by_stage = add(by_stage, max_u64(sums->tx[s][t], sums->rx[s][t]));
    }
    return overlap ? max_u64(tx, rx) : by_stage;
}

/*
 * What a stage waits for a tier's wire: the time that its bytes are under way beyond that in which
 * the CPU moves them. Nothing where ranks write and read shared memory: codecs do that.
 */
static uint64_t waiting_ns(const struct sums *sums, const struct dsc_question *question,
                           const struct dsc_rates *rates, int s, int t)
{
    const uint64_t bytes = max_u64(sums->tx[s][t], sums->rx[s][t]);
    const uint64_t wire = wire_ns(question, rates, t, bytes);

    if (rates->tiers[t].by_memory != 0)
        return 0;
    return wire - dsc_min_u64(wire, sums->moved_fs[s][t] / FS_PER_NS);
}

/* What a message is under way; sending it, waking up and taking it is in the CPU's time. */
static uint64_t latency_ns(const struct dsc_rates *rates, int t)
{
    const uint64_t cpu_ns = 2 * (uint64_t)rates->tiers[t].message_ns + rates->stage_ns;

    return rates->tiers[t].latency_ns - dsc_min_u64(rates->tiers[t].latency_ns, cpu_ns);
}

/* Latency of the chain, and what one chunk waits for a tier's wire in all stages. */
static void sum_stages(const struct dsc_load *load, const struct sums *sums,
                       const struct dsc_question *question, const struct dsc_rates *rates,
                       struct dsc_cost *cost, uint64_t fill_ns[DSC_MAX_TIERS], uint64_t *n_chunks)
{
    for (int s = 0; s < DSC_LOAD_STAGES; s++) {
        const struct dsc_load_stage *const stage = &load->stages[s];
        const uint64_t chunks = (uint64_t)(stage->last - stage->first) + 1;
        uint64_t latency = 0;

        if (!stage->is_used)
            continue;
        *n_chunks = *n_chunks == 0 || chunks < *n_chunks ? chunks : *n_chunks;
        for (int t = 0; t < question->n_tiers; t++) {
            if (sums->crosses[s][t])
                latency = max_u64(latency, latency_ns(rates, t));
            fill_ns[t] = add(fill_ns[t], waiting_ns(sums, question, rates, s, t) / chunks);
        }
        cost->latency_ns = add(cost->latency_ns, latency);
    }
}

/* The busiest resource in full, of the others one chunk's way. cpu_ns: of this rank alone. */
static uint64_t overlapped_ns(const struct dsc_cost *cost, uint64_t cpu_ns,
                              const uint64_t fill_ns[DSC_MAX_TIERS], uint64_t cpu_fill_ns,
                              int n_tiers)
{
    uint64_t busiest = cpu_ns, fills = cpu_fill_ns, own_fill = cpu_fill_ns;

    for (int t = 0; t < n_tiers; t++) {
        fills = add(fills, fill_ns[t]);
        if (cost->wire_ns[t] > busiest) {
            busiest = cost->wire_ns[t];
            own_fill = fill_ns[t];
        }
    }
    return add(busiest, fills - own_fill);
}

static uint64_t count_stages(const struct dsc_load *load)
{
    uint64_t n = 0;

    for (int s = 0; s < DSC_LOAD_STAGES; s++)
        n += load->stages[s].is_used;
    return n;
}

/* Of what a rank computes: all of it, and moving bytes; as if it had a CPU for itself. */
struct work {
    uint64_t cpu_ns, bytes_ns, n_chunks;
};

/* Time that the wires of all tiers take beyond that in which a shared CPU moves their bytes. */
static uint64_t wires_alone_ns(const struct dsc_cost *cost, const struct sums *sums,
                               const struct dsc_rates *rates, int n_tiers, uint64_t sharing)
{
    uint64_t ns = 0;

    for (int t = 0; t < n_tiers; t++) {
        uint64_t moved_fs = 0;

        if (rates->tiers[t].by_memory != 0)
            continue;
        for (int s = 0; s < DSC_LOAD_STAGES; s++)
            moved_fs = add(moved_fs, sums->moved_fs[s][t]);
        ns = add(ns, cost->wire_ns[t] -
                         dsc_min_u64(cost->wire_ns[t],
                                     dsc_mul_div(moved_fs / FS_PER_NS, sharing, DSC_MILLION)));
    }
    return ns;
}

/*
 * A CPU that ranks share and links, both busy: a link waits while it is another rank's turn to
 * compute. That adds half of the time where both take as long, and next to nothing where one of
 * them has little to do.
 */
static uint64_t beside_ns(uint64_t a, uint64_t b)
{
    const uint64_t longer = max_u64(a, b), shorter = a < b ? a : b;

    return longer == 0 ? 0 : add(longer, dsc_mul_div(shorter, shorter, mul(2, longer)));
}

/* Of a rank that has a CPU for itself. */
static uint64_t total_ns(const struct dsc_cost *cost, const struct work *own,
                         const uint64_t fill_ns[DSC_MAX_TIERS], const struct dsc_rates *rates,
                         int n_tiers)
{
    const uint64_t unmoved_ns = own->cpu_ns - own->bytes_ns; /* bytes are moved while they travel */
    uint64_t wires_ns = 0;

    if (rates->overlap != 0)
        return add(overlapped_ns(cost, own->cpu_ns, fill_ns,
                                 unmoved_ns / (own->n_chunks == 0 ? 1 : own->n_chunks), n_tiers),
                   cost->latency_ns);
    for (int t = 0; t < n_tiers; t++)
        if (rates->tiers[t].by_memory == 0)
            wires_ns = add(wires_ns, cost->wire_ns[t]);
    return add(add(wires_ns, unmoved_ns), cost->latency_ns);
}

bool dsc_cost_of(const struct dsc_load *load, const struct dsc_cost_codec *codecs,
                 const struct dsc_question *question, const struct dsc_rates *rates,
                 uint64_t far_ppm, struct dsc_cost *cost_out, int *tier_out)
{
    const uint64_t ranks =
        question->ranks_per_host > 0 ? (uint64_t)question->ranks_per_host : rates->ranks_per_host;
    const uint64_t now = sharing_ppm(ranks, rates->cpus_per_host);
    const uint64_t measured = sharing_ppm(rates->ranks_per_host, rates->cpus_per_host);
    struct sums sums;
    struct dsc_cost cost = { 0 };
    struct work own = { 0 };
    uint64_t fill_ns[DSC_MAX_TIERS] = { 0 }, codec_fs = 0, fixed_ns = rates->call_ns;

    memset(&sums, 0, sizeof(sums));
    if (!sum_messages(load, codecs, rates, far_ppm, &sums, &cost, tier_out))
        return false;
    sum_ops(load, codecs, rates, &codec_fs, &fixed_ns);
    sum_stages(load, &sums, question, rates, &cost, fill_ns, &own.n_chunks);
    fixed_ns = add(fixed_ns, mul(count_stages(load), rates->stage_ns));
    own.bytes_ns = sums.byte_fs / FS_PER_NS;
    own.cpu_ns = add(add(sums.message_ns, fixed_ns),
                     add(own.bytes_ns, dsc_mul_div(codec_fs / FS_PER_NS, DSC_MILLION, measured)));
    cost.codec_ns = dsc_mul_div(codec_fs / FS_PER_NS, now, measured);
    cost.cpu_ns = dsc_mul_div(own.cpu_ns, now, DSC_MILLION);
    for (int t = 0; t < question->n_tiers; t++)
        cost.wire_ns[t] = wire_ns(question, rates, t, serial_bytes(&sums, t, rates->overlap != 0));
    cost.total_ns = total_ns(&cost, &own, fill_ns, rates, question->n_tiers);
    if (now > DSC_MILLION)
        cost.total_ns = max_u64(
            cost.total_ns,
            beside_ns(cost.cpu_ns, wires_alone_ns(&cost, &sums, rates, question->n_tiers, now)));
    *cost_out = cost;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates of a topology file. Links have what the file declares, or stay unknown; latencies are
 * assumed by the kind of link, and codecs go at the speed of the GPU's memory: docs/tuner.md has
 * the bytes they move.
 */
#include "tuner/machine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "tuner/tuner.h"

#define LOCAL_MAX 256
#define FS_PER_S UINT64_C(1000000000000000)
#define SIZED_ELEMS 65536 /* messages of that size tell the bytes of an element */
#define CALL_NS 8400      /* launch and synchronization; NCCL's figure for its rings */
#define SELECT_READS 5    /* top-k: a pass per digit of 8 bits, and one to compact */

struct node {
    const dscomm_topo_t *topo;
    int gpus[LOCAL_MAX];
    int n_gpus;
    struct dsc_tier_facts facts[LOCAL_MAX];
    bool is_rdma;
};

static void note(char text[DSC_MACHINE_TEXT_BYTES], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void note(char text[DSC_MACHINE_TEXT_BYTES], const char *fmt, ...)
{
    const size_t used = strlen(text);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text + used, DSC_MACHINE_TEXT_BYTES - used, fmt, args);
    va_end(args);
}

static void find_gpus(struct node *node)
{
    for (int i = 0; i < dscomm_topo_n_devices(node->topo) && node->n_gpus < LOCAL_MAX; i++) {
        dscomm_topo_device_t dev = { .struct_bytes = sizeof(dev) };

        if (dscomm_topo_device(node->topo, i, &dev) == DSCOMM_OK && dev.kind == DSCOMM_DEVICE_GPU)
            node->gpus[node->n_gpus++] = i;
    }
}

/* ---- links ---- */

/* The worst of all pairs that a tier joins. */
struct worst {
    uint64_t bytes_per_s; /* 0: none seen yet */
    bool is_unknown, is_at_most;
    const char *why;
};

static void take(struct worst *worst, const dscomm_rate_t *rate, const char *why)
{
    uint64_t bps = 0;

    if (dscomm_rate_best(rate, &bps) == 0) {
        worst->is_unknown = true;
        worst->why = why;
        return;
    }
    worst->is_at_most = worst->is_at_most || (rate->marks & DSCOMM_RATE_PARTIAL) != 0;
    if (worst->bytes_per_s == 0 || bps < worst->bytes_per_s)
        worst->bytes_per_s = bps;
}

static void take_pair(const struct node *node, int a, int b, struct worst *worst)
{
    dscomm_topo_path_t path = { .struct_bytes = sizeof(path) };

    if (dscomm_topo_path(node->topo, node->gpus[a], node->gpus[b], &path) < 0)
        return;
    if (path.fabric_known == 0) { /* PCIe's rate may not be that of the fastest link */
        worst->is_unknown = true;
        worst->why = "fabric unknown: nothing says whether there is NVLink";
        return;
    }
    take(worst, &path.rate, "a link's rate is not stated");
}

/* Pairs within a host: of one fabric, or of different ones. */
static struct worst within_host(const struct node *node, bool in_fabric)
{
    struct worst worst = { 0 };

    for (int a = 0; a < node->n_gpus; a++)
        for (int b = 0; b < a; b++) {
            const bool shares =
                node->facts[a].fabric != 0 && node->facts[a].fabric == node->facts[b].fabric;

            if (shares == in_fabric)
                take_pair(node, a, b, &worst);
        }
    return worst;
}

/* A GPU's part of its NIC, or of the way there. */
static void take_nic(const struct node *node, int gpu, struct worst *worst)
{
    const int nic = dscomm_topo_nic_for(node->topo, node->gpus[gpu]);
    dscomm_topo_device_t dev = { .struct_bytes = sizeof(dev) };
    uint64_t bps = 0, sharers = 0;
    dscomm_rate_t part = { 0 };

    if (nic < 0 || dscomm_topo_device(node->topo, nic, &dev) < 0 ||
        (dev.flags & DSCOMM_DEVICE_VIRTUAL) != 0) {
        worst->is_unknown = true;
        worst->why = "no NIC is stated that is hardware";
        return;
    }
    for (int i = 0; i < node->n_gpus; i++)
        sharers += dscomm_topo_nic_for(node->topo, node->gpus[i]) == nic;
    if (dscomm_rate_best(&dev.port, &bps) != 0) {
        part.declared = bps / sharers;
        part.marks = DSCOMM_RATE_DECLARED;
    }
    take(worst, &part, "the NIC's rate is not stated");
}

static struct worst between_hosts(const struct node *node)
{
    struct worst worst = { 0 };

    for (int i = 0; i < node->n_gpus; i++)
        take_nic(node, i, &worst);
    return worst;
}

static bool starts_with_one_of(const char *name, const char *const *starts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

/* By the names that drivers give. */
static bool has_rdma(const struct node *node)
{
    static const char *const starts[] = { "mlx",     "rdma", "ib",  "efa",
                                          "bnxt_re", "hfi",  "cxi", "irdma" };
    dscomm_topo_device_t dev = { .struct_bytes = sizeof(dev) };
    const int nic = dscomm_topo_nic_for(node->topo, node->gpus[0]);

    return nic >= 0 && dscomm_topo_device(node->topo, nic, &dev) == DSCOMM_OK &&
           starts_with_one_of(dev.name, starts, DSC_ARRAY_LEN(starts));
}

/* Of a ring's step through that kind of link in NCCL's model, protocol Simple; TCP: ours. */
static uint64_t assumed_latency_ns(uint32_t kind)
{
    switch (kind) {
    case DSC_TIER_FABRIC:
    case DSC_TIER_RACK:
        return 3400;
    case DSC_TIER_HOST:
        return 5700;
    case DSC_TIER_RDMA:
        return 9600;
    default:
        return 30000;
    }
}

static void declare_tier(struct dscomm_tuner *machine, const struct node *node, int t)
{
    struct dsc_tier_rates *const tier = &machine->rates.tiers[t];
    struct worst worst;

    tier->kind = (uint32_t)machine->tiers.kinds[t];
    if (tier->kind == DSC_TIER_FABRIC || tier->kind == DSC_TIER_HOST)
        worst = within_host(node, tier->kind == DSC_TIER_FABRIC);
    else
        worst = between_hosts(node);
    if (worst.is_unknown || worst.bytes_per_s == 0) {
        note(machine->missing, "%stier %d (%s): %s", machine->missing[0] != '\0' ? "; " : "", t,
             dsc_tier_kind_name(tier->kind), worst.why != NULL ? worst.why : "nothing is stated");
        return;
    }
    tier->latency_ns = assumed_latency_ns(tier->kind);
    tier->bytes_per_s = tier->bytes_per_s_alone = worst.bytes_per_s;
    if (worst.is_at_most)
        note(machine->source, ", tier %d at most that", t);
}

/* ---- codecs ---- */

/* By compute capability: the memory of the first data centre part of the kind. Data sheets. */
static uint64_t usual_memory(int sm)
{
    static const struct {
        int sm;
        uint64_t bytes_per_s;
    } parts[] = {
        { 60, UINT64_C(732000000000) },   { 70, UINT64_C(900000000000) },
        { 75, UINT64_C(320000000000) },   { 80, UINT64_C(1555000000000) },
        { 86, UINT64_C(600000000000) },   { 89, UINT64_C(864000000000) },
        { 90, UINT64_C(3350000000000) },  { 100, UINT64_C(8000000000000) },
        { 103, UINT64_C(8000000000000) }, { 120, UINT64_C(1792000000000) },
        { 121, UINT64_C(273000000000) },
    };

    for (size_t i = 0; i < DSC_ARRAY_LEN(parts); i++)
        if (parts[i].sm == sm)
            return parts[i].bytes_per_s;
    return 0;
}

static dscomm_status_t find_memory(const struct node *node, const dscomm_tuner_config_t *config,
                                   uint64_t *bytes_per_s_out)
{
    dscomm_topo_device_t dev = { .struct_bytes = sizeof(dev) };

    *bytes_per_s_out = config->memory_bytes_per_s;
    if (*bytes_per_s_out != 0)
        return DSCOMM_OK;
    DSC_TRY(dscomm_topo_device(node->topo, node->gpus[0], &dev));
    *bytes_per_s_out = usual_memory(dev.sm);
    if (*bytes_per_s_out != 0)
        return DSCOMM_OK;
    if (dev.sm == DSCOMM_TOPO_UNKNOWN)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s does not say which GPUs these are: give memory_bytes_per_s, or sm",
                        config->topo);
    return dsc_fail(DSCOMM_ERR_INVALID,
                    "the memory of GPUs with sm %d in %s is not known: give memory_bytes_per_s",
                    dev.sm, config->topo);
}

/* Femtoseconds for so many thousandths of a byte. */
static uint32_t fs_of(uint64_t millibytes, uint64_t memory)
{
    const uint64_t fs = millibytes * (FS_PER_S / 1000) / memory;

    return fs < 1 ? 1 : (uint32_t)dsc_min_u64(fs, 1000000000);
}

/* d: data, e: residual (as wide as the data), q: the codec's, all in thousandths of a byte. */
static void add_speed(struct dsc_rates *rates, const struct dsc_codec *codec, dscomm_dtype_t dtype,
                      bool feedback, uint64_t memory)
{
    struct dsc_codec_speed *const speed = &rates->speeds[rates->n_speeds];
    const uint64_t d = 1000 * dsc_dtype_bytes(dtype), e = feedback ? d : 0;
    const uint64_t q =
        1000 * dsc_codec_message_bytes(dsc_codec_resolve(codec, dtype), SIZED_ELEMS) / SIZED_ELEMS;
    const uint64_t reads = codec->values != NULL ? SELECT_READS * (d + e) : d + e;

    if (rates->n_speeds == DSC_SPEEDS_MAX)
        return;
    rates->n_speeds++;
    (void)snprintf(speed->spec, sizeof(speed->spec), "%.31s", codec->spec);
    speed->dtype = (uint8_t)dtype;
    speed->feedback = feedback;
    speed->send_fs = fs_of(reads + e + q, memory);
    speed->add_fs = fs_of(q, memory);
    speed->own_fs = fs_of(reads + e + q + d, memory);
    speed->decode_fs = fs_of(q + d, memory);
}

static dscomm_status_t declare_codec(struct dsc_rates *rates, const char *spec, uint64_t memory)
{
    const struct dsc_codec *codec = NULL;
    static const dscomm_dtype_t dtypes[] = { DSCOMM_FLOAT32, DSCOMM_BFLOAT16 };

    DSC_TRY(dscomm_codec_parse(spec, &codec));
    if (codec->variable) /* no GPU packs: its messages have no fixed size */
        return DSCOMM_OK;
    for (size_t i = 0; i < DSC_ARRAY_LEN(dtypes); i++)
        for (int feedback = 0; feedback < 2; feedback++)
            add_speed(rates, codec, dtypes[i], feedback != 0, memory);
    return DSCOMM_OK;
}

static dscomm_status_t declare_codecs(struct dsc_rates *rates, uint64_t memory)
{
    size_t n;
    const char *const *const specs = dsc_tuner_specs(&n);

    DSC_TRY(declare_codec(rates, "fp32", memory));
    for (size_t i = 0; i < n; i++)
        DSC_TRY(declare_codec(rates, specs[i], memory));
    return DSCOMM_OK;
}

/* ---- the machine ---- */

/* Facts of one node's GPUs for all nodes: keys are only compared. */
static dscomm_status_t build_tiers(struct dscomm_tuner *machine, const struct node *node)
{
    const int n = machine->nodes * machine->local;
    struct dsc_tier_facts *const facts = dsc_calloc(DSC_MEM_TUNER, (size_t)n, sizeof(*facts));
    dscomm_status_t st;

    if (facts == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "facts of %d ranks", n);
    for (int r = 0; r < n; r++) {
        const struct dsc_tier_facts *const one = &node->facts[r % machine->local];
        const uint64_t at = (uint64_t)(r / machine->local) + 1;
        char text[64];

        (void)snprintf(text, sizeof(text), "%" PRIx64 " on %" PRIu64, one->fabric, at);
        facts[r].host = at;
        facts[r].fabric = one->fabric == 0 ? 0 : dsc_hash_text(text) | 1;
        facts[r].rdma = node->is_rdma;
    }
    st = dsc_tiers_build(facts, n, "", &machine->tiers);
    dsc_free(facts);
    return st;
}

dscomm_status_t dsc_machine_declare(struct dscomm_tuner *machine, const dscomm_topo_t *topo,
                                    const dscomm_tuner_config_t *config)
{
    struct node node = { .topo = topo };
    struct dsc_rates *const rates = &machine->rates;
    uint64_t memory = 0;

    find_gpus(&node);
    if (node.n_gpus == 0)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s states no GPU; what CPUs can do is measured by link_perf",
                        config->topo);
    if (config->local > node.n_gpus)
        return dsc_fail(DSCOMM_ERR_INVALID, "local %d, %s has %d GPUs", config->local, config->topo,
                        node.n_gpus);
    machine->local = config->local > 0 ? config->local : node.n_gpus;
    node.n_gpus = machine->local;
    if (machine->nodes * machine->local > DSC_MACHINE_RANKS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d nodes of %d ranks, at most %d ranks",
                        machine->nodes, machine->local, DSC_MACHINE_RANKS_MAX);
    DSC_TRY(find_memory(&node, config, &memory));
    for (int i = 0; i < node.n_gpus; i++)
        dsc_tier_facts_of(topo, node.gpus[i], "node", &node.facts[i]);
    node.is_rdma = has_rdma(&node);
    DSC_TRY(build_tiers(machine, &node));
    rates->version = DSC_RATES_VERSION;
    rates->n_tiers = (uint32_t)machine->tiers.n_tiers;
    rates->cpus_per_host = rates->ranks_per_host = (uint32_t)machine->local; /* a GPU each */
    rates->call_ns = CALL_NS;
    rates->overlap = 1;
    (void)snprintf(machine->source, sizeof(machine->source),
                   "topology %.400s: rates declared, latencies assumed, codecs at the speed of "
                   "memory, %" PRIu64 " GB/s%s",
                   config->topo, memory / UINT64_C(1000000000),
                   config->memory_bytes_per_s == 0 ? " by generation" : "");
    for (int t = 0; t < machine->tiers.n_tiers; t++)
        if (machine->nodes * machine->local > 1)
            declare_tier(machine, &node, t);
    return declare_codecs(rates, memory);
}

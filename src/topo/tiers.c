/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiers from exchanged facts. Kinds of links are taken from the fastest to the slowest; each joins
 * groups that have a key in common, and what is joined stays joined. So tiers nest by construction,
 * whatever the facts say, and all ranks that hold the same facts get the same tiers.
 */
#include "topo/tiers_internal.h"
#include "topo/topo_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- building blocks ---- */

static int *last_groups(const struct dsc_tiers *tiers)
{
    return tiers->groups + (size_t)(tiers->n_tiers - 1) * (size_t)tiers->n_ranks;
}

/* Tiers with room for all; none yet. */
static dscomm_status_t init(struct dsc_tiers *tiers, int n_ranks)
{
    if (n_ranks < 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "tiers of %d ranks, at least 1", n_ranks);
    *tiers = (struct dsc_tiers){ .n_ranks = n_ranks };
    tiers->groups = dsc_calloc(DSC_MEM_TOPO, (size_t)n_ranks * DSC_TIERS_MAX, sizeof(int));
    if (tiers->groups == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "tiers of %d ranks", n_ranks);
    return DSCOMM_OK;
}

void dsc_tiers_fini(struct dsc_tiers *tiers)
{
    dsc_free(tiers->groups);
    *tiers = (struct dsc_tiers){ 0 };
}

dscomm_status_t dsc_tiers_add(struct dsc_tiers *tiers, enum dsc_tier_kind kind, const int *label)
{
    int *const number = dsc_calloc(DSC_MEM_TOPO, (size_t)tiers->n_ranks, sizeof(int));
    int n_groups = 0;

    if (number == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "groups of %d ranks", tiers->n_ranks);
    DSC_ASSERT(tiers->n_tiers < DSC_TIERS_MAX);
    tiers->kinds[tiers->n_tiers++] = kind;
    for (int r = 0; r < tiers->n_ranks; r++) {
        if (number[label[r]] == 0)
            number[label[r]] = ++n_groups;
        last_groups(tiers)[r] = number[label[r]] - 1;
    }
    dsc_free(number);
    return DSCOMM_OK;
}

void dsc_tiers_close(struct dsc_tiers *tiers, enum dsc_tier_kind kind)
{
    bool is_there = tiers->n_tiers > 0;

    for (int r = 0; r < tiers->n_ranks && is_there; r++)
        is_there = last_groups(tiers)[r] == 0;
    if (is_there)
        return;
    DSC_ASSERT(tiers->n_tiers < DSC_TIERS_MAX);
    tiers->kinds[tiers->n_tiers++] = kind;
    memset(last_groups(tiers), 0, (size_t)tiers->n_ranks * sizeof(int));
}

/* ---- joining ---- */

struct key_of_rank {
    uint64_t key;
    int rank;
};

struct join {
    int n_ranks;
    int *parent; /* [n_ranks] forest; a root is the lowest rank of its group */
    struct key_of_rank *keys;
};

static int root_of(struct join *join, int rank)
{
    while (join->parent[rank] != rank) {
        join->parent[rank] = join->parent[join->parent[rank]];
        rank = join->parent[rank];
    }
    return rank;
}

static int compare_keys(const void *a, const void *b)
{
    const struct key_of_rank *const x = a, *const y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

static uint64_t key_of(const struct dsc_tier_facts *facts, enum dsc_tier_kind kind)
{
    switch (kind) {
    case DSC_TIER_FABRIC:
        return facts->fabric;
    case DSC_TIER_HOST:
        return facts->host;
    case DSC_TIER_RACK:
        return facts->rack;
    default:
        return facts->rdma;
    }
}

/* True: some groups became one. */
static bool join_equal(struct join *join, const struct dsc_tier_facts *facts,
                       enum dsc_tier_kind kind)
{
    bool has_joined = false;

    for (int r = 0; r < join->n_ranks; r++)
        join->keys[r] = (struct key_of_rank){ key_of(&facts[r], kind), r };
    qsort(join->keys, (size_t)join->n_ranks, sizeof(join->keys[0]), compare_keys);
    for (int i = 1; i < join->n_ranks; i++) {
        const int a = root_of(join, join->keys[i - 1].rank), b = root_of(join, join->keys[i].rank);

        if (join->keys[i].key == 0 || join->keys[i].key != join->keys[i - 1].key || a == b)
            continue;
        join->parent[a > b ? a : b] = a > b ? b : a;
        has_joined = true;
    }
    return has_joined;
}

static dscomm_status_t add_joined(struct join *join, enum dsc_tier_kind kind,
                                  struct dsc_tiers *tiers)
{
    for (int r = 0; r < join->n_ranks; r++)
        join->parent[r] = root_of(join, r);
    return dsc_tiers_add(tiers, kind, join->parent);
}

static dscomm_status_t join_all(struct join *join, const struct dsc_tier_facts *facts,
                                struct dsc_tiers *tiers)
{
    for (int r = 0; r < join->n_ranks; r++)
        join->parent[r] = r;
    for (int kind = DSC_TIER_FABRIC; kind < DSC_TIER_TCP; kind++)
        if (join_equal(join, facts, (enum dsc_tier_kind)kind))
            DSC_TRY(add_joined(join, (enum dsc_tier_kind)kind, tiers));
    dsc_tiers_close(tiers, DSC_TIER_TCP);
    return DSCOMM_OK;
}

static dscomm_status_t build_from_facts(const struct dsc_tier_facts *facts, struct dsc_tiers *tiers)
{
    struct join join = { .n_ranks = tiers->n_ranks };
    dscomm_status_t st;

    join.parent = dsc_calloc(DSC_MEM_TOPO, (size_t)tiers->n_ranks, sizeof(join.parent[0]));
    join.keys = dsc_calloc(DSC_MEM_TOPO, (size_t)tiers->n_ranks, sizeof(join.keys[0]));
    st = join.parent != NULL && join.keys != NULL
             ? join_all(&join, facts, tiers)
             : dsc_fail(DSCOMM_ERR_NO_MEMORY, "joining %d ranks", tiers->n_ranks);
    dsc_free(join.parent);
    dsc_free(join.keys);
    return st;
}

dscomm_status_t dsc_tiers_build(const struct dsc_tier_facts *facts, int n_ranks, const char *given,
                                struct dsc_tiers *tiers_out)
{
    struct dsc_tiers tiers;
    dscomm_status_t st;

    DSC_TRY(init(&tiers, n_ranks));
    st = given[0] != '\0' ? dsc_tiers_parse(&tiers, given) : build_from_facts(facts, &tiers);
    if (st < 0)
        dsc_tiers_fini(&tiers);
    else
        *tiers_out = tiers;
    return st;
}

/* ---- facts of this rank ---- */

static uint64_t hash_of(const char *host_id, const char *what, const char *bus)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "%s %.120s %s", what, host_id, bus);
    return dsc_hash_text(text) | 1; /* 0 means none */
}

static bool is_fabric(const dscomm_topo_t *topo, int a, int b)
{
    dscomm_topo_path_t path = { .struct_bytes = sizeof(path) };

    return dscomm_topo_path(topo, a, b, &path) == DSCOMM_OK &&
           (path.kind == DSCOMM_LINK_NVLINK || path.kind == DSCOMM_LINK_XGMI);
}

/* Lowest bus id of the switches that a GPU is at; NULL: of none. */
static const char *switch_of(const dscomm_topo_t *topo, int gpu)
{
    const char *lowest = NULL;

    for (size_t i = 0; i < topo->n_links; i++) {
        const struct dsc_topo_device *const other = &topo->devices[topo->links[i].b];

        if (topo->links[i].a == gpu && other->pub.kind == DSCOMM_DEVICE_FABRIC &&
            (lowest == NULL || strcmp(other->pub.bus, lowest) < 0))
            lowest = other->pub.bus;
    }
    return lowest;
}

/*
 * GPUs of which each has a direct link to each other, so that no pair of a domain needs PCIe: each
 * GPU in order of the topology goes to the first such set that takes it. Returns the first GPU of
 * the device's set, -1 if it is alone. Sets are built up to the device only: later GPUs do not
 * change them.
 */
static int first_of_clique(const dscomm_topo_t *topo, int device)
{
    int first[DSC_TOPO_CLIQUE_MAX], gpus[DSC_TOPO_CLIQUE_MAX];
    int n = 0, found = -1;
    bool is_alone = true;

    for (int i = 0; i < (int)topo->n_devices && n < DSC_TOPO_CLIQUE_MAX; i++) {
        if (topo->devices[i].pub.kind != DSCOMM_DEVICE_GPU)
            continue;
        gpus[n] = i;
        first[n] = i;
        for (int k = 0; k < n && first[n] == i; k++) {
            bool fits = first[k] == gpus[k];

            for (int m = k; m < n && fits; m++)
                fits = first[m] != gpus[k] || is_fabric(topo, gpus[m], i);
            if (fits)
                first[n] = gpus[k];
        }
        if (i == device)
            found = first[n];
        n++;
    }
    for (int k = 0; k < n; k++)
        is_alone &= first[k] != found || gpus[k] == device;
    return is_alone ? -1 : found;
}

void dsc_tier_facts_of(const dscomm_topo_t *topo, int device, const char *host_id,
                       struct dsc_tier_facts *facts_out)
{
    struct dsc_tier_facts facts = { 0 };
    char label[DSC_TOPO_LABEL_BYTES];
    const char *bus;
    int first;

    *facts_out = facts;
    if (host_id[0] == '\0')
        return;
    facts.host = hash_of(host_id, "host", "");
    *facts_out = facts;
    if (device < 0 || (size_t)device >= topo->n_devices ||
        topo->devices[device].pub.kind != DSCOMM_DEVICE_GPU)
        return;
    bus = switch_of(topo, device);
    first = bus == NULL ? first_of_clique(topo, device) : -1;
    if (first >= 0)
        bus = topo->devices[first].pub.bus[0] != '\0' ? topo->devices[first].pub.bus
                                                      : dsc_topo_label(topo, first, label);
    if (bus != NULL)
        facts_out->fabric = hash_of(host_id, "fabric", bus);
}

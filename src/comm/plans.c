/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans by shape. What a shape's choice leaves open, algorithm and chunk among it, follows from the
 * shape and from settings that were compared at rendezvous, so all ranks make the same plan in the
 * same call. When the table is full the plan that was used longest ago goes, also the same one
 * everywhere.
 */
#include "comm/comm.h"

#include <string.h>

#define MESSAGE_SLACK 256  /* padding, tables of segments */
#define CHUNKS_PER_PIECE 4 /* enough to overlap encode, transfer, reduce and decode */

bool dsc_shape_equal(const struct dsc_shape *a, const struct dsc_shape *b)
{
    return a->collective == b->collective && a->root == b->root && a->count == b->count &&
           a->dtype == b->dtype && a->op == b->op && a->codec == b->codec &&
           a->feedback == b->feedback && a->n_tensors == b->n_tensors && a->sizes == b->sizes &&
           dsc_choice_equal(&a->choice, &b->choice);
}

static enum dsc_algorithm wish(const struct dscomm_comm *comm, const struct dsc_shape *shape)
{
    return shape->choice.algorithm != DSC_ALG_AUTO ? shape->choice.algorithm : comm->algorithm;
}

static enum dsc_algorithm choose_algorithm(const struct dscomm_comm *comm,
                                           const struct dsc_shape *shape, size_t count)
{
    const enum dsc_collective collective = shape->collective;
    const enum dsc_algorithm wished = wish(comm, shape);

    if (comm->n_ranks == 1)
        return DSC_ALG_LOCAL;
    if (count == 0) /* every rank hears from every other, so that a count that differs is noticed */
        return DSC_ALG_ONE_SHOT;
    if (collective == DSC_BROADCAST || collective == DSC_ALL_TO_ALL)
        return DSC_ALG_DIRECT;
    if (collective != DSC_ALLREDUCE)
        return DSC_ALG_TWO_SHOT;
    if (wished == DSC_ALG_TIERED)
        return DSC_ALG_TWO_SHOT;
    if (wished != DSC_ALG_AUTO)
        return wished;
    return count <= comm->oneshot_bytes / sizeof(float) ? DSC_ALG_ONE_SHOT : DSC_ALG_TWO_SHOT;
}

/* Bytes of n elements in the widest codec of all tiers. */
static size_t widest_message(const struct dsc_plan_params *params, size_t n)
{
    size_t widest = 0;

    for (int t = 0; t < params->n_tiers; t++) {
        const struct dsc_codec *const codec = dsc_codec_resolve(params->codecs[t], params->dtype);

        widest = dsc_max_size(widest, dsc_codec_message_bytes(codec, n));
    }
    return widest;
}

static size_t longest_chunk(const struct dscomm_comm *comm, size_t count)
{
    const size_t share = count / (size_t)comm->n_ranks / CHUNKS_PER_PIECE;

    return dsc_min_size(comm->chunk_elems, dsc_max_size(share, comm->min_chunk_elems));
}

size_t dsc_comm_chunk(const struct dscomm_comm *comm, size_t count)
{
    return dsc_max_size(DSC_PIECE_ALIGN,
                        dsc_min_size(longest_chunk(comm, count), comm->chunk_elems / 2));
}

/*
 * A message takes half of chunk_bytes, give or take a chunk's alignment; that only matters where an
 * element takes 4 bytes. By default that is two TCP segments of 64 KiB, as loopback and offloading
 * adapters take them, header included: larger messages pile up in the kernel, and a few bytes more
 * are one more packet.
 */
static size_t choose_chunk(const struct dscomm_comm *comm, const struct dsc_plan_params *params)
{
    const size_t most = longest_chunk(comm, params->count);
    const size_t message_max = comm->chunk_elems * sizeof(float) / 2;

    return widest_message(params, most) > message_max + MESSAGE_SLACK ? most / 2 : most;
}

struct dsc_plan_params dsc_shape_params(const struct dscomm_comm *comm,
                                        const struct dsc_shape *shape)
{
    const struct dsc_collective_traits *const traits = dsc_collective_traits(shape->collective);
    struct dsc_plan_params params = { .collective = shape->collective,
                                      .n_ranks = comm->n_ranks,
                                      .rank = comm->rank,
                                      .root = shape->root,
                                      .count = shape->count,
                                      .dtype = shape->dtype,
                                      .op = shape->op,
                                      .feedback = shape->feedback,
                                      .n_tensors = shape->n_tensors,
                                      .sizes = shape->sizes,
                                      .n_tiers = 1 };

    if (traits->sends_shares || traits->recvs_shares)
        params.count *= (size_t)comm->n_ranks;
    for (int t = 0; t < DSC_MAX_TIERS; t++)
        params.codecs[t] = shape->codec;
    return params;
}

bool dsc_shape_is_tiered(const struct dscomm_comm *comm, const struct dsc_shape *shape)
{
    const int wanted = shape->choice.n_tiers;

    if (shape->collective != DSC_ALLREDUCE || comm->tiers.n_tiers == 1)
        return false;
    return wanted != 0 ? wanted > 1 : wish(comm, shape) == DSC_ALG_TIERED;
}

/*
 * Tiers of a two-shot and their codecs. Partial sums of the faster tiers are exact, so that codecs
 * of slow links cost no accuracy on fast ones. A one-shot has one codec, that of the slowest tier.
 */
static void choose_tiers(const struct dscomm_comm *comm, const struct dsc_shape *shape,
                         struct dsc_plan_params *params)
{
    const struct dsc_choice *const choice = &shape->choice;
    const int n_tiers = dsc_shape_is_tiered(comm, shape) ? comm->tiers.n_tiers : 1;

    for (int t = 0; t < n_tiers; t++)
        if (choice->codecs[t] != NULL)
            params->codecs[t] = choice->codecs[t];
        else if (t < n_tiers - 1)
            params->codecs[t] = dscomm_codec("fp32");
    if (params->algorithm != DSC_ALG_TWO_SHOT) {
        params->codecs[0] = params->codecs[n_tiers - 1];
        return;
    }
    params->n_tiers = n_tiers;
    params->groups = n_tiers > 1 ? comm->tiers.groups : NULL;
}

static dscomm_status_t make(struct dscomm_comm *comm, struct dsc_plan_entry *entry,
                            const struct dsc_shape *shape)
{
    struct dsc_plan_params params = dsc_shape_params(comm, shape);

    params.algorithm = choose_algorithm(comm, shape, params.count);
    choose_tiers(comm, shape, &params);
    params.chunk_elems =
        shape->choice.chunk_elems != 0 ? shape->choice.chunk_elems : choose_chunk(comm, &params);
    entry->shape = *shape;
    DSC_TRY(dsc_plan_build(&params, &entry->plan));
    DSC_TRY(comm->backend->prepare(comm, entry));
    atomic_fetch_add(&comm->plans_made, 1);
    dsc_log_info(PLAN, "%s", entry->plan->explain);
    return DSCOMM_OK;
}

static void drop(const struct dscomm_comm *comm, struct dsc_plan_entry *entry)
{
    comm->backend->drop(entry);
    dsc_plan_destroy(entry->plan);
    memset(entry, 0, sizeof(*entry));
}

/* A free entry, or that of the plan used longest ago; NULL if the caller holds all plans. */
static struct dsc_plan_entry *free_entry(struct dscomm_comm *comm)
{
    struct dsc_plan_entry *oldest = NULL;

    if (comm->n_plans < DSC_MAX_PLANS)
        return &comm->plans[comm->n_plans++];
    for (int i = 0; i < DSC_MAX_PLANS; i++)
        if (!comm->plans[i].pinned &&
            (oldest == NULL || comm->plans[i].last_used < oldest->last_used))
            oldest = &comm->plans[i];
    if (oldest != NULL)
        drop(comm, oldest);
    return oldest;
}

struct dsc_plan_entry *dsc_comm_find_plan(struct dscomm_comm *comm, const struct dsc_shape *shape)
{
    if (comm->last != NULL && dsc_shape_equal(&comm->last->shape, shape))
        return comm->last;
    for (int i = 0; i < comm->n_plans; i++)
        if (comm->plans[i].run != NULL && dsc_shape_equal(&comm->plans[i].shape, shape))
            return &comm->plans[i];
    return NULL;
}

dscomm_status_t dsc_comm_plan(struct dscomm_comm *comm, const struct dsc_shape *shape,
                              struct dsc_plan_entry **entry_out)
{
    struct dsc_shape resolved = *shape;
    struct dsc_plan_entry *entry;

    DSC_TRY(dsc_auto_resolve(comm, &resolved));
    entry = dsc_comm_find_plan(comm, &resolved);
    if (entry == NULL) {
        dscomm_status_t st;

        entry = free_entry(comm);
        if (entry == NULL)
            return dsc_fail(DSCOMM_ERR_LIMIT, "all %d plans were made by dscomm_plan_create()",
                            DSC_MAX_PLANS);
        comm->last = NULL; /* it may have been evicted */
        st = make(comm, entry, &resolved);
        if (st < 0)
            return dsc_comm_fail(comm, entry, st, -1);
    }
    entry->last_used = comm->sequence;
    comm->last = entry;
    *entry_out = entry;
    return DSCOMM_OK;
}

void dsc_comm_drop_plans(struct dscomm_comm *comm)
{
    for (int i = 0; i < comm->n_plans; i++)
        drop(comm, &comm->plans[i]);
    comm->n_plans = 0;
    comm->last = NULL;
}

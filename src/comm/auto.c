/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec auto: what is chosen for a call is a pure function of rates that all ranks have alike, of
 * its shape, and of what the guard has learned from notes, which all ranks hold alike too. So ranks
 * choose the same without a message more. It is kept by shape until the guard's version changes.
 */
#include "comm/comm.h"

#include "dscomm/tuner.h"

#include <inttypes.h>
#include <string.h>

#define KEPT_MAX 256 /* shapes; as many as plans */

/* A decision, and what the guard is told about calls that ran by it. */
struct kept {
    struct dsc_shape asked;
    uint32_t version;
    struct dsc_shape resolved;
    struct dsc_guard_call call;
};

struct dsc_auto {
    struct dsc_rates rates;
    struct dsc_guard guard;
    struct kept kept[KEPT_MAX];
    size_t n_kept, next; /* next: whose place a new one takes when all are taken */
    /* Of the running allreduce, and of the one before, which notes are about. */
    struct dsc_guard_call running, before;
};

void dsc_auto_destroy(struct dsc_auto *automatic)
{
    dsc_free(automatic);
}

const struct dsc_guard *dsc_auto_guard(const struct dscomm_comm *comm)
{
    return comm->automatic == NULL ? NULL : &comm->automatic->guard;
}

/* ---- making ready ---- */

static dscomm_status_t make_ready(struct dscomm_comm *comm)
{
    struct dsc_auto *const a = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*a));
    dscomm_status_t st;

    if (a == NULL)
        return dsc_comm_fail(comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "codec auto"), -1);
    st = dsc_auto_rates(comm, &a->rates);
    if (st < 0) {
        dsc_free(a);
        return st;
    }
    dsc_guard_init(&a->guard);
    a->guard.is_late = comm->backend->notes_are_late;
    comm->automatic = a;
    return DSCOMM_OK;
}

/* ---- choosing ---- */

/* Vectors packed one behind the other must not share what a codec makes of a whole segment. */
static uint64_t not_for_fused(void)
{
    uint64_t bits = 0;
    size_t n = 0;
    const char *const *const specs = dsc_tuner_specs(&n);

    for (size_t i = 0; i < n; i++) {
        const struct dsc_codec *const codec = dscomm_codec(specs[i]);

        if (codec->tile_align > DSC_PIECE_ALIGN)
            bits |= dsc_tuner_bit(codec);
    }
    return bits;
}

/* Codecs that the backend does not have. */
static uint64_t not_there(const struct dscomm_comm *comm)
{
    uint64_t bits = 0;
    size_t n = 0;
    const char *const *const specs = dsc_tuner_specs(&n);

    for (size_t i = 0; comm->backend->has_codec != NULL && i < n; i++) {
        const struct dsc_codec *const codec = dscomm_codec(specs[i]);

        if (!comm->backend->has_codec(codec))
            bits |= dsc_tuner_bit(codec);
    }
    return bits;
}

/* By settings that are equal on all ranks, not by the connections that came of them. */
static bool in_memory(const struct dscomm_comm *comm)
{
    return comm->tiers.n_tiers == 1 && comm->tiers.kinds[0] == DSC_TIER_HOST &&
           dsc_uses_memory(comm->transport);
}

static struct dsc_question question_of(const struct dscomm_comm *comm,
                                       const struct dsc_shape *shape)
{
    const struct dsc_guard *const guard = &comm->automatic->guard;
    const int n_tiers = comm->tiers.n_tiers;
    struct dsc_question q = { .n_ranks = comm->n_ranks,
                              .n_tiers = n_tiers,
                              .groups = n_tiers > 1 ? comm->tiers.groups : NULL,
                              .count = shape->count,
                              .dtype = shape->dtype,
                              .op = shape->op,
                              .feedback = shape->feedback,
                              .budget =
                                  shape->codec->has_budget ? shape->codec->budget : comm->budget,
                              .in_memory = in_memory(comm),
                              .absent = not_there(comm),
                              .banned = dsc_guard_banned(guard) };

    if (comm->backend->has_slots)
        q.message_bytes = dsc_slot_bytes(comm->config.chunk_bytes);
    else
        q.chunk_elems = dsc_comm_chunk(comm, shape->count);
    if (shape->n_tensors > 0)
        q.banned |= not_for_fused();
    q.scale_ppm[n_tiers - 1] = guard->now.scale_ppm;
    return q;
}

static int number_of(const struct dsc_codec *codec)
{
    const uint64_t bit = dsc_tuner_bit(codec);

    return bit == 0 ? 0 : __builtin_ctzll(bit);
}

/* Takes a decision over. Nothing to choose by: `none`, by the communicator's rules. */
static void take(const struct dscomm_comm *comm, const struct dsc_decision *decision, int n_tiers,
                 struct kept *k)
{
    const struct dsc_option *const o = &decision->option;
    const struct dsc_codec *codec =
        o->choice.n_tiers > 0 ? o->choice.codecs[o->choice.n_tiers - 1] : NULL;

    if (codec == NULL) {
        k->resolved.codec = dscomm_codec("none");
        return;
    }
    k->resolved.codec = codec;
    if (!codec->by_dtype || comm->backend->has_slots) /* else NCCL has a way of its own */
        k->resolved.choice = o->choice;
    k->call = (struct dsc_guard_call){ .predicted_ns = o->total_ns,
                                       .latency_ns = o->latency_ns,
                                       .wire_ns = o->wire_ns[n_tiers - 1],
                                       .cpu_ns = o->cpu_ns,
                                       .bytes = k->asked.count * dsc_dtype_bytes(k->asked.dtype),
                                       .codec = codec,
                                       .number = number_of(codec),
                                       .e0_ppm = o->error_ppm };
}

static dscomm_status_t decide(struct dscomm_comm *comm, struct kept *k)
{
    struct dsc_auto *const a = comm->automatic;
    const struct dsc_question q = question_of(comm, &k->asked);
    struct dsc_decision decision;
    const dscomm_status_t st = dsc_tuner_choose(&q, &a->rates, &decision);

    if (st < 0)
        return dsc_comm_fail(comm, NULL, st, -1);
    k->version = a->guard.version;
    k->resolved = k->asked;
    take(comm, &decision, q.n_tiers, k);
    dsc_guard_say(&a->guard, "count %zu %s %s%s: %s", q.count, dsc_dtype_name(q.dtype),
                  dsc_op_name(q.op), q.feedback ? " feedback" : "", decision.reason);
    return DSCOMM_OK;
}

/* Its number; n_kept: there is none. */
static size_t find_kept(const struct dsc_auto *a, const struct dsc_shape *shape)
{
    size_t i = 0;

    while (i < a->n_kept && !dsc_shape_equal(&a->kept[i].asked, shape))
        i++;
    return i;
}

static struct kept *place_for(struct dsc_auto *a, const struct dsc_shape *shape)
{
    struct kept *const k =
        a->n_kept < KEPT_MAX ? &a->kept[a->n_kept++] : &a->kept[a->next++ % KEPT_MAX];

    memset(k, 0, sizeof(*k));
    k->asked = *shape;
    return k;
}

/* Of the guard and of decisions, from number `first` on. */
static void log_events(const struct dsc_guard *guard, uint64_t first)
{
    for (; first < guard->n_events; first++)
        dsc_log_info(TUNE, "auto: %s", dsc_guard_at(guard, first)->text);
}

static bool needs_no_choice(const struct dscomm_comm *comm, const struct dsc_shape *shape)
{
    return comm->n_ranks == 1 || shape->count == 0;
}

dscomm_status_t dsc_auto_resolve(struct dscomm_comm *comm, struct dsc_shape *shape)
{
    struct dsc_auto *a = comm->automatic;
    struct kept *k;
    size_t at;

    if (a != NULL)
        memset(&a->running, 0, sizeof(a->running));
    if (!shape->codec->is_auto)
        return DSCOMM_OK;
    if (needs_no_choice(comm, shape)) {
        shape->codec = dscomm_codec("none");
        return DSCOMM_OK;
    }
    if (a == NULL) {
        DSC_TRY(make_ready(comm));
        a = comm->automatic;
    }
    at = find_kept(a, shape);
    k = at < a->n_kept ? &a->kept[at] : place_for(a, shape);
    if (k->resolved.codec == NULL || k->version != a->guard.version) {
        const uint64_t first = a->guard.n_events;

        DSC_TRY(decide(comm, k));
        log_events(&a->guard, first);
    }
    a->running = k->call;
    *shape = k->resolved;
    return DSCOMM_OK;
}

bool dsc_auto_recall(const struct dscomm_comm *comm, struct dsc_shape *shape)
{
    const struct dsc_auto *const a = comm->automatic;
    size_t at;

    if (!shape->codec->is_auto)
        return true;
    if (needs_no_choice(comm, shape)) {
        shape->codec = dscomm_codec("none");
        return true;
    }
    at = a == NULL ? 0 : find_kept(a, shape);
    if (a == NULL || at == a->n_kept || a->kept[at].resolved.codec == NULL)
        return false;
    *shape = a->kept[at].resolved;
    return true;
}

/* ---- learning ---- */

struct dsc_guard_call dsc_auto_running(const struct dscomm_comm *comm)
{
    return comm->automatic == NULL ? (struct dsc_guard_call){ 0 } : comm->automatic->running;
}

void dsc_auto_feed(struct dscomm_comm *comm, uint32_t note, const struct dsc_guard_call *call)
{
    struct dsc_guard *const guard = &comm->automatic->guard;
    const uint64_t first = guard->n_events;

    dsc_guard_feed(guard, note, call);
    log_events(guard, first);
}

void dsc_auto_finish(struct dscomm_comm *comm, uint32_t note)
{
    struct dsc_auto *const a = comm->automatic;

    if (a == NULL)
        return;
    dsc_auto_feed(comm, note, &a->before);
    a->before = a->running;
}

/* ---- telling ---- */

static dscomm_status_t explain(struct dscomm_comm *comm, const dscomm_tuner_query_t *query,
                               const struct dsc_budget *budget, dscomm_explain_format_t format,
                               FILE *out)
{
    const struct dsc_shape shape = dsc_shape_make(DSC_ALLREDUCE, query->count, query->dtype,
                                                  query->op, NULL, query->feedback != 0);
    struct dsc_question question;
    struct dsc_rates rates;
    struct dsc_explain about = { .question = &question,
                                 .rates = &rates,
                                 .source = "the ranks of this communicator",
                                 .missing = "" };

    if (comm->automatic == NULL)
        return dsc_fail(DSCOMM_ERR_BAD_STATE,
                        "no call with codec auto was made on this communicator: nothing is "
                        "measured yet");
    question = question_of(comm, &shape);
    question.budget = *budget;
    rates = comm->automatic->rates;
    if (query->overlap >= 0)
        rates.overlap = (uint32_t)query->overlap;
    return dsc_explain_print(&about, format, out);
}

dscomm_status_t dscomm_comm_explain(dscomm_comm_t *comm, const dscomm_tuner_query_t *query,
                                    dscomm_explain_format_t format, FILE *out)
{
    struct dsc_budget budget;
    dscomm_status_t st;
    uint32_t ticket;

    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(dsc_query_check(query, format, &budget));
    if (out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "out is NULL");
    ticket = dsc_turns_take(&comm->turns);
    dsc_turns_wait(&comm->turns, ticket);
    st = explain(comm, query, &budget, format, out);
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

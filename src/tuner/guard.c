/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/tuner.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drift, in tenths: 30 % more or less than predicted. */
#define DRIFT_TENTHS 3
/* Fewer timed notes in an epoch tell nothing. */
#define TIMED_MIN 8
/* Of a rank's time, on average: less, and it is computing that takes long. */
#define WAIT_MIN_PPM 250000
/* A call counts as so many times what was predicted at most, and as such a part of it at least. */
#define OUTLIER 4
/* Of measured wire times; beyond, it is not the link that differs. */
#define SCALE_MIN 100000
#define SCALE_MAX 100000000
/* No call takes a day: more would only overflow sums. */
#define CALL_NS_MAX (UINT64_C(86400) * 1000000000)

void dsc_guard_init(struct dsc_guard *guard)
{
    memset(guard, 0, sizeof(*guard));
    guard->now = (struct dsc_guard_state){ DSC_NO_LIMIT, DSC_MILLION };
    guard->next = guard->due = guard->now;
}

/* ---- events ---- */

void dsc_guard_say(struct dsc_guard *guard, const char *fmt, ...)
{
    struct dsc_guard_event *const event = &guard->events[guard->n_events++ % DSC_GUARD_EVENTS];
    va_list args;

    memset(event, 0, sizeof(*event));
    event->call = guard->calls;
    va_start(args, fmt);
    (void)vsnprintf(event->text, sizeof(event->text), fmt, args);
    va_end(args);
}

const struct dsc_guard_event *dsc_guard_at(const struct dsc_guard *guard, uint64_t number)
{
    return &guard->events[number % DSC_GUARD_EVENTS];
}

/* First call that what was found in the running epoch counts for. */
static uint64_t counts_from(const struct dsc_guard *guard)
{
    return (guard->calls / DSC_EPOCH_CALLS + 2) * DSC_EPOCH_CALLS;
}

/* ---- errors ---- */

static void ban(struct dsc_guard *guard, struct dsc_guard_codec *c, const char *why,
                uint64_t value_ppm, uint64_t limit_ppm)
{
    c->bad = 0;
    c->grown = 0;
    if (guard->next.limit_ppm <= c->e0_ppm) /* it is already */
        return;
    guard->next.limit_ppm = c->e0_ppm;
    dsc_guard_say(guard,
                  "%s banned from call %" PRIu64 " on: %s (%" PRIu64 " ppm, bound %" PRIu64 ")",
                  c->codec->spec, counts_from(guard), why, value_ppm, limit_ppm);
}

static void see_error(struct dsc_guard *guard, const struct dsc_note *note,
                      const struct dsc_guard_call *call)
{
    struct dsc_guard_codec *const c = &guard->codecs[call->number];
    const uint64_t bound = 2 * (uint64_t)call->e0_ppm;

    c->codec = call->codec;
    c->e0_ppm = call->e0_ppm;
    c->n_notes++;
    if (note->residual_ppm > c->residual_ppm)
        c->residual_ppm = note->residual_ppm;
    c->bad = c->bad << 1 | (note->error_ppm > bound);
    if (__builtin_popcount(c->bad) >= DSC_GUARD_BAD_NOTES)
        ban(guard, c, "three notes above twice its nominal error", note->error_ppm, bound);
}

/*
 * What feedback keeps back of inputs of size 1 when each encode loses e0 is at most
 * 2*e0 / (1 - e0^2) (Karimireddy et al., 2019, lemma 3). With top-k it takes many calls to get
 * there: growth below is no news.
 */
static uint64_t residual_bound_ppm(uint64_t e0_ppm)
{
    const uint64_t e0_sq_ppm = e0_ppm * e0_ppm / DSC_MILLION;

    return e0_sq_ppm < DSC_MILLION ? 2 * e0_ppm * DSC_MILLION / (DSC_MILLION - e0_sq_ppm)
                                   : UINT64_MAX;
}

static void judge_growth(struct dsc_guard *guard, struct dsc_guard_codec *c)
{
    const uint64_t bound = residual_bound_ppm(c->e0_ppm);

    if (c->n_notes == 0)
        return;
    c->grown = c->residual_ppm > c->before_ppm && c->residual_ppm > bound ? c->grown + 1 : 0;
    if (c->grown >= DSC_GUARD_EPOCHS)
        ban(guard, c, "what feedback keeps back grew over three epochs", c->residual_ppm, bound);
    c->before_ppm = c->residual_ppm;
    c->residual_ppm = 0;
    c->n_notes = 0;
}

uint64_t dsc_guard_banned(const struct dsc_guard *guard)
{
    uint64_t banned = 0;
    size_t n = 0;
    const char *const *const specs = dsc_tuner_specs(&n);

    for (size_t i = 0; i < n; i++) {
        const struct dsc_codec *const codec = dscomm_codec(specs[i]);

        if (codec->e0_ppm >= guard->now.limit_ppm)
            banned |= dsc_tuner_bit(codec);
    }
    return banned;
}

/* ---- drift ---- */

/* What the note says that the call took: at most 2^32 ns per KiB, and bytes of at most 2^46. */
static uint64_t observed_ns(const struct dsc_note *note, uint64_t bytes)
{
    const uint64_t kib = bytes / 1024, rest = bytes % 1024;

    if (kib > CALL_NS_MAX / note->ns_per_kib)
        return CALL_NS_MAX;
    return kib * note->ns_per_kib + rest * note->ns_per_kib / 1024;
}

/* One call that was held up for long must not speak for an epoch. */
static uint64_t without_outliers(uint64_t ns, uint64_t predicted_ns)
{
    const uint64_t least = predicted_ns / OUTLIER;

    return ns < least ? least : dsc_min_u64(ns, predicted_ns * OUTLIER);
}

static void see_time(struct dsc_guard *guard, const struct dsc_note *note,
                     const struct dsc_guard_call *call)
{
    const uint64_t predicted_ns = dsc_min_u64(call->predicted_ns, CALL_NS_MAX);

    if (note->ns_per_kib == 0 || predicted_ns == 0 || call->wire_ns < call->latency_ns)
        return;
    guard->observed_ns += without_outliers(observed_ns(note, call->bytes), predicted_ns);
    guard->predicted_ns += predicted_ns;
    guard->wire_ns += dsc_min_u64(call->wire_ns, CALL_NS_MAX);
    guard->wait_ppm += note->wait_ppm;
    guard->n_timed++;
}

/* scale * observed / predicted within limits. Observed is at most OUTLIER times predicted. */
static uint32_t scaled(const struct dsc_guard *guard)
{
    const int shift = guard->predicted_ns >> 40 != 0 ? 20 : 0; /* sums are below 2^54 */
    const uint64_t predicted = dsc_max_size(1, guard->predicted_ns >> shift);
    const uint64_t ratio_ppm = (guard->observed_ns >> shift) * DSC_MILLION / predicted;
    const uint64_t scale = ratio_ppm * guard->now.scale_ppm / DSC_MILLION;

    return (uint32_t)(scale < SCALE_MIN ? SCALE_MIN : dsc_min_u64(scale, SCALE_MAX));
}

static bool has_drifted(const struct dsc_guard *guard)
{
    const uint64_t tenth = 10, seen = guard->observed_ns * tenth;

    if (guard->n_timed < TIMED_MIN)
        return false;
    if (seen >= guard->predicted_ns * (tenth + DRIFT_TENTHS))
        return guard->wait_ppm >= (uint64_t)WAIT_MIN_PPM * guard->n_timed;
    return seen <= guard->predicted_ns * (tenth - DRIFT_TENTHS) &&
           2 * guard->wire_ns >= guard->predicted_ns;
}

static void judge_drift(struct dsc_guard *guard)
{
    const uint32_t scale = scaled(guard);

    if (has_drifted(guard) && scale != guard->now.scale_ppm) {
        dsc_guard_say(guard,
                      "wire times of the slowest tier x %" PRIu32 ".%03" PRIu32
                      " from call %" PRIu64 " on: %" PRIu32 " calls took %" PRIu64
                      " us, predicted %" PRIu64 " us",
                      scale / 1000000, scale / 1000 % 1000, counts_from(guard), guard->n_timed,
                      guard->observed_ns / 1000, guard->predicted_ns / 1000);
        guard->next.scale_ppm = scale;
    }
}

/* ---- epochs ---- */

static bool same_state(const struct dsc_guard_state *a, const struct dsc_guard_state *b)
{
    return a->limit_ppm == b->limit_ppm && a->scale_ppm == b->scale_ppm;
}

/*
 * The epoch before had its turn: what it found counts from now on. While something is on its way,
 * calls still run as they did before, and their drift is known already. Late notes are of calls
 * that ran before the last change.
 */
static void end_epoch(struct dsc_guard *guard)
{
    const bool is_waiting =
        guard->is_late ? guard->has_changed : !same_state(&guard->due, &guard->now);

    for (size_t i = 0; i < DSC_GUARD_CODECS; i++)
        judge_growth(guard, &guard->codecs[i]);
    if (!is_waiting)
        judge_drift(guard);
    if (guard->is_late)
        guard->due = guard->next;
    guard->has_changed = !same_state(&guard->due, &guard->now);
    guard->version += guard->has_changed;
    guard->now = guard->due;
    guard->due = guard->next;
    guard->observed_ns = guard->predicted_ns = guard->wire_ns = guard->wait_ppm = 0;
    guard->n_timed = 0;
}

void dsc_guard_feed(struct dsc_guard *guard, uint32_t bits, const struct dsc_guard_call *call)
{
    const struct dsc_note note = dsc_note_unpack(bits);

    DSC_ASSERT(call->number >= 0 && call->number < DSC_GUARD_CODECS);
    if (!note.overflow && call->e0_ppm > 0) /* sizes of what overflows say nothing of a codec */
        see_error(guard, &note, call);
    see_time(guard, &note, call);
    if ((guard->calls + 1) % DSC_EPOCH_CALLS == 0)
        end_epoch(guard);
    guard->calls++;
}

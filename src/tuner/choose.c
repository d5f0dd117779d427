/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one to take of a table, and a sentence that says why: against the best uncompressed candidate
 * what it saves on the wire for which time of codecs, or against the best codec why not that.
 */
#include "tuner/tuner.h"

#include <inttypes.h>
#include <string.h>

static const struct dsc_codec *codec_of(const struct dsc_option *option)
{
    return option->choice.codecs[option->choice.n_tiers - 1];
}

static bool is_plain(const struct dsc_option *option)
{
    return strcmp(codec_of(option)->spec, "none") == 0;
}

static bool is_candidate(const struct dsc_option *option)
{
    return option->is_admitted && option->total_ns != DSC_UNKNOWN_NS;
}

/* The first candidate of a kind, which is the cheapest; NULL: there is none. */
static const struct dsc_option *cheapest(const struct dsc_option *options, size_t n, bool plain)
{
    for (size_t i = 0; i < n; i++)
        if (is_candidate(&options[i]) && is_plain(&options[i]) == plain)
            return &options[i];
    return NULL;
}

static bool is_near(uint64_t ns, uint64_t best_ns)
{
    return ns - best_ns <= best_ns / (DSC_MILLION / DSC_NEAR_PPM);
}

/* ---- the sentence ---- */

static const char *ms(uint64_t ns, char text[32])
{
    (void)snprintf(text, 32, "%" PRIu64 ".%03" PRIu64 " ms", ns / 1000000, ns / 1000 % 1000);
    return text;
}

/* The machine's tier on which two candidates differ most, and so the one that decides. */
static int deciding_tier(const struct dsc_question *q, const struct dsc_option *a,
                         const struct dsc_option *b)
{
    uint64_t most = 0;
    int tier = q->n_tiers - 1;

    for (int t = 0; t < q->n_tiers; t++) {
        const uint64_t x = a->wire_ns[t], y = b->wire_ns[t], diff = x > y ? x - y : y - x;

        if (diff > most) {
            most = diff;
            tier = t;
        }
    }
    return tier;
}

static const char *shape_text(const struct dsc_option *option)
{
    if (option->choice.n_tiers > 1)
        return "tiered";
    return dsc_algorithm_name(option->choice.algorithm);
}

static void say_codec(const struct dsc_question *q, const struct dsc_rates *rates,
                      const struct dsc_option *plain, struct dsc_decision *d)
{
    const struct dsc_option *const best = &d->option;
    const int t = deciding_tier(q, plain, best);
    const uint64_t more_ns =
        best->codec_ns > plain->codec_ns ? best->codec_ns - plain->codec_ns : 0;
    char from[32], to[32], codec[32], was[32], is[32], price[48] = "";

    if (more_ns >= 1000) /* it may take less: what is not sent is not copied */
        (void)snprintf(price, sizeof(price), " for %s of codec", ms(more_ns, codec));
    (void)snprintf(
        d->reason, sizeof(d->reason),
        "%s, %s: tier %d (%s, %" PRIu64 " MB/s per rank): wire %s -> %s%s; in all %s -> %s",
        codec_of(best)->spec, shape_text(best), t, dsc_tier_kind_name(rates->tiers[t].kind),
        rates->tiers[t].bytes_per_s / DSC_MILLION, ms(plain->wire_ns[t], from),
        ms(best->wire_ns[t], to), price, ms(plain->total_ns, was), ms(best->total_ns, is));
}

static void say_plain(const struct dsc_option *coded, struct dsc_decision *d)
{
    char total[32], other[32], codec[32];

    if (coded == NULL)
        (void)snprintf(d->reason, sizeof(d->reason),
                       "none, %s: the budget admits no codec that makes messages smaller",
                       shape_text(&d->option));
    else
        (void)snprintf(d->reason, sizeof(d->reason),
                       "none, %s: takes %s; with %s it would be %s, of which %s codec",
                       shape_text(&d->option), ms(d->option.total_ns, total), codec_of(coded)->spec,
                       ms(coded->total_ns, other), ms(coded->codec_ns, codec));
}

static void say_preference(const struct dsc_option *rival, struct dsc_decision *d)
{
    const size_t used = strlen(d->reason);

    if (used < sizeof(d->reason))
        (void)snprintf(d->reason + used, sizeof(d->reason) - used,
                       "; preferred to %s %s%s%s, which costs the same within %u %%",
                       codec_of(rival)->spec, shape_text(rival),
                       rival->choice.n_tiers > 1 ? " over " : "",
                       rival->choice.n_tiers > 1 ? rival->choice.codecs[0]->spec : "",
                       (unsigned)(DSC_NEAR_PPM * 100 / DSC_MILLION));
}

/* ---- the choice ---- */

static bool same_but_for_chunk(const struct dsc_option *a, const struct dsc_option *b)
{
    return a->choice.algorithm == b->choice.algorithm && a->choice.n_tiers == b->choice.n_tiers &&
           codec_of(a) == codec_of(b) && a->choice.codecs[0] == b->choice.codecs[0];
}

/* Another that costs no more than the one taken; NULL: cost alone chose. */
static const struct dsc_option *rival_of(const struct dsc_option *best,
                                         const struct dsc_option *options, size_t n)
{
    for (size_t i = 0; i < n && options[i].total_ns <= best->total_ns; i++)
        if (is_candidate(&options[i]) && !same_but_for_chunk(&options[i], best))
            return &options[i];
    return NULL;
}

/* Of all that cost as little, the preferred one. first: the cheapest. */
static const struct dsc_option *preferred(const struct dsc_option *first,
                                          const struct dsc_option *options, size_t n)
{
    const struct dsc_option *best = first;

    for (size_t i = 0; i < n; i++)
        if (is_candidate(&options[i]) && is_near(options[i].total_ns, first->total_ns) &&
            options[i].rank < best->rank)
            best = &options[i];
    return best;
}

void dsc_tuner_pick(const struct dsc_question *question, const struct dsc_rates *rates,
                    const struct dsc_option *options, size_t n, struct dsc_decision *decision_out)
{
    const struct dsc_option *const plain = cheapest(options, n, true);
    const struct dsc_option *const coded = cheapest(options, n, false);
    const struct dsc_option *best, *rival;

    memset(decision_out, 0, sizeof(*decision_out));
    if (plain == NULL && coded == NULL) {
        (void)snprintf(decision_out->reason, sizeof(decision_out->reason),
                       "nothing to choose by: %s", n > 0 ? options[0].reason : "no candidates");
        return;
    }
    best = plain == NULL || (coded != NULL && coded->total_ns < plain->total_ns) ? coded : plain;
    best = preferred(best, options, n);
    rival = rival_of(best, options, n);
    decision_out->option = *best;
    decision_out->is_preference = rival != NULL;
    if (best->choice.algorithm == DSC_ALG_AUTO) /* nobody to talk to */
        (void)snprintf(decision_out->reason, sizeof(decision_out->reason), "none: %s",
                       best->reason);
    else if (is_plain(best))
        say_plain(coded, decision_out);
    else
        say_codec(question, rates, plain != NULL ? plain : best, decision_out);
    if (rival != NULL)
        say_preference(rival, decision_out);
}

dscomm_status_t dsc_tuner_choose(const struct dsc_question *question, const struct dsc_rates *rates,
                                 struct dsc_decision *decision_out)
{
    struct dsc_option *const options = dsc_calloc(DSC_MEM_PLAN, DSC_OPTIONS_MAX, sizeof(*options));
    size_t n = 0;
    dscomm_status_t st;

    if (options == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "table of candidates");
    st = dsc_tuner_options(question, rates, options, &n);
    if (st >= 0)
        dsc_tuner_pick(question, rates, options, n, decision_out);
    dsc_free(options);
    return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection by magnitude. What is chosen is defined by the threshold: the k-th largest key, a key
 * being the bits of |x|. A radix search over all elements finds it in three passes. Mostly that is
 * not needed: a sample gives a limit which somewhat more than k elements reach, for a large k also
 * one which somewhat fewer reach, vectorized passes mark these, and the search runs among those in
 * between alone. With the threshold of a call before, a limit somewhat below it takes the sample's
 * place. A bad guess costs time, never a bit.
 */
#include "codec/topk_select.h"

#include <math.h>

#include "codec/bits.h"
#include "codec/codec.h"

#define TILE DSC_TILE_ELEMS

#define CANDIDATES_MAX 8192 /* 48 KiB of stack; a guess that leaves more is no help */
#define SAMPLES 2048
#define RUN 16         /* elements of the sample that lie together: a line of the cache */
#define GUESS_SHIFT 19 /* 16 buckets per power of two */
#define GUESS_BUCKETS (1u << (31 - GUESS_SHIFT))
#define REUSE_MARGIN (1u << GUESS_SHIFT) /* a 16th of a power of two to either side */

/* Elements [at, at + n) of x: as they lie, or made in `tile`. */
static const float *load(const struct dsc_top_source *src, size_t at, size_t n, float *tile)
{
    if (src->r == NULL)
        return src->v + at;
    dsc_kernels_get()->axpy(tile, src->v + at, src->r + at, src->beta, n);
    return tile;
}

static uint32_t key_of(float x)
{
    return bits_of(x) & F32_ABS;
}

/* ---- the exact threshold ---- */

/* All above `key` are chosen, and the first `n_equal` of those that equal it. */
struct threshold {
    uint32_t key;
    size_t n_equal;
};

#define BUCKETS 2048

/* Counts the keys that begin with `prefix`, by the digits that follow it. */
static void count_digits(uint32_t *count, const struct dsc_top_source *src, size_t n,
                         uint32_t prefix, int shift, int bits)
{
    const uint32_t mask = (1u << bits) - 1;
    float tile[TILE];

    memset(count, 0, BUCKETS * sizeof(*count));
    for (size_t at = 0; at < n; at += TILE) {
        const size_t len = dsc_min_size(TILE, n - at);
        const float *const x = load(src, at, len, tile);

        for (size_t i = 0; i < len; i++) {
            const uint32_t key = key_of(x[i]);

            if (key >> (shift + bits) == prefix)
                count[(key >> shift) & mask]++;
        }
    }
}

/* The k-th largest key of all, by radix. */
static struct threshold find_threshold(const struct dsc_top_source *src, size_t n, size_t k)
{
    static const int digit_bits[] = { 11, 10, 10 };
    uint32_t count[BUCKETS], prefix = 0;
    int shift = 31;

    for (size_t d = 0; d < DSC_ARRAY_LEN(digit_bits); d++) {
        uint32_t digit = (1u << digit_bits[d]) - 1;

        shift -= digit_bits[d];
        count_digits(count, src, n, prefix, shift, digit_bits[d]);
        for (; count[digit] < k; digit--) /* k of them are there */
            k -= count[digit];
        prefix = prefix << digit_bits[d] | digit;
    }
    return (struct threshold){ prefix, k };
}

/* Whether the threshold chooses the next key in ascending index. */
static bool is_chosen(struct threshold *t, uint32_t key)
{
    const bool is_tie = key == t->key && t->n_equal > 0;

    t->n_equal -= is_tie;
    return is_tie || key > t->key;
}

/* ---- the guess ---- */

/* At least k elements reach `low`, or all that are not zero; fewer than k reach `high`. */
struct guess {
    uint32_t low, high;
};

/* Counts a sample by size. */
static void count_sample(uint16_t *count, const struct dsc_top_source *src, size_t n)
{
    const size_t step = n / (SAMPLES / RUN);
    float tile[RUN];

    for (size_t at = 0; at + RUN <= n; at += step) { /* all at once, not one after the other */
        __builtin_prefetch(src->v + at);
        if (src->r != NULL)
            __builtin_prefetch(src->r + at);
    }
    for (size_t at = 0; at + RUN <= n; at += step) {
        const float *const x = load(src, at, RUN, tile);

        for (size_t i = 0; i < RUN; i++)
            count[dsc_min_size(key_of(x[i]), F32_INF) >> GUESS_SHIFT]++;
    }
}

static bool needs_no_guess(size_t n)
{
    return n <= CANDIDATES_MAX / 2;
}

/*
 * 3 standard deviations to either side of how many of the sample are expected among the k. `high`
 * is worth its pass where `low` alone would leave too many candidates.
 */
static struct guess make_guess(const struct dsc_top_source *src, size_t n, size_t k)
{
    const float expected = (float)k * SAMPLES / (float)n, spread = 3 * sqrtf(expected) + 4;
    struct guess g = { 1, F32_INF };
    uint16_t count[GUESS_BUCKETS] = { 0 };
    uint32_t bucket = F32_INF >> GUESS_SHIFT;
    size_t found = 0;

    if (needs_no_guess(n))
        return g;
    count_sample(count, src, n);
    for (; bucket > 0 && (float)found < expected + spread; bucket--) {
        found += count[bucket];
        if ((float)found < expected - spread)
            g.high = bucket << GUESS_SHIFT;
    }
    if (bucket > 0)
        g.low = (bucket + 1) << GUESS_SHIFT;
    return g;
}

/* ---- candidates ---- */

/* A bit per element: a pass over memory does not wait for what is done with it. */
struct marks {
    uint64_t word[DSC_SEGMENT / 64];
    size_t n_words, n_set;
};

static void mark(struct marks *m, const struct dsc_top_source *src, size_t n, uint32_t limit)
{
    m->n_words = dsc_ceil_div(n, 64);
    m->word[m->n_words - 1] = 0; /* its bytes behind n */
    m->n_set = dsc_kernels_get()->at_least((uint8_t *)m->word, src->v, src->r, src->beta, limit, n);
}

static void unmark(struct marks *m, size_t i)
{
    m->word[i / 64] &= ~(UINT64_C(1) << i % 64);
}

/* Marks the first n elements that are not marked; there are so many. */
static void mark_first(struct marks *m, size_t n)
{
    for (size_t w = 0; n > 0; w++) {
        for (; n > 0 && m->word[w] != UINT64_MAX; n--)
            m->word[w] |= m->word[w] + 1;
    }
}

/* Writes the indices of what is marked. */
static void list_marked(uint16_t *index, const struct marks *m)
{
    for (size_t w = 0; w < m->n_words; w++) {
        for (uint64_t left = m->word[w]; left != 0; left &= left - 1)
            *index++ = (uint16_t)(w * 64 + (size_t)__builtin_ctzll(left));
    }
}

/* Marked elements of which some are to be chosen, in ascending index. */
struct candidates {
    size_t n;
    uint16_t index[CANDIDATES_MAX];
    float value[CANDIDATES_MAX];
};

static struct threshold look_at(struct candidates *c, const struct marks *m,
                                const struct dsc_top_source *src, size_t k)
{
    const struct dsc_top_source among = { .v = c->value };

    c->n = m->n_set;
    list_marked(c->index, m);
    for (size_t i = 0; i < c->n; i++)
        c->value[i] = dsc_top_value(src, c->index[i]);
    return find_threshold(&among, c->n, k);
}

/* The k largest of what is marked; their smallest key. */
static uint32_t choose_marked(uint16_t *index, const struct marks *m,
                              const struct dsc_top_source *src, size_t k)
{
    struct candidates c;
    struct threshold t = look_at(&c, m, src, k);

    for (size_t i = 0, out = 0; out < k; i++) {
        index[out] = c.index[i];
        out += is_chosen(&t, key_of(c.value[i]));
    }
    return t.key;
}

/* Likewise, where those that reach `high` are sure; false: they are not, or there are too many. */
static bool choose_between(uint16_t *index, struct marks *m, const struct dsc_top_source *src,
                           size_t n, size_t k, uint32_t high, uint32_t *key_out)
{
    struct marks unsure;
    struct candidates c;
    struct threshold t;

    mark(&unsure, src, n, high);
    if (unsure.n_set >= k || m->n_set - unsure.n_set > CANDIDATES_MAX)
        return false;
    k -= unsure.n_set;
    unsure.n_set = m->n_set - unsure.n_set;
    for (size_t w = 0; w < m->n_words; w++)
        unsure.word[w] = m->word[w] & ~unsure.word[w];
    t = look_at(&c, &unsure, src, k);
    for (size_t i = 0; i < c.n; i++) {
        if (!is_chosen(&t, key_of(c.value[i])))
            unmark(m, c.index[i]);
    }
    list_marked(index, m);
    *key_out = t.key;
    return true;
}

/* False where the guess is of no use. */
static bool choose_guessed(uint16_t *index, const struct dsc_top_source *src, size_t n, size_t k,
                           struct guess g, uint32_t *key_out)
{
    struct marks m;

    mark(&m, src, n, g.low);
    if (m.n_set < k) {
        if (g.low != 1)
            return false;
        mark_first(&m, k - m.n_set); /* all others are zero */
        list_marked(index, &m);
        *key_out = 0;
        return true;
    }
    if (m.n_set > CANDIDATES_MAX)
        return choose_between(index, &m, src, n, k, g.high, key_out);
    *key_out = choose_marked(index, &m, src, k);
    return true;
}

/* Likewise with a threshold of before. */
static bool choose_as_last(uint16_t *index, const struct dsc_top_source *src, size_t n, size_t k,
                           uint32_t *last)
{
    if (*last <= REUSE_MARGIN || *last >= F32_INF - REUSE_MARGIN || needs_no_guess(n))
        return false;

    const struct guess g = { *last - REUSE_MARGIN, *last + REUSE_MARGIN };

    return choose_guessed(index, src, n, k, g, last);
}

/* ---- all elements ---- */

static uint32_t choose_of_all(uint16_t *index, const struct dsc_top_source *src, size_t n, size_t k)
{
    struct threshold t = find_threshold(src, n, k);
    float tile[TILE];

    for (size_t at = 0; at < n; at += TILE) {
        const size_t len = dsc_min_size(TILE, n - at);
        const float *const x = load(src, at, len, tile);

        for (size_t i = 0; i < len; i++) {
            if (is_chosen(&t, key_of(x[i])))
                *index++ = (uint16_t)(at + i);
        }
    }
    return t.key;
}

bool dsc_top_select(uint16_t *index, const struct dsc_top_source *src, size_t n, size_t k,
                    uint32_t *last)
{
    uint32_t unused = 0, *const key = last != NULL ? last : &unused;
    unsigned n_bad = 0;

    if (!choose_as_last(index, src, n, k, key) &&
        !choose_guessed(index, src, n, k, make_guess(src, n, k), key))
        *key = choose_of_all(index, src, n, k);
    for (size_t i = 0; i < k; i++) /* larger than all others, so one of them is here */
        n_bad += !is_finite(dsc_top_value_at(src, &index[i], n));
    return n_bad == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiers as text: what DSCOMM_TIERS gives, and how tiers are shown. Both directions use one grammar,
 * so what is shown can be given.
 *
 *     text  = "flat" | tier { "/" tier }        tier = group { "|" group }
 *     group = range { "," range }               range = rank [ "-" rank ]
 */
#include "topo/tiers_internal.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

struct reader {
    const char *given, *at;
    int n_ranks;
    int *label; /* [n_ranks] group of each rank in the tier being read; -1: none yet */
    int *first; /* [n_ranks] lowest rank of a group of the tier before, in the one being read */
};

static dscomm_status_t bad(const struct reader *reader, const char *why, int rank)
{
    return dsc_fail(DSCOMM_ERR_ENV, "DSCOMM_TIERS \"%.80s\", at character %d: %s %d", reader->given,
                    (int)(reader->at - reader->given) + 1, why, rank);
}

static dscomm_status_t read_rank(struct reader *reader, int *rank_out)
{
    int rank = 0;

    if (!isdigit((unsigned char)*reader->at))
        return bad(reader, "expected a rank, they are 0 to", reader->n_ranks - 1);
    for (; isdigit((unsigned char)*reader->at); reader->at++) {
        rank = 10 * rank + (*reader->at - '0');
        if (rank >= reader->n_ranks)
            return bad(reader, "no such rank, they are 0 to", reader->n_ranks - 1);
    }
    *rank_out = rank;
    return DSCOMM_OK;
}

static dscomm_status_t read_range(struct reader *reader, int group)
{
    int low, high;

    DSC_TRY(read_rank(reader, &low));
    high = low;
    if (*reader->at == '-') {
        reader->at++;
        DSC_TRY(read_rank(reader, &high));
    }
    if (high < low)
        return bad(reader, "range goes down, from rank", low);
    for (int r = low; r <= high; r++) {
        if (reader->label[r] >= 0)
            return bad(reader, "listed twice in one tier: rank", r);
        reader->label[r] = group;
    }
    return DSCOMM_OK;
}

/* Up to the end of the tier. */
static dscomm_status_t read_groups(struct reader *reader)
{
    int group = 0;

    for (int r = 0; r < reader->n_ranks; r++)
        reader->label[r] = -1;
    for (;;) {
        DSC_TRY(read_range(reader, group));
        if (*reader->at != ',' && *reader->at != '|')
            break;
        group += *reader->at == '|';
        reader->at++;
    }
    if (*reader->at != '\0' && *reader->at != '/')
        return bad(reader, "expected one of , | / - or the end; tiers of ranks 0 to",
                   reader->n_ranks - 1);
    for (int r = 0; r < reader->n_ranks; r++)
        if (reader->label[r] < 0)
            return bad(reader, "a tier lists every rank, missing is rank", r);
    return DSCOMM_OK;
}

/* Ranks that shared a group of the tier before must share one of this. */
static dscomm_status_t check_nesting(struct reader *reader, const struct dsc_tiers *tiers)
{
    const int *const below = tiers->groups + (size_t)(tiers->n_tiers - 1) * (size_t)tiers->n_ranks;

    if (tiers->n_tiers == 0)
        return DSCOMM_OK;
    for (int r = 0; r < tiers->n_ranks; r++)
        reader->first[r] = -1;
    for (int r = 0; r < tiers->n_ranks; r++) {
        if (reader->first[below[r]] < 0)
            reader->first[below[r]] = r;
        else if (reader->label[reader->first[below[r]]] != reader->label[r])
            return bad(reader, "parts ranks that the tier before joins: rank", r);
    }
    return DSCOMM_OK;
}

static dscomm_status_t read_tiers(struct reader *reader, struct dsc_tiers *tiers)
{
    if (strcmp(reader->given, "flat") == 0)
        return DSCOMM_OK;
    for (;;) {
        if (tiers->n_tiers == DSC_TIERS_MAX - 1)
            return bad(reader, "too many tiers, at most", DSC_TIERS_MAX - 1);
        DSC_TRY(read_groups(reader));
        DSC_TRY(check_nesting(reader, tiers));
        DSC_TRY(dsc_tiers_add(tiers, DSC_TIER_GIVEN, reader->label));
        if (*reader->at == '\0')
            return DSCOMM_OK;
        reader->at++;
    }
}

dscomm_status_t dsc_tiers_parse(struct dsc_tiers *tiers, const char *given)
{
    struct reader reader = { .given = given, .at = given, .n_ranks = tiers->n_ranks };
    dscomm_status_t st;

    reader.label = dsc_calloc(DSC_MEM_TOPO, (size_t)tiers->n_ranks, sizeof(int));
    reader.first = dsc_calloc(DSC_MEM_TOPO, (size_t)tiers->n_ranks, sizeof(int));
    st = reader.label != NULL && reader.first != NULL
             ? read_tiers(&reader, tiers)
             : dsc_fail(DSCOMM_ERR_NO_MEMORY, "reading DSCOMM_TIERS of %d ranks", tiers->n_ranks);
    dsc_free(reader.label);
    dsc_free(reader.first);
    DSC_TRY(st);
    dsc_tiers_close(tiers, DSC_TIER_GIVEN);
    return DSCOMM_OK;
}

/* ---- showing ---- */

struct text {
    char *buf;
    size_t buf_bytes, len;
};

static void add(struct text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *fmt, ...)
{
    const size_t at = dsc_min_size(text->len, text->buf_bytes);
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(text->buf + at, text->buf_bytes - at, fmt, args);
    va_end(args);
    text->len += n > 0 ? (size_t)n : 0;
}

/* Ranks of a group from its first on, runs as ranges. */
static void add_group(struct text *text, const int *groups, int n_ranks, int first)
{
    const int group = groups[first];

    for (int r = first; r < n_ranks; r++) {
        int last = r;

        if (groups[r] != group)
            continue;
        while (last + 1 < n_ranks && groups[last + 1] == group)
            last++;
        add(text, "%s%d", r > first ? "," : "", r);
        if (last > r)
            add(text, "-%d", last);
        r = last;
    }
}

size_t dsc_tiers_text(const struct dsc_tiers *tiers, char *buf, size_t buf_bytes)
{
    struct text text = { buf, buf_bytes, 0 };

    if (buf_bytes > 0)
        buf[0] = '\0';
    for (int t = 0; t < tiers->n_tiers; t++) {
        const int *const groups = tiers->groups + (size_t)t * (size_t)tiers->n_ranks;
        int n_shown = 0;

        for (int r = 0; r < tiers->n_ranks; r++) {
            if (groups[r] != n_shown) /* numbered by their lowest ranks */
                continue;
            add(&text, "%s", n_shown > 0 ? "|" : t > 0 ? "/" : "");
            add_group(&text, groups, tiers->n_ranks, r);
            n_shown++;
        }
    }
    return text.len;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks, merging and bytes of rates. All that is decided from them must be equal on all ranks, so
 * nothing here depends on anything but its arguments.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tuner/rates_fields.h"

/* ---- check ---- */

static bool check_fields(const struct dsc_rates_fields *list, const void *base, const char *prefix,
                         char *text, size_t text_bytes)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dsc_rates_field *const field = &list->fields[i];
        const uint64_t value = dsc_rates_field_get(base, field);

        if (value >= field->min && value <= field->max)
            continue;
        snprintf(text, text_bytes, "%s%s is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64, prefix,
                 field->name, value, field->min, field->max);
        return false;
    }
    return true;
}

static bool check_tier(const struct dsc_rates *rates, uint32_t t, char *text, size_t text_bytes)
{
    const struct dsc_tier_rates *const tier = &rates->tiers[t];
    char prefix[32];

    snprintf(prefix, sizeof(prefix), "tiers[%u].", t);
    if (!dsc_tier_is_measured(tier)) { /* the kind alone */
        const struct dsc_rates_fields kind = { dsc_tier_fields.fields, 1 };

        return check_fields(&kind, tier, prefix, text, text_bytes);
    }
    return check_fields(&dsc_tier_fields, tier, prefix, text, text_bytes);
}

/* A text of printable characters with zeros behind it: two that are equal are equal in all bytes.
 */
static bool is_spec(const char spec[DSC_SPEED_SPEC_BYTES])
{
    const size_t n = strnlen(spec, DSC_SPEED_SPEC_BYTES);

    for (size_t i = 0; i < n; i++)
        if (spec[i] <= ' ' || spec[i] > '~' || spec[i] == '"' || spec[i] == '\\')
            return false;
    for (size_t i = n; i < DSC_SPEED_SPEC_BYTES; i++)
        if (spec[i] != 0)
            return false;
    return n > 0 && n < DSC_SPEED_SPEC_BYTES;
}

static bool same_speed(const struct dsc_codec_speed *a, const struct dsc_codec_speed *b)
{
    return a->dtype == b->dtype && a->feedback == b->feedback &&
           memcmp(a->spec, b->spec, DSC_SPEED_SPEC_BYTES) == 0;
}

static bool check_speed(const struct dsc_rates *rates, uint32_t s, char *text, size_t text_bytes)
{
    const struct dsc_codec_speed *const speed = &rates->speeds[s];
    char prefix[32];

    snprintf(prefix, sizeof(prefix), "speeds[%u].", s);
    if (!is_spec(speed->spec)) {
        snprintf(text, text_bytes, "%sspec is no codec's text of 1 to %d characters", prefix,
                 DSC_SPEED_SPEC_BYTES - 1);
        return false;
    }
    for (uint32_t i = 0; i < s; i++) {
        if (!same_speed(&rates->speeds[i], speed))
            continue;
        snprintf(text, text_bytes, "speeds[%u] and speeds[%u] are both of %s", i, s, speed->spec);
        return false;
    }
    return check_fields(&dsc_speed_fields, speed, prefix, text, text_bytes);
}

bool dsc_rates_check(const struct dsc_rates *rates, char *text, size_t text_bytes)
{
    if (!check_fields(&dsc_rates_fields, rates, "", text, text_bytes))
        return false;
    for (uint32_t t = 0; t < rates->n_tiers; t++)
        if (!check_tier(rates, t, text, text_bytes))
            return false;
    for (uint32_t s = 0; s < rates->n_speeds; s++)
        if (!check_speed(rates, s, text, text_bytes))
            return false;
    return true;
}

/* ---- merge ---- */

static void merge_fields(const struct dsc_rates_fields *list, void *into, const void *other)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dsc_rates_field *const field = &list->fields[i];
        const uint64_t a = dsc_rates_field_get(into, field);
        const uint64_t b = dsc_rates_field_get(other, field);

        if ((field->worse == DSC_WORSE_MORE && b > a) || (field->worse == DSC_WORSE_LESS && b < a))
            dsc_rates_field_set(into, field, b);
    }
}

static void merge_tier(struct dsc_tier_rates *into, const struct dsc_tier_rates *other)
{
    if (!dsc_tier_is_measured(into))
        *into = *other;
    else if (dsc_tier_is_measured(other))
        merge_fields(&dsc_tier_fields, into, other);
}

static const struct dsc_codec_speed *find_speed(const struct dsc_rates *rates,
                                                const struct dsc_codec_speed *like)
{
    for (uint32_t s = 0; s < rates->n_speeds; s++)
        if (same_speed(&rates->speeds[s], like))
            return &rates->speeds[s];
    return NULL;
}

static void merge_speeds(struct dsc_rates *into, const struct dsc_rates *other)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < into->n_speeds; s++) {
        const struct dsc_codec_speed *const found = find_speed(other, &into->speeds[s]);

        if (found == NULL)
            continue;
        merge_fields(&dsc_speed_fields, &into->speeds[s], found);
        into->speeds[n++] = into->speeds[s];
    }
    memset(&into->speeds[n], 0, (into->n_speeds - n) * sizeof(into->speeds[0]));
    into->n_speeds = n;
}

static dscomm_status_t check_tiers_equal(const struct dsc_rates *a, const struct dsc_rates *b)
{
    if (a->n_tiers != b->n_tiers)
        return dsc_fail(DSCOMM_ERR_MISMATCH, "rates of %u tiers and of %u", a->n_tiers, b->n_tiers);
    for (uint32_t t = 0; t < a->n_tiers; t++)
        if (a->tiers[t].kind != b->tiers[t].kind)
            return dsc_fail(DSCOMM_ERR_MISMATCH, "rates of tier %u are of kind %u and of kind %u",
                            t, a->tiers[t].kind, b->tiers[t].kind);
    return DSCOMM_OK;
}

dscomm_status_t dsc_rates_merge(struct dsc_rates *into, const struct dsc_rates *other)
{
    char text[160];

    if (!dsc_rates_check(into, text, sizeof(text)) || !dsc_rates_check(other, text, sizeof(text)))
        return dsc_fail(DSCOMM_ERR_INVALID, "rates: %s", text);
    DSC_TRY(check_tiers_equal(into, other));
    merge_fields(&dsc_rates_fields, into, other);
    for (uint32_t t = 0; t < into->n_tiers; t++)
        merge_tier(&into->tiers[t], &other->tiers[t]);
    merge_speeds(into, other);
    return DSCOMM_OK;
}

const struct dsc_codec_speed *dsc_rates_speed(const struct dsc_rates *rates, const char *spec,
                                              dscomm_dtype_t dtype, bool feedback)
{
    for (uint32_t s = 0; s < rates->n_speeds; s++) {
        const struct dsc_codec_speed *const speed = &rates->speeds[s];

        if (speed->dtype == dtype && (speed->feedback != 0) == feedback &&
            strncmp(speed->spec, spec, DSC_SPEED_SPEC_BYTES) == 0)
            return speed;
    }
    return NULL;
}

/* ---- bytes ---- */

static uint8_t *put_fields(const struct dsc_rates_fields *list, const void *base, uint8_t *to)
{
    for (size_t i = 0; i < list->n; i++) {
        uint64_t value = dsc_rates_field_get(base, &list->fields[i]);

        for (size_t b = 0; b < list->fields[i].bytes; b++, value >>= 8)
            *to++ = (uint8_t)value;
    }
    return to;
}

static const uint8_t *get_fields(const struct dsc_rates_fields *list, void *base,
                                 const uint8_t *from)
{
    for (size_t i = 0; i < list->n; i++) {
        uint64_t value = 0;

        for (size_t b = 0; b < list->fields[i].bytes; b++)
            value |= (uint64_t)*from++ << (8 * b);
        dsc_rates_field_set(base, &list->fields[i], value);
    }
    return from;
}

void dsc_rates_wire_put(const struct dsc_rates *rates, uint8_t wire[DSC_RATES_WIRE_BYTES])
{
    uint8_t *to = put_fields(&dsc_rates_fields, rates, wire);

    for (uint32_t t = 0; t < DSC_TIERS_MAX; t++)
        to = put_fields(&dsc_tier_fields, &rates->tiers[t], to);
    for (uint32_t s = 0; s < DSC_SPEEDS_MAX; s++) {
        memcpy(to, rates->speeds[s].spec, DSC_SPEED_SPEC_BYTES);
        to = put_fields(&dsc_speed_fields, &rates->speeds[s], to + DSC_SPEED_SPEC_BYTES);
    }
    DSC_ASSERT(to == wire + DSC_RATES_WIRE_BYTES);
}

dscomm_status_t dsc_rates_wire_get(const uint8_t wire[DSC_RATES_WIRE_BYTES], int from,
                                   struct dsc_rates *rates_out)
{
    struct dsc_rates rates = { 0 };
    const uint8_t *at = get_fields(&dsc_rates_fields, &rates, wire);
    char text[160];

    for (uint32_t t = 0; t < DSC_TIERS_MAX; t++)
        at = get_fields(&dsc_tier_fields, &rates.tiers[t], at);
    for (uint32_t s = 0; s < DSC_SPEEDS_MAX; s++) {
        memcpy(rates.speeds[s].spec, at, DSC_SPEED_SPEC_BYTES);
        at = get_fields(&dsc_speed_fields, &rates.speeds[s], at + DSC_SPEED_SPEC_BYTES);
    }
    if (!dsc_rates_check(&rates, text, sizeof(text)))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "rates of rank %d: %s", from, text);
    *rates_out = rates;
    return DSCOMM_OK;
}

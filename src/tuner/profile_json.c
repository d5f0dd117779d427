/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile as JSON. Names of numbers are those of the list in rates_fields.c. Whoever wrote a file
 * is not trusted: every value has its type and range checked, members that are not known are
 * skipped, for files of later versions of this one.
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tuner/profile.h"
#include "tuner/rates_fields.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53: beyond, JSON's numbers are not exact */

struct reader {
    char *why;
    size_t why_bytes;
};

#define refuse(r, ...) (snprintf((r)->why, (r)->why_bytes, __VA_ARGS__), false)

/* ---- reading ---- */

static bool get_word(struct reader *r, const cJSON *item, const char *prefix,
                     const struct dsc_rates_field *field, uint64_t *value_out)
{
    if (!cJSON_IsString(item))
        return refuse(r, "%s%s is no text", prefix, field->name);
    for (uint64_t i = 0; i <= field->max; i++) {
        if (strcmp(field->words[i], item->valuestring) != 0)
            continue;
        *value_out = i;
        return true;
    }
    return refuse(r, "%s%s is '%.32s', must be a word such as '%s'", prefix, field->name,
                  item->valuestring, field->words[field->max]);
}

static bool get_number(struct reader *r, const cJSON *item, const char *prefix,
                       const struct dsc_rates_field *field, uint64_t *value_out)
{
    const double value = item->valuedouble;

    if (!cJSON_IsNumber(item) || !(value >= 0 && value <= EXACT_MAX) || value != floor(value))
        return refuse(r, "%s%s is no whole number of 0 or more", prefix, field->name);
    *value_out = (uint64_t)value;
    if (*value_out > field->max)
        return refuse(r, "%s%s is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64, prefix,
                      field->name, *value_out, field->min, field->max);
    return true;
}

static bool get_fields(struct reader *r, const cJSON *object, const char *prefix,
                       const struct dsc_rates_fields *list, void *base)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dsc_rates_field *const field = &list->fields[i];
        const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, field->name);
        uint64_t value;

        if (item == NULL)
            return refuse(r, "%s%s is missing", prefix, field->name);
        if (!(field->words != NULL ? get_word : get_number)(r, item, prefix, field, &value))
            return false;
        dsc_rates_field_set(base, field, value);
    }
    return true;
}

static bool get_text(struct reader *r, const cJSON *object, const char *prefix, const char *name,
                     char *text, size_t text_bytes)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsString(item))
        return refuse(r, "%s%s is %s", prefix, name, item == NULL ? "missing" : "no text");
    if (strlen(item->valuestring) >= text_bytes)
        return refuse(r, "%s%s has %zu characters, at most %zu", prefix, name,
                      strlen(item->valuestring), text_bytes - 1);
    for (const char *c = item->valuestring; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            return refuse(r, "%s%s has a character that is not printable ASCII", prefix, name);
    strcpy(text, item->valuestring);
    return true;
}

static bool get_machine(struct reader *r, const cJSON *machine, struct dsc_fingerprint *out)
{
    if (!cJSON_IsObject(machine))
        return refuse(r, "machine is %s", machine == NULL ? "missing" : "no object");
    for (int i = 0; i < DSC_FINGERPRINT_N; i++)
        if (!get_text(r, machine, "machine.", dsc_fingerprint_name((enum dsc_fingerprint_field)i),
                      out->values[i], sizeof(out->values[i])))
            return false;
    return true;
}

/* An array with as many objects as was said. */
static bool get_array(struct reader *r, const cJSON *rates, const char *name, uint32_t n,
                      const cJSON **first_out)
{
    const cJSON *const array = cJSON_GetObjectItemCaseSensitive(rates, name);

    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != (int)n)
        return refuse(r, "rates.%s is no list of %u", name, n);
    *first_out = array->child;
    return true;
}

static bool get_speed(struct reader *r, const cJSON *item, const char *prefix,
                      struct dsc_codec_speed *speed)
{
    return get_text(r, item, prefix, "spec", speed->spec, sizeof(speed->spec)) &&
           get_fields(r, item, prefix, &dsc_speed_fields, speed);
}

static bool get_rates(struct reader *r, const cJSON *rates, struct dsc_rates *out)
{
    const cJSON *item;
    char prefix[32];

    if (!cJSON_IsObject(rates))
        return refuse(r, "rates is %s", rates == NULL ? "missing" : "no object");
    if (!get_fields(r, rates, "rates.", &dsc_rates_fields, out) ||
        !get_array(r, rates, "tiers", out->n_tiers, &item))
        return false;
    for (uint32_t t = 0; t < out->n_tiers; t++, item = item->next) {
        snprintf(prefix, sizeof(prefix), "rates.tiers[%u].", t);
        if (!get_fields(r, item, prefix, &dsc_tier_fields, &out->tiers[t]))
            return false;
    }
    if (!get_array(r, rates, "speeds", out->n_speeds, &item))
        return false;
    for (uint32_t s = 0; s < out->n_speeds; s++, item = item->next) {
        snprintf(prefix, sizeof(prefix), "rates.speeds[%u].", s);
        if (!get_speed(r, item, prefix, &out->speeds[s]))
            return false;
    }
    return true;
}

static bool get_profile(struct reader *r, const cJSON *root, struct dsc_profile *out)
{
    const cJSON *const version = cJSON_GetObjectItemCaseSensitive(root, "dscomm_profile");
    char text[200];

    if (!cJSON_IsNumber(version))
        return refuse(r, "is no profile: there is no number dscomm_profile");
    if (version->valuedouble != DSC_PROFILE_VERSION)
        return refuse(r, "dscomm_profile is %g, must be %d", version->valuedouble,
                      DSC_PROFILE_VERSION);
    if (!get_machine(r, cJSON_GetObjectItemCaseSensitive(root, "machine"), &out->machine) ||
        !get_rates(r, cJSON_GetObjectItemCaseSensitive(root, "rates"), &out->rates))
        return false;
    if (!dsc_rates_check(&out->rates, text, sizeof(text)))
        return refuse(r, "rates.%s", text);
    return true;
}

bool dsc_profile_parse(const char *text, size_t n_bytes, struct dsc_profile *profile_out, char *why,
                       size_t why_bytes)
{
    struct reader r = { why, why_bytes };
    struct dsc_profile profile = { 0 };
    const char *end = NULL;
    cJSON *root;
    bool ok;

    if (n_bytes > DSC_PROFILE_BYTES_MAX)
        return refuse(&r, "has %zu bytes, at most %d", n_bytes, DSC_PROFILE_BYTES_MAX);
    root = cJSON_ParseWithLengthOpts(text, n_bytes, &end, 0);
    if (root == NULL)
        return refuse(&r, "is no JSON from byte %zu on", end == NULL ? 0 : (size_t)(end - text));
    ok = get_profile(&r, root, &profile);
    cJSON_Delete(root);
    if (ok)
        *profile_out = profile;
    return ok;
}

/* ---- writing ---- */

static bool put_fields(cJSON *object, const struct dsc_rates_fields *list, const void *base)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct dsc_rates_field *const field = &list->fields[i];
        const uint64_t value = dsc_rates_field_get(base, field);
        const cJSON *const item =
            field->words != NULL ? cJSON_AddStringToObject(object, field->name, field->words[value])
                                 : cJSON_AddNumberToObject(object, field->name, (double)value);

        if (item == NULL)
            return false;
    }
    return true;
}

/* A new object at the array's end; NULL: no memory. */
static cJSON *append_object(cJSON *array)
{
    cJSON *const object = cJSON_CreateObject();

    if (object != NULL && !cJSON_AddItemToArray(array, object)) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

static bool put_rates(cJSON *object, const struct dsc_rates *rates)
{
    cJSON *tiers, *speeds;

    if (!put_fields(object, &dsc_rates_fields, rates) ||
        (tiers = cJSON_AddArrayToObject(object, "tiers")) == NULL ||
        (speeds = cJSON_AddArrayToObject(object, "speeds")) == NULL)
        return false;
    for (uint32_t t = 0; t < rates->n_tiers; t++)
        if (!put_fields(append_object(tiers), &dsc_tier_fields, &rates->tiers[t]))
            return false;
    for (uint32_t s = 0; s < rates->n_speeds; s++) {
        cJSON *const speed = append_object(speeds);

        if (cJSON_AddStringToObject(speed, "spec", rates->speeds[s].spec) == NULL ||
            !put_fields(speed, &dsc_speed_fields, &rates->speeds[s]))
            return false;
    }
    return true;
}

static bool put_profile(cJSON *root, const struct dsc_profile *profile)
{
    cJSON *machine, *rates;

    if (cJSON_AddNumberToObject(root, "dscomm_profile", DSC_PROFILE_VERSION) == NULL ||
        (machine = cJSON_AddObjectToObject(root, "machine")) == NULL ||
        (rates = cJSON_AddObjectToObject(root, "rates")) == NULL)
        return false;
    for (int i = 0; i < DSC_FINGERPRINT_N; i++)
        if (cJSON_AddStringToObject(machine, dsc_fingerprint_name((enum dsc_fingerprint_field)i),
                                    profile->machine.values[i]) == NULL)
            return false;
    return put_rates(rates, &profile->rates);
}

char *dsc_profile_text(const struct dsc_profile *profile)
{
    cJSON *const root = cJSON_CreateObject();
    char *text = NULL;

    if (root != NULL && put_profile(root, profile))
        text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

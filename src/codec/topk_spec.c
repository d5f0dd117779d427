/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs of top-k: topk:RATIO or topk:k=N, then perhaps the type of the values and options. Ratios
 * are integers of billionths from the text on, so that k is the same on every machine.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "codec/topk.h"
#include "codec/topk_select.h"

#define BILLION 1000000000u
#define MILLION 1000000u
#define DECIMALS 9

#define RATIO_FORM "a ratio from 0.000000001 to 1 with at most 9 decimals"
#define COUNT_FORM "k=N, N from 1 to 65536"
#define VALUES_FORM "values fp16 (the default), int8 or fp8, then perhaps position, then reuse"
#define BY_POSITION ",position"
#define REUSES ",reuse"

/* A decimal number as billionths; false if it is none, not in (0, 1], or finer than that. */
static bool parse_ratio(const char *text, size_t len, uint32_t *ppb_out)
{
    size_t at = 0, n_digits = 0;
    uint64_t ppb = 0;

    for (; at < len && isdigit((unsigned char)text[at]) && ppb <= 1; at++, n_digits++)
        ppb = ppb * 10 + (uint64_t)(text[at] - '0');
    ppb *= BILLION;
    if (at < len && text[at] == '.') {
        uint64_t unit = BILLION;

        for (at++; at < len && isdigit((unsigned char)text[at]); at++, n_digits++) {
            unit /= 10;
            if (unit == 0 && text[at] != '0')
                return false;
            ppb += unit * (uint64_t)(text[at] - '0');
        }
    }
    *ppb_out = (uint32_t)ppb;
    return at == len && n_digits > 0 && ppb > 0 && ppb <= BILLION;
}

static bool parse_count(const char *text, size_t len, uint32_t *count_out)
{
    uint32_t count = 0;

    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]) || count > DSC_SEGMENT)
            return false;
        count = count * 10 + (uint32_t)(text[i] - '0');
    }
    *count_out = count;
    return len > 0 && count >= 1 && count <= DSC_SEGMENT;
}

/* The codec of the kept values; NULL if the text, of that length, names none. */
static const struct dsc_codec *parse_values(const char *text, size_t len)
{
    static const struct dsc_family *const types[] = { &dsc_family_fp16, &dsc_family_int8,
                                                      &dsc_family_fp8 };

    if (len == 0)
        return types[0]->rows;
    for (size_t i = 0; i < DSC_ARRAY_LEN(types); i++) {
        const size_t name_len = strlen(types[i]->name);

        if (len == name_len + 1 && *text == ',' && memcmp(text + 1, types[i]->name, name_len) == 0)
            return types[i]->rows;
    }
    return NULL;
}

/* Whether the text ends with the option; *len is then what is before it. */
static bool take_option(const char *text, size_t *len, const char *option)
{
    const size_t option_len = strlen(option);

    if (*len < option_len || memcmp(text + *len - option_len, option, option_len) != 0)
        return false;
    *len -= option_len;
    return true;
}

/* The text that all specs of this meaning have in common. */
static void write_spec(struct dsc_codec *codec)
{
    char amount[16];
    const char *const values = codec->values == dsc_family_fp16.rows ? "" : codec->values->spec;

    if (codec->kept_count != 0) {
        (void)snprintf(amount, sizeof(amount), "k=%u", codec->kept_count);
    } else {
        int end = snprintf(amount, sizeof(amount), "%u.%0*u", codec->kept_ppb / BILLION, DECIMALS,
                           codec->kept_ppb % BILLION);

        while (amount[end - 1] == '0')
            end--;
        amount[end - (amount[end - 1] == '.')] = '\0';
    }
    (void)snprintf(codec->spec, sizeof(codec->spec), "topk:%s%s%.8s%s%s", amount,
                   *values != '\0' ? "," : "", values, codec->by_position ? BY_POSITION : "",
                   codec->reuses ? REUSES : "");
}

/* The least integer whose square is at least x. */
static uint32_t sqrt_up(uint64_t x)
{
    uint64_t low = 0, high = MILLION;

    while (low < high) {
        const uint64_t mid = (low + high) / 2;

        if (mid * mid < x)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint32_t)low;
}

/*
 * The error of data without a large element: all of it but the share that is kept, which is
 * rounded. sqrt(1 - share + e^2), all of it or less, in integers as all that the tuner decides by.
 */
static uint32_t nominal_error_ppm(const struct dsc_codec *codec)
{
    const uint64_t kept_ppb = codec->kept_count != 0
                                  ? (uint64_t)codec->kept_count * BILLION / DSC_SEGMENT
                                  : codec->kept_ppb;
    const uint64_t value_ppm = codec->values->e0_ppm;

    return sqrt_up((BILLION - kept_ppb) * 1000 + value_ppm * value_ppm);
}

static const char *parse(const char *options, struct dsc_codec *codec)
{
    const char *const amount = options + 1;
    const size_t len = *options == ':' ? strcspn(amount, ",") : 0;
    size_t rest_len;

    *codec = (struct dsc_codec){
        .ops = &dsc_topk_ops, .block = DSC_SEGMENT, .tile_align = DSC_SEGMENT, .sums_only = true
    };
    if (len == 0)
        return RATIO_FORM " or " COUNT_FORM;
    if (strncmp(amount, "k=", 2) == 0 && !parse_count(amount + 2, len - 2, &codec->kept_count))
        return COUNT_FORM;
    if (codec->kept_count == 0 && !parse_ratio(amount, len, &codec->kept_ppb))
        return RATIO_FORM ", or " COUNT_FORM;
    rest_len = strlen(amount + len);
    codec->reuses = take_option(amount + len, &rest_len, REUSES);
    codec->by_position = take_option(amount + len, &rest_len, BY_POSITION);
    codec->values = parse_values(amount + len, rest_len);
    if (codec->values == NULL)
        return VALUES_FORM;
    codec->e0_ppm = nominal_error_ppm(codec);
    write_spec(codec);
    return NULL;
}

const struct dsc_family dsc_family_topk = {
    .name = "topk",
    .form = ":RATIO|:k=COUNT[,int8|,fp8][,position][,reuse]",
    .parse = parse,
};

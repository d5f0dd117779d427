/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error budgets. The named ones list families, so that what "balanced" means does not move when a
 * codec is measured again; a number goes by the codec's nominal error.
 */
#include "codec/codec.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DECIMALS 6
#define MILLION UINT64_C(1000000)

static const char *const names[] = {
    [DSC_BUDGET_EXACT] = "exact",
    [DSC_BUDGET_HIGH] = "high",
    [DSC_BUDGET_BALANCED] = "balanced",
    [DSC_BUDGET_AGGRESSIVE] = "aggressive",
};

/* The least of the named budgets that lists a family. Others are for numbers alone. */
static const struct {
    const char *family;
    enum dsc_budget_name least;
} families[] = {
    { "none", DSC_BUDGET_EXACT },       { "lossless", DSC_BUDGET_EXACT },
    { "fp32", DSC_BUDGET_EXACT },       { "fp16", DSC_BUDGET_HIGH },
    { "bf16", DSC_BUDGET_HIGH },        { "int8", DSC_BUDGET_BALANCED },
    { "fp8", DSC_BUDGET_BALANCED },     { "mxfp8", DSC_BUDGET_BALANCED },
    { "int4", DSC_BUDGET_AGGRESSIVE },  { "mxfp4", DSC_BUDGET_AGGRESSIVE },
    { "nvfp4", DSC_BUDGET_AGGRESSIVE }, { "topk", DSC_BUDGET_AGGRESSIVE },
};

/* A decimal number from 0 to 1 as millionths. */
static bool parse_number(const char *text, uint32_t *ppm_out)
{
    uint64_t ppm = 0, unit = MILLION;
    size_t n_digits = 0;

    for (; isdigit((unsigned char)*text) && ppm <= MILLION; text++, n_digits++)
        ppm = ppm * 10 + MILLION * (uint64_t)(*text - '0');
    if (*text == '.')
        for (text++; isdigit((unsigned char)*text) && unit > 1; text++, n_digits++) {
            unit /= 10;
            ppm += unit * (uint64_t)(*text - '0');
        }
    *ppm_out = (uint32_t)ppm;
    return *text == '\0' && n_digits > 0 && ppm <= MILLION;
}

bool dsc_budget_parse(const char *text, struct dsc_budget *budget_out)
{
    struct dsc_budget budget = { .name = DSC_BUDGET_NUMBER };

    for (size_t i = 0; i < DSC_ARRAY_LEN(names); i++)
        if (strcmp(text, names[i]) == 0) {
            budget_out->name = (enum dsc_budget_name)i;
            budget_out->ppm = 0;
            return true;
        }
    if (!parse_number(text, &budget.ppm))
        return false;
    *budget_out = budget;
    return true;
}

const char *dsc_budget_text(const struct dsc_budget *budget, char *text, size_t text_bytes)
{
    if (budget->name != DSC_BUDGET_NUMBER)
        (void)snprintf(text, text_bytes, "%s", names[budget->name]);
    else
        (void)snprintf(text, text_bytes, "%" PRIu64 ".%0*" PRIu64, budget->ppm / MILLION, DECIMALS,
                       budget->ppm % MILLION);
    return text;
}

/* The least named budget with the codec; NUMBER: none has it. */
static enum dsc_budget_name least_with(const struct dsc_codec *codec)
{
    const size_t len = strcspn(codec->spec, ":,");

    for (size_t i = 0; i < DSC_ARRAY_LEN(families); i++)
        if (strlen(families[i].family) == len && strncmp(families[i].family, codec->spec, len) == 0)
            return families[i].least;
    return DSC_BUDGET_NUMBER;
}

const char *dsc_budget_refuses(const struct dsc_budget *budget, const struct dsc_codec *codec,
                               bool feedback)
{
    const enum dsc_budget_name least = least_with(codec);

    if (least == DSC_BUDGET_EXACT)
        return NULL;
    if (budget->name != DSC_BUDGET_NUMBER && least > budget->name)
        return "not in the budget";
    if (budget->name == DSC_BUDGET_NUMBER && codec->e0_ppm > budget->ppm)
        return "its error is above the budget";
    if (codec->values != NULL && !feedback)
        return "top-k needs feedback";
    return NULL;
}

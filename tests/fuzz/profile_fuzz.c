/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a profile, and a good one with values replaced by choices that the bytes make.
 * What is accepted has all values in range and is, written and read again, the same.
 *
 *     byte 0   how many changes           byte 1   odd: the profile below, else the rest is a file
 *     byte 2   where changes begin        the rest, 2 bytes per change
 */
#include "fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/tuner.h"

#define CHECK(condition)  \
    do {                  \
        if (!(condition)) \
            abort();      \
    } while (0)

enum { TEXT_MAX = 65536 };

/* What values are replaced by. */
static const char *const oddities[] = {
    "0",
    "1",
    "-1",
    "2",
    "64",
    "65",
    "1e15",
    "1e308",
    "1e999",
    "0.5",
    "4294967296",
    "18446744073709551616",
    "\"\"",
    "\"tcp\"",
    "\"fp32\"",
    "\"int8\"",
    "\"int8:block=16\"",
    "null",
    "true",
    "{}",
    "[]",
    "[1]",
    "[[[[",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\n\"",
    "]",
    "}",
    ",",
    "",
};

static char base[TEXT_MAX];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct dsc_profile profile = { .rates = { .version = DSC_RATES_VERSION,
                                              .n_tiers = 2,
                                              .n_speeds = 2,
                                              .cpus_per_host = 2,
                                              .ranks_per_host = 2 } };
    char *text;

    (void)argc, (void)argv;
    for (int t = 0; t < 2; t++)
        profile.rates.tiers[t] = (struct dsc_tier_rates){
            .kind = DSC_TIER_HOST, .latency_ns = 1, .bytes_per_s = 2, .bytes_per_s_alone = 3
        };
    for (int s = 0; s < 2; s++)
        profile.rates.speeds[s] = (struct dsc_codec_speed){ .spec = "int8",
                                                            .feedback = (uint8_t)s,
                                                            .send_fs = 1,
                                                            .add_fs = 2,
                                                            .own_fs = 3,
                                                            .decode_fs = 4 };
    text = dsc_profile_text(&profile);
    CHECK(text != NULL && strlen(text) < sizeof(base));
    strcpy(base, text);
    free(text);
    return 0;
}

/* Replaces the value behind the n-th colon or comma. */
static void replace(char *text, unsigned n, const char *with)
{
    char tail[TEXT_MAX];
    char *at = text, *end;

    for (unsigned i = 0; i <= n; i++) {
        at = strpbrk(at, ":,");
        if (at == NULL)
            return;
        at++;
    }
    end = at + strcspn(at, ",}]\n");
    if (strlen(text) + strlen(with) + 1 >= TEXT_MAX)
        return;
    strcpy(tail, end);
    strcpy(at, with);
    strcat(at, tail);
}

static void check(const char *text, size_t n)
{
    char *const exact = malloc(n > 0 ? n : 1); /* so that a byte beyond is noticed */
    char why[DSC_PROFILE_WHY_BYTES] = "";
    struct dsc_profile first, again;
    char *written, *rewritten;

    CHECK(exact != NULL);
    memcpy(exact, text, n);
    if (!dsc_profile_parse(exact, n, &first, why, sizeof(why))) {
        CHECK(why[0] != '\0');
        free(exact);
        return;
    }
    free(exact);
    CHECK(dsc_rates_check(&first.rates, why, sizeof(why)));
    written = dsc_profile_text(&first);
    CHECK(written != NULL);
    CHECK(dsc_profile_parse(written, strlen(written), &again, why, sizeof(why)));
    rewritten = dsc_profile_text(&again);
    CHECK(rewritten != NULL && strcmp(written, rewritten) == 0);
    free(written);
    free(rewritten);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MAX];

    if (size < 3)
        return 0;
    if (data[1] % 2 == 0) {
        check((const char *)data + 3, size - 3);
        return 0;
    }
    strcpy(text, base);
    for (size_t i = 3; i + 1 < size && i < 3 + 2 * (size_t)data[0]; i += 2)
        replace(text, (unsigned)data[2] % 2 * 16 + data[i] % 64,
                oddities[data[i + 1] % (sizeof(oddities) / sizeof(oddities[0]))]);
    check(text, strlen(text));
    return 0;
}

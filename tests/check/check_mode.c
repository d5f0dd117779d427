/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's floating point mode: with flush-to-zero, denormals-are-zero and another rounding
 * set, the public functions must give the same bytes and leave the mode as they found it.
 */
#include "check/check.h"
#include "codec/codec.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define N 2053
#define MESSAGE_BYTES (N * sizeof(float) + 64) /* of any codec: lossless ends with its tables */

struct mode {
    const char *name;
    uint32_t bits;
};

#if defined(__x86_64__)
#define MODE_DEFAULT 0x1f80u
#define MODE_BITS 0xffc0u /* all but the sticky exception flags */

static const struct mode modes[] = {
    { "ftz and daz", 0x9fc0u },
    { "round up", 0x5f80u },
    { "round down, ftz", 0xbf80u },
};

static uint32_t get_mode(void)
{
    return _mm_getcsr();
}

static void set_mode(uint32_t bits)
{
    _mm_setcsr(bits);
}
#elif defined(__aarch64__)
#define MODE_DEFAULT 0u
#define MODE_BITS 0x07c00000u

static const struct mode modes[] = {
    { "flush to zero", 1u << 24 },
    { "round up", 1u << 22 },
    { "round down, flush to zero", 1u << 24 | 2u << 22 },
};

static uint32_t get_mode(void)
{
    uint64_t bits;

    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return (uint32_t)bits;
}

static void set_mode(uint32_t bits)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)bits));
}
#else
#define MODE_DEFAULT 0u
#define MODE_BITS 0u

static const struct mode modes[] = { { "default", 0 } };

static uint32_t get_mode(void)
{
    return 0;
}

static void set_mode(uint32_t bits)
{
    (void)bits;
}
#endif

struct result {
    uint8_t message[MESSAGE_BYTES];
    float decoded[N];
};

static const dscomm_codec_t *codec_at(size_t i)
{
    size_t n;
    const char *const *const specs = dsc_codec_test_specs(&n);

    return i < n ? dscomm_codec(specs[i]) : NULL;
}

/* Encodes and decodes in a mode; false when a call fails or changes the mode. */
static bool round_trip(const dscomm_codec_t *codec, const float *x, uint32_t mode,
                       struct result *result)
{
    static _Alignas(16) uint8_t message[MESSAGE_BYTES];
    const uint32_t saved = get_mode();
    size_t bytes = 0;

    memset(message, 0xa5, sizeof(message));
    set_mode(mode);

    const bool is_ok = dscomm_encode(codec, message, sizeof(message), x, N, &bytes) == DSCOMM_OK &&
                       dscomm_decode(codec, result->decoded, N, message, bytes) == DSCOMM_OK;
    const uint32_t after = get_mode();

    set_mode(saved);
    memcpy(result->message, message, sizeof(message));
    return is_ok && (after & MODE_BITS) == (mode & MODE_BITS);
}

static bool same_in_mode(const dscomm_codec_t *codec, size_t style, size_t mode, uint64_t seed)
{
    static struct result want, got;
    static float x[N];

    check_fill(x, CHECK_F32, sizeof(x), style, seed);
    if (!round_trip(codec, x, MODE_DEFAULT, &want) ||
        !round_trip(codec, x, modes[mode].bits, &got)) {
        (void)fprintf(stderr, "%s, %s: failed or left another mode\n", dscomm_codec_spec(codec),
                      modes[mode].name);
        return false;
    }
    if (memcmp(&want, &got, sizeof(want)) != 0) {
        (void)fprintf(stderr, "%s, input %s: other bytes with %s\n", dscomm_codec_spec(codec),
                      check_style_name(style), modes[mode].name);
        return false;
    }
    return true;
}

static int public_calls_ignore_mode(uint64_t seed)
{
    for (size_t c = 0; codec_at(c) != NULL; c++) {
        for (size_t i = 0; i < check_n_styles * DSC_ARRAY_LEN(modes); i++) {
            if (!same_in_mode(codec_at(c), i % check_n_styles, i / check_n_styles, seed))
                return 0;
        }
    }
    return 1;
}

/* Without dsc_fp_enter() each of these modes changes bits, or the test above would prove nothing.
 */
static int modes_matter(uint64_t seed)
{
    static float x[N], r[N], want[N], got[N];
    bool all_matter = true;

    check_fill(x, CHECK_F32, sizeof(x), 10, seed); /* subnormal */
    check_fill(r, CHECK_F32, sizeof(r), 0, seed);
    for (size_t i = 0; i < N; i += 2)
        r[i] = x[i];
    dsc_axpy_c(want, x, r, 0.9f, N);
    for (size_t mode = 0; mode < DSC_ARRAY_LEN(modes); mode++) {
        const uint32_t saved = get_mode();

        set_mode(modes[mode].bits);
        dsc_axpy_c(got, x, r, 0.9f, N);
        set_mode(saved);
        all_matter &= memcmp(want, got, sizeof(want)) != 0;
    }
    return all_matter;
}

const struct check_test check_mode_tests[] = {
    { "mode.public_calls_ignore_mode", public_calls_ignore_mode },
    { "mode.modes_matter", modes_matter },
};
const size_t check_n_mode_tests = DSC_ARRAY_LEN(check_mode_tests);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a peer's message and as input of an encoder. What must hold: no access outside
 * exact-size buffers, the same result twice and in spans, canonical NaNs only, whole units of
 * poison, no NaN out of finite input. Aborts at the first violation.
 *
 *     byte 0: codec, 1: exponent and flags, 2-3: elements, or a quarter of them where messages are
 * packed, 4-: message or float32 elements, zeros when short
 */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"

#define HEAD_BYTES FUZZ_HEAD_BYTES
#define ELEMS_MAX 5000
_Static_assert(HEAD_BYTES + 4 * ELEMS_MAX <= FUZZ_INPUT_MAX, "the largest input is tried");

#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (void)fprintf(stderr, "decode_fuzz: %s, codec %s, %zu elements\n", #cond, codec->spec, \
                          n);                                                                      \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static bool is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

static bool is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* [bytes] bytes, 16-byte aligned, of exactly that size: what is beyond belongs to the sanitizer. */
static void *exact(size_t bytes, int fill)
{
    void *ptr = NULL;

    if (posix_memalign(&ptr, 16, bytes > 0 ? bytes : 1) != 0)
        exit(2);
    memset(ptr, fill, bytes);
    return ptr;
}

static void *exact_copy(size_t bytes, const uint8_t *data, size_t size)
{
    void *const ptr = exact(bytes, 0);

    memcpy(ptr, data, dsc_min_size(bytes, size));
    return ptr;
}

/* Codes, or kept values, that hold signed zeros, some NaN; all others are integers. */
static bool has_float_codes(const struct dsc_codec *codec)
{
    if (codec->values != NULL)
        return codec->values->block == 1 || has_float_codes(codec->values);
    if (codec->inner != NULL)
        return has_float_codes(codec->inner);
    return strstr(codec->spec, "fp8") != NULL || strstr(codec->spec, "fp4") != NULL;
}

/* A block is NaN or it is not, whatever the scale: not where Inf meets Inf in a sum. */
static bool has_whole_poison(const struct dsc_codec *codec)
{
    return codec->inner == NULL && !has_float_codes(codec);
}

/* Rotating multiplies by up to 32, and turning back once more before the last factor. */
static uint32_t largest_safe(const struct dsc_codec *codec)
{
    return codec->inner != NULL ? 0x7a000000u : 0x7f7fffffu; /* 2^117, the largest float */
}

static bool is_safe_block(const struct dsc_codec *codec, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((bits_of(x[i]) & 0x7fffffffu) > largest_safe(codec))
            return false;
    }
    return true;
}

static void decode_in_spans(const struct dsc_codec *codec, const struct dsc_msg *msg, float *dst)
{
    const size_t step = 3 * (size_t)codec->tile_align;

    for (size_t at = 0; at < msg->n; at += step)
        codec->ops->decode(codec, msg, at, dsc_min_size(step, msg->n - at), dst + at, 0);
}

static bool same_messages(const struct dsc_codec *codec, const struct dsc_msg *a,
                          const struct dsc_msg *b)
{
    const size_t bytes = dsc_codec_used_bytes(codec, a);

    return bytes == dsc_codec_used_bytes(codec, b) && memcmp(a->bytes, b->bytes, bytes) == 0;
}

static const struct dsc_draw draw = { 1, 2, 3, ((uint64_t)1 << 33) - 512 };

static void check_decode(const struct dsc_codec *codec, int exponent, size_t n, const uint8_t *data,
                         size_t size)
{
    const size_t bytes = codec->ops->message_bytes(codec, n);
    const struct dsc_msg msg = {
        .bytes = exact_copy(bytes, data, size), .n = n, .exponent = exponent, .draw = draw
    };
    uint8_t *const before = exact_copy(bytes, data, size);
    float *const d = exact(n * sizeof(float), 0x11);
    float *const again = exact(n * sizeof(float), 0x22);
    float *const sum = exact(n * sizeof(float), 0);

    codec->ops->decode(codec, &msg, 0, n, d, 0);
    decode_in_spans(codec, &msg, again);
    codec->ops->decode_add(codec, &msg, 0, n, sum);
    REQUIRE(memcmp(d, again, n * sizeof(float)) == 0);
    REQUIRE(memcmp(msg.bytes, before, bytes) == 0);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(!is_nan(d[i]) || bits_of(d[i]) == 0x7fc00000u);
        REQUIRE(!has_whole_poison(codec) || is_nan(d[i]) == is_nan(d[i - i % codec->block]));
        REQUIRE(is_nan(d[i]) ? is_nan(sum[i]) : sum[i] == d[i]);
    }
    free(msg.bytes);
    free(before);
    free(d);
    free(again);
    free(sum);
}

/* As callers of the public function have it: a message is as long as it is. */
static void check_sizes(const struct dsc_codec *codec, size_t n, const uint8_t *data, size_t size)
{
    const size_t most = codec->ops->message_bytes(codec, n);
    const size_t bytes = dsc_min_size(most, size);
    uint8_t *const src = exact_copy(bytes, data, size);
    uint8_t *const again = exact(most, 0x66);
    float *const d = exact(n * sizeof(float), 0x77);
    size_t written = 0;
    const dscomm_status_t st = dscomm_decode(codec, d, n, src, bytes);

    REQUIRE(st == DSCOMM_OK || st == DSCOMM_ERR_CORRUPT);
    REQUIRE(codec->variable || (st == DSCOMM_OK) == (bytes == most));
    REQUIRE(dscomm_encode(codec, again, most, d, n, &written) == DSCOMM_OK);
    REQUIRE(written <= most && written % 16 == 0);
    free(src);

    uint8_t *const fitting = exact_copy(written, again, written);

    REQUIRE(dscomm_decode(codec, d, n, fitting, written) == DSCOMM_OK);
    free(fitting);
    free(again);
    free(d);
}

static void check_encode(const struct dsc_codec *codec, int exponent, unsigned stream, size_t n,
                         const uint8_t *data, size_t size)
{
    const bool sends_zero_sign = codec->block == 1 || has_float_codes(codec);
    const size_t bytes = codec->ops->message_bytes(codec, n);
    const struct dsc_msg one = {
        .bytes = exact(bytes, 0x33), .n = n, .exponent = exponent, .draw = draw
    };
    const struct dsc_msg two = {
        .bytes = exact(bytes, 0x44), .n = n, .exponent = exponent, .draw = draw
    };
    float *const x = exact_copy(n * sizeof(float), data, size);
    float *const d = exact(n * sizeof(float), 0x55);
    float *const r = exact(n * sizeof(float), 0);

    codec->ops->encode(codec, &one, 0, n, x, d);
    codec->ops->encode_feedback(codec, &two, 0, n, x, r, 1.0f, r, DSC_KEEP_OLD | stream);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(is_finite(r[i]));
        REQUIRE(!is_nan(x[i]) || is_nan(d[i]));
        REQUIRE(is_finite(x[i]) || !is_finite(d[i]));
        REQUIRE(codec->block > 1 || !is_nan(d[i]) || is_nan(x[i]));

        const size_t first = i - i % codec->block;

        REQUIRE(!is_nan(d[i]) ||
                !is_safe_block(codec, x + first, dsc_min_size(codec->block, n - first)));
    }
    /* x + 1*0 is x but for the sign of zero. */
    REQUIRE(sends_zero_sign || same_messages(codec, &one, &two));
    codec->ops->encode(codec, &two, 0, n, x, NULL);
    REQUIRE(same_messages(codec, &one, &two));
    codec->ops->decode(codec, &one, 0, n, x, 0);
    REQUIRE(memcmp(x, d, n * sizeof(float)) == 0);
    free(one.bytes);
    free(two.bytes);
    free(x);
    free(d);
    free(r);
}

static void ignore_line(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    (void)dsc_fp_enter();
    dscomm_set_log(ignore_line, NULL); /* refusals are what it is about */
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n_specs;
    const char *const *const specs = dsc_codec_test_specs(&n_specs);

    if (size < HEAD_BYTES)
        return 0;

    const struct dsc_codec *const codec = dscomm_codec(specs[data[0] % n_specs]);
    const int exponent = data[1] % 17;
    const unsigned stream = data[1] >= 128 ? DSC_STREAM : 0;
    const size_t n = (data[2] | (size_t)data[3] << 8) % (ELEMS_MAX + 1) *
                     (codec->variable ? 4 : 1); /* more than one segment */

    check_decode(codec, exponent, n, data + HEAD_BYTES, size - HEAD_BYTES);
    check_sizes(codec, n, data + HEAD_BYTES, size - HEAD_BYTES);
    check_encode(codec, exponent, stream, n, data + HEAD_BYTES, size - HEAD_BYTES);
    return 0;
}

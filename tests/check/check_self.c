/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the harness itself: kernels with one planted mistake each, which it must find, and that
 * no primitive is without a row. A harness that passes everything would pass these kernels too.
 */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the planted mistakes; all but the mistake is the reference ---- */

/* Rounds a NaN's payload like a number: the mask is missing. */
static void bf16_without_nan_mask(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, src + i, sizeof(u));
        dst[i] = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}

static void f16_flushes_subnormals(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dsc_f16_store_c(dst + i, src + i, 1);
        if ((dst[i] & 0x7c00u) == 0)
            dst[i] &= 0x8000u;
    }
}

static void encode_writes_past_end(void *q, void *scale, float *d, const float *x, size_t n,
                                   uint32_t block)
{
    dsc_int8_encode_c(q, scale, d, x, n, block);
    ((uint8_t *)q)[n] = 0;
}

static void add_reads_past_end(float *acc, const float *x, size_t n)
{
    volatile float beyond = x[n];

    (void)beyond;
    dsc_add_c(acc, x, n);
}

static void decode_writes_input(float *dst, const void *q, const void *scale, unsigned flags,
                                size_t n, uint32_t block)
{
    dsc_int8_decode_c(dst, q, scale, flags, n, block);
    if (n > 100)
        ((uint8_t *)(uintptr_t)q)[100] ^= 1;
}

static void max_ignores_zero_sign(float *acc, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(acc[i]) || isnan(x[i]))
            dsc_max_c(acc + i, x + i, 1);
        else
            acc[i] = acc[i] > x[i] ? acc[i] : x[i];
    }
}

static void residual_is_fused(float *r, const float *x, const float *o, float a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        r[i] = fmaf(-a, o[i], x[i]);
}

static void feedback_forgets_keep(void *q, void *scale, float *r_out, const float *v,
                                  const float *r, float beta, unsigned flags, size_t n,
                                  uint32_t block)
{
    dsc_int8_encode_feedback_c(q, scale, r_out, v, r, beta, flags & ~DSC_KEEP_OLD, n, block);
}

/* Writes r_out before the last block's r is read: wrong only where they are one array. */
static void feedback_cannot_share(void *q, void *scale, float *r_out, const float *v,
                                  const float *r, float beta, unsigned flags, size_t n,
                                  uint32_t block)
{
    if (n > 0)
        r_out[n - 1] = 0.0f;
    dsc_int8_encode_feedback_c(q, scale, r_out, v, r, beta, flags, n, block);
}

/* Stores whole vectors where it streams. */
static void stream_writes_past_end(void *q, void *scale, float *r_out, const float *v,
                                   const float *r, float beta, unsigned flags, size_t n,
                                   uint32_t block)
{
    dsc_e5m2_encode_feedback_c(q, scale, r_out, v, r, beta, flags, n, block);
    if ((flags & DSC_STREAM) != 0 && n % 16 != 0)
        r_out[n] = 0.0f;
}

static void nibbles_are_swapped(void *q, void *scale, float *d, const float *x, size_t n,
                                uint32_t block)
{
    uint8_t *const codes = q;

    dsc_int4_encode_c(q, scale, d, x, n, block);
    for (size_t i = 0; i < dsc_ceil_div(n, 2); i++)
        codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
}

/* Leaves what was in the last byte's unused half. */
static void last_nibble_is_left(void *q, void *scale, float *d, const float *x, size_t n,
                                uint32_t block)
{
    uint8_t *const codes = q;
    const uint8_t before = n > 0 ? codes[(n - 1) / 2] : 0;

    dsc_int4_encode_c(q, scale, d, x, n, block);
    if (n % 2 != 0)
        codes[n / 2] = (uint8_t)((codes[n / 2] & 0x0fu) | (before & 0xf0u));
}

static void exponent_is_ignored(float *acc, const void *q, int exponent, size_t n)
{
    (void)exponent;
    dsc_f16_decode_add_c(acc, q, 0, n);
}

/* Codes one step nearer to zero where D is beyond x; the scales are right. */
static void e4m3_truncates(void *q, void *scale, float *d, const float *x, size_t n, uint32_t block)
{
    uint8_t *const codes = q;
    float decoded[CHECK_ELEMS_MAX];

    dsc_e4m3_encode_c(q, scale, decoded, x, n, block);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(codes[i] - (fabsf(decoded[i]) > fabsf(x[i])));
    if (d != NULL)
        dsc_e4m3_decode_c(d, q, scale, 0, n, block);
}

/* Ties go away from zero: right everywhere else. */
static void e4m3_ties_go_up(void *q, void *scale, float *d, const float *x, size_t n,
                            uint32_t block)
{
    uint8_t *const codes = q;
    float decoded[CHECK_ELEMS_MAX], next[CHECK_ELEMS_MAX];

    dsc_e4m3_encode_c(q, scale, decoded, x, n, block);
    for (size_t i = 0; i < n; i++)
        codes[i]++;
    dsc_e4m3_decode_c(next, q, scale, 0, n, block);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(codes[i] - (x[i] - decoded[i] != next[i] - x[i]));
    if (d != NULL)
        dsc_e4m3_decode_c(d, q, scale, 0, n, block);
}

/* Reads Inf as the next number, 65536. */
static void e5m2_inf_is_a_number(float *dst, const void *q, const void *scale, unsigned flags,
                                 size_t n, uint32_t block)
{
    const float *const scales = scale;
    const uint8_t *const codes = q;

    dsc_e5m2_decode_c(dst, q, scale, flags, n, block);
    for (size_t i = 0; i < n; i++) {
        if ((codes[i] & 0x7fu) == 0x7cu && !isnan(dst[i]))
            dst[i] = scales[i / block] * ((codes[i] & 0x80u) != 0 ? -65536.0f : 65536.0f);
    }
}

/* Long strides first: equal on integers, not where sums are rounded. */
static void rotates_backwards(float *rotated, const float *x, size_t n)
{
    float group[DSC_HADAMARD_GROUP];

    for (size_t i = 0; i < n; i += DSC_HADAMARD_GROUP) {
        for (size_t j = 0; j < DSC_HADAMARD_GROUP; j++)
            group[j] = i + j < n ? x[i + j] : 0.0f;
        for (size_t stride = DSC_HADAMARD_GROUP / 2; stride > 0; stride /= 2) {
            for (size_t j = 0; j < DSC_HADAMARD_GROUP; j++) {
                const float a = group[j], b = group[j | stride];

                if ((j & stride) != 0)
                    continue;
                group[j] = a + b;
                group[j | stride] = a - b;
            }
        }
        memcpy(rotated + i, group, sizeof(group));
    }
}

/* Draws one number too far. */
static void sr_is_shifted(void *q, void *scale, float *d, const float *x, size_t n, uint32_t block,
                          const struct dsc_draw *draw)
{
    struct dsc_draw next = *draw;

    next.first += 2;
    dsc_int8_encode_sr_c(q, scale, d, x, n, block, &next);
}

/* Behind a multiple of 2^17 as before it. */
static void sr_starts_over(void *q, void *scale, float *d, const float *x, size_t n, uint32_t block,
                           const struct dsc_draw *draw)
{
    const size_t span = (size_t)1 << 17;
    const size_t here = dsc_min_size(n, span - (size_t)(draw->first % span));
    struct dsc_draw next = *draw;

    dsc_int8_encode_sr_c(q, scale, d, x, here, block, draw);
    if (here == n || here % block != 0)
        return;
    next.first += here - span;
    dsc_int8_encode_sr_c((int8_t *)q + here, (float *)scale + here / block,
                         d != NULL ? d + here : NULL, x + here, n - here, block, &next);
}

/* The key of the first element for all. */
static void sr_forgets_high_bits(void *q, void *scale, float *d, const float *x, size_t n,
                                 uint32_t block, const struct dsc_draw *draw)
{
    struct dsc_draw here = *draw;

    if (draw->first >> 33 != (draw->first + n) >> 33)
        here.first &= 0xffffffffu;
    dsc_int4_encode_sr_c(q, scale, d, x, n, block, &here);
}

/* Takes an odd first element for the even one before it. */
static void sr_starts_even(void *q, void *scale, float *d, const float *x, size_t n, uint32_t block,
                           const struct dsc_draw *draw)
{
    struct dsc_draw even = *draw;

    even.first -= even.first % 2;
    dsc_int8_encode_sr_c(q, scale, d, x, n, block, &even);
}

/* Rounds its scales down. */
static void mxfp4_ceil_is_floor(void *q, void *scale, float *d, const float *x, size_t n,
                                uint32_t block)
{
    dsc_mxfp4_encode_c(q, scale, d, x, n, block);
}

/* The code after the largest one, where that saturates: NaN. */
static void mxfp8_does_not_saturate(void *q, void *scale, float *d, const float *x, size_t n,
                                    uint32_t block)
{
    uint8_t *const codes = q;
    float decoded[CHECK_ELEMS_MAX];

    dsc_mxfp8_encode_c(q, scale, decoded, x, n, block);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(codes[i] + ((codes[i] & 0x7fu) == 0x7eu &&
                                         fabsf(x[i]) > fabsf(decoded[i]) * (480.0f / 448.0f)));
    if (d != NULL)
        dsc_mxfp8_decode_c(d, q, scale, 0, n, block);
}

static void mxfp4_has_no_minus_zero(float *dst, const void *q, const void *scale, unsigned flags,
                                    size_t n, uint32_t block)
{
    dsc_mxfp4_decode_c(dst, q, scale, flags, n, block);
    for (size_t i = 0; i < n; i++)
        dst[i] = dst[i] == 0.0f ? 0.0f : dst[i];
}

/* Takes 2^128 for the byte that is poison. */
static void mxint8_knows_no_poison(float *acc, const void *q, const void *scale, size_t n,
                                   uint32_t block)
{
    dsc_mxint8_decode_add_c(acc, q, scale, n, block);
    for (size_t i = 0; i < n; i++) {
        if (((const uint8_t *)scale)[i / block] == 0xff)
            acc[i] = INFINITY;
    }
}

/* Counts what stands beside a NaN or Inf in a block. */
static float amax_counts_bad_blocks(const float *v, const float *r, float beta, size_t n)
{
    float amax = dsc_nvfp4_amax_c(v, r, beta, n);

    for (size_t i = 0; i < n; i++) {
        const float kept = r != NULL ? beta * r[i] : 0.0f;
        const float x = r != NULL ? v[i] + kept : v[i];

        amax = isfinite(x) && fabsf(x) > amax && fabsf(x) >= 0x1p-100f ? fabsf(x) : amax;
    }
    return amax;
}

static size_t count_misses_inf(const float *o, float a, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += isnan(a * o[i]) != 0;
    return count;
}

/* Compares as floats do: NaN is not above anything. */
static size_t at_least_drops_nan(uint8_t *mask, const float *v, const float *r, float beta,
                                 uint32_t limit, size_t n)
{
    const size_t count = dsc_at_least_c(mask, v, r, beta, limit, n);

    for (size_t i = 0; i < n; i++)
        mask[i / 8] &= (uint8_t) ~((isnan(v[i]) != 0) << i % 8);
    return count;
}

/* Leaves what was there in the unused bits of the last byte. */
static size_t at_least_leaves_bits(uint8_t *mask, const float *v, const float *r, float beta,
                                   uint32_t limit, size_t n)
{
    const uint8_t before = n > 0 ? mask[(n - 1) / 8] : 0;
    const size_t count = dsc_at_least_c(mask, v, r, beta, limit, n);

    if (n % 8 != 0)
        mask[n / 8] |= (uint8_t)(before & 0xffu << n % 8);
    return count;
}

/* Rounds v + beta*r once. */
static size_t at_least_fuses(uint8_t *mask, const float *v, const float *r, float beta,
                             uint32_t limit, size_t n)
{
    float x[CHECK_ELEMS_MAX];

    for (size_t i = 0; i < n; i++)
        x[i] = r != NULL ? fmaf(beta, r[i], v[i]) : v[i];
    return dsc_at_least_c(mask, x, NULL, 0.0f, limit, n);
}

static size_t count_takes_both_zeros(const float *x, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += x[i] == 0.0f;
    return count;
}

static void decode_trusts_scale(float *acc, const void *q, const void *scale, size_t n,
                                uint32_t block)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = acc[i] + (float)((const int8_t *)q)[i] * ((const float *)scale)[i / block];
}

/* ---- the tests ---- */

static int must_find(const char *row_name, const struct dsc_kernels *planted, uint64_t seed)
{
    struct dsc_kernels ref;
    struct check_difference diff;

    dsc_kernels_init(&ref, 0);
    for (size_t i = 0; i < check_n_rows; i++) {
        if (strcmp(check_rows[i].name, row_name) == 0)
            return !check_compare(&check_rows[i], &ref, planted, seed, &diff);
    }
    return 0;
}

#define PLANT(test, row, member, fn)     \
    static int test(uint64_t seed)       \
    {                                    \
        struct dsc_kernels k;            \
                                         \
        dsc_kernels_init(&k, 0);         \
        k.member = (fn);                 \
        return must_find(row, &k, seed); \
    }
PLANT(finds_missing_nan_mask, "bf16_store", bf16_store, bf16_without_nan_mask)
PLANT(finds_flushed_subnormals, "f16_store", f16_store, f16_flushes_subnormals)
PLANT(finds_write_past_end, "int8_encode", int8_encode, encode_writes_past_end)
PLANT(finds_read_past_end, "add", add, add_reads_past_end)
PLANT(finds_changed_input, "int8_decode", int8_decode, decode_writes_input)
PLANT(finds_zero_sign, "max", max, max_ignores_zero_sign)
PLANT(finds_fused_residual, "residual", residual, residual_is_fused)
PLANT(finds_forgotten_keep, "int8_encode_feedback", int8_encode_feedback, feedback_forgets_keep)
PLANT(finds_bad_sharing, "int8_encode_feedback", int8_encode_feedback, feedback_cannot_share)
PLANT(finds_wrong_count, "count_nonfinite", count_nonfinite, count_misses_inf)
PLANT(finds_trusted_scale, "int8_decode_add", int8_decode_add, decode_trusts_scale)
PLANT(finds_streamed_overrun, "e5m2_encode_feedback", e5m2_encode_feedback, stream_writes_past_end)
PLANT(finds_swapped_nibbles, "int4_encode", int4_encode, nibbles_are_swapped)
PLANT(finds_left_nibble, "int4_encode_only", int4_encode, last_nibble_is_left)
PLANT(finds_ignored_exponent, "f16_decode_add", f16_decode_add, exponent_is_ignored)
PLANT(finds_truncation, "e4m3_encode", e4m3_encode, e4m3_truncates)
PLANT(finds_wrong_ties, "e4m3_encode_only", e4m3_encode, e4m3_ties_go_up)
PLANT(finds_rotation_order, "hadamard_rotate", hadamard_rotate, rotates_backwards)
PLANT(finds_shifted_draw, "int8_encode_sr", int8_encode_sr, sr_is_shifted)
PLANT(finds_draw_that_starts_over, "int8_encode_sr", int8_encode_sr, sr_starts_over)
PLANT(finds_draw_that_starts_even, "int8_encode_sr", int8_encode_sr, sr_starts_even)
PLANT(finds_forgotten_bits, "int4_encode_sr_late", int4_encode_sr, sr_forgets_high_bits)
PLANT(finds_misread_inf, "e5m2_decode", e5m2_decode, e5m2_inf_is_a_number)
PLANT(finds_dropped_nan, "at_least", at_least, at_least_drops_nan)
PLANT(finds_left_bits, "at_least", at_least, at_least_leaves_bits)
PLANT(finds_fused_limit, "sum_at_least", at_least, at_least_fuses)
PLANT(finds_both_zeros, "count_minus_zero", count_minus_zero, count_takes_both_zeros)

PLANT(finds_missed_ceil, "mxfp4_ceil_encode_only", mxfp4_ceil_encode, mxfp4_ceil_is_floor)
PLANT(finds_overflow, "mxfp8_encode_only", mxfp8_encode, mxfp8_does_not_saturate)
PLANT(finds_lost_sign, "mxfp4_decode", mxfp4_decode, mxfp4_has_no_minus_zero)
PLANT(finds_missed_poison, "mxint8_decode_add", mxint8_decode_add, mxint8_knows_no_poison)
PLANT(finds_bad_maximum, "nvfp4_amax", nvfp4_amax, amax_counts_bad_blocks)

static int every_primitive_has_a_row(uint64_t seed)
{
    (void)seed;
    for (size_t slot = 0; slot < sizeof(struct dsc_kernels); slot += sizeof(void (*)(void))) {
        bool is_found = false;

        for (size_t i = 0; i < check_n_rows; i++)
            is_found |= check_rows[i].slot == slot;
        if (!is_found) {
            (void)fprintf(stderr, "primitive %zu of struct dsc_kernels has no row\n",
                          slot / sizeof(void (*)(void)));
            return 0;
        }
    }
    return 1;
}

const struct check_test check_self_tests[] = {
    { "self.every_primitive_has_a_row", every_primitive_has_a_row },
    { "self.finds_missing_nan_mask", finds_missing_nan_mask },
    { "self.finds_flushed_subnormals", finds_flushed_subnormals },
    { "self.finds_write_past_end", finds_write_past_end },
    { "self.finds_read_past_end", finds_read_past_end },
    { "self.finds_changed_input", finds_changed_input },
    { "self.finds_zero_sign", finds_zero_sign },
    { "self.finds_fused_residual", finds_fused_residual },
    { "self.finds_forgotten_keep", finds_forgotten_keep },
    { "self.finds_bad_sharing", finds_bad_sharing },
    { "self.finds_wrong_count", finds_wrong_count },
    { "self.finds_trusted_scale", finds_trusted_scale },
    { "self.finds_streamed_overrun", finds_streamed_overrun },
    { "self.finds_swapped_nibbles", finds_swapped_nibbles },
    { "self.finds_left_nibble", finds_left_nibble },
    { "self.finds_ignored_exponent", finds_ignored_exponent },
    { "self.finds_truncation", finds_truncation },
    { "self.finds_wrong_ties", finds_wrong_ties },
    { "self.finds_rotation_order", finds_rotation_order },
    { "self.finds_shifted_draw", finds_shifted_draw },
    { "self.finds_draw_that_starts_over", finds_draw_that_starts_over },
    { "self.finds_draw_that_starts_even", finds_draw_that_starts_even },
    { "self.finds_forgotten_bits", finds_forgotten_bits },
    { "self.finds_misread_inf", finds_misread_inf },
    { "self.finds_dropped_nan", finds_dropped_nan },
    { "self.finds_left_bits", finds_left_bits },
    { "self.finds_fused_limit", finds_fused_limit },
    { "self.finds_both_zeros", finds_both_zeros },
    { "self.finds_missed_ceil", finds_missed_ceil },
    { "self.finds_overflow", finds_overflow },
    { "self.finds_lost_sign", finds_lost_sign },
    { "self.finds_missed_poison", finds_missed_poison },
    { "self.finds_bad_maximum", finds_bad_maximum },
};
const size_t check_n_self_tests = DSC_ARRAY_LEN(check_self_tests);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for nvfp4: blocks of 16 under two scales. Compiled with -ffp-contract=off; each
 * float operation is one IEEE operation in nearest-even mode.
 */
#include "codec/formats_c.h"
#include "codec/kernels.h"

#define BLOCK 16
#define POISON 0x7f /* the block scale that E4M3 has no number for */

/* Of a segment whose largest magnitude is amax. */
struct segment {
    float scale, inv;
};

static struct segment segment_of(float amax)
{
    return amax > 0.0f ? (struct segment){ amax / DSC_NVFP4_LARGEST, DSC_NVFP4_LARGEST / amax }
                       : (struct segment){ 0.0f, 0.0f };
}

/* Returns the block's scale. */
static uint8_t encode_block(uint8_t *q, const float *x, size_t n, struct segment segment)
{
    const uint32_t amax_bits = max_magnitude(x, n);
    const bool is_ordinary = amax_bits >= F32_TINY && amax_bits < F32_INF;
    const float top = is_ordinary ? float_of(amax_bits) * segment.inv : 0.0f;
    const uint32_t code = minifloat_code(e4m3, top / 6.0f);
    const float scale = e4m3_value(code) * segment.scale;

    if (scale == 0.0f) { /* too small beside the segment, or nothing to send at all */
        put_zeros(NVFP4, q, n);
        return amax_bits >= F32_INF ? POISON : 0;
    }
    for (size_t i = 0; i < n; i++)
        put_code(NVFP4, q, i, code_of(ELEM_E2M1, x[i] * (1.0f / scale)));
    return (uint8_t)code;
}

static void decode_block(float *dst, const uint8_t *q, uint8_t code, float segment_scale, size_t n)
{
    const bool is_poison = (code & 0x7f) == POISON || !is_finite(segment_scale);
    const float scale = e4m3_value(code) * segment_scale;

    for (size_t i = 0; i < n; i++) {
        const float d = value_of(ELEM_E2M1, get_code(NVFP4, q, i)) * scale;

        dst[i] = is_poison ? float_of(F32_NAN) : canonical(d);
    }
}

float dsc_nvfp4_amax_c(const float *v, const float *r, float beta, size_t n)
{
    uint32_t largest = 0;
    float x[BLOCK];

    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t len = dsc_min_size(BLOCK, n - first);
        uint32_t amax;

        if (r != NULL)
            dsc_axpy_c(x, v + first, r + first, beta, len);
        amax = max_magnitude(r != NULL ? x : v + first, len);
        largest = amax < F32_INF && amax > largest ? amax : largest;
    }
    return largest < F32_TINY ? 0.0f : float_of(largest);
}

void dsc_nvfp4_encode_c(void *q, void *scale, float *d, const float *x, size_t n, float amax)
{
    const struct segment segment = segment_of(amax);
    uint8_t *const scales = scale;

    for (size_t b = 0, first = 0; first < n; b++, first += BLOCK) {
        const size_t len = dsc_min_size(BLOCK, n - first);
        uint8_t *const codes = (uint8_t *)q + first / 2;

        scales[b] = encode_block(codes, x + first, len, segment);
        if (d != NULL)
            decode_block(d + first, codes, scales[b], segment.scale, len);
    }
}

void dsc_nvfp4_encode_feedback_c(void *q, void *scale, float *r_out, const float *v, const float *r,
                                 float beta, unsigned flags, size_t n, float amax)
{
    const struct segment segment = segment_of(amax);
    uint8_t *const scales = scale;
    float x[BLOCK], d[BLOCK];

    for (size_t b = 0, first = 0; first < n; b++, first += BLOCK) {
        const size_t len = dsc_min_size(BLOCK, n - first);
        uint8_t *const codes = (uint8_t *)q + first / 2;

        dsc_axpy_c(x, v + first, r + first, beta, len);
        scales[b] = encode_block(codes, x, len, segment);
        decode_block(d, codes, scales[b], segment.scale, len);
        keep_block(r_out + first, x, d, r + first, len, (flags & DSC_KEEP_OLD) != 0);
    }
}

void dsc_nvfp4_decode_c(float *dst, const void *q, const void *scale, float segment_scale,
                        unsigned flags, size_t n)
{
    (void)flags;
    for (size_t first = 0; first < n; first += BLOCK)
        decode_block(dst + first, (const uint8_t *)q + first / 2,
                     ((const uint8_t *)scale)[first / BLOCK], segment_scale,
                     dsc_min_size(BLOCK, n - first));
}

void dsc_nvfp4_decode_add_c(float *acc, const void *q, const void *scale, float segment_scale,
                            size_t n)
{
    float d[BLOCK];

    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t len = dsc_min_size(BLOCK, n - first);

        decode_block(d, (const uint8_t *)q + first / 2, ((const uint8_t *)scale)[first / BLOCK],
                     segment_scale, len);
        dsc_add_c(acc + first, d, len);
    }
}

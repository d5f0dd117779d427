/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the block formats are, in the words of a vec_*.h: scales, codes of a vector and their
 * values, and which blocks these spellings cannot take. blocks.h makes whole arrays of them.
 *
 * Codes are clamped only where they can be beyond the largest: with scales rounded down, and on the
 * positive side of INT4_SIGNED, where 8 is no code. With
 * others |x| <= amax, and scale and inverse are each rounded once, so |x*inv| is beyond the largest
 * code by less than 2^-21 of it and rounds to it.
 */
#include "codec/block_formats.h"
#include "codec/kernels.h"

#define SCALE_HUGE 0x7b000000u /* 2^119: times 256 still finite */

/* ---- scales ---- */

/* The exponents of e8m0_of() in formats_c.h, as bits of a float32. */
DSC_INLINE vi e8m0_scales(enum format format, vi amax)
{
    const uint32_t largest = bits_of(largest_of(format));
    const uint32_t down = (largest & F32_INF) - (127u << 23);
    /* Adding what is missing to the next power of two makes a carry of mantissas beyond. */
    const uint32_t up = formats[format].rounds_up ? F32_MANTISSA - (largest & F32_MANTISSA) : 0;
    const vi e = vi_and(vi_add(amax, vi_set1(up)), vi_set1(F32_INF));

    return vi_min(vi_sub(e, vi_set1(down)), vi_set1(254u << 23));
}

/*
 * What maxima are taken of: magnitudes; with INT4_SIGNED twice that, plus 1 for positive elements,
 * so that the maximum knows its sign.
 */
DSC_INLINE vi key_of(enum format format, vf x)
{
    const vi bits = vf_bits(x);

    if (format == INT4_SIGNED)
        return vi_xor(vi_or(vi_shift_left(bits, 1), vi_shift_right(bits, 31)), vi_set1(1));
    return vi_and(bits, vi_set1(F32_ABS));
}

DSC_INLINE uint32_t magnitude_of(enum format format, uint32_t key)
{
    return format == INT4_SIGNED ? key >> 1 : key;
}

DSC_INLINE vi magnitudes_of(enum format format, vi keys)
{
    return format == INT4_SIGNED ? vi_shift_right(keys, 1) : keys;
}

/* Of a vector's worth of blocks. Those of tiny blocks are 0, which makes codes and D 0. */
struct scales {
    vf value, inv;
    vi sent; /* of nvfp4: codes; others send the value */
};

DSC_INLINE struct scales scales_of(enum format format, vi keys)
{
    const vi amax_bits = magnitudes_of(format, keys);
    const vf largest = vf_set1(largest_of(format)), amax = vi_float(amax_bits);
    vf s = vf_div(amax, largest), t;

    if (formats[format].scale == SCALE_E8M0) {
        /* 64ths have codes 64 times their values. */
        const uint32_t to_codes = formats[format].element == ELEM_64THS ? 6u << 23 : 0;
        const vi e = e8m0_scales(format, amax_bits);

        s = vi_float(e);
        t = vi_float(vi_sub(vi_set1((254u << 23) + to_codes), e));
    } else if (formats[format].scale == SCALE_BF16) {
        vi up = vi_and(vi_add(vf_bits(s), vi_set1(0xffff)), vi_set1(0xffff0000));

        if (format == INT4_SIGNED) /* negative where the extreme is positive */
            up = vi_or(up, vi_shift_left(keys, 31));
        s = vi_float(up);
        t = vf_div(vf_set1(1.0f), s);
    } else {
        t = vf_div(largest, amax);
    }
    if (formats[format].draws) /* exact: products are in steps of 2^-16 then */
        t = vf_mul(t, vf_set1(0x1p16f));
    return (struct scales){ .value = s, .inv = t };
}

/* ---- one vector ---- */

/* A block's numbers in all lanes. `sign` is 0 in tiny blocks, whose codes are all 0. */
struct factors {
    vf scale, inv;
    vi sign;
};

DSC_INLINE struct factors factors_of(enum format format, uint32_t scale, uint32_t inv)
{
    const float unit = formats[format].element == ELEM_64THS ? 0x1p-6f : 1.0f;

    return (struct factors){ vf_set1(float_of(scale) * unit), vf_set1(float_of(inv)),
                             vi_set1(inv != 0 ? F32_SIGN : 0) };
}

/* |t|; beyond the largest value only with scales that were rounded down. */
DSC_INLINE vi magnitudes(enum format format, vf t)
{
    const vi magnitude = vi_and(vf_bits(t), vi_set1(F32_ABS));

    if (has_byte_scales(format) && !formats[format].rounds_up)
        return vi_min(magnitude, vi_set1(bits_of(largest_of(format))));
    return magnitude;
}

/*
 * Rounds magnitudes to `mbits` of mantissa by one addition, see minifloat_code() in formats_c.h. d
 * gets the rounded value, which is exact. A sign goes from bit 31 to bit `sign_at` and above.
 */
DSC_INLINE vi minifloat_codes(uint32_t mbits, uint32_t min_exponent, vi magnitude, vi sign,
                              int sign_at, vf *d)
{
    const vi e = vi_max(vi_and(magnitude, vi_set1(F32_INF)), vi_set1(min_exponent << 23));
    const vi magic = vi_add(e, vi_set1((23 - mbits) << 23));
    const vf sum = vf_add(vi_float(magnitude), vi_float(magic));
    const vi steps = vi_sub(vf_bits(sum), magic);
    const vi base = vi_sub(vi_shift_right(e, (int)(23 - mbits)), vi_set1(min_exponent << mbits));

    *d = vi_float(vi_or(vf_bits(vf_sub(sum, vi_float(magic))), sign));
    return vi_or(vi_add(steps, base), vi_shift_right_signed(sign, 31 - sign_at));
}

/* ---- stochastic rounding, see formats_c.h ---- */

DSC_INLINE uint32_t mix(uint32_t h)
{
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
}

/*
 * Elements up to the next multiple of this have pairs whose upper 16 bits are alike. So for them
 * the first step of mix(key ^ pair), h ^ h >> 16, is pair ^ (another key).
 */
#define KEY_SPAN ((uint64_t)1 << 17)

DSC_INLINE uint32_t key_of_span(const struct dsc_draw *draw)
{
    const uint32_t high = mix((uint32_t)(draw->first >> 33));
    const uint32_t key = mix(mix(draw->seed + mix(draw->call + mix(draw->rank + high))));

    return key ^ key >> 16 ^ (uint32_t)(draw->first >> 1) >> 16;
}

/* The rest of mix(). */
DSC_INLINE vi mix_rest(vi h)
{
    h = vi_mul(h, vi_set1(0x7feb352d));
    h = vi_mul(vi_xor(h, vi_shift_right(h, 15)), vi_set1(0x846ca68b));
    return vi_xor(h, vi_shift_right(h, 16));
}

/*
 * t: in steps of 2^-16. It rounds to at most the largest code, so that no draw leads below the
 * least one. int8: amax * RN(127 / amax) is less than an ulp, half a step, beyond 127, and a tie
 * goes to the even 127 * 2^16. int4: see rare_if_exceeding().
 */
DSC_INLINE vi stochastic_codes(vf t, vi random)
{
    return vi_shift_right_signed(vi_add(vf_to_int(t), random), 16);
}

/* noise: 16 bits for each, or unused. */
DSC_INLINE vi integer_codes(enum format format, vf t, vi noise, vf *d)
{
    const vf most = vf_set1(127.0f), least = vf_set1(-127.0f);
    vi code;

    if (formats[format].draws)
        code = stochastic_codes(t, noise);
    else if (formats[format].element == ELEM_64THS)
        code = vf_to_int(vf_max(vf_min(t, most), least));
    else
        code = vf_to_int(format == INT4_SIGNED ? vf_min(t, vf_set1(7.0f)) : t);
    *d = vi_to_float(code);
    if (format == INT8_SR) /* stores turn 128 into 127 */
        *d = vf_min(*d, most);
    return code;
}

/* Codes of x as signed bytes in 32-bit lanes, of which nibbles are the low bits; d gets D. */
DSC_INLINE vi quantize(enum format format, vf x, const struct factors *f, vi noise, vf *d)
{
    const vf t = vf_mul(x, f->inv);
    const vi magnitude = magnitudes(format, t), sign = vi_and(vf_bits(t), f->sign);
    vi code;

    switch (formats[format].element) {
    case ELEM_E4M3:
        code = minifloat_codes(3, 127 - 6, magnitude, sign, 7, d);
        break;
    case ELEM_E5M2:
        code = minifloat_codes(2, 127 - 14, magnitude, sign, 7, d);
        break;
    case ELEM_E2M1:
        code = minifloat_codes(1, 127, magnitude, sign, 3, d);
        break;
    default:
        code = integer_codes(format, t, noise, d);
    }
    *d = vf_mul(*d, f->scale);
    return code;
}

/* ---- scales under another: nvfp4 ---- */

/* A segment's numbers, see segment_of() in nvfp4_c.c. */
struct segment {
    float amax, scale, inv;
};

static const struct segment no_segment = { 0.0f, 0.0f, 0.0f };

DSC_INLINE struct segment segment_of(float amax)
{
    return amax > 0.0f
               ? (struct segment){ amax, amax / DSC_NVFP4_LARGEST, DSC_NVFP4_LARGEST / amax }
               : no_segment;
}

DSC_INLINE struct scales e4m3_scales(vi amax_bits, const struct segment *segment)
{
    const vf zero = vf_set1(0.0f);
    const vf top = vf_div(vf_mul(vi_float(amax_bits), vf_set1(segment->inv)), vf_set1(6.0f));
    const vi magnitude = vi_min(vf_bits(top), vi_set1(bits_of(448.0f)));
    struct scales out;
    vf value;

    out.sent = minifloat_codes(3, 127 - 6, magnitude, vi_set1(0), 7, &value);
    out.value = vf_mul(value, vf_set1(segment->scale));
    /* No product is between 0 and the smallest normal number. */
    out.inv = vf_if_at_least(vf_bits(out.value), 1, vf_div(vf_set1(1.0f), out.value), zero);
    return out;
}

/* ---- decoding ---- */

/* The largest code of ordinary numbers, where there are others. */
DSC_INLINE bool has_rare_codes(enum format format, const uint8_t *q, uint32_t n)
{
    if (formats[format].element == ELEM_E4M3)
        return codes_exceed(q, n, 0x7e);
    return formats[format].element == ELEM_E5M2 && codes_exceed(q, n, 0x7b);
}

/* A scale that is poison, or that the fast spelling cannot take. */
DSC_INLINE bool is_rare_scale(enum format format, uint32_t scale)
{
    return (scale & F32_ABS) >= (formats[format].element == ELEM_E4M3 ? SCALE_HUGE : F32_INF);
}

DSC_INLINE bool is_rare(enum format format, const uint8_t *q, uint32_t scale, uint32_t block)
{
    return is_rare_scale(format, scale) || has_rare_codes(format, q, block);
}

/* Of a block of zeros, as a rule; E4M3's factor is no subnormal even there. */
DSC_INLINE bool is_least_scale(enum format format, uint32_t scale)
{
    return formats[format].scale == SCALE_E8M0 && formats[format].element != ELEM_E4M3 &&
           scale == E8M0_LEAST;
}

/* bytes is a multiple of 8. */
DSC_INLINE bool are_zeros(const uint8_t *q, size_t bytes)
{
    uint64_t any = 0, word;

    for (size_t i = 0; i < bytes; i += sizeof(word)) {
        memcpy(&word, q + i, sizeof(word));
        any |= word;
    }
    return any == 0;
}

/* What a block's codes are multiplied with: vf_load_e4m3() gives values / 256. */
DSC_INLINE nibble_table factor_of(enum format format, uint32_t scale)
{
    switch (formats[format].element) {
    case ELEM_INT4:
        return nibbles_scaled(float_of(scale));
    case ELEM_E2M1:
        return e2m1_scaled(float_of(scale));
    case ELEM_E4M3:
        return vf_set1(float_of(scale) * 256.0f);
    case ELEM_64THS:
        return vf_set1(float_of(scale) * 0x1p-6f);
    default:
        return vf_set1(float_of(scale));
    }
}

/* D of LANES elements from element i of a block on. */
DSC_INLINE vf dequantize(enum format format, const uint8_t *q, uint32_t i, nibble_table factor)
{
    switch (formats[format].element) {
    case ELEM_INT4:
        return vf_nibbles(q + i / 2, factor);
    case ELEM_E2M1:
        return vf_e2m1(q + i / 2, factor);
    case ELEM_E4M3:
        return vf_mul(vf_load_e4m3(q + i), factor);
    case ELEM_E5M2:
        return vf_mul(vf_load_e5m2(q + i), factor);
    default:
        return vf_mul(vi_to_float(vi_load_i8(q + i)), factor);
    }
}

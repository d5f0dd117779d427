/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values half way between two codes of a block format, one step below and one above. Runs of 256
 * elements share a largest magnitude, which stands in every 16 of them: all block sizes see the
 * same scale. In every fourth run it is a power of two times the largest code, so that x*inv is the
 * tie itself; in another one step more, where a power of two as scale has to be the next; in others
 * it is any number, and x*inv a tie or its neighbour, as rounding falls.
 */
#include "check/check.h"

#include <math.h>
#include <string.h>

struct format {
    int mbits;        /* of the codes' mantissa; 0: integers */
    int min_exponent; /* of the smallest normal value */
    uint32_t largest; /* code */
    bool has_bf16_scale;
};

static const struct format int8_codes = { 0, 0, 127, false }, int4_codes = { 0, 0, 7, true },
                           e4m3_codes = { 3, -6, 0x7e, false },
                           e5m2_codes = { 2, -14, 0x7b, false }, e2m1_codes = { 1, 0, 7, false };

/* From the definition of the formats, in double. */
static double value_of(const struct format *f, uint32_t code)
{
    const int exponent = (int)(code >> f->mbits);
    const int mantissa = (int)(code & ((1u << f->mbits) - 1u));

    if (f->mbits == 0)
        return code;
    if (exponent == 0)
        return ldexp(mantissa, f->min_exponent - f->mbits);
    return ldexp((1 << f->mbits) + mantissa, f->min_exponent - f->mbits + exponent - 1);
}

static double largest_of_run(const struct format *f, size_t run)
{
    uint64_t state = run;
    const uint64_t h = check_random(&state);
    const double any = 1.0 + (double)(h >> 41) * 0x1p-23;
    const double factor = run % 4 == 0 ? 1.0 : run % 4 == 2 ? 1.0 + 0x1p-23 : any;

    return (float)ldexp(value_of(f, f->largest) * factor, (int)(h % 7) - 3);
}

static double scale_of(const struct format *f, double amax)
{
    const double scale = amax / value_of(f, f->largest);
    int exponent;

    if (!f->has_bf16_scale)
        return scale;
    (void)frexp(scale, &exponent); /* 8 bits of mantissa, rounded up */
    return ldexp(ceil(ldexp(scale, 8 - exponent)), exponent - 8);
}

static uint32_t tie(const struct format *f, uint32_t h, size_t i)
{
    const double amax = largest_of_run(f, i / 256);
    const uint32_t code = (h >> 8) % f->largest;
    const double t = (value_of(f, code) + value_of(f, code + 1)) / 2;
    const float x = (float)(i % 16 == 0 ? amax : t * scale_of(f, amax));
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    if (i % 16 != 0)
        u += (h >> 1) % 3 - 1u;
    return u | h << 31;
}

uint32_t check_int8_tie(uint32_t h, size_t i)
{
    return tie(&int8_codes, h, i);
}

uint32_t check_int4_tie(uint32_t h, size_t i)
{
    return tie(&int4_codes, h, i);
}

uint32_t check_e4m3_tie(uint32_t h, size_t i)
{
    return tie(&e4m3_codes, h, i);
}

uint32_t check_e5m2_tie(uint32_t h, size_t i)
{
    return tie(&e5m2_codes, h, i);
}

uint32_t check_e2m1_tie(uint32_t h, size_t i)
{
    return tie(&e2m1_codes, h, i);
}

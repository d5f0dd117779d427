/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs that have broken kernels before: signed zeros, subnormals, rounding ties, the edges of the
 * formats, blocks with one bad element, and bits at random.
 */
#include "check/check.h"

#include <string.h>

uint64_t check_random(uint64_t *state)
{
    /* splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_sign(uint32_t h)
{
    return h << 31;
}

static uint32_t any_bits(uint32_t h, size_t i)
{
    (void)i;
    return h;
}

/* Magnitudes from 2^-10 to 2^10. */
static uint32_t ordinary(uint32_t h, size_t i)
{
    (void)i;
    return random_sign(h) | ((117u + (h >> 1) % 20u) << 23) | (h >> 9);
}

static uint32_t special(uint32_t h, size_t i)
{
    static const uint32_t table[] = {
        0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x0d7fffff, 0x0d800000,
        0x0d800001, 0x33000000, 0x33000001, 0x33800000, 0x38800000, 0x387fe000,
        0x387ff000, 0x3f000000, 0x3f800000, 0x42fe0000, 0x477fe000, 0x477fefff,
        0x477ff000, 0x4b000001, 0x7f000000, 0x7f7f0000, 0x7f7f8000, 0x7f7fffff,
        0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff, 0x7f810000,
        0x3f808000, 0x3f818000, 0x4a7fefff, 0x4a7ff000, 0x4fffefff, 0x4ffff000,
    };

    (void)i;
    return random_sign(h) | table[(h >> 1) % DSC_ARRAY_LEN(table)];
}

/* Half integers with 127 often enough that most int8 blocks have scale 1 and every code a tie. */
static uint32_t half_integer(uint32_t h, size_t i)
{
    const int32_t twice = i % 16 == 0 ? 254 : (int32_t)(h >> 8) % 255;
    const float x = (float)twice * ((h & 1) != 0 ? -0.5f : 0.5f);
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static uint32_t signed_zero(uint32_t h, size_t i)
{
    (void)i;
    return random_sign(h);
}

/* Around 2^-100, where int8 blocks turn into zeros: maxima just below, exactly there, and above. */
static uint32_t near_tiny(uint32_t h, size_t i)
{
    static const uint32_t spread[] = { 8, 9, 16 };

    return random_sign(h) | (0x0d7ffff8u + (h >> 1) % spread[i / 256 % DSC_ARRAY_LEN(spread)]);
}

static uint32_t near_largest(uint32_t h, size_t i)
{
    (void)i;
    return random_sign(h) | (0x7f7fffffu - (h >> 1) % ((h & 2) != 0 ? 4u : 0x10000u));
}

static uint32_t rarely_bad(uint32_t h, size_t i)
{
    if (h % 199 == 0)
        return 0x7f800000u | random_sign(h >> 1);
    if (h % 211 == 0)
        return 0x7f812345u | random_sign(h >> 1);
    return ordinary(h, i);
}

/* Half way between neighbouring fp16 values and one step beside it, all exponents. */
static uint32_t fp16_tie(uint32_t h, size_t i)
{
    const uint32_t exponent = 100u + (h >> 8) % 44u; /* 2^-27 to 2^16 */
    const uint32_t drop = exponent >= 113 ? 13u : dsc_min_size(23, 13u + (113u - exponent)) & 31u;
    const uint32_t half = 1u << (drop - 1);
    const uint32_t kept = (h << 3) & 0x7fffffu & ~((half << 1) - 1);

    return random_sign(h) | (exponent << 23) | (kept + half + (uint32_t)(i % 3) - 1u);
}

static uint32_t bf16_tie(uint32_t h, size_t i)
{
    return (h & 0xffff0000u) | (0x7fffu + (uint32_t)(i % 3));
}

static uint32_t subnormal(uint32_t h, size_t i)
{
    (void)i;
    return h & 0x807fffffu;
}

static uint32_t full_scale(uint32_t h, size_t i)
{
    (void)h;
    return i % 2 == 0 ? 0x43480000u : 0xc3480000u; /* 200, -200 */
}

/* Every pattern of 16 bits once in 65536 elements; the bits are the high half of a float32. */
static uint32_t counting(uint32_t h, size_t i)
{
    (void)h;
    return (uint32_t)i << 16 | (uint32_t)i;
}

/* Scales of a hostile message: huge, negative, subnormal, Inf and NaN, between ordinary ones. */
static uint32_t hostile_scale(uint32_t h, size_t i)
{
    static const uint32_t table[] = {
        0x7b000000, 0x7b7f0000, 0x7d800000, 0x7f7f0000, 0x7f7fffff, 0x7f800000,
        0x7f800001, 0x7fc00000, 0x7fffffff, 0x00000000, 0x00010000, 0x00000001,
        0x007f0000, 0x00800000, 0x3f800000, 0x0d000000,
    };

    return h % 4 == 0 ? ordinary(h >> 2, i)
                      : random_sign(h >> 2) | table[(h >> 3) % DSC_ARRAY_LEN(table)];
}

/* Codes that are the edge of some format, or no number in it; in the low byte. */
static uint32_t hostile_code(uint32_t h, size_t i)
{
    static const uint8_t table[] = {
        0x00, 0x80, 0x7f, 0xff, 0x7c, 0xfc, 0x7b, 0xfb, 0x7d, 0x7e, 0xfe, 0x81, 0x01, 0x08,
        0x88, 0x78, 0x87, 0x77, 0x99, 0x98, 0x89, 0x03, 0x04, 0x83, 0x84, 0x07, 0x17,
    };

    (void)i;
    return table[h % DSC_ARRAY_LEN(table)];
}

static const struct {
    const char *name;
    uint32_t (*bits)(uint32_t h, size_t i);
    uint32_t (*code)(uint32_t h, size_t i); /* for codes; NULL: made from the bits */
} styles[] = {
    { "ordinary", ordinary, NULL },
    { "any bits", any_bits, NULL },
    { "special", special, NULL },
    { "half integers", half_integer, NULL },
    { "signed zeros", signed_zero, NULL },
    { "near 2^-100", near_tiny, NULL },
    { "near largest", near_largest, NULL },
    { "rarely bad", rarely_bad, NULL },
    { "fp16 ties", fp16_tie, NULL },
    { "bf16 ties", bf16_tie, NULL },
    { "subnormal", subnormal, NULL },
    { "full scale", full_scale, NULL },
    { "counting", counting, NULL },
    { "int8 ties", check_int8_tie, NULL },
    { "int4 ties", check_int4_tie, NULL },
    { "e4m3 ties", check_e4m3_tie, NULL },
    { "e5m2 ties", check_e5m2_tie, NULL },
    { "e2m1 ties", check_e2m1_tie, NULL },
    { "hostile", hostile_scale, hostile_code },
};

const size_t check_n_styles = DSC_ARRAY_LEN(styles);

const char *check_style_name(size_t style)
{
    return styles[style].name;
}

size_t check_item_bytes(enum check_type type)
{
    switch (type) {
    case CHECK_BITS:
    case CHECK_CODE:
    case CHECK_CODE4:
    case CHECK_SCALE8:
        return 1;
    case CHECK_U16:
    case CHECK_SCALE16:
        return 2;
    default:
        return 4;
    }
}

size_t check_operand_bytes(enum check_type type, size_t n, uint32_t block)
{
    const bool is_scale = type == CHECK_SCALE || type == CHECK_SCALE16 || type == CHECK_SCALE8;
    const size_t items = is_scale                   ? dsc_ceil_div(n, block)
                         : type == CHECK_CODE4      ? dsc_ceil_div(n, 2)
                         : type == CHECK_BITS       ? dsc_ceil_div(n, 8)
                         : type == CHECK_F32_GROUPS ? dsc_round_up(n, DSC_HADAMARD_GROUP)
                                                    : n;

    return items * check_item_bytes(type);
}

void check_fill(void *dst, enum check_type type, size_t bytes, size_t style, uint64_t seed)
{
    const size_t item_bytes = check_item_bytes(type);
    uint64_t state = seed;

    for (size_t i = 0; i < bytes / item_bytes; i++) {
        const uint32_t h = (uint32_t)(check_random(&state) >> 32);
        const bool has_codes = styles[style].code != NULL;
        uint32_t u =
            item_bytes == 1 && has_codes ? styles[style].code(h, i) : styles[style].bits(h, i);

        if (item_bytes == 1 && !has_codes)
            u = u >> 16 ^ u >> 24; /* counting: every code comes */
        else if (item_bytes == 2)
            u >>= 16;
        memcpy((char *)dst + i * item_bytes, &u, item_bytes); /* little endian */
    }
}

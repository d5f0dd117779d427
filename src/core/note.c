/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: coding of their fields. Integers only, as ranks decide by what they read here.
 *
 *     31         30     24 23            16 15               8 7           0
 *     overflow | wait    | 256 - log(ns)  | log(residual)     | log(error)
 */
#include "core/core.h"

#define STEPS 8      /* per octave */
#define TOP 255u     /* code of 2^(254/8) and all above */
#define UNIT_BITS 24 /* errors count in 2^-24 */
#define MILLION 1000000u
#define WAIT_MAX 127u

/* 2^(32 + k/8), rounded up, so that a value is not below a step that it is on. */
static const uint64_t steps[STEPS] = { 4294967296, 4683695048, 5107605668, 5569883476,
                                       6074001000, 6623745059, 7223245206, 7877004752 };

/* 0 for 0; from 1 on 1 + floor(8 * log2(value)). */
static uint32_t log_code(uint64_t value)
{
    uint32_t octave, code;

    if (value == 0)
        return 0;
    octave = 63 - (uint32_t)__builtin_clzll(value);
    if (octave >= 32)
        return TOP;
    value <<= 32 - octave;
    code = 1 + STEPS * octave;
    for (uint32_t k = 1; k < STEPS && value >= steps[k]; k++)
        code++;
    return code < TOP ? code : TOP;
}

/* The least value of a code, up to 255, times `unit`, which is at most 10^9. */
static uint64_t log_value(uint32_t code, uint64_t unit)
{
    if (code == 0)
        return 0;
    return steps[(code - 1) % STEPS] * unit >> (32 - (code - 1) / STEPS);
}

static uint64_t from_ppm(uint64_t ppm)
{
    return dsc_min_u64(ppm, (uint64_t)MILLION << 8) * ((uint64_t)1 << UNIT_BITS) / MILLION;
}

static uint64_t to_ppm(uint32_t code)
{
    return log_value(code, MILLION) >> UNIT_BITS;
}

uint32_t dsc_note_pack(const struct dsc_note *note)
{
    const uint32_t time = log_code(note->ns_per_kib);
    const uint32_t wait = (uint32_t)(dsc_min_u64(note->wait_ppm, MILLION) * WAIT_MAX / MILLION);

    return log_code(from_ppm(note->error_ppm)) | log_code(from_ppm(note->residual_ppm)) << 8 |
           (time == 0 ? 0 : TOP + 1 - time) << 16 | wait << 24 | (uint32_t)note->overflow << 31;
}

struct dsc_note dsc_note_unpack(uint32_t bits)
{
    const uint32_t time = bits >> 16 & 0xff;

    return (struct dsc_note){ .error_ppm = to_ppm(bits & 0xff),
                              .residual_ppm = to_ppm(bits >> 8 & 0xff),
                              .ns_per_kib = time == 0 ? 0 : log_value(TOP + 1 - time, 1),
                              .wait_ppm = (bits >> 24 & WAIT_MAX) * MILLION / WAIT_MAX,
                              .overflow = bits >> 31 != 0 };
}

uint32_t dsc_note_merge(uint32_t a, uint32_t b)
{
    static const uint32_t masks[] = { 0xff, 0xff00, 0xff0000, 0x7f000000, 0x80000000 };
    uint32_t merged = 0;

    for (size_t i = 0; i < DSC_ARRAY_LEN(masks); i++)
        merged |= (a & masks[i]) > (b & masks[i]) ? a & masks[i] : b & masks[i];
    return merged;
}

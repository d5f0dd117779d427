/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/codec: which block formats there are, and how their codes and scales lie in
 * memory. A format is a constant wherever these functions are called, so nothing of the table is
 * looked up at run time.
 */
#ifndef DSC_BLOCK_FORMATS_H
#define DSC_BLOCK_FORMATS_H

#include "codec/bits.h"

enum format {
    INT8,
    INT4,
    INT4_SIGNED,
    INT8_SR,
    INT4_SR,
    E4M3,
    E5M2,
    MXFP8,
    MXFP8_CEIL,
    MXFP8_E5M2,
    MXFP8_E5M2_CEIL,
    MXFP4,
    MXFP4_CEIL,
    MXINT8,
    MXINT8_CEIL,
    NVFP4,
};

/* Which functions each level defines, by the primitive's name and its format: encoders, decoders,
 * and encoders that draw. */
#define DSC_BLOCK_FUNCTIONS(ENCODERS, DECODERS, ENCODE_SR) \
    ENCODERS(int8, INT8)                                   \
    DECODERS(int8, INT8)                                   \
    ENCODE_SR(int8, INT8_SR)                               \
    ENCODERS(int4, INT4)                                   \
    DECODERS(int4, INT4)                                   \
    ENCODE_SR(int4, INT4_SR)                               \
    ENCODERS(int4s, INT4_SIGNED)                           \
    ENCODERS(e4m3, E4M3)                                   \
    DECODERS(e4m3, E4M3)                                   \
    ENCODERS(e5m2, E5M2)                                   \
    DECODERS(e5m2, E5M2)                                   \
    ENCODERS(mxfp8, MXFP8)                                 \
    ENCODERS(mxfp8_ceil, MXFP8_CEIL)                       \
    DECODERS(mxfp8, MXFP8)                                 \
    ENCODERS(mxfp8_e5m2, MXFP8_E5M2)                       \
    ENCODERS(mxfp8_e5m2_ceil, MXFP8_E5M2_CEIL)             \
    DECODERS(mxfp8_e5m2, MXFP8_E5M2)                       \
    ENCODERS(mxfp4, MXFP4)                                 \
    ENCODERS(mxfp4_ceil, MXFP4_CEIL)                       \
    DECODERS(mxfp4, MXFP4)                                 \
    ENCODERS(mxint8, MXINT8)                               \
    ENCODERS(mxint8_ceil, MXINT8_CEIL)                     \
    DECODERS(mxint8, MXINT8)

/* ELEM_INT4_SIGNED: from -8, under scales that have a sign. ELEM_64THS: bytes that count 64ths,
 * from -127/64 to 127/64. */
enum element {
    ELEM_INT8,
    ELEM_64THS,
    ELEM_INT4,
    ELEM_INT4_SIGNED,
    ELEM_E4M3,
    ELEM_E5M2,
    ELEM_E2M1
};
/* SCALE_E4M3: times the float32 scale of a segment; nvfp4_c.c and simd/nvfp4.h read them. */
enum scale { SCALE_F32, SCALE_BF16, SCALE_E8M0, SCALE_E4M3 };

struct block_format {
    enum element element;
    enum scale scale;
    uint32_t block; /* the usual one; with one-byte scales there is no other */
    bool rounds_up; /* scales, so that no code is beyond the largest; else E8M0 goes down */
    bool draws;     /* rounds stochastically; only encoders see it */
};

static const struct block_format formats[] = {
    [INT8] = { ELEM_INT8, SCALE_F32, 256, false, false },
    [INT4] = { ELEM_INT4, SCALE_BF16, 64, true, false },
    [INT4_SIGNED] = { ELEM_INT4_SIGNED, SCALE_BF16, 64, true, false },
    [INT8_SR] = { ELEM_INT8, SCALE_F32, 256, false, true },
    [INT4_SR] = { ELEM_INT4, SCALE_BF16, 64, true, true },
    [E4M3] = { ELEM_E4M3, SCALE_F32, 256, false, false },
    [E5M2] = { ELEM_E5M2, SCALE_F32, 256, false, false },
    [MXFP8] = { ELEM_E4M3, SCALE_E8M0, 32, false, false },
    [MXFP8_CEIL] = { ELEM_E4M3, SCALE_E8M0, 32, true, false },
    [MXFP8_E5M2] = { ELEM_E5M2, SCALE_E8M0, 32, false, false },
    [MXFP8_E5M2_CEIL] = { ELEM_E5M2, SCALE_E8M0, 32, true, false },
    [MXFP4] = { ELEM_E2M1, SCALE_E8M0, 32, false, false },
    [MXFP4_CEIL] = { ELEM_E2M1, SCALE_E8M0, 32, true, false },
    [MXINT8] = { ELEM_64THS, SCALE_E8M0, 32, false, false },
    [MXINT8_CEIL] = { ELEM_64THS, SCALE_E8M0, 32, true, false },
    [NVFP4] = { ELEM_E2M1, SCALE_E4M3, 16, false, false },
};

DSC_INLINE bool has_byte_scales(enum format format)
{
    return formats[format].scale == SCALE_E8M0 || formats[format].scale == SCALE_E4M3;
}

/* The largest size of the elements. */
DSC_INLINE float largest_of(enum format format)
{
    switch (formats[format].element) {
    case ELEM_INT8:
        return 127.0f;
    case ELEM_64THS:
        return 127.0f / 64.0f;
    case ELEM_INT4:
        return 7.0f;
    case ELEM_INT4_SIGNED:
        return 8.0f;
    case ELEM_E4M3:
        return 448.0f;
    case ELEM_E5M2:
        return 57344.0f;
    case ELEM_E2M1:
        return 6.0f;
    }
    return 0.0f;
}

/* ---- codes ---- */

DSC_INLINE bool has_nibbles(enum format format)
{
    const enum element element = formats[format].element;

    return element == ELEM_INT4 || element == ELEM_INT4_SIGNED || element == ELEM_E2M1;
}

/* Of n elements, n even. */
DSC_INLINE size_t code_bytes(enum format format, size_t n)
{
    return has_nibbles(format) ? n / 2 : n;
}

/* ---- scales, as bits of a float32; a scale with all exponent bits set is poison ---- */

DSC_INLINE size_t scale_bytes(enum format format, size_t n)
{
    return formats[format].scale == SCALE_F32    ? n * sizeof(float)
           : formats[format].scale == SCALE_BF16 ? n * sizeof(uint16_t)
                                                 : n;
}

DSC_INLINE void put_scale(enum format format, void *scales, size_t i, uint32_t bits)
{
    if (formats[format].scale == SCALE_F32)
        ((uint32_t *)scales)[i] = bits;
    else if (formats[format].scale == SCALE_BF16)
        ((uint16_t *)scales)[i] = (uint16_t)(bits >> 16);
    else if (formats[format].scale == SCALE_E4M3) /* the code itself */
        ((uint8_t *)scales)[i] = (uint8_t)bits;
    else
        ((uint8_t *)scales)[i] = (uint8_t)(bits >> 23); /* scale 0 as well: code 0 is 2^-127 */
}

DSC_INLINE uint32_t get_scale(enum format format, const void *scales, size_t i)
{
    if (formats[format].scale == SCALE_F32)
        return ((const uint32_t *)scales)[i];
    if (formats[format].scale == SCALE_BF16)
        return (uint32_t)((const uint16_t *)scales)[i] << 16;
    return e8m0_bits(((const uint8_t *)scales)[i]);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes with one scale per block of 16 to 256 elements.
 *
 *     | scale0 | scale1 | ... | 0 .. 0 | q0 q1 q2 ... q(n-1) | 0 .. 0 |
 *       ceil(n/block) of them            1 byte each; int4 and mxfp4 have two in a byte
 *
 * Each part starts at a multiple of 16 bytes. Blocks count from the message's first element, so a
 * span that starts at a block needs nothing from its neighbours.
 */
#include "codec/bits.h"
#include "codec/codec.h"

/* How a family lies in memory. The span functions below have it as a constant. */
struct layout {
    size_t scale_bytes, codes_per_byte;
};

static const struct layout wide = { sizeof(float), 1 }, packed = { sizeof(uint16_t), 2 },
                           mx_wide = { 1, 1 }, mx_packed = { 1, 2 };

static size_t used_scale_bytes(struct layout l, const struct dsc_codec *codec, size_t n)
{
    return dsc_ceil_div(n, codec->block) * l.scale_bytes;
}

static size_t used_code_bytes(struct layout l, size_t n)
{
    return dsc_ceil_div(n, l.codes_per_byte);
}

static size_t block_message_bytes(struct layout l, const struct dsc_codec *codec, size_t n)
{
    return dsc_round_up(used_scale_bytes(l, codec, n), 16) +
           dsc_round_up(used_code_bytes(l, n), 16);
}

static uint8_t *scales_at(struct layout l, const struct dsc_codec *codec, const struct dsc_msg *msg,
                          size_t first)
{
    return msg->bytes + used_scale_bytes(l, codec, first);
}

static uint8_t *codes_at(struct layout l, const struct dsc_codec *codec, const struct dsc_msg *msg,
                         size_t first)
{
    return msg->bytes + dsc_round_up(used_scale_bytes(l, codec, msg->n), 16) +
           used_code_bytes(l, first);
}

/* The span that ends the message writes the zeros behind both parts. */
static void pad_message(struct layout l, const struct dsc_codec *codec, const struct dsc_msg *msg,
                        size_t end)
{
    if (end != msg->n)
        return;
    dsc_codec_pad(msg->bytes, used_scale_bytes(l, codec, msg->n));
    dsc_codec_pad(codes_at(l, codec, msg, 0), used_code_bytes(l, msg->n));
}

/* Bits of a float32; with all exponent bits set the block is poison. */
static uint32_t scale_bits(struct layout l, const uint8_t *scales, size_t i)
{
    if (l.scale_bytes == sizeof(float))
        return ((const uint32_t *)(const void *)scales)[i];
    if (l.scale_bytes == sizeof(uint16_t))
        return (uint32_t)((const uint16_t *)(const void *)scales)[i] << 16;
    return e8m0_bits(scales[i]);
}

/* Of n scales, as magnitude. */
static uint32_t largest_scale(struct layout l, const uint8_t *scales, size_t n)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = scale_bits(l, scales, i) & F32_ABS;

        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* Rounding is monotonic: no a*D is beyond that of the largest code and scale. */
static bool numbers_stay_finite(struct layout l, const struct dsc_codec *codec,
                                const struct dsc_msg *msg, size_t first, size_t n, float a,
                                float largest_code)
{
    const float scale =
        float_of(largest_scale(l, scales_at(l, codec, msg, first), dsc_ceil_div(n, codec->block)));
    const float d = largest_code * scale;

    return is_finite(a * d);
}

static bool int8_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                              size_t first, size_t n, float a)
{
    return numbers_stay_finite(wide, codec, msg, first, n, a, 128.0f);
}

static bool int4_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                              size_t first, size_t n, float a)
{
    return numbers_stay_finite(packed, codec, msg, first, n, a, 8.0f);
}

static bool mxfp4_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                               size_t first, size_t n, float a)
{
    return numbers_stay_finite(mx_packed, codec, msg, first, n, a, 6.0f);
}

static bool mxint8_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                size_t first, size_t n, float a)
{
    return numbers_stay_finite(mx_wide, codec, msg, first, n, a, 2.0f);
}

/* Codes may be NaN or Inf: nothing short of looking at them. */
#define fp8_e4m3_stays_finite NULL
#define fp8_e5m2_stays_finite NULL
#define mxfp8_stays_finite NULL
#define mxfp8_e5m2_stays_finite NULL

/* What writes a format: its layout and the prefix of its primitives in kernels.h. */
#define BLOCK_ENCODERS(name, l, kernel)                                                           \
    static void name##_encode(const struct dsc_codec *codec, const struct dsc_msg *msg,           \
                              size_t first, size_t n, const float *x, float *decoded)             \
    {                                                                                             \
        dsc_kernels_get()->kernel##_encode(codes_at(l, codec, msg, first),                        \
                                           scales_at(l, codec, msg, first), decoded, x, n,        \
                                           codec->block);                                         \
        pad_message(l, codec, msg, first + n);                                                    \
    }                                                                                             \
    static void name##_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,  \
                                       size_t first, size_t n, const float *v, const float *r,    \
                                       float beta, float *r_out, unsigned flags)                  \
    {                                                                                             \
        dsc_kernels_get()->kernel##_encode_feedback(codes_at(l, codec, msg, first),               \
                                                    scales_at(l, codec, msg, first), r_out, v, r, \
                                                    beta, flags, n, codec->block);                \
        pad_message(l, codec, msg, first + n);                                                    \
    }

/* The draw belongs to elements, so it moves with the span. */
#define BLOCK_STOCHASTIC_ENCODER(name, l, kernel)                                             \
    static void name##_encode(const struct dsc_codec *codec, const struct dsc_msg *msg,       \
                              size_t first, size_t n, const float *x, float *decoded)         \
    {                                                                                         \
        struct dsc_draw draw = msg->draw;                                                     \
                                                                                              \
        draw.first += first;                                                                  \
        dsc_kernels_get()->kernel##_encode_sr(codes_at(l, codec, msg, first),                 \
                                              scales_at(l, codec, msg, first), decoded, x, n, \
                                              codec->block, &draw);                           \
        pad_message(l, codec, msg, first + n);                                                \
    }

#define BLOCK_DECODERS(name, l, kernel)                                                           \
    static size_t name##_message_bytes(const struct dsc_codec *codec, size_t n)                   \
    {                                                                                             \
        return block_message_bytes(l, codec, n);                                                  \
    }                                                                                             \
    static void name##_decode(const struct dsc_codec *codec, const struct dsc_msg *msg,           \
                              size_t first, size_t n, float *dst, unsigned flags)                 \
    {                                                                                             \
        dsc_kernels_get()->kernel##_decode(dst, codes_at(l, codec, msg, first),                   \
                                           scales_at(l, codec, msg, first), flags, n,             \
                                           codec->block);                                         \
    }                                                                                             \
    static void name##_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg,       \
                                  size_t first, size_t n, float *acc)                             \
    {                                                                                             \
        dsc_kernels_get()->kernel##_decode_add(acc, codes_at(l, codec, msg, first),               \
                                               scales_at(l, codec, msg, first), n, codec->block); \
    }

/* decoder: whose messages these are to a receiver. */
#define BLOCK_OPS(name, decoder, feedback)           \
    static const struct dsc_codec_ops name##_ops = { \
        .message_bytes = decoder##_message_bytes,    \
        .encode = name##_encode,                     \
        .encode_feedback = feedback,                 \
        .decode = decoder##_decode,                  \
        .decode_add = decoder##_decode_add,          \
        .stays_finite = decoder##_stays_finite,      \
    };

#define BLOCK_FAMILY(name, l, kernel) \
    BLOCK_ENCODERS(name, l, kernel)   \
    BLOCK_DECODERS(name, l, kernel)   \
    BLOCK_OPS(name, name, name##_encode_feedback)

/* With scales rounded up as well, which only encoders see. */
#define MX_FAMILY(name, l)                      \
    BLOCK_FAMILY(name, l, name)                 \
    BLOCK_ENCODERS(name##_ceil, l, name##_ceil) \
    BLOCK_OPS(name##_ceil, name, name##_ceil_encode_feedback)

BLOCK_FAMILY(int8, wide, int8)
BLOCK_FAMILY(int4, packed, int4)
BLOCK_FAMILY(fp8_e4m3, wide, e4m3)
BLOCK_FAMILY(fp8_e5m2, wide, e5m2)
BLOCK_STOCHASTIC_ENCODER(int8_sr, wide, int8)
BLOCK_OPS(int8_sr, int8, dsc_codec_encode_feedback_steps)
BLOCK_STOCHASTIC_ENCODER(int4_sr, packed, int4)
BLOCK_OPS(int4_sr, int4, dsc_codec_encode_feedback_steps)
BLOCK_ENCODERS(int4_signed, packed, int4s)
BLOCK_OPS(int4_signed, int4, int4_signed_encode_feedback)
MX_FAMILY(mxfp8, mx_wide)
MX_FAMILY(mxfp8_e5m2, mx_wide)
MX_FAMILY(mxfp4, mx_packed)
MX_FAMILY(mxint8, mx_wide)

/* ---- the families ---- */

#define ROW(format, text, elems, error)                                                \
    {                                                                                  \
        .ops = &format##_ops, .spec = (text), .block = (elems), .tile_align = (elems), \
        .e0_ppm = (error)                                                              \
    }
#define STOCHASTIC(format, text, elems, error)                                                \
    {                                                                                         \
        .ops = &format##_sr_ops, .spec = text ",sr", .block = (elems), .tile_align = (elems), \
        .stochastic = true, .e0_ppm = (error)                                                 \
    }
#define HADAMARD(base, text, elems, error) DSC_HADAMARD_ROW(base, text, elems, elems, error)

/* clang-format off */
static const struct dsc_codec int8_rows[] = {
    ROW(int8, "int8", 256, 8100),
    ROW(int8, "int8:block=128", 128, 7100),
    ROW(int8, "int8:block=64", 64, 6300),
    ROW(int8, "int8:block=32", 32, 5400),
    ROW(int8, "int8:block=16", 16, 4600),
    HADAMARD(&int8_rows[0], "int8", 256, 12000),
    HADAMARD(&int8_rows[1], "int8:block=128", 128, 10500),
    HADAMARD(&int8_rows[2], "int8:block=64", 64, 9200),
    HADAMARD(&int8_rows[3], "int8:block=32", 32, 7900),
    HADAMARD(&int8_rows[4], "int8:block=16", 16, 6300),
    STOCHASTIC(int8, "int8", 256, 11500),
    STOCHASTIC(int8, "int8:block=128", 128, 10100),
    STOCHASTIC(int8, "int8:block=64", 64, 8900),
    STOCHASTIC(int8, "int8:block=32", 32, 7700),
    STOCHASTIC(int8, "int8:block=16", 16, 6600),
    DSC_ENTROPY_ROW(&int8_rows[0], "int8", 256, 8100),
    DSC_ENTROPY_ROW(&int8_rows[1], "int8:block=128", 128, 7100),
    DSC_ENTROPY_ROW(&int8_rows[2], "int8:block=64", 64, 6300),
    DSC_ENTROPY_ROW(&int8_rows[3], "int8:block=32", 32, 5400),
    DSC_ENTROPY_ROW(&int8_rows[4], "int8:block=16", 16, 4600),
};

static const struct dsc_codec int4_rows[] = {
    ROW(int4, "int4", 64, 113000),
    ROW(int4, "int4:block=256", 256, 145000),
    ROW(int4, "int4:block=128", 128, 128000),
    ROW(int4, "int4:block=32", 32, 98000),
    ROW(int4, "int4:block=16", 16, 84000),
    HADAMARD(&int4_rows[0], "int4", 64, 166000),
    HADAMARD(&int4_rows[1], "int4:block=256", 256, 213000),
    HADAMARD(&int4_rows[2], "int4:block=128", 128, 188000),
    HADAMARD(&int4_rows[3], "int4:block=32", 32, 144000),
    HADAMARD(&int4_rows[4], "int4:block=16", 16, 115000),
    STOCHASTIC(int4, "int4", 64, 161000),
    STOCHASTIC(int4, "int4:block=256", 256, 207000),
    STOCHASTIC(int4, "int4:block=128", 128, 183000),
    STOCHASTIC(int4, "int4:block=32", 32, 140000),
    STOCHASTIC(int4, "int4:block=16", 16, 120000),
    ROW(int4_signed, "int4:signed", 64, 99000),
};

static const struct dsc_codec fp8_rows[] = {
    ROW(fp8_e4m3, "fp8", 256, 27000),
    ROW(fp8_e5m2, "fp8:e5m2", 256, 53000),
    HADAMARD(&fp8_rows[0], "fp8", 256, 27000),
    HADAMARD(&fp8_rows[1], "fp8:e5m2", 256, 53000),
};

static const struct dsc_codec mxfp8_rows[] = {
    ROW(mxfp8, "mxfp8", 32, 31000),
    ROW(mxfp8_ceil, "mxfp8,ceil", 32, 27000),
    ROW(mxfp8_e5m2, "mxfp8:e5m2", 32, 55000),
    ROW(mxfp8_e5m2_ceil, "mxfp8:e5m2,ceil", 32, 54000),
};

static const struct dsc_codec mxfp4_rows[] = {
    ROW(mxfp4, "mxfp4", 32, 117000),
    ROW(mxfp4_ceil, "mxfp4,ceil", 32, 119000),
};

static const struct dsc_codec mxint8_rows[] = {
    ROW(mxint8, "mxint8", 32, 8000),
    ROW(mxint8_ceil, "mxint8,ceil", 32, 8100),
};
/* clang-format on */

#define BLOCK_OPTION "block=N, " DSC_BLOCK_SIZES ", then ,hadamard or ,sr"
#define FP8_OPTION "e4m3, the default, or e5m2, then ,hadamard"

const struct dsc_family dsc_family_int8 = {
    .name = "int8",
    .form = "[:block=N][,hadamard|,sr|,entropy]",
    .options = BLOCK_OPTION " or ,entropy",
    .default_option = ":block=256",
    .rows = int8_rows,
    .n_rows = DSC_ARRAY_LEN(int8_rows),
};

const struct dsc_family dsc_family_int4 = {
    .name = "int4",
    .form = "[:block=N|:signed][,hadamard|,sr]",
    .options = BLOCK_OPTION "; or signed",
    .default_option = ":block=64",
    .rows = int4_rows,
    .n_rows = DSC_ARRAY_LEN(int4_rows),
};

const struct dsc_family dsc_family_fp8 = {
    .name = "fp8",
    .form = "[:e5m2][,hadamard]",
    .options = FP8_OPTION,
    .default_option = ":e4m3",
    .rows = fp8_rows,
    .n_rows = DSC_ARRAY_LEN(fp8_rows),
};

const struct dsc_family dsc_family_mxfp8 = {
    .name = "mxfp8",
    .form = "[:e5m2][,ceil]",
    .options = "e4m3, the default, or e5m2, and ,ceil",
    .default_option = ":e4m3",
    .rows = mxfp8_rows,
    .n_rows = DSC_ARRAY_LEN(mxfp8_rows),
};

const struct dsc_family dsc_family_mxfp4 = {
    .name = "mxfp4",
    .form = "[,ceil]",
    .options = ",ceil",
    .rows = mxfp4_rows,
    .n_rows = DSC_ARRAY_LEN(mxfp4_rows),
};

const struct dsc_family dsc_family_mxint8 = {
    .name = "mxint8",
    .form = "[,ceil]",
    .options = ",ceil",
    .rows = mxint8_rows,
    .n_rows = DSC_ARRAY_LEN(mxint8_rows),
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats without scales: one value per element, little endian, then zeros to 16 bytes.
 *
 *     | x0 | x1 | ... | x(n-1) | 0 .. 0 |      4 bytes each (none, fp32) or 2 (fp16, bf16)
 *
 * Inf stays Inf with its sign, every NaN is canonical. fp16 carries x * 2^-E, E from the message's
 * plan, so that a sum of 2^E ranks has the range of one; what still overflows becomes Inf.
 */
#include "codec/bits.h"
#include "codec/codec.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little endian");

#define WIDE_BYTES sizeof(float)
#define HALF_BYTES sizeof(uint16_t)

static float *wide_at(const struct dsc_msg *msg, size_t first)
{
    return (float *)(void *)msg->bytes + first;
}

static uint16_t *half_at(const struct dsc_msg *msg, size_t first)
{
    return (uint16_t *)(void *)msg->bytes + first;
}

/* ---- fp32, and none where it is not resolved to a data type ---- */

static void f32_encode(const struct dsc_msg *msg, size_t first, size_t n, const float *x,
                       float *decoded)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    k->f32_store(wide_at(msg, first), x, n);
    if (decoded != NULL)
        k->f32_store(decoded, x, n);
}

static void f32_decode(const struct dsc_msg *msg, size_t first, size_t n, float *dst)
{
    dsc_kernels_get()->f32_store(dst, wide_at(msg, first), n);
}

/* ---- fp16 ---- */

static void f16_decode(const struct dsc_msg *msg, size_t first, size_t n, float *dst)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    k->f16_load(dst, half_at(msg, first), n);
    if (msg->exponent != 0)
        k->mul(dst, dst, power_of_two(msg->exponent), n);
}

static void f16_store_scaled(uint16_t *dst, const float *x, float scale, size_t n)
{
    const struct dsc_kernels *const k = dsc_kernels_get();
    float y[DSC_TILE_ELEMS];

    for (size_t at = 0; at < n; at += DSC_TILE_ELEMS) {
        const size_t len = dsc_min_size(DSC_TILE_ELEMS, n - at);

        k->mul(y, x + at, scale, len);
        k->f16_store(dst + at, y, len);
    }
}

static void f16_encode(const struct dsc_msg *msg, size_t first, size_t n, const float *x,
                       float *decoded)
{
    if (msg->exponent == 0)
        dsc_kernels_get()->f16_store(half_at(msg, first), x, n);
    else
        f16_store_scaled(half_at(msg, first), x, power_of_two(-msg->exponent), n);
    if (decoded != NULL)
        f16_decode(msg, first, n, decoded);
}

/* ---- bf16 ---- */

static void bf16_decode(const struct dsc_msg *msg, size_t first, size_t n, float *dst)
{
    dsc_kernels_get()->bf16_load(dst, half_at(msg, first), n);
}

static void bf16_encode(const struct dsc_msg *msg, size_t first, size_t n, const float *x,
                        float *decoded)
{
    dsc_kernels_get()->bf16_store(half_at(msg, first), x, n);
    if (decoded != NULL)
        bf16_decode(msg, first, n, decoded);
}

/* ---- the tables ---- */

static void pad_message(const struct dsc_msg *msg, size_t end, size_t elem_bytes)
{
    if (end == msg->n)
        dsc_codec_pad(msg->bytes, msg->n * elem_bytes);
}

/* The functions of a wire type, from those above and the primitives with its prefix. */
#define CAST_TYPE(type, at, elem_bytes)                                                          \
    static size_t type##_message_bytes(const struct dsc_codec *codec, size_t n)                  \
    {                                                                                            \
        (void)codec;                                                                             \
        return dsc_round_up(n * (elem_bytes), 16);                                               \
    }                                                                                            \
    static void type##_encode_span(const struct dsc_codec *codec, const struct dsc_msg *msg,     \
                                   size_t first, size_t n, const float *x, float *decoded)       \
    {                                                                                            \
        (void)codec;                                                                             \
        type##_encode(msg, first, n, x, decoded);                                                \
        pad_message(msg, first + n, elem_bytes);                                                 \
    }                                                                                            \
    static void type##_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg, \
                                       size_t first, size_t n, const float *v, const float *r,   \
                                       float beta, float *r_out, unsigned flags)                 \
    {                                                                                            \
        (void)codec;                                                                             \
        dsc_kernels_get()->type##_encode_feedback(at(msg, first), r_out, v, r, beta, flags,      \
                                                  msg->exponent, n);                             \
        pad_message(msg, first + n, elem_bytes);                                                 \
    }                                                                                            \
    static void type##_decode_span(const struct dsc_codec *codec, const struct dsc_msg *msg,     \
                                   size_t first, size_t n, float *dst, unsigned flags)           \
    {                                                                                            \
        (void)codec, (void)flags;                                                                \
        type##_decode(msg, first, n, dst);                                                       \
    }                                                                                            \
    static void type##_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg,      \
                                  size_t first, size_t n, float *acc)                            \
    {                                                                                            \
        (void)codec;                                                                             \
        dsc_kernels_get()->type##_decode_add(acc, at(msg, first), msg->exponent, n);             \
    }

CAST_TYPE(f32, wide_at, WIDE_BYTES)
CAST_TYPE(f16, half_at, HALF_BYTES)
CAST_TYPE(bf16, half_at, HALF_BYTES)

/* The one codec of a family: its table and its row. */
#define CAST_FAMILY(family_name, type, none, exact, error)  \
    static const struct dsc_codec_ops family_name##_ops = { \
        .message_bytes = type##_message_bytes,              \
        .encode = type##_encode_span,                       \
        .encode_feedback = type##_encode_feedback,          \
        .decode = type##_decode_span,                       \
        .decode_add = type##_decode_add,                    \
    };                                                      \
    static const struct dsc_codec family_name##_row = {     \
        .ops = &family_name##_ops,                          \
        .spec = #family_name,                               \
        .block = 1,                                         \
        .by_dtype = (none),                                 \
        .lossless = (exact),                                \
        .tile_align = 1,                                    \
        .e0_ppm = (error),                                  \
    };                                                      \
    const struct dsc_family dsc_family_##family_name = {    \
        .name = #family_name,                               \
        .form = "",                                         \
        .rows = &family_name##_row,                         \
        .n_rows = 1,                                        \
    };

CAST_FAMILY(none, f32, true, true, 0)
CAST_FAMILY(fp32, f32, false, true, 0)
CAST_FAMILY(fp16, f16, false, false, 220)
CAST_FAMILY(bf16, bf16, false, false, 1700)

/* ---- lossless: what `none` sends, packed ---- */

#define LOSSLESS_ROW(cast, exact, error, elem_bytes, fill)                                 \
    {                                                                                      \
        .ops = &dsc_entropy_ops, .spec = "lossless", .block = 1, .by_dtype = true,         \
        .lossless = (exact), .variable = true, .tile_align = DSC_ENTROPY_SEGMENT,          \
        .e0_ppm = (error), .packed = &(cast), .n_planes = (elem_bytes), .fill_ppm = (fill) \
    }

static const struct dsc_codec lossless_fp32 = LOSSLESS_ROW(fp32_row, true, 0, WIDE_BYTES, 840000),
                              lossless_fp16 =
                                  LOSSLESS_ROW(fp16_row, false, 220, HALF_BYTES, 840000),
                              lossless_bf16 =
                                  LOSSLESS_ROW(bf16_row, false, 1700, HALF_BYTES, 660000);

const struct dsc_family dsc_family_lossless = {
    .name = "lossless",
    .form = "",
    .rows = &lossless_fp32,
    .n_rows = 1,
};

const struct dsc_codec *dsc_codec_resolve(const struct dsc_codec *codec, dscomm_dtype_t dtype)
{
    if (!codec->by_dtype)
        return codec;
    switch (dtype) {
    case DSCOMM_FLOAT32:
        return codec->variable ? &lossless_fp32 : &fp32_row;
    case DSCOMM_FLOAT16:
        return codec->variable ? &lossless_fp16 : &fp16_row;
    case DSCOMM_BFLOAT16:
        return codec->variable ? &lossless_bf16 : &bf16_row;
    }
    DSC_ASSERT(dsc_dtype_bytes(dtype) != 0); /* callers check data types */
    return codec;
}

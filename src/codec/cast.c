/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats without scales: one value per element, little endian, then zeros to 16 bytes.
 *
 *     | x0 | x1 | ... | x(n-1) | 0 .. 0 |      4 bytes each (none, fp32) or 2 (fp16, bf16)
 *
 * Inf stays Inf with its sign, every NaN is canonical. fp16 carries x * 2^-E, E from the message's
 * plan, so that a sum of 2^E ranks has the range of one; what still overflows becomes Inf.
 */
#include "codec/codec.h"
#include "codec/kernels.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little endian");

static size_t wide_bytes(const struct dsc_codec *codec, size_t n)
{
    (void)codec;
    return dsc_round_up(n * sizeof(float), 16);
}

static size_t half_bytes(const struct dsc_codec *codec, size_t n)
{
    (void)codec;
    return dsc_round_up(n * sizeof(uint16_t), 16);
}

static float *wide_at(const struct dsc_msg *msg, size_t first)
{
    return (float *)(void *)msg->bytes + first;
}

static uint16_t *half_at(const struct dsc_msg *msg, size_t first)
{
    return (uint16_t *)(void *)msg->bytes + first;
}

/* 2^e, -126 <= e <= 127 */
static float power_of_two(int e)
{
    const union {
        uint32_t bits;
        float value;
    } u = { .bits = (uint32_t)(127 + e) << 23 };

    return u.value;
}

/* ---- fp32, and none where it is not resolved to a data type ---- */

static void fp32_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, const float *x, float *decoded)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    (void)codec;
    k->f32_store(wide_at(msg, first), x, n);
    if (decoded != NULL)
        k->f32_store(decoded, x, n);
    if (first + n == msg->n)
        dsc_codec_pad(msg->bytes, msg->n * sizeof(float));
}

static void fp32_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, float *dst)
{
    (void)codec;
    dsc_kernels_get()->f32_store(dst, wide_at(msg, first), n);
}

/* ---- fp16 ---- */

static void fp16_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, float *dst)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    (void)codec;
    k->f16_load(dst, half_at(msg, first), n);
    if (msg->exponent != 0)
        k->mul(dst, dst, power_of_two(msg->exponent), n);
}

static void fp16_store_scaled(uint16_t *dst, const float *x, float scale, size_t n)
{
    const struct dsc_kernels *const k = dsc_kernels_get();
    float y[DSC_TILE_ELEMS];

    for (size_t at = 0; at < n; at += DSC_TILE_ELEMS) {
        const size_t len = dsc_min_size(DSC_TILE_ELEMS, n - at);

        k->mul(y, x + at, scale, len);
        k->f16_store(dst + at, y, len);
    }
}

static void fp16_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, const float *x, float *decoded)
{
    if (msg->exponent == 0)
        dsc_kernels_get()->f16_store(half_at(msg, first), x, n);
    else
        fp16_store_scaled(half_at(msg, first), x, power_of_two(-msg->exponent), n);
    if (decoded != NULL)
        fp16_decode(codec, msg, first, n, decoded);
    if (first + n == msg->n)
        dsc_codec_pad(msg->bytes, msg->n * sizeof(uint16_t));
}

/* ---- bf16 ---- */

static void bf16_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, float *dst)
{
    (void)codec;
    dsc_kernels_get()->bf16_load(dst, half_at(msg, first), n);
}

static void bf16_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, const float *x, float *decoded)
{
    dsc_kernels_get()->bf16_store(half_at(msg, first), x, n);
    if (decoded != NULL)
        bf16_decode(codec, msg, first, n, decoded);
    if (first + n == msg->n)
        dsc_codec_pad(msg->bytes, msg->n * sizeof(uint16_t));
}

const struct dsc_codec_ops dsc_codec_none = {
    .family = "none",
    .message_bytes = wide_bytes,
    .encode = fp32_encode,
    .encode_feedback = dsc_codec_default_encode_feedback,
    .decode = fp32_decode,
    .decode_add = dsc_codec_default_decode_add,
};

const struct dsc_codec_ops dsc_codec_fp32 = {
    .family = "fp32",
    .message_bytes = wide_bytes,
    .encode = fp32_encode,
    .encode_feedback = dsc_codec_default_encode_feedback,
    .decode = fp32_decode,
    .decode_add = dsc_codec_default_decode_add,
};

const struct dsc_codec_ops dsc_codec_fp16 = {
    .family = "fp16",
    .message_bytes = half_bytes,
    .encode = fp16_encode,
    .encode_feedback = dsc_codec_default_encode_feedback,
    .decode = fp16_decode,
    .decode_add = dsc_codec_default_decode_add,
};

const struct dsc_codec_ops dsc_codec_bf16 = {
    .family = "bf16",
    .message_bytes = half_bytes,
    .encode = bf16_encode,
    .encode_feedback = dsc_codec_default_encode_feedback,
    .decode = bf16_decode,
    .decode_add = dsc_codec_default_decode_add,
};

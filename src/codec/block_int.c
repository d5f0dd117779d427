/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer codes with one scale per block of 16 to 256 elements.
 *
 *     | scale0 | scale1 | ... | 0 .. 0 | q0 q1 q2 ... q(n-1) | 0 .. 0 |
 *       float32, ceil(n/block) of them   int8, -127 to 127
 *
 * Each part starts at a multiple of 16 bytes. Blocks count from the message's first element, so a
 * span that starts at a block needs nothing from its neighbours.
 */
#include "codec/codec.h"
#include "codec/kernels.h"

static size_t scales_bytes(const struct dsc_codec *codec, size_t n)
{
    return dsc_round_up(dsc_ceil_div(n, codec->block) * sizeof(float), 16);
}

static size_t int8_message_bytes(const struct dsc_codec *codec, size_t n)
{
    return scales_bytes(codec, n) + dsc_round_up(n, 16);
}

static float *scales_at(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first)
{
    return (float *)(void *)msg->bytes + first / codec->block;
}

static int8_t *codes_at(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first)
{
    return (int8_t *)msg->bytes + scales_bytes(codec, msg->n) + first;
}

static void pad_message(const struct dsc_codec *codec, const struct dsc_msg *msg)
{
    dsc_codec_pad(msg->bytes, dsc_ceil_div(msg->n, codec->block) * sizeof(float));
    dsc_codec_pad(msg->bytes + scales_bytes(codec, msg->n), msg->n);
}

static void int8_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, const float *x, float *decoded)
{
    dsc_kernels_get()->int8_encode(codes_at(codec, msg, first), scales_at(codec, msg, first),
                                   decoded, x, n, codec->block);
    if (first + n == msg->n)
        pad_message(codec, msg);
}

static void int8_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                 size_t first, size_t n, const float *v, const float *r, float beta,
                                 float *r_out, int r_keep)
{
    dsc_kernels_get()->int8_encode_feedback(codes_at(codec, msg, first),
                                            scales_at(codec, msg, first), r_out, v, r, beta, r_keep,
                                            n, codec->block);
    if (first + n == msg->n)
        pad_message(codec, msg);
}

static void int8_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, float *dst)
{
    dsc_kernels_get()->int8_decode(dst, codes_at(codec, msg, first), scales_at(codec, msg, first),
                                   n, codec->block);
}

static void int8_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                            size_t n, float *acc)
{
    dsc_kernels_get()->int8_decode_add(acc, codes_at(codec, msg, first),
                                       scales_at(codec, msg, first), n, codec->block);
}

const struct dsc_codec_ops dsc_codec_int8 = {
    .family = "int8",
    .message_bytes = int8_message_bytes,
    .encode = int8_encode,
    .encode_feedback = int8_encode_feedback,
    .decode = int8_decode,
    .decode_add = int8_decode_add,
};

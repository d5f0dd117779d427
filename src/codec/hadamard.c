/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option ",hadamard": another codec for rotated values. Groups of 32 elements are multiplied
 * with a Hadamard matrix, so that an outlier is spread over its group and no longer sets the scale
 * of its neighbours alone. The message is the inner codec's, of the rotated values:
 *
 *     x0 .. x(n-1) | +0 .. +0   ->  rotated, 32 by 32  ->  inner message of round_up(n, 32)
 * elements
 *
 * Nothing else is sent: the padding's codes are, because a group can only be inverted as a whole.
 */
#include "codec/codec.h"

/* Elements of the inner message that belong to a span of n. */
static size_t whole_groups(size_t n)
{
    return dsc_round_up(n, DSC_HADAMARD_GROUP);
}

static struct dsc_msg inner_message(const struct dsc_msg *msg)
{
    struct dsc_msg inner = *msg;

    inner.n = whole_groups(msg->n);
    return inner;
}

static size_t message_bytes(const struct dsc_codec *codec, size_t n)
{
    return dsc_codec_message_bytes(codec->inner, whole_groups(n));
}

static void encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first, size_t n,
                   const float *x, float *decoded)
{
    const struct dsc_kernels *const k = dsc_kernels_get();
    const struct dsc_msg inner = inner_message(msg);
    float rotated[DSC_TILE_ELEMS];

    DSC_ASSERT(DSC_TILE_ELEMS % codec->tile_align == 0);
    for (size_t i = 0; i < n; i += DSC_TILE_ELEMS) {
        const size_t len = dsc_min_size(DSC_TILE_ELEMS, n - i);

        k->hadamard_rotate(rotated, x + i, len);
        codec->inner->ops->encode(codec->inner, &inner, first + i, whole_groups(len), rotated,
                                  decoded != NULL ? rotated : NULL);
        if (decoded != NULL)
            k->hadamard_restore(decoded + i, rotated, len);
    }
}

/* A tile of the inner message, turned back. */
static void decode_tile(const struct dsc_codec *codec, const struct dsc_msg *inner, size_t first,
                        size_t n, float *dst)
{
    float rotated[DSC_TILE_ELEMS];

    codec->inner->ops->decode(codec->inner, inner, first, whole_groups(n), rotated, 0);
    dsc_kernels_get()->hadamard_restore(dst, rotated, n);
}

static void decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first, size_t n,
                   float *dst, unsigned flags)
{
    const struct dsc_msg inner = inner_message(msg);

    (void)flags;
    for (size_t i = 0; i < n; i += DSC_TILE_ELEMS)
        decode_tile(codec, &inner, first + i, dsc_min_size(DSC_TILE_ELEMS, n - i), dst + i);
}

static void decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                       size_t n, float *acc)
{
    const struct dsc_msg inner = inner_message(msg);
    float d[DSC_TILE_ELEMS];

    for (size_t i = 0; i < n; i += DSC_TILE_ELEMS) {
        const size_t len = dsc_min_size(DSC_TILE_ELEMS, n - i);

        decode_tile(codec, &inner, first + i, len, d);
        dsc_kernels_get()->add(acc + i, d, len);
    }
}

const struct dsc_codec_ops dsc_hadamard_ops = {
    .message_bytes = message_bytes,
    .encode = encode,
    .encode_feedback = dsc_codec_encode_feedback_steps,
    .decode = decode,
    .decode_add = decode_add,
};

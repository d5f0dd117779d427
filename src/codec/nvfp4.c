/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvfp4: 4-bit floats in blocks of 16, whose scales are 8-bit floats under one float32 scale per
 * segment of 65536 elements.
 *
 *     | segment scales | 0 .. 0 | block scales | 0 .. 0 | q1 q0 | q3 q2 | ... | 0 .. 0 |
 *       ceil(n/65536) float32     ceil(n/16) bytes        two in a byte
 *
 * Segments count from the message's first element, so spans start at segments: the scale of a block
 * hangs on the largest element of its whole segment.
 */
#include "codec/bits.h"
#include "codec/codec.h"

#define BLOCK 16
#define SEGMENT 65536

static size_t used_segment_bytes(size_t n)
{
    return dsc_ceil_div(n, SEGMENT) * sizeof(float);
}

static size_t used_scale_bytes(size_t n)
{
    return dsc_ceil_div(n, BLOCK);
}

static size_t used_code_bytes(size_t n)
{
    return dsc_ceil_div(n, 2);
}

static size_t nvfp4_message_bytes(const struct dsc_codec *codec, size_t n)
{
    (void)codec;
    return dsc_round_up(used_segment_bytes(n), 16) + dsc_round_up(used_scale_bytes(n), 16) +
           dsc_round_up(used_code_bytes(n), 16);
}

/* Where a segment lies in its message. */
struct place {
    float *segment;
    uint8_t *scales, *codes;
};

static struct place place_of(const struct dsc_msg *msg, size_t first)
{
    uint8_t *const scales = msg->bytes + dsc_round_up(used_segment_bytes(msg->n), 16);
    uint8_t *const codes = scales + dsc_round_up(used_scale_bytes(msg->n), 16);

    return (struct place){ (float *)(void *)msg->bytes + first / SEGMENT, scales + first / BLOCK,
                           codes + first / 2 };
}

/* The span that ends the message writes the zeros behind all parts. */
static void pad_message(const struct dsc_msg *msg, size_t end)
{
    const struct place start = place_of(msg, 0);

    if (end != msg->n)
        return;
    dsc_codec_pad(msg->bytes, used_segment_bytes(msg->n));
    dsc_codec_pad(start.scales, used_scale_bytes(msg->n));
    dsc_codec_pad(start.codes, used_code_bytes(msg->n));
}

static void nvfp4_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                         size_t n, const float *x, float *decoded)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    (void)codec;
    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct place p = place_of(msg, first + at);
        const size_t len = dsc_min_size(SEGMENT, n - at);
        const float amax = k->nvfp4_amax(x + at, NULL, 0.0f, len);

        *p.segment = amax / DSC_NVFP4_LARGEST;
        k->nvfp4_encode(p.codes, p.scales, decoded != NULL ? decoded + at : NULL, x + at, len,
                        amax);
    }
    pad_message(msg, first + n);
}

static void nvfp4_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                  size_t first, size_t n, const float *v, const float *r,
                                  float beta, float *r_out, unsigned flags)
{
    const struct dsc_kernels *const k = dsc_kernels_get();

    (void)codec;
    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct place p = place_of(msg, first + at);
        const size_t len = dsc_min_size(SEGMENT, n - at);
        const float amax = k->nvfp4_amax(v + at, r + at, beta, len);

        *p.segment = amax / DSC_NVFP4_LARGEST;
        k->nvfp4_encode_feedback(p.codes, p.scales, r_out + at, v + at, r + at, beta, flags, len,
                                 amax);
    }
    pad_message(msg, first + n);
}

static void nvfp4_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                         size_t n, float *dst, unsigned flags)
{
    (void)codec;
    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct place p = place_of(msg, first + at);

        dsc_kernels_get()->nvfp4_decode(dst + at, p.codes, p.scales, *p.segment, flags,
                                        dsc_min_size(SEGMENT, n - at));
    }
}

static void nvfp4_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                             size_t n, float *acc)
{
    (void)codec;
    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct place p = place_of(msg, first + at);

        dsc_kernels_get()->nvfp4_decode_add(acc + at, p.codes, p.scales, *p.segment,
                                            dsc_min_size(SEGMENT, n - at));
    }
}

/* Rounding is monotonic: without poison no a*D is beyond that of the largest code and scales. */
static bool nvfp4_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                               size_t first, size_t n, float a)
{
    const struct place p = place_of(msg, first);
    bool is_poison = false;

    (void)codec;
    for (size_t i = 0; i < dsc_ceil_div(n, SEGMENT); i++) {
        const float d = 6.0f * (448.0f * p.segment[i]);

        is_poison |= !is_finite(a * d);
    }
    for (size_t i = 0; i < dsc_ceil_div(n, BLOCK); i++)
        is_poison |= (p.scales[i] & 0x7fu) == 0x7fu;
    return !is_poison;
}

static const struct dsc_codec_ops nvfp4_ops = {
    .message_bytes = nvfp4_message_bytes,
    .encode = nvfp4_encode,
    .encode_feedback = nvfp4_encode_feedback,
    .decode = nvfp4_decode,
    .decode_add = nvfp4_decode_add,
    .stays_finite = nvfp4_stays_finite,
};

static const struct dsc_codec nvfp4_row = {
    .ops = &nvfp4_ops,
    .spec = "nvfp4",
    .block = BLOCK,
    .tile_align = SEGMENT,
    .e0_ppm = 97000,
};

const struct dsc_family dsc_family_nvfp4 = {
    .name = "nvfp4",
    .form = "",
    .rows = &nvfp4_row,
    .n_rows = 1,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every wire format can do once it encodes and decodes: the sender's step and decode+add, made
 * of element-wise primitives on tiles that stay in the first cache level. A format with a fused
 * kernel takes that instead and must give the same bits.
 */
#include "codec/codec.h"
#include "codec/kernels.h"

#include <math.h>
#include <string.h>

/* Small: six arrays of a tile (v, r, x, D, r_out, message) share the first cache level. */
#define TILE_ELEMS 512

/* x holds x - D; where D is not finite the old residual stays. r_out may be r. */
static void store_kept(float *r_out, const float *r, const float *x, const float *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        r_out[i] = isfinite(d[i]) ? x[i] : r[i];
}

void dsc_codec_default_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                       size_t first, size_t n, const float *v, const float *r,
                                       float beta, float *r_out, int r_keep)
{
    const struct dsc_kernels *const k = dsc_kernels_get();
    float x[TILE_ELEMS], d[TILE_ELEMS];

    DSC_ASSERT(TILE_ELEMS % codec->tile_align == 0);
    for (size_t at = 0; at < n; at += TILE_ELEMS) {
        const size_t len = dsc_min_size(TILE_ELEMS, n - at);

        k->axpy(x, v + at, r + at, beta, len);
        codec->ops->encode(codec, msg, first + at, len, x, d);
        if (r_keep == 0) {
            k->residual(r_out + at, x, d, 1.0f, len);
        } else {
            k->residual(x, x, d, 1.0f, len);
            store_kept(r_out + at, r + at, x, d, len);
        }
    }
}

void dsc_codec_default_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                  size_t first, size_t n, float *acc)
{
    const struct dsc_kernels *const k = dsc_kernels_get();
    float d[TILE_ELEMS];

    DSC_ASSERT(TILE_ELEMS % codec->tile_align == 0);
    for (size_t at = 0; at < n; at += TILE_ELEMS) {
        const size_t len = dsc_min_size(TILE_ELEMS, n - at);

        codec->ops->decode(codec, msg, first + at, len, d);
        k->add(acc + at, d, len);
    }
}

void dsc_codec_pad(uint8_t *part, size_t used_bytes)
{
    memset(part + used_bytes, 0, dsc_round_up(used_bytes, 16) - used_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvfp4 in the words of a vec_*.h: what its second level of scales adds to blocks.h. A tile with a
 * block that is no number goes through the reference as a whole.
 */
#include "codec/simd/blocks.h"

#define NVFP4_BLOCK 16

/* ---- the segment's maximum ---- */

DSC_INLINE vf sum_at(const float *v, const float *r, float beta, size_t i)
{
    if (r == NULL)
        return vf_load(v + i);
    return vf_add(vf_load(v + i), vf_mul(vf_set1(beta), vf_load(r + i)));
}

float LEVEL(nvfp4_amax)(const float *v, const float *r, float beta, size_t n)
{
    float largest = 0.0f;

    for (size_t at = 0; at < n; at += TILE) {
        const size_t len = dsc_min_size(TILE, n - at), whole = len - len % LANES;
        const float *const tile_r = r != NULL ? r + at : NULL;
        vi m = vi_set1(0);

        for (size_t i = 0; i < whole; i += LANES)
            m = vi_max(m, vi_and(vf_bits(sum_at(v + at, tile_r, beta, i)), vi_set1(F32_ABS)));
        /* With NaN or Inf in it, which blocks count is the reference's affair. */
        const size_t done = vi_largest(m) < F32_INF ? whole - whole % NVFP4_BLOCK : 0;
        const float rest =
            dsc_nvfp4_amax_c(v + at + done, r != NULL ? tile_r + done : NULL, beta, len - done);
        const float here = done == 0 ? 0.0f : float_of(vi_largest(m));

        largest = here > largest ? here : largest;
        largest = rest > largest ? rest : largest;
    }
    return largest < float_of(F32_TINY) ? 0.0f : largest;
}

/* ---- encoding ---- */

void LEVEL(nvfp4_encode)(void *q, void *scale, float *d, const float *x, size_t n, float amax)
{
    const struct encoding e = {
        .q = q, .scales = scale, .out = d, .v = x, .segment = segment_of(amax)
    };

    encode(NVFP4, e, n, NVFP4_BLOCK);
}

void LEVEL(nvfp4_encode_feedback)(void *q, void *scale, float *r_out, const float *v,
                                  const float *r, float beta, unsigned flags, size_t n, float amax)
{
    const struct encoding e = { .q = q,
                                .scales = scale,
                                .out = r_out,
                                .v = v,
                                .r = r,
                                .beta = beta,
                                .flags = flags,
                                .segment = segment_of(amax) };

    encode_feedback(NVFP4, e, n, NVFP4_BLOCK);
}

/* ---- decoding ---- */

/* Both scales of the blocks of a tile as one; false: the reference has to look at them. */
DSC_INLINE bool tile_factors(float *factors, const uint8_t *codes, size_t n_blocks,
                             float segment_scale)
{
    uint8_t padded[TILE_BLOCKS] = { 0 };
    unsigned n_bad = 0;

    memcpy(padded, codes, n_blocks);
    for (size_t b = 0; b < n_blocks; b += LANES) { /* vf_load_e4m3() gives values / 256 */
        const vf value = vf_mul(vf_load_e4m3(padded + b), vf_set1(256.0f));
        const vf factor = vf_mul(value, vf_set1(segment_scale));

        n_bad += vf_count_nonfinite(factor);
        vf_store(factors + b, factor);
    }
    return n_bad == 0 && !codes_exceed(padded, TILE_BLOCKS, 0x7e);
}

DSC_INLINE void nvfp4_rare(const struct decoding *d, float segment_scale, size_t n, enum into into)
{
    if (into == ADD)
        dsc_nvfp4_decode_add_c(d->dst, d->q, d->scales, segment_scale, n);
    else
        dsc_nvfp4_decode_c(d->dst, d->q, d->scales, segment_scale, 0, n);
}

DSC_INLINE void nvfp4_tiles(struct decoding d, float segment_scale, size_t n, enum into into)
{
    const size_t whole = n - n % NVFP4_BLOCK;
    float factors[TILE_BLOCKS];

    for (size_t at = 0; at < whole; at += TILE) {
        const struct decoding tile = decoding_at(NVFP4, &d, at, NVFP4_BLOCK);
        const size_t len = dsc_min_size(TILE, whole - at);

        if (!tile_factors(factors, tile.scales, len / NVFP4_BLOCK, segment_scale)) {
            nvfp4_rare(&tile, segment_scale, len, into);
            continue;
        }
        for (size_t i = 0; i < len; i += NVFP4_BLOCK) {
            const struct decoding block = decoding_at(NVFP4, &tile, i, NVFP4_BLOCK);

            decode_ordinary(NVFP4, &block, bits_of(factors[i / NVFP4_BLOCK]), NVFP4_BLOCK, into);
        }
    }
    d = decoding_at(NVFP4, &d, whole, NVFP4_BLOCK);
    nvfp4_rare(&d, segment_scale, n - whole, into);
}

void LEVEL(nvfp4_decode)(float *dst, const void *q, const void *scale, float segment_scale,
                         unsigned flags, size_t n)
{
    if ((flags & DSC_STREAM) != 0 && (uintptr_t)dst % STREAM_ALIGN == 0) {
        nvfp4_tiles((struct decoding){ dst, q, scale }, segment_scale, n, STREAM);
        vec_stream_end();
    } else {
        nvfp4_tiles((struct decoding){ dst, q, scale }, segment_scale, n, STORE);
    }
}

void LEVEL(nvfp4_decode_add)(float *acc, const void *q, const void *scale, float segment_scale,
                             size_t n)
{
    nvfp4_tiles((struct decoding){ acc, q, scale }, segment_scale, n, ADD);
}

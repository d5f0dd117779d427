/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block formats in the words of a vec_*.h: what arrays of blocks need, whatever their format is
 * (formats.h). Whole ordinary blocks run here; the short last block and rare ones (poison, sums
 * near the largest float, codes that are no numbers) go through the reference.
 *
 * Encoding works in two passes over a tile that stays in the first cache level: maxima, from which
 * come all scales of the tile at once, then codes.
 */
#include "codec/simd/formats.h"

#define TILE 2048               /* elements */
#define STREAM_TILE 256         /* reads and writes of DRAM in turn, at short intervals */
#define TILE_BLOCKS (TILE / 16) /* of the smallest block */
#define RUN 256                 /* elements of small blocks that are looked at together */
#define F32_HUGE 0x7f000000u    /* 2^127: with amax below it no D overflows */

/* What a quantizing pass leaves per element besides the code. */
enum kept { KEEP_NOTHING, KEEP_D, KEEP_RESIDUAL, STREAM_RESIDUAL };

/* The reference's spelling, for what does not run here. */
static const struct {
    dsc_block_encode_fn *encode;
    dsc_block_encode_feedback_fn *encode_feedback;
    dsc_block_decode_fn *decode;
    dsc_block_decode_add_fn *decode_add;
} reference[] = {
#define REFERENCE(encoder, decoder)                                                            \
    {                                                                                          \
        dsc_##encoder##_encode_c, dsc_##encoder##_encode_feedback_c, dsc_##decoder##_decode_c, \
            dsc_##decoder##_decode_add_c                                                       \
    }
    [INT8] = REFERENCE(int8, int8),
    [INT4] = REFERENCE(int4, int4),
    [INT4_SIGNED] = { dsc_int4s_encode_c, dsc_int4s_encode_feedback_c, NULL, NULL },
    [E4M3] = REFERENCE(e4m3, e4m3),
    [E5M2] = REFERENCE(e5m2, e5m2),
    [MXFP8] = REFERENCE(mxfp8, mxfp8),
    [MXFP8_CEIL] = REFERENCE(mxfp8_ceil, mxfp8),
    [MXFP8_E5M2] = REFERENCE(mxfp8_e5m2, mxfp8_e5m2),
    [MXFP8_E5M2_CEIL] = REFERENCE(mxfp8_e5m2_ceil, mxfp8_e5m2),
    [MXFP4] = REFERENCE(mxfp4, mxfp4),
    [MXFP4_CEIL] = REFERENCE(mxfp4_ceil, mxfp4),
    [MXINT8] = REFERENCE(mxint8, mxint8),
    [MXINT8_CEIL] = REFERENCE(mxint8_ceil, mxint8),
#undef REFERENCE
};

/* Of stochastic formats, which have nothing else of their own. */
static dsc_block_encode_sr_fn *const reference_sr[] = {
    [INT8_SR] = dsc_int8_encode_sr_c, [INT4_SR] = dsc_int4_encode_sr_c
};

/* ---- what is encoded ---- */

/* Operands of an encoding; they move on from tile to tile. */
struct encoding {
    uint8_t *q, *scales;
    float *out; /* D, or the residual; NULL when nothing is kept */
    const float *v, *r;
    float beta;
    unsigned flags;
    uint32_t rare; /* least amax bits of blocks that the reference does */
    struct segment segment;
    struct dsc_draw draw; /* of stochastic formats, as is span_key: see key_of_span() */
    uint32_t span_key;
};

DSC_INLINE bool has_feedback(enum kept kept)
{
    return kept == KEEP_RESIDUAL || kept == STREAM_RESIDUAL;
}

/* Nothing may be added to NULL. */
DSC_INLINE float *out_at(const struct encoding *e, size_t i, enum kept kept)
{
    return kept == KEEP_NOTHING ? e->out : e->out + i;
}

/* By the reference: n elements from block b on. */
DSC_INLINE void encode_rare(enum format format, const struct encoding *e, size_t b, size_t n,
                            uint32_t block, enum kept kept)
{
    const size_t i = b * block;
    uint8_t *const codes = e->q + code_bytes(format, i);
    uint8_t *const scales = e->scales + scale_bytes(format, b);

    if (formats[format].draws) {
        struct dsc_draw draw = e->draw;

        draw.first += i;
        reference_sr[format](codes, scales, out_at(e, i, kept), e->v + i, n, block, &draw);
    } else if (format == NVFP4 && has_feedback(kept))
        dsc_nvfp4_encode_feedback_c(codes, scales, e->out + i, e->v + i, e->r + i, e->beta,
                                    e->flags, n, e->segment.amax);
    else if (format == NVFP4)
        dsc_nvfp4_encode_c(codes, scales, out_at(e, i, kept), e->v + i, n, e->segment.amax);
    else if (has_feedback(kept))
        reference[format].encode_feedback(codes, scales, e->out + i, e->v + i, e->r + i, e->beta,
                                          e->flags, n, block);
    else
        reference[format].encode(codes, scales, out_at(e, i, kept), e->v + i, n, block);
}

/* ---- first pass: maxima and scales of a tile's blocks ---- */

/* Keys (key_of) and scales are bits; nvfp4 sends codes of scales. */
struct tile {
    uint32_t key[TILE_BLOCKS], scale[TILE_BLOCKS], inv[TILE_BLOCKS], sent[TILE_BLOCKS];
    float x[TILE]; /* sums, with feedback */
};

/* Of n elements; with feedback, forms them. */
DSC_INLINE uint32_t largest_key(enum format format, const struct encoding *e, float *sums,
                                size_t first, size_t n, enum kept kept)
{
    vi m = vi_set1(0);

#pragma GCC unroll 8
    for (size_t i = first; i < first + n; i += LANES) {
        vf x = vf_load(e->v + i);

        if (has_feedback(kept)) {
            x = vf_add(x, vf_mul(vf_set1(e->beta), vf_load(e->r + i)));
            vf_store(sums + i, x);
        }
        m = vi_max(m, key_of(format, x));
    }
    return vi_largest(m);
}

/* INT4_SR: the largest code could be passed, which takes a scale that was exact before rounding. */
DSC_INLINE vi rare_if_exceeding(vi amax, vf inv)
{
    const uint32_t largest = bits_of(0x1p16f * largest_of(INT4_SR));
    const vf extreme = vf_mul(vi_float(amax), inv);

    return vf_bits(
        vf_if_at_least(vf_bits(extreme), largest + 1, vi_float(vi_set1(F32_INF)), vi_float(amax)));
}

/* Tiny blocks get zeros, which make codes and D zero without a branch. */
DSC_INLINE void put_scales(enum format format, struct tile *t, size_t b,
                           const struct segment *segment)
{
    const vi keys = vi_load(t->key + b), amax = magnitudes_of(format, keys);
    const vf zero = vf_set1(0.0f);
    const struct scales s = format == NVFP4 ? e4m3_scales(amax, segment) : scales_of(format, keys);
    const vf inv = vf_if_at_least(amax, F32_TINY, s.inv, zero);

    vi_store(t->scale + b, vf_bits(vf_if_at_least(amax, F32_TINY, s.value, zero)));
    vi_store(t->inv + b, vf_bits(inv));
    if (format == INT4_SR)
        vi_store(t->key + b, rare_if_exceeding(keys, inv));
    if (format == NVFP4)
        vi_store(t->sent + b, vf_bits(vf_if_at_least(amax, F32_TINY, vi_float(s.sent), zero)));
}

DSC_INLINE void tile_scales(enum format format, struct tile *t, const struct encoding *e, size_t n,
                            uint32_t block, enum kept kept)
{
    const size_t n_blocks = n / block;

    for (size_t b = 0; b < n_blocks; b++)
        t->key[b] = largest_key(format, e, t->x, b * block, block, kept);
    for (size_t b = 0; b < n_blocks; b += LANES)
        put_scales(format, t, b, &e->segment);
}

/* ---- second pass: codes, and what they leave ---- */

DSC_INLINE vi quantize_at(enum format format, const struct encoding *e, const struct tile *t,
                          size_t i, const struct factors *f, vi noise, enum kept kept)
{
    const vf x = vf_load((has_feedback(kept) ? t->x : e->v) + i);
    vf d;
    const vi code = quantize(format, x, f, noise, &d);

    if (kept == KEEP_D)
        vf_store(e->out + i, d);
    if (kept == KEEP_RESIDUAL)
        vf_store(e->out + i, vf_sub(x, d));
    if (kept == STREAM_RESIDUAL)
        vf_stream(e->out + i, vf_sub(x, d));
    return code;
}

/*
 * What a group draws from: numbers of LANES pairs within their block, which begins at a multiple of
 * its size, and the key, with all higher bits of the pairs' numbers.
 */
struct pairs {
    vi number, key;
};

DSC_INLINE struct pairs pairs_of_block(const struct encoding *e, size_t first)
{
    const uint32_t pair = (uint32_t)((e->draw.first + first) >> 1);

    return (struct pairs){ vi_pair_lanes(), vi_set1(e->span_key ^ pair) };
}

/* 16 bits for each of a group's elements; a hash has those of an even one and, above, of the next.
 */
DSC_INLINE void draw_noise(const struct pairs *p, size_t group, vi *noise)
{
#pragma GCC unroll 2
    for (size_t i = 0; i < group; i += 2 * LANES) {
        const vi hash = mix_rest(vi_xor(vi_xor(p->number, p->key), vi_set1((uint32_t)(i / 2))));

        noise[i / LANES] = vi_first_halves(hash);
        noise[i / LANES + 1] = vi_second_halves(hash);
    }
}

/* A group is what the stores of codes take: one, two or four vectors, a constant. */
DSC_INLINE void quantize_group(enum format format, const struct encoding *e, const struct tile *t,
                               size_t first, size_t group, const struct factors *f,
                               const struct pairs *pairs, enum kept kept)
{
    uint8_t *const q = e->q + code_bytes(format, first);
    vi codes[4], noise[4] = { vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0) };

    if (formats[format].draws)
        draw_noise(pairs, group, noise);
#pragma GCC unroll 4
    for (size_t i = 0; i < group; i += LANES)
        codes[i / LANES] = quantize_at(format, e, t, first + i, f, noise[i / LANES], kept);
    if (has_nibbles(format))
        nibbles_store(q, codes, group);
    else
        codes_store(q, codes, group);
}

/* Blocks are 16, 32, 64, 128 or 256 elements. */
DSC_INLINE void quantize_block(enum format format, const struct encoding *e, const struct tile *t,
                               size_t first, size_t block, const struct factors *f, enum kept kept)
{
    struct pairs pairs = pairs_of_block(e, first);

    if (block == 16) {
        quantize_group(format, e, t, first, 16, f, &pairs, kept);
        return;
    }
    if (block < 4 * LANES) {
        quantize_group(format, e, t, first, 32, f, &pairs, kept);
        return;
    }
    for (size_t i = first; i < first + block; i += 4 * LANES) {
        quantize_group(format, e, t, i, 4 * LANES, f, &pairs, kept);
        pairs.number = vi_add(pairs.number, vi_set1(2 * LANES));
    }
}

DSC_INLINE void tile_codes(enum format format, struct tile *t, const struct encoding *e, size_t n,
                           uint32_t block, enum kept kept)
{
    for (size_t b = 0; b < n / block; b++) {
        const struct factors f = factors_of(format, t->scale[b], t->inv[b]);

        if (magnitude_of(format, t->key[b]) >= e->rare) {
            encode_rare(format, e, b, block, block, kept);
            continue;
        }
        put_scale(format, e->scales, b, format == NVFP4 ? t->sent[b] : t->scale[b]);
        quantize_block(format, e, t, b * block, block, &f, kept);
    }
}

/* ---- encoding ---- */

DSC_INLINE struct encoding encoding_after(enum format format, const struct encoding *e, size_t n,
                                          uint32_t block, enum kept kept)
{
    struct encoding next = *e;

    next.q += code_bytes(format, n);
    next.scales += scale_bytes(format, n / block);
    next.out = out_at(e, n, kept);
    next.v += n;
    if (has_feedback(kept))
        next.r += n;
    if (formats[format].draws)
        next.draw.first += n;
    return next;
}

/*
 * The maxima of tile i + 1 come before the codes of tile i: that hides the time from the last
 * element to the scales (a maximum over lanes and two divisions) behind work that does not need
 * them.
 */
DSC_INLINE void encode_tiles(enum format format, struct encoding e, size_t n, uint32_t block,
                             enum kept kept)
{
    struct tile tiles[2];
    const size_t tile = kept == STREAM_RESIDUAL ? STREAM_TILE : TILE;
    size_t left = n - n % block, len = dsc_min_size(tile, left);

    /* A vector of maxima may be longer than a tile has blocks. */
    memset(tiles[0].key, 0, sizeof(tiles[0].key));
    memset(tiles[1].key, 0, sizeof(tiles[1].key));
    tile_scales(format, &tiles[0], &e, len, block, kept);
    for (unsigned turn = 0; left > 0; turn ^= 1) {
        const struct encoding next = encoding_after(format, &e, len, block, kept);
        const size_t next_len = dsc_min_size(tile, left - len);

        tile_scales(format, &tiles[turn ^ 1], &next, next_len, block, kept);
        tile_codes(format, &tiles[turn], &e, len, block, kept);
        left -= len, len = next_len, e = next;
    }
    encode_rare(format, &e, 0, n % block, block, kept);
}

/* The usual block size is a constant, which makes shifts of divisions and unrolls loops. */
DSC_INLINE void encode_blocks(enum format format, struct encoding e, size_t n, uint32_t block,
                              enum kept kept)
{
    const uint32_t usual = formats[format].block;

    if (block == usual || has_byte_scales(format))
        encode_tiles(format, e, n, usual, kept);
    else
        encode_tiles(format, e, n, block, kept);
}

DSC_INLINE void encode(enum format format, struct encoding e, size_t n, uint32_t block)
{
    e.rare = F32_INF;
    if (e.out == NULL)
        encode_blocks(format, e, n, block, KEEP_NOTHING);
    else
        encode_blocks(format, e, n, block, KEEP_D);
}

/*
 * Span by span of those with one key. Where blocks do not start at multiples of their size, as in
 * shares of any length, the reference draws.
 */
DSC_INLINE void encode_drawn(enum format format, struct encoding e, size_t n, uint32_t block)
{
    const enum kept kept = e.out == NULL ? KEEP_NOTHING : KEEP_D;

    if (e.draw.first % block != 0) {
        encode_rare(format, &e, 0, n, block, kept);
        return;
    }
    for (size_t len; n > 0; n -= len) {
        len = dsc_min_size(n, (size_t)(KEY_SPAN - e.draw.first % KEY_SPAN));
        e.span_key = key_of_span(&e.draw);
        encode(format, e, len, block);
        e = encoding_after(format, &e, len, block, kept);
    }
}

DSC_INLINE void encode_feedback(enum format format, struct encoding e, size_t n, uint32_t block)
{
    /* Blocks whose D may be infinite need r again where it is to be kept. */
    e.rare = (e.flags & DSC_KEEP_OLD) != 0 ? F32_HUGE : F32_INF;
    if ((e.flags & DSC_STREAM) != 0 && (uintptr_t)e.out % STREAM_ALIGN == 0) {
        encode_blocks(format, e, n, block, STREAM_RESIDUAL);
        vec_stream_end();
    } else {
        encode_blocks(format, e, n, block, KEEP_RESIDUAL);
    }
}

/* ---- decoding ---- */

/* What becomes of D. */
enum into { STORE, STREAM, ADD };

/* Operands of a decoding; they move on from run to run. */
struct decoding {
    float *dst;
    const uint8_t *q, *scales;
};

DSC_INLINE struct decoding decoding_at(enum format format, const struct decoding *d, size_t i,
                                       uint32_t block)
{
    return (struct decoding){ d->dst + i, d->q + code_bytes(format, i),
                              d->scales + scale_bytes(format, i / block) };
}

/* By the reference: n elements. */
DSC_INLINE void decode_rare(enum format format, const struct decoding *d, size_t n, uint32_t block,
                            enum into into)
{
    if (into == ADD)
        reference[format].decode_add(d->dst, d->q, d->scales, n, block);
    else
        reference[format].decode(d->dst, d->q, d->scales, 0, n, block);
}

DSC_INLINE void decode_ordinary(enum format format, const struct decoding *d, uint32_t scale,
                                uint32_t block, enum into into)
{
    const nibble_table factor = factor_of(format, scale);

#pragma GCC unroll 4
    for (uint32_t i = 0; i < block; i += LANES) {
        const vf x = dequantize(format, d->q, i, factor);

        if (into == STREAM)
            vf_stream(d->dst + i, x);
        else
            vf_store(d->dst + i, into == ADD ? vf_add(vf_load(d->dst + i), x) : x);
    }
}

/* Blocks of one run; is_clean: none of them is rare. */
DSC_INLINE void decode_run(enum format format, const struct decoding *run, size_t n, uint32_t block,
                           enum into into, bool is_clean)
{
    for (size_t i = 0; i < n; i += block) {
        const struct decoding d = decoding_at(format, run, i, block);
        const uint32_t scale = get_scale(format, d.scales, 0);
        const bool is_least = is_least_scale(format, scale);

        if (!is_clean && is_rare(format, d.q, scale, block))
            decode_rare(format, &d, block, block, into);
        else if (is_least && !are_zeros(d.q, code_bytes(format, block)))
            decode_rare(format, &d, block, block, into);
        else /* zeros under the least scale: products that are subnormal would be slow */
            decode_ordinary(format, &d, is_least ? 0 : scale, block, into);
    }
}

/* Of n elements in blocks with E8M0 scales: codes and scales are looked at once for all. */
DSC_INLINE bool is_clean_run(enum format format, const struct decoding *run, size_t n,
                             uint32_t block)
{
    uint8_t largest = 0;

    for (size_t i = 0; i < n / block; i++)
        largest = run->scales[i] > largest ? run->scales[i] : largest;
    return !is_rare_scale(format, e8m0_bits(largest)) &&
           !has_rare_codes(format, run->q, (uint32_t)n);
}

DSC_INLINE void decode_blocks(enum format format, struct decoding d, size_t n, uint32_t any_block,
                              enum into into)
{
    const bool has_runs = formats[format].scale == SCALE_E8M0;
    const uint32_t block = has_runs ? formats[format].block : any_block;
    const size_t whole = n - n % block;

    for (size_t i = 0, len; i < whole; i += len) {
        const struct decoding run = decoding_at(format, &d, i, block);

        len = dsc_min_size(has_runs ? RUN : block, whole - i);
        if (has_runs && is_clean_run(format, &run, len, block))
            decode_run(format, &run, len, block, into, true);
        else
            decode_run(format, &run, len, block, into, false);
    }
    d = decoding_at(format, &d, whole, block);
    decode_rare(format, &d, n - whole, block, into);
}

DSC_INLINE void decode(enum format format, struct decoding d, unsigned flags, size_t n,
                       uint32_t block)
{
    if ((flags & DSC_STREAM) != 0 && (uintptr_t)d.dst % STREAM_ALIGN == 0) {
        decode_blocks(format, d, n, block, STREAM);
        vec_stream_end();
    } else {
        decode_blocks(format, d, n, block, STORE);
    }
}

/* The primitives of a format, under the names of kernels.h. */
#define ENCODERS(name, format)                                                                    \
    void LEVEL(name##_encode)(void *q, void *scale, float *d, const float *x, size_t n,           \
                              uint32_t block)                                                     \
    {                                                                                             \
        encode(format, (struct encoding){ .q = q, .scales = scale, .out = d, .v = x }, n, block); \
    }                                                                                             \
    void LEVEL(name##_encode_feedback)(void *q, void *scale, float *r_out, const float *v,        \
                                       const float *r, float beta, unsigned flags, size_t n,      \
                                       uint32_t block)                                            \
    {                                                                                             \
        const struct encoding e = {                                                               \
            .q = q, .scales = scale, .out = r_out, .v = v, .r = r, .beta = beta, .flags = flags   \
        };                                                                                        \
                                                                                                  \
        encode_feedback(format, e, n, block);                                                     \
    }

#define DECODERS(name, format)                                                              \
    void LEVEL(name##_decode)(float *dst, const void *q, const void *scale, unsigned flags, \
                              size_t n, uint32_t block)                                     \
    {                                                                                       \
        decode(format, (struct decoding){ dst, q, scale }, flags, n, block);                \
    }                                                                                       \
    void LEVEL(name##_decode_add)(float *acc, const void *q, const void *scale, size_t n,   \
                                  uint32_t block)                                           \
    {                                                                                       \
        decode_blocks(format, (struct decoding){ acc, q, scale }, n, block, ADD);           \
    }

#define ENCODE_SR(name, format)                                                                 \
    void LEVEL(name##_encode_sr)(void *q, void *scale, float *d, const float *x, size_t n,      \
                                 uint32_t block, const struct dsc_draw *draw)                   \
    {                                                                                           \
        const struct encoding e = { .q = q, .scales = scale, .out = d, .v = x, .draw = *draw }; \
                                                                                                \
        encode_drawn(format, e, n, block);                                                      \
    }

DSC_BLOCK_FUNCTIONS(ENCODERS, DECODERS, ENCODE_SR)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block formats in the words of a vec_*.h. Whole ordinary blocks run here; the short last block and
 * rare ones (poison, sums near the largest float, codes that are no numbers) go through the
 * reference.
 *
 * Encoding works in two passes over a tile that stays in the first cache level: maxima, from which
 * come all scales of the tile at once, then codes.
 *
 * No clamp in nearest rounding: |x| <= amax, and scale and inverse are each rounded once, so
 * |x*inv| is beyond the largest code by less than 2^-21 of it and rounds to it. Only the positive
 * side of INT4_SIGNED, where 8 is no code, has one.
 */
#include "codec/bits.h"
#include "codec/kernels.h"

enum format { INT8, INT4, INT4_SIGNED, E4M3, E5M2, INT8_SR, INT4_SR };

/* Two codes in a byte and bfloat16 scales. */
DSC_INLINE bool has_nibbles(enum format format)
{
    return format == INT4 || format == INT4_SIGNED || format == INT4_SR;
}

DSC_INLINE bool is_stochastic(enum format format)
{
    return format == INT8_SR || format == INT4_SR;
}

#define TILE 2048               /* elements */
#define STREAM_TILE 256         /* reads and writes of DRAM in turn, at short intervals */
#define TILE_BLOCKS (TILE / 16) /* of the smallest block */
#define F32_HUGE 0x7f000000u    /* 2^127: with amax below it no D overflows */
#define SCALE_HUGE 0x7b000000u  /* 2^119: times 256 still finite */

/* What a quantizing pass leaves per element besides the code. */
enum kept { KEEP_NOTHING, KEEP_D, KEEP_RESIDUAL, STREAM_RESIDUAL };

/* The reference's spelling, for what does not run here. */
static const struct {
    dsc_block_encode_fn *encode;
    dsc_block_encode_feedback_fn *encode_feedback;
    dsc_block_decode_fn *decode;
    dsc_block_decode_add_fn *decode_add;
} reference[] = {
#define REFERENCE(name)                                                               \
    {                                                                                 \
        dsc_##name##_encode_c, dsc_##name##_encode_feedback_c, dsc_##name##_decode_c, \
            dsc_##name##_decode_add_c                                                 \
    }
    [INT8] = REFERENCE(int8),
    [INT4] = REFERENCE(int4),
    [INT4_SIGNED] = { dsc_int4s_encode_c, dsc_int4s_encode_feedback_c, NULL, NULL },
    [E4M3] = REFERENCE(e4m3),
    [E5M2] = REFERENCE(e5m2),
#undef REFERENCE
};

/* Of stochastic formats, which have nothing else of their own. */
static dsc_block_encode_sr_fn *const reference_sr[] = {
    [INT8_SR] = dsc_int8_encode_sr_c, [INT4_SR] = dsc_int4_encode_sr_c
};

/* ---- scales ---- */

DSC_INLINE float largest_code(enum format format)
{
    switch (format) {
    case INT8:
    case INT8_SR:
        return 127.0f;
    case INT4:
    case INT4_SR:
        return 7.0f;
    case INT4_SIGNED:
        return 8.0f;
    case E4M3:
        return 448.0f;
    case E5M2:
        return 57344.0f;
    }
    return 0.0f;
}

/*
 * What maxima are taken of: magnitudes; with INT4_SIGNED twice that, plus 1 for positive elements,
 * so that the maximum knows its sign.
 */
DSC_INLINE vi key_of(enum format format, vf x)
{
    const vi bits = vf_bits(x);

    if (format == INT4_SIGNED)
        return vi_xor(vi_or(vi_shift_left(bits, 1), vi_shift_right(bits, 31)), vi_set1(1));
    return vi_and(bits, vi_set1(F32_ABS));
}

DSC_INLINE uint32_t magnitude_of(enum format format, uint32_t key)
{
    return format == INT4_SIGNED ? key >> 1 : key;
}

/* As sent, and the inverse. Tiny blocks get zeros, which make codes and D zero without a branch. */
DSC_INLINE void scales_of(enum format format, uint32_t *scale, uint32_t *inv, const uint32_t *keys)
{
    const vi key = vi_load(keys);
    const vi bits = format == INT4_SIGNED ? vi_shift_right(key, 1) : key;
    const vf amax = vi_float(bits), zero = vf_set1(0.0f), largest = vf_set1(largest_code(format));
    vf s = vf_div(amax, largest);
    vf t;

    if (has_nibbles(format)) {
        vi up = vi_and(vi_add(vf_bits(s), vi_set1(0xffff)), vi_set1(0xffff0000));

        if (format == INT4_SIGNED) /* negative where the extreme is positive */
            up = vi_or(up, vi_shift_left(key, 31));
        s = vi_float(up);
        t = vf_div(vf_set1(1.0f), s);
    } else {
        t = vf_div(largest, amax);
    }
    if (is_stochastic(format)) /* exact: products are in steps of 2^-16 then */
        t = vf_mul(t, vf_set1(0x1p16f));
    vi_store(scale, vf_bits(vf_if_at_least(bits, F32_TINY, s, zero)));
    vi_store(inv, vf_bits(vf_if_at_least(bits, F32_TINY, t, zero)));
}

DSC_INLINE void put_scale(enum format format, void *scales, size_t i, uint32_t bits)
{
    if (has_nibbles(format))
        ((uint16_t *)scales)[i] = (uint16_t)(bits >> 16);
    else
        ((float *)scales)[i] = float_of(bits);
}

DSC_INLINE uint32_t get_scale(enum format format, const void *scales, size_t i)
{
    return has_nibbles(format) ? (uint32_t)((const uint16_t *)scales)[i] << 16
                               : bits_of(((const float *)scales)[i]);
}

DSC_INLINE size_t scale_bytes(enum format format, size_t n)
{
    return n * (has_nibbles(format) ? sizeof(uint16_t) : sizeof(float));
}

DSC_INLINE size_t code_bytes(enum format format, size_t n)
{
    return has_nibbles(format) ? n / 2 : n;
}

/* ---- one vector ---- */

/* A block's numbers in all lanes. `sign` is 0 in tiny blocks, whose codes are all 0. */
struct factors {
    vf scale, inv;
    vi sign;
};

DSC_INLINE struct factors factors_of(uint32_t scale, uint32_t inv)
{
    return (struct factors){ vf_set1(float_of(scale)), vf_set1(float_of(inv)),
                             vi_set1(inv != 0 ? 0x80000000u : 0) };
}

/*
 * Rounds |t| to `mbits` of mantissa by one addition, see minifloat_code() in blocks_c.c. d gets the
 * rounded value, which is exact.
 */
DSC_INLINE vi minifloat_codes(uint32_t mbits, uint32_t min_exponent, vf t, vi sign_bit, vf *d)
{
    const vi sign = vi_and(vf_bits(t), sign_bit);
    const vi magnitude = vi_and(vf_bits(t), vi_set1(F32_ABS));
    const vi e = vi_max(vi_and(magnitude, vi_set1(F32_INF)), vi_set1(min_exponent << 23));
    const vi magic = vi_add(e, vi_set1((23 - mbits) << 23));
    const vf sum = vf_add(vi_float(magnitude), vi_float(magic));
    const vi steps = vi_sub(vf_bits(sum), magic);
    const vi base = vi_sub(vi_shift_right(e, (int)(23 - mbits)), vi_set1(min_exponent << mbits));

    *d = vi_float(vi_or(vf_bits(vf_sub(sum, vi_float(magic))), sign));
    return vi_or(vi_add(steps, base), vi_shift_right_signed(sign, 24));
}

/* ---- stochastic rounding, see blocks_c.c ---- */

DSC_INLINE uint32_t mix(uint32_t h)
{
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
}

DSC_INLINE vi mix_lanes(vi h)
{
    h = vi_mul(vi_xor(h, vi_shift_right(h, 16)), vi_set1(0x7feb352d));
    h = vi_mul(vi_xor(h, vi_shift_right(h, 15)), vi_set1(0x846ca68b));
    return vi_xor(h, vi_shift_right(h, 16));
}

/* 16 bits for each of n elements: a hash has those of an even one and, above, of the next. */
DSC_INLINE void draw_noise(uint32_t *noise, const struct dsc_draw *draw, size_t n)
{
    const uint32_t high = mix((uint32_t)(draw->first >> 33));
    const vi key = vi_set1(mix(mix(draw->seed + mix(draw->call + mix(draw->rank + high)))));
    const vi pairs = vi_add(vi_set1((uint32_t)(draw->first >> 1)), vi_lanes());

#pragma GCC unroll 4
    for (size_t i = 0; i < n / 2; i += LANES)
        vi_store(noise + i, mix_lanes(vi_xor(key, vi_add(pairs, vi_set1((uint32_t)i)))));
}

/*
 * t: in steps of 2^-16, and rounds to at most the largest code; the least one needs its clamp, so
 * that no draw leads below it.
 */
DSC_INLINE vi stochastic_codes(enum format format, vf t, vi random)
{
    const vf inside = vf_max(t, vf_set1(-0x1p16f * largest_code(format)));

    return vi_shift_right_signed(vi_add(vf_to_int(inside), random), 16);
}

/* ---- codes ---- */

/* Codes of x as signed bytes in 32-bit lanes; d gets D. noise: of these elements, or unused. */
DSC_INLINE vi quantize(enum format format, vf x, const struct factors *f, const uint16_t *noise,
                       vf *d)
{
    const vf t = vf_mul(x, f->inv);
    vi code;

    if (format == E4M3) {
        code = minifloat_codes(3, 127 - 6, t, f->sign, d);
    } else if (format == E5M2) {
        code = minifloat_codes(2, 127 - 14, t, f->sign, d);
    } else {
        if (is_stochastic(format))
            code = stochastic_codes(format, t, vi_load_u16(noise));
        else
            code = vf_to_int(format == INT4_SIGNED ? vf_min(t, vf_set1(7.0f)) : t);
        *d = vi_to_float(code);
        if (format == INT8_SR) /* stores turn 128 into 127 */
            *d = vf_min(*d, vf_set1(127.0f));
    }
    *d = vf_mul(*d, f->scale);
    return code;
}

/* ---- what is encoded ---- */

/* Operands of an encoding; they move on from tile to tile. */
struct encoding {
    uint8_t *q, *scales;
    float *out; /* D, or the residual; NULL when nothing is kept */
    const float *v, *r;
    float beta;
    unsigned flags;
    uint32_t rare;        /* least amax bits of blocks that the reference does */
    struct dsc_draw draw; /* of stochastic formats */
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

    if (is_stochastic(format)) {
        struct dsc_draw draw = e->draw;

        draw.first += i;
        reference_sr[format](codes, scales, out_at(e, i, kept), e->v + i, n, block, &draw);
    } else if (has_feedback(kept))
        reference[format].encode_feedback(codes, scales, e->out + i, e->v + i, e->r + i, e->beta,
                                          e->flags, n, block);
    else
        reference[format].encode(codes, scales, out_at(e, i, kept), e->v + i, n, block);
}

/* ---- first pass: maxima and scales of a tile's blocks ---- */

/* Keys (key_of) and scales are bits. */
struct tile {
    uint32_t key[TILE_BLOCKS], scale[TILE_BLOCKS], inv[TILE_BLOCKS];
    float x[TILE];            /* sums, with feedback */
    uint32_t noise[TILE / 2]; /* of stochastic formats */
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

DSC_INLINE void tile_scales(enum format format, struct tile *t, const struct encoding *e, size_t n,
                            uint32_t block, enum kept kept)
{
    const size_t n_blocks = n / block;

    for (size_t b = 0; b < n_blocks; b++)
        t->key[b] = largest_key(format, e, t->x, b * block, block, kept);
    for (size_t b = 0; b < n_blocks; b += LANES)
        scales_of(format, t->scale + b, t->inv + b, t->key + b);
}

/* ---- second pass: codes, and what they leave ---- */

DSC_INLINE vi quantize_at(enum format format, const struct encoding *e, const struct tile *t,
                          size_t i, const struct factors *f, enum kept kept)
{
    const vf x = vf_load((has_feedback(kept) ? t->x : e->v) + i);
    vf d;
    const vi code = quantize(format, x, f, (const uint16_t *)t->noise + i, &d);

    if (kept == KEEP_D)
        vf_store(e->out + i, d);
    if (kept == KEEP_RESIDUAL)
        vf_store(e->out + i, vf_sub(x, d));
    if (kept == STREAM_RESIDUAL)
        vf_stream(e->out + i, vf_sub(x, d));
    return code;
}

/* A group is what the stores of codes take: one, two or four vectors, a constant. */
DSC_INLINE void quantize_group(enum format format, const struct encoding *e, const struct tile *t,
                               size_t first, size_t group, const struct factors *f, enum kept kept)
{
    uint8_t *const q = e->q + code_bytes(format, first);
    vi codes[4];

#pragma GCC unroll 4
    for (size_t i = 0; i < group; i += LANES)
        codes[i / LANES] = quantize_at(format, e, t, first + i, f, kept);
    if (has_nibbles(format))
        nibbles_store(q, codes, group);
    else
        codes_store(q, codes, group);
}

/* Blocks are 16, 32, 64, 128 or 256 elements. */
DSC_INLINE void quantize_block(enum format format, const struct encoding *e, const struct tile *t,
                               size_t first, size_t block, const struct factors *f, enum kept kept)
{
    if (block == 16)
        quantize_group(format, e, t, first, 16, f, kept);
    else if (block < 4 * LANES)
        quantize_group(format, e, t, first, 32, f, kept);
    else
        for (size_t i = first; i < first + block; i += 4 * LANES)
            quantize_group(format, e, t, i, 4 * LANES, f, kept);
}

/* INT4_SR: the largest code could be passed, which takes a scale that was exact before rounding. */
DSC_INLINE bool may_exceed(enum format format, uint32_t amax, uint32_t inv)
{
    return format == INT4_SR && float_of(amax) * float_of(inv) > 0x1p16f * largest_code(format);
}

DSC_INLINE void tile_codes(enum format format, struct tile *t, const struct encoding *e, size_t n,
                           uint32_t block, enum kept kept)
{
    if (is_stochastic(format))
        draw_noise(t->noise, &e->draw, n);
    for (size_t b = 0; b < n / block; b++) {
        const struct factors f = factors_of(t->scale[b], t->inv[b]);

        if (magnitude_of(format, t->key[b]) >= e->rare ||
            may_exceed(format, t->key[b], t->inv[b])) {
            encode_rare(format, e, b, block, block, kept);
            continue;
        }
        put_scale(format, e->scales, b, t->scale[b]);
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
    if (is_stochastic(format))
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
    const uint32_t usual = has_nibbles(format) ? 64 : 256;

    if (block == usual)
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

/* Blocks that hold no ordinary numbers, or whose scale the fast spelling cannot take. */
DSC_INLINE bool is_rare(enum format format, const uint8_t *q, uint32_t scale, uint32_t block)
{
    if (format == E4M3)
        return (scale & F32_ABS) >= SCALE_HUGE || codes_exceed(q, block, 0x7e);
    if (format == E5M2)
        return (scale & F32_ABS) >= F32_INF || codes_exceed(q, block, 0x7b);
    return (scale & F32_ABS) >= F32_INF;
}

/* What a block's codes are multiplied with: vf_load_e4m3() gives values / 256. */
DSC_INLINE nibble_table factor_of(enum format format, uint32_t scale)
{
    if (has_nibbles(format))
        return nibbles_scaled(float_of(scale));
    return vf_set1(format == E4M3 ? float_of(scale) * 256.0f : float_of(scale));
}

/* D of LANES elements from element i of a block on. */
DSC_INLINE vf dequantize(enum format format, const uint8_t *q, uint32_t i, nibble_table factor)
{
    if (has_nibbles(format))
        return vf_nibbles(q + i / 2, factor);
    if (format == E4M3)
        return vf_mul(vf_load_e4m3(q + i), factor);
    if (format == E5M2)
        return vf_mul(vf_load_e5m2(q + i), factor);
    return vf_mul(vi_to_float(vi_load_i8(q + i)), factor);
}

DSC_INLINE void decode_to(enum format format, float *dst, const uint8_t *q, const uint8_t *scales,
                          size_t n, uint32_t block, bool stream)
{
    const size_t whole = n - n % block;

    for (size_t i = 0; i < whole; i += block) {
        const uint8_t *const codes = q + code_bytes(format, i);
        const uint32_t scale = get_scale(format, scales, i / block);

        if (is_rare(format, codes, scale, block)) {
            reference[format].decode(dst + i, codes, scales + scale_bytes(format, i / block), 0,
                                     block, block);
            continue;
        }
        const nibble_table factor = factor_of(format, scale);

#pragma GCC unroll 4
        for (uint32_t j = 0; j < block; j += LANES) {
            const vf d = dequantize(format, codes, j, factor);

            if (stream)
                vf_stream(dst + i + j, d);
            else
                vf_store(dst + i + j, d);
        }
    }
    reference[format].decode(dst + whole, q + code_bytes(format, whole),
                             scales + scale_bytes(format, whole / block), 0, n - whole, block);
}

DSC_INLINE void decode(enum format format, float *dst, const uint8_t *q, const uint8_t *scales,
                       unsigned flags, size_t n, uint32_t block)
{
    if ((flags & DSC_STREAM) != 0 && (uintptr_t)dst % STREAM_ALIGN == 0) {
        decode_to(format, dst, q, scales, n, block, true);
        vec_stream_end();
    } else {
        decode_to(format, dst, q, scales, n, block, false);
    }
}

DSC_INLINE void decode_add(enum format format, float *acc, const uint8_t *q, const uint8_t *scales,
                           size_t n, uint32_t block)
{
    const size_t whole = n - n % block;

    for (size_t i = 0; i < whole; i += block) {
        const uint8_t *const codes = q + code_bytes(format, i);
        const uint32_t scale = get_scale(format, scales, i / block);

        if (is_rare(format, codes, scale, block)) {
            reference[format].decode_add(acc + i, codes, scales + scale_bytes(format, i / block),
                                         block, block);
            continue;
        }
        const nibble_table factor = factor_of(format, scale);

#pragma GCC unroll 4
        for (uint32_t j = 0; j < block; j += LANES)
            vf_store(acc + i + j,
                     vf_add(vf_load(acc + i + j), dequantize(format, codes, j, factor)));
    }
    reference[format].decode_add(acc + whole, q + code_bytes(format, whole),
                                 scales + scale_bytes(format, whole / block), n - whole, block);
}

/* The primitives of a format, under the names of kernels.h. */
#define BLOCK_ENCODERS(name, format)                                                              \
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

#define BLOCK_DECODERS(name, format)                                                        \
    void LEVEL(name##_decode)(float *dst, const void *q, const void *scale, unsigned flags, \
                              size_t n, uint32_t block)                                     \
    {                                                                                       \
        decode(format, dst, q, scale, flags, n, block);                                     \
    }                                                                                       \
    void LEVEL(name##_decode_add)(float *acc, const void *q, const void *scale, size_t n,   \
                                  uint32_t block)                                           \
    {                                                                                       \
        decode_add(format, acc, q, scale, n, block);                                        \
    }

/* Where the index passes a multiple of 2^33 the key changes: once in so many elements. */
#define BLOCK_ENCODE_SR(name, format)                                                           \
    void LEVEL(name##_encode_sr)(void *q, void *scale, float *d, const float *x, size_t n,      \
                                 uint32_t block, const struct dsc_draw *draw)                   \
    {                                                                                           \
        const struct encoding e = { .q = q, .scales = scale, .out = d, .v = x, .draw = *draw }; \
                                                                                                \
        if (draw->first >> 33 != (draw->first + n) >> 33)                                       \
            reference_sr[format](q, scale, d, x, n, block, draw);                               \
        else                                                                                    \
            encode(format, e, n, block);                                                        \
    }

BLOCK_ENCODERS(int8, INT8)
BLOCK_DECODERS(int8, INT8)
BLOCK_ENCODE_SR(int8, INT8_SR)
BLOCK_ENCODERS(int4, INT4)
BLOCK_DECODERS(int4, INT4)
BLOCK_ENCODE_SR(int4, INT4_SR)
BLOCK_ENCODERS(int4s, INT4_SIGNED)
BLOCK_ENCODERS(e4m3, E4M3)
BLOCK_DECODERS(e4m3, E4M3)
BLOCK_ENCODERS(e5m2, E5M2)
BLOCK_DECODERS(e5m2, E5M2)

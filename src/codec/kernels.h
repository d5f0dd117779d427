/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic primitives that codecs and executors are made of. The scalar functions in
 * *_c.c are the specification; every other level gives the same bits. Pointers have only
 * their element's alignment unless said; n is any number; arrays do not overlap unless said.
 *
 * Callers run in the default floating point mode (dsc_fp_enter). A NaN that comes out of arithmetic
 * (axpy, add, mul, div, residual, decode_add) may carry any sign and payload, since C leaves those
 * open; every NaN that is selected or stored is canonical.
 */
#ifndef DSC_KERNELS_H
#define DSC_KERNELS_H

#include "core/core.h"

/* ---- conversions; every NaN becomes canonical ---- */
typedef void dsc_f16_load_fn(float *dst, const uint16_t *src, size_t n);
typedef void dsc_bf16_load_fn(float *dst, const uint16_t *src, size_t n);
/* Nearest even; NaN 0x7e00, and 0x7fc0 for bf16. */
typedef void dsc_f16_store_fn(uint16_t *dst, const float *src, size_t n);
typedef void dsc_bf16_store_fn(uint16_t *dst, const float *src, size_t n);
/* A copy with NaN 0x7fc00000; dst may be src. */
typedef void dsc_f32_store_fn(float *dst, const float *src, size_t n);

/* A copy that is not read again soon, written past the caches where dst is aligned for it. */
typedef void dsc_stream_fn(float *dst, const float *src, size_t n);

/* ---- element-wise, each operation rounded once ---- */
/* x = v + beta*r (product rounded, then sum). x may be v or r. */
typedef void dsc_axpy_fn(float *x, const float *v, const float *r, float beta, size_t n);
/* acc += x */
typedef void dsc_add_fn(float *acc, const float *x, size_t n);
/* acc = larger (smaller): NaN if either is NaN (canonical), +0 > -0 */
typedef void dsc_max_fn(float *acc, const float *x, size_t n);
/* y = x * s and y = x / d; y may be x */
typedef void dsc_mul_fn(float *y, const float *x, float s, size_t n);
typedef void dsc_div_fn(float *y, const float *x, float d, size_t n);
/* r = x - a*o (product rounded, then difference); r may be x */
typedef void dsc_residual_fn(float *r, const float *x, const float *o, float a, size_t n);
/* number of elements for which a*o is not finite */
typedef size_t dsc_count_nonfinite_fn(const float *o, float a, size_t n);
/* number of elements that are -0 */
typedef size_t dsc_count_minus_zero_fn(const float *x, size_t n);
/*
 * x = v + beta*r, or v where r is NULL. Bit i%8 of mask[i/8] is set where the bits of |x[i]|, as a
 * number, are at least limit < 2^31. What is left of the last byte is 0. Returns how many are set.
 */
typedef size_t dsc_at_least_fn(uint8_t *mask, const float *v, const float *r, float beta,
                               uint32_t limit, size_t n);

/*
 * ---- Hadamard rotation of groups of 32: butterflies (a+b, a-b) of stride 1, 2, 4, 8, 16 ----
 * The last group is padded with +0: `rotated` has round_up(n, 32) elements.
 */
#define DSC_HADAMARD_GROUP 32
typedef void dsc_hadamard_rotate_fn(float *rotated, const float *x, size_t n);
/* The same times 2^-5, NaN canonical; x may be rotated. */
typedef void dsc_hadamard_restore_fn(float *x, const float *rotated, size_t n);

/* ---- flags ---- */
#define DSC_KEEP_OLD 1u /* encode_feedback: where D is not finite, r_out = r */
#define DSC_STREAM 2u   /* r_out, or D, is not read soon: it may be written past the caches */

/*
 * ---- casts: one value per element ----
 * y = x * 2^-exponent, rounded to the wire type (Inf as it is, NaN canonical); D = value *
 * 2^exponent. f16 has an exponent, 0 to 32; the others ignore it.
 */
/* x = v + beta*r; q = wire value; r_out = x - D (may be r). */
typedef void dsc_cast_encode_feedback_fn(void *q, float *r_out, const float *v, const float *r,
                                         float beta, unsigned flags, int exponent, size_t n);
/* acc += D */
typedef void dsc_cast_decode_add_fn(float *acc, const void *q, int exponent, size_t n);

/*
 * ---- blocks: codes q[n] and one scale per block, block 16, 32, 64, 128 or 256 ----
 *
 *          code            scale                           inv
 *   int8   int8            float32   amax / 127            127 / amax
 *   int4   two in a byte   bfloat16  amax / 7, rounded up  1 / scale
 *   int4s  two in a byte   bfloat16  see below             1 / scale
 *   e4m3   uint8           float32   amax / 448            448 / amax
 *   e5m2   uint8           float32   amax / 57344          57344 / amax
 *
 * and formats of OCP MX with blocks of 32 alone, whose scale, E8M0, is a byte: 2^(byte - 127),
 * where 0xff is poison. It is the power of two that brings amax to the exponent of the largest
 * value, or, with the encoders named _ceil, the least that brings it to no more than that value:
 *
 *   mxfp8       uint8, E4M3     largest 448
 *   mxfp8_e5m2  uint8, E5M2     57344
 *   mxfp4       two in a byte   6, E2M1
 *   mxint8      int8            127/64: the value is code / 64
 *
 * amax < 2^-100: scale 0, codes 0. amax not finite: scale NaN (0x7fc00000, 0x7fc0), codes 0:
 * poison. Else code = x*inv rounded to the nearest code, ties to even, of numbers beyond the
 * largest value the code of that; D = value of the code * scale. Where two codes share a byte
 * element 2i has the low half; the unused half of the last byte is 0. Floats keep the sign of what
 * rounds to zero. int4s has codes from -8 to 7 and the scale -extreme / 8, rounded away from zero:
 * the element of largest magnitude, of equal ones a positive one, gets -8; codes above 7 become 7.
 * It is decoded as int4.
 *
 * Decoders take any bytes: a scale with all exponent bits set decodes to 0x7fc00000 for its block,
 * the codes -128, -8 and E5M2's Inf are numbers like others, NaN codes and 0 * Inf give 0x7fc00000.
 */
/* d (NULL allowed, may be x) gets D; poison blocks get 0x7fc00000. */
typedef void dsc_block_encode_fn(void *q, void *scale, float *d, const float *x, size_t n,
                                 uint32_t block);
/* x = v + beta*r; r_out = x - D (may be r); without DSC_KEEP_OLD, 0x7fc00000 in poison blocks. */
typedef void dsc_block_encode_feedback_fn(void *q, void *scale, float *r_out, const float *v,
                                          const float *r, float beta, unsigned flags, size_t n,
                                          uint32_t block);
/* What random numbers follow from, besides the element's index; `first`: that of x[0], any. */
struct dsc_draw {
    uint32_t seed, call, rank;
    uint64_t first;
};
/* As dsc_block_encode_fn, but codes are rounded stochastically; see docs/wire_format.md. */
typedef void dsc_block_encode_sr_fn(void *q, void *scale, float *d, const float *x, size_t n,
                                    uint32_t block, const struct dsc_draw *draw);
typedef void dsc_block_decode_fn(float *dst, const void *q, const void *scale, unsigned flags,
                                 size_t n, uint32_t block);
/* acc += D */
typedef void dsc_block_decode_add_fn(float *acc, const void *q, const void *scale, size_t n,
                                     uint32_t block);

/*
 * ---- nvfp4: E2M1 codes two in a byte, a scale of E4M3 per 16, both under one scale per segment
 * ---- A call is about one segment or a part of it that starts at a block. `amax` is the largest
 * magnitude in the whole segment's blocks without NaN and Inf, 0 if that is below 2^-100; the
 * segment's scale is amax / 2688. A block whose own is amax_b has the scale
 * E4M3((amax_b * (2688 / amax)) / 6), all codes are E2M1(x * (1 / (scale * (amax / 2688)))),
 * nearest even and saturating, and 0 where that product is 0; D = code * (scale * segment's scale).
 * amax_b < 2^-100: scale and codes 0; not finite: scale 0x7f, poison, codes 0.
 *
 * Decoders take any bytes: block scales 0x7f and 0xff and a segment scale with all exponent bits
 * set are poison; 0 * Inf gives 0x7fc00000.
 */
#define DSC_NVFP4_LARGEST (448.0f * 6.0f) /* block scale times code, at a segment scale of 1 */
/* r NULL: of v, else of v + beta*r. */
typedef float dsc_nvfp4_amax_fn(const float *v, const float *r, float beta, size_t n);
/* As those of the other block formats. */
typedef void dsc_nvfp4_encode_fn(void *q, void *scale, float *d, const float *x, size_t n,
                                 float amax);
typedef void dsc_nvfp4_encode_feedback_fn(void *q, void *scale, float *r_out, const float *v,
                                          const float *r, float beta, unsigned flags, size_t n,
                                          float amax);
typedef void dsc_nvfp4_decode_fn(float *dst, const void *q, const void *scale, float segment_scale,
                                 unsigned flags, size_t n);
typedef void dsc_nvfp4_decode_add_fn(float *acc, const void *q, const void *scale,
                                     float segment_scale, size_t n);

/* clang-format off */
#define DSC_BLOCK_ENCODERS(X, format)                             \
    X(format##_encode,          dsc_block_encode_fn)              \
    X(format##_encode_feedback, dsc_block_encode_feedback_fn)

#define DSC_BLOCK_KERNELS(X, format)                              \
    DSC_BLOCK_ENCODERS(X, format)                                 \
    X(format##_decode,          dsc_block_decode_fn)              \
    X(format##_decode_add,      dsc_block_decode_add_fn)

#define DSC_CAST_KERNELS(X, type)                                 \
    X(type##_encode_feedback,   dsc_cast_encode_feedback_fn)      \
    X(type##_decode_add,        dsc_cast_decode_add_fn)

/* X(member, type): one row per primitive; struct, checks and level tables are made from it. */
#define DSC_KERNELS_MAP(X)                                        \
    X(f16_load,                 dsc_f16_load_fn)                  \
    X(f16_store,                dsc_f16_store_fn)                 \
    X(bf16_load,                dsc_bf16_load_fn)                 \
    X(bf16_store,               dsc_bf16_store_fn)                \
    X(f32_store,                dsc_f32_store_fn)                 \
    X(stream,                   dsc_stream_fn)                    \
    X(axpy,                     dsc_axpy_fn)                      \
    X(add,                      dsc_add_fn)                       \
    X(max,                      dsc_max_fn)                       \
    X(min,                      dsc_max_fn)                       \
    X(mul,                      dsc_mul_fn)                       \
    X(div,                      dsc_div_fn)                       \
    X(residual,                 dsc_residual_fn)                  \
    X(count_nonfinite,          dsc_count_nonfinite_fn)           \
    X(count_minus_zero,         dsc_count_minus_zero_fn)          \
    X(at_least,                 dsc_at_least_fn)                  \
    X(hadamard_rotate,          dsc_hadamard_rotate_fn)           \
    X(hadamard_restore,         dsc_hadamard_restore_fn)          \
    DSC_CAST_KERNELS(X, f32)                                      \
    DSC_CAST_KERNELS(X, f16)                                      \
    DSC_CAST_KERNELS(X, bf16)                                     \
    DSC_BLOCK_KERNELS(X, int8)                                    \
    DSC_BLOCK_KERNELS(X, int4)                                    \
    DSC_BLOCK_KERNELS(X, e4m3)                                    \
    DSC_BLOCK_KERNELS(X, e5m2)                                    \
    DSC_BLOCK_KERNELS(X, mxfp8)                                   \
    DSC_BLOCK_ENCODERS(X, mxfp8_ceil)                             \
    DSC_BLOCK_KERNELS(X, mxfp8_e5m2)                              \
    DSC_BLOCK_ENCODERS(X, mxfp8_e5m2_ceil)                        \
    DSC_BLOCK_KERNELS(X, mxfp4)                                   \
    DSC_BLOCK_ENCODERS(X, mxfp4_ceil)                             \
    DSC_BLOCK_KERNELS(X, mxint8)                                  \
    DSC_BLOCK_ENCODERS(X, mxint8_ceil)                            \
    X(nvfp4_amax,               dsc_nvfp4_amax_fn)                \
    X(nvfp4_encode,             dsc_nvfp4_encode_fn)              \
    X(nvfp4_encode_feedback,    dsc_nvfp4_encode_feedback_fn)     \
    X(nvfp4_decode,             dsc_nvfp4_decode_fn)              \
    X(nvfp4_decode_add,         dsc_nvfp4_decode_add_fn)          \
    DSC_BLOCK_ENCODERS(X, int4s)                                  \
    X(int8_encode_sr,           dsc_block_encode_sr_fn)           \
    X(int4_encode_sr,           dsc_block_encode_sr_fn)
/* clang-format on */

struct dsc_kernels {
#define DSC_KERNELS_MEMBER(name, type) type *name;
    DSC_KERNELS_MAP(DSC_KERNELS_MEMBER)
#undef DSC_KERNELS_MEMBER
};

/* Declares dsc_<name>_c and so on with the exact type, so a drifting signature does not compile. */
#define DSC_KERNELS_DECLARE(name, type) \
    type dsc_##name##_c, dsc_##name##_avx2, dsc_##name##_avx512, dsc_##name##_neon;
DSC_KERNELS_MAP(DSC_KERNELS_DECLARE)
#undef DSC_KERNELS_DECLARE

/* Fills k with the reference and overwrites upward with what `cpu` (DSC_CPU_*) allows. */
void dsc_kernels_init(struct dsc_kernels *k, uint32_t cpu);
/* What a kind of CPU adds to the reference, which k already holds; one of them is linked. */
void dsc_kernels_init_cpu(struct dsc_kernels *k, uint32_t cpu);
/* The table for this CPU and DSCOMM_CPU_MASK, chosen once. */
const struct dsc_kernels *dsc_kernels_get(void);

#endif

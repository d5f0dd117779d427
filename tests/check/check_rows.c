/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row per primitive, in the order of DSC_KERNELS_MAP; encoders have two, with and without D.
 */
#include "check/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct check_call call_t;

static void run_f16_load(const struct dsc_kernels *k, call_t *c)
{
    k->f16_load(c->arg[0], c->arg[1], c->n);
}

static void run_f16_store(const struct dsc_kernels *k, call_t *c)
{
    k->f16_store(c->arg[0], c->arg[1], c->n);
}

static void run_bf16_load(const struct dsc_kernels *k, call_t *c)
{
    k->bf16_load(c->arg[0], c->arg[1], c->n);
}

static void run_bf16_store(const struct dsc_kernels *k, call_t *c)
{
    k->bf16_store(c->arg[0], c->arg[1], c->n);
}

static void run_f32_store(const struct dsc_kernels *k, call_t *c)
{
    k->f32_store(c->arg[0], c->arg[1], c->n);
}

static void run_stream(const struct dsc_kernels *k, call_t *c)
{
    k->stream(c->arg[0], c->arg[1], c->n);
}

static void run_axpy(const struct dsc_kernels *k, call_t *c)
{
    k->axpy(c->arg[0], c->arg[1], c->arg[2], c->scalar, c->n);
}

static void run_add(const struct dsc_kernels *k, call_t *c)
{
    k->add(c->arg[0], c->arg[1], c->n);
}

static void run_max(const struct dsc_kernels *k, call_t *c)
{
    k->max(c->arg[0], c->arg[1], c->n);
}

static void run_min(const struct dsc_kernels *k, call_t *c)
{
    k->min(c->arg[0], c->arg[1], c->n);
}

static void run_mul(const struct dsc_kernels *k, call_t *c)
{
    k->mul(c->arg[0], c->arg[1], c->scalar, c->n);
}

static void run_div(const struct dsc_kernels *k, call_t *c)
{
    k->div(c->arg[0], c->arg[1], c->scalar, c->n);
}

static void run_residual(const struct dsc_kernels *k, call_t *c)
{
    k->residual(c->arg[0], c->arg[1], c->arg[2], c->scalar, c->n);
}

static void run_count_nonfinite(const struct dsc_kernels *k, call_t *c)
{
    c->result = k->count_nonfinite(c->arg[0], c->scalar, c->n);
}

static void run_count_minus_zero(const struct dsc_kernels *k, call_t *c)
{
    c->result = k->count_minus_zero(c->arg[0], c->n);
}

/* The limit is that of a float: all, the smallest, ordinary ones, Inf. */
static uint32_t limit_of(const call_t *c)
{
    uint32_t limit;

    memcpy(&limit, &c->scalar, sizeof(limit));
    return limit;
}

static void run_at_least(const struct dsc_kernels *k, call_t *c)
{
    c->result = k->at_least(c->arg[0], c->arg[1], NULL, 0.0f, limit_of(c), c->n);
}

static void run_sum_at_least(const struct dsc_kernels *k, call_t *c)
{
    c->result = k->at_least(c->arg[0], c->arg[1], c->arg[2], 0.9f, limit_of(c), c->n);
}

static void run_hadamard_rotate(const struct dsc_kernels *k, call_t *c)
{
    k->hadamard_rotate(c->arg[0], c->arg[1], c->n);
}

static void run_hadamard_restore(const struct dsc_kernels *k, call_t *c)
{
    k->hadamard_restore(c->arg[0], c->arg[1], c->n);
}

/* How a cast type and a block format are called. */
#define CAST_RUNS(type)                                                                            \
    static void run_##type##_encode_feedback(const struct dsc_kernels *k, call_t *c)               \
    {                                                                                              \
        k->type##_encode_feedback(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->scalar, c->flags, \
                                  c->exponent, c->n);                                              \
    }                                                                                              \
    static void run_##type##_decode_add(const struct dsc_kernels *k, call_t *c)                    \
    {                                                                                              \
        k->type##_decode_add(c->arg[0], c->arg[1], c->exponent, c->n);                             \
    }
CAST_RUNS(f32)
CAST_RUNS(f16)
CAST_RUNS(bf16)

#define ENCODER_RUNS(format)                                                               \
    static void run_##format##_encode(const struct dsc_kernels *k, call_t *c)              \
    {                                                                                      \
        k->format##_encode(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->n, c->block);    \
    }                                                                                      \
    static void run_##format##_encode_only(const struct dsc_kernels *k, call_t *c)         \
    {                                                                                      \
        k->format##_encode(c->arg[0], c->arg[1], NULL, c->arg[2], c->n, c->block);         \
    }                                                                                      \
    static void run_##format##_encode_feedback(const struct dsc_kernels *k, call_t *c)     \
    {                                                                                      \
        k->format##_encode_feedback(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4], \
                                    c->scalar, c->flags, c->n, c->block);                  \
    }

#define DECODER_RUNS(format)                                                           \
    static void run_##format##_decode(const struct dsc_kernels *k, call_t *c)          \
    {                                                                                  \
        k->format##_decode(c->arg[0], c->arg[1], c->arg[2], c->flags, c->n, c->block); \
    }                                                                                  \
    static void run_##format##_decode_add(const struct dsc_kernels *k, call_t *c)      \
    {                                                                                  \
        k->format##_decode_add(c->arg[0], c->arg[1], c->arg[2], c->n, c->block);       \
    }
#define BLOCK_RUNS(format) ENCODER_RUNS(format) DECODER_RUNS(format)
BLOCK_RUNS(int8)
BLOCK_RUNS(int4)
BLOCK_RUNS(e4m3)
BLOCK_RUNS(e5m2)
ENCODER_RUNS(int4s)

/*
 * Passes the index where pairs get another upper half; where the key changes; not where a block
 * begins in an allreduce; and odd, as the shares of a reduce-scatter may begin, passing both.
 */
static const struct dsc_draw draw = { 5, 6, 7, ((uint64_t)3 << 17) - 512 };
static const struct dsc_draw late_draw = { 5, 6, 7, ((uint64_t)1 << 33) - 1024 };
static const struct dsc_draw short_draw = { 5, 6, 7, 8 };
static const struct dsc_draw odd_draw = { 5, 6, 7, ((uint64_t)1 << 33) - 101 };

static const struct dsc_draw *draw_of(const call_t *c, const struct dsc_draw *usual)
{
    return c->n % 4 == 1 ? &short_draw : c->n % 4 == 3 ? &odd_draw : usual;
}

#define SR_RUNS(format)                                                                   \
    static void run_##format##_encode_sr(const struct dsc_kernels *k, call_t *c)          \
    {                                                                                     \
        k->format##_encode_sr(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->n, c->block, \
                              draw_of(c, &draw));                                         \
    }                                                                                     \
    static void run_##format##_encode_sr_late(const struct dsc_kernels *k, call_t *c)     \
    {                                                                                     \
        k->format##_encode_sr(c->arg[0], c->arg[1], NULL, c->arg[2], c->n, c->block,      \
                              draw_of(c, &late_draw));                                    \
    }
SR_RUNS(int8)
SR_RUNS(int4)
BLOCK_RUNS(mxfp8)
ENCODER_RUNS(mxfp8_ceil)
BLOCK_RUNS(mxfp8_e5m2)
ENCODER_RUNS(mxfp8_e5m2_ceil)
BLOCK_RUNS(mxfp4)
ENCODER_RUNS(mxfp4_ceil)
BLOCK_RUNS(mxint8)
ENCODER_RUNS(mxint8_ceil)

static void run_nvfp4_amax(const struct dsc_kernels *k, call_t *c)
{
    const float amax = k->nvfp4_amax(c->arg[0], c->arg[1], c->scalar, c->n);

    memcpy(&c->result, &amax, sizeof(amax));
}

static void run_nvfp4_amax_only(const struct dsc_kernels *k, call_t *c)
{
    const float amax = k->nvfp4_amax(c->arg[0], NULL, 0.0f, c->n);

    memcpy(&c->result, &amax, sizeof(amax));
}

static void run_nvfp4_encode(const struct dsc_kernels *k, call_t *c)
{
    k->nvfp4_encode(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->n, c->scalar);
}

static void run_nvfp4_encode_only(const struct dsc_kernels *k, call_t *c)
{
    k->nvfp4_encode(c->arg[0], c->arg[1], NULL, c->arg[2], c->n, c->scalar);
}

/* Of the true maximum, as callers do it; the others see blocks beyond the segment's, too. */
static void run_nvfp4_encode_feedback(const struct dsc_kernels *k, call_t *c)
{
    const float amax = dsc_nvfp4_amax_c(c->arg[3], c->arg[4], c->scalar, c->n);

    k->nvfp4_encode_feedback(c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4], c->scalar,
                             c->flags, c->n, amax);
}

static void run_nvfp4_decode(const struct dsc_kernels *k, call_t *c)
{
    k->nvfp4_decode(c->arg[0], c->arg[1], c->arg[2], c->scalar, c->flags, c->n);
}

static void run_nvfp4_decode_add(const struct dsc_kernels *k, call_t *c)
{
    k->nvfp4_decode_add(c->arg[0], c->arg[1], c->arg[2], c->scalar, c->n);
}

static const float betas[] = { 1.0f, 0.875f, 0.9f };
static const float limits[] = { 0.0f, 0x1p-149f, 0x1p-100f, 0.75f, 200.0f, INFINITY };
static const float factors[] = { 1.0f, 4.0f, 3.0f, 0.3333333f };

/* Of a segment: 0 has nothing to send, the least that is sent, all codes of scales, the largest. */
static const float amaxes[] = { 2688.0f, 0.0f, 0x1p-100f, 6.0f, 0x1p112f, 1234.5f, FLT_MAX };
static const float segment_scales[] = { 1.0f, -0.37f,  0.0f,     1e-45f, 0x1p118f,
                                        0.1f, FLT_MAX, INFINITY, NAN };

#define SCALARS(list) .scalars = (list), .n_scalars = DSC_ARRAY_LEN(list)
#define ROW(kernel) .slot = offsetof(struct dsc_kernels, kernel)

/* clang-format off */
/* x - D of a NaN is any NaN; what is kept of r is compared with the same leniency. */
#define CAST_ROWS(kernel, wire)                                                                   \
    { .name = #kernel "_encode_feedback", ROW(kernel##_encode_feedback),                          \
      .run = run_##kernel##_encode_feedback, SCALARS(betas), .has_flags = true,                   \
      .has_exponent = true,                                                                       \
      .operands = { { CHECK_OUT, wire, 0 }, { CHECK_OUT, CHECK_F32_SUM, 1u << 3 },                \
                    { CHECK_IN, CHECK_F32, 0 }, { CHECK_IN, CHECK_F32, 0 } } },                   \
    { .name = #kernel "_decode_add", ROW(kernel##_decode_add), .run = run_##kernel##_decode_add,  \
      .has_exponent = true,                                                                       \
      .operands = { { CHECK_INOUT, CHECK_F32_SUM, 0 }, { CHECK_IN, wire, 0 } } }

/* elems: the only block size that it takes; 0: any. */
#define ENCODER_ROWS(kernel, code, scale, elems)                                                  \
    { .name = #kernel "_encode", ROW(kernel##_encode), .run = run_##kernel##_encode,              \
      .has_block = true, .block = (elems),                                                        \
      .operands = { { CHECK_OUT, code, 0 }, { CHECK_OUT, scale, 0 },                              \
                    { CHECK_OUT, CHECK_F32, 1u << 3 }, { CHECK_IN, CHECK_F32, 0 } } },            \
    { .name = #kernel "_encode_only", ROW(kernel##_encode), .run = run_##kernel##_encode_only,    \
      .has_block = true, .block = (elems),                                                        \
      .operands = { { CHECK_OUT, code, 0 }, { CHECK_OUT, scale, 0 }, { CHECK_IN, CHECK_F32, 0 } } }, \
    { .name = #kernel "_encode_feedback", ROW(kernel##_encode_feedback),                          \
      .run = run_##kernel##_encode_feedback, SCALARS(betas), .has_block = true,                   \
      .block = (elems), .has_flags = true,                                                        \
      .operands = { { CHECK_OUT, code, 0 }, { CHECK_OUT, scale, 0 },                              \
                    { CHECK_OUT, CHECK_F32, 1u << 4 }, { CHECK_IN, CHECK_F32, 0 },                \
                    { CHECK_IN, CHECK_F32, 0 } } }

#define DECODER_ROWS(kernel, code, scale, elems)                                                  \
    { .name = #kernel "_decode", ROW(kernel##_decode), .run = run_##kernel##_decode,              \
      .has_block = true, .block = (elems), .has_flags = true,                                     \
      .operands = { { CHECK_OUT, CHECK_F32, 0 }, { CHECK_IN, code, 0 }, { CHECK_IN, scale, 0 } } }, \
    { .name = #kernel "_decode_add", ROW(kernel##_decode_add), .run = run_##kernel##_decode_add,  \
      .has_block = true, .block = (elems),                                                        \
      .operands = { { CHECK_INOUT, CHECK_F32_SUM, 0 }, { CHECK_IN, code, 0 },                     \
                    { CHECK_IN, scale, 0 } } }

#define BLOCK_ROWS(kernel, code, scale, elems)                                                    \
    ENCODER_ROWS(kernel, code, scale, elems), DECODER_ROWS(kernel, code, scale, elems)

#define SR_ROWS(kernel, code, scale)                                                              \
    { .name = #kernel "_encode_sr", ROW(kernel##_encode_sr), .run = run_##kernel##_encode_sr,     \
      .has_block = true,                                                                          \
      .operands = { { CHECK_OUT, code, 0 }, { CHECK_OUT, scale, 0 },                              \
                    { CHECK_OUT, CHECK_F32, 1u << 3 }, { CHECK_IN, CHECK_F32, 0 } } },            \
    { .name = #kernel "_encode_sr_late", ROW(kernel##_encode_sr),                                 \
      .run = run_##kernel##_encode_sr_late, .has_block = true,                                    \
      .operands = { { CHECK_OUT, code, 0 }, { CHECK_OUT, scale, 0 }, { CHECK_IN, CHECK_F32, 0 } } }

const struct check_row check_rows[] = {
    { .name = "f16_load", ROW(f16_load), .run = run_f16_load,
      .operands = { { CHECK_OUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_U16, 0 } } },
    { .name = "f16_store", ROW(f16_store), .run = run_f16_store,
      .operands = { { CHECK_OUT, CHECK_U16, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "bf16_load", ROW(bf16_load), .run = run_bf16_load,
      .operands = { { CHECK_OUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_U16, 0 } } },
    { .name = "bf16_store", ROW(bf16_store), .run = run_bf16_store,
      .operands = { { CHECK_OUT, CHECK_U16, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "f32_store", ROW(f32_store), .run = run_f32_store,
      .operands = { { CHECK_OUT, CHECK_F32, 1u << 1 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "stream", ROW(stream), .run = run_stream,
      .operands = { { CHECK_OUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "axpy", ROW(axpy), .run = run_axpy, SCALARS(betas),
      .operands = { { CHECK_OUT, CHECK_F32_SUM, 1u << 1 | 1u << 2 }, { CHECK_IN, CHECK_F32, 0 },
                    { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "add", ROW(add), .run = run_add,
      .operands = { { CHECK_INOUT, CHECK_F32_SUM, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "max", ROW(max), .run = run_max,
      .operands = { { CHECK_INOUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "min", ROW(min), .run = run_min,
      .operands = { { CHECK_INOUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "mul", ROW(mul), .run = run_mul, SCALARS(factors),
      .operands = { { CHECK_OUT, CHECK_F32_SUM, 1u << 1 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "div", ROW(div), .run = run_div, SCALARS(factors),
      .operands = { { CHECK_OUT, CHECK_F32_SUM, 1u << 1 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "residual", ROW(residual), .run = run_residual, SCALARS(factors),
      .operands = { { CHECK_OUT, CHECK_F32_SUM, 1u << 1 }, { CHECK_IN, CHECK_F32, 0 },
                    { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "count_nonfinite", ROW(count_nonfinite), .run = run_count_nonfinite,
      SCALARS(factors), .operands = { { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "count_minus_zero", ROW(count_minus_zero), .run = run_count_minus_zero,
      .operands = { { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "at_least", ROW(at_least), .run = run_at_least, SCALARS(limits),
      .operands = { { CHECK_OUT, CHECK_BITS, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "sum_at_least", ROW(at_least), .run = run_sum_at_least, SCALARS(limits),
      .operands = { { CHECK_OUT, CHECK_BITS, 0 }, { CHECK_IN, CHECK_F32, 0 },
                    { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "hadamard_rotate", ROW(hadamard_rotate), .run = run_hadamard_rotate,
      .operands = { { CHECK_OUT, CHECK_F32_GROUPS, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "hadamard_restore", ROW(hadamard_restore), .run = run_hadamard_restore,
      .operands = { { CHECK_OUT, CHECK_F32, 1u << 1 }, { CHECK_IN, CHECK_F32_GROUPS, 0 } } },
    CAST_ROWS(f32, CHECK_F32),
    CAST_ROWS(f16, CHECK_U16),
    CAST_ROWS(bf16, CHECK_U16),
    BLOCK_ROWS(int8, CHECK_CODE, CHECK_SCALE, 0),
    BLOCK_ROWS(int4, CHECK_CODE4, CHECK_SCALE16, 0),
    BLOCK_ROWS(e4m3, CHECK_CODE, CHECK_SCALE, 0),
    BLOCK_ROWS(e5m2, CHECK_CODE, CHECK_SCALE, 0),
    BLOCK_ROWS(mxfp8, CHECK_CODE, CHECK_SCALE8, 32),
    ENCODER_ROWS(mxfp8_ceil, CHECK_CODE, CHECK_SCALE8, 32),
    BLOCK_ROWS(mxfp8_e5m2, CHECK_CODE, CHECK_SCALE8, 32),
    ENCODER_ROWS(mxfp8_e5m2_ceil, CHECK_CODE, CHECK_SCALE8, 32),
    BLOCK_ROWS(mxfp4, CHECK_CODE4, CHECK_SCALE8, 32),
    ENCODER_ROWS(mxfp4_ceil, CHECK_CODE4, CHECK_SCALE8, 32),
    BLOCK_ROWS(mxint8, CHECK_CODE, CHECK_SCALE8, 32),
    ENCODER_ROWS(mxint8_ceil, CHECK_CODE, CHECK_SCALE8, 32),
    { .name = "nvfp4_amax", ROW(nvfp4_amax), .run = run_nvfp4_amax, SCALARS(betas),
      .operands = { { CHECK_IN, CHECK_F32, 0 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "nvfp4_amax_only", ROW(nvfp4_amax), .run = run_nvfp4_amax_only,
      .operands = { { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "nvfp4_encode", ROW(nvfp4_encode), .run = run_nvfp4_encode, SCALARS(amaxes),
      .has_block = true, .block = 16,
      .operands = { { CHECK_OUT, CHECK_CODE4, 0 }, { CHECK_OUT, CHECK_SCALE8, 0 },
                    { CHECK_OUT, CHECK_F32, 1u << 3 }, { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "nvfp4_encode_only", ROW(nvfp4_encode), .run = run_nvfp4_encode_only,
      SCALARS(amaxes), .has_block = true, .block = 16,
      .operands = { { CHECK_OUT, CHECK_CODE4, 0 }, { CHECK_OUT, CHECK_SCALE8, 0 },
                    { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "nvfp4_encode_feedback", ROW(nvfp4_encode_feedback),
      .run = run_nvfp4_encode_feedback, SCALARS(betas), .has_block = true, .block = 16,
      .has_flags = true,
      .operands = { { CHECK_OUT, CHECK_CODE4, 0 }, { CHECK_OUT, CHECK_SCALE8, 0 },
                    { CHECK_OUT, CHECK_F32, 1u << 4 }, { CHECK_IN, CHECK_F32, 0 },
                    { CHECK_IN, CHECK_F32, 0 } } },
    { .name = "nvfp4_decode", ROW(nvfp4_decode), .run = run_nvfp4_decode, SCALARS(segment_scales),
      .has_block = true, .block = 16, .has_flags = true,
      .operands = { { CHECK_OUT, CHECK_F32, 0 }, { CHECK_IN, CHECK_CODE4, 0 },
                    { CHECK_IN, CHECK_SCALE8, 0 } } },
    { .name = "nvfp4_decode_add", ROW(nvfp4_decode_add), .run = run_nvfp4_decode_add,
      SCALARS(segment_scales), .has_block = true, .block = 16,
      .operands = { { CHECK_INOUT, CHECK_F32_SUM, 0 }, { CHECK_IN, CHECK_CODE4, 0 },
                    { CHECK_IN, CHECK_SCALE8, 0 } } },
    ENCODER_ROWS(int4s, CHECK_CODE4, CHECK_SCALE16, 0),
    SR_ROWS(int8, CHECK_CODE, CHECK_SCALE),
    SR_ROWS(int4, CHECK_CODE4, CHECK_SCALE16),
};
/* clang-format on */

const size_t check_n_rows = DSC_ARRAY_LEN(check_rows);

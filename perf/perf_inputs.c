/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source of values in one data type, as one rank sees it from call to call. From call to call the
 * sets move on by one rank, and in half of the calls all signs change: what an element gets is new,
 * but of the scale of its own layer, as in training. (A residual that meets another layer's scale
 * would look like a worse codec.) Data for a call are a copy, and its exact sum is a small table.
 */
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- conversions ---- */

static float f32_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint32_t bits_of_f32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float f16_to_f32(uint16_t h)
{
    const int exponent = (h >> 10) & 31;
    const int mantissa = h & 1023;
    float x;

    if (exponent == 31)
        x = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        x = ldexpf((float)mantissa, -24);
    else
        x = ldexpf((float)(mantissa + 1024), exponent - 25);
    return (h & 0x8000) != 0 ? -x : x;
}

static uint16_t f32_to_f16(float x)
{
    const uint32_t bits = bits_of_f32(x);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t mag = bits & 0x7fffffff;

    if (mag > 0x7f800000)
        return 0x7e00;
    if (mag >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) /* below 2^-14: multiples of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(ldexpf(f32_of_bits(mag), 24)));
    const uint32_t rounded = mag + 0xfff + ((mag >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

static uint16_t f32_to_bf16(float x)
{
    const uint32_t bits = bits_of_f32(x);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float perf_load(dscomm_dtype_t dtype, const void *bits, size_t i)
{
    uint16_t half;
    float x;

    if (dtype == DSCOMM_FLOAT32) {
        memcpy(&x, (const uint8_t *)bits + 4 * i, sizeof(x));
        return x;
    }
    memcpy(&half, (const uint8_t *)bits + 2 * i, sizeof(half));
    if (dtype == DSCOMM_FLOAT16)
        return f16_to_f32(half);
    return f32_of_bits((uint32_t)half << 16);
}

void perf_store(dscomm_dtype_t dtype, void *bits, size_t i, float value)
{
    if (dtype == DSCOMM_FLOAT32) {
        memcpy((uint8_t *)bits + 4 * i, &value, sizeof(value));
        return;
    }
    const uint16_t half = dtype == DSCOMM_FLOAT16 ? f32_to_f16(value) : f32_to_bf16(value);
    memcpy((uint8_t *)bits + 2 * i, &half, sizeof(half));
}

/* ---- vectors of a call ---- */

dscomm_status_t perf_inputs_init(struct perf_inputs *in, const struct perf_source *source)
{
    const size_t n = source->n_sets * source->n_elems;

    in->n_sets = source->n_sets;
    in->n_elems = source->n_elems;
    in->values = malloc(2 * n * perf_dtype_bytes(in->dtype));
    in->typical = calloc(in->n_elems, sizeof(double));
    in->want = malloc(in->n_elems * sizeof(double));
    in->mag = malloc(in->n_elems * sizeof(double));
    if (in->values == NULL || in->typical == NULL || in->want == NULL || in->mag == NULL) {
        perf_inputs_fini(in);
        return DSCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        const float v = source->values[i];

        perf_store(in->dtype, in->values, i, v);
        perf_store(in->dtype, in->values, n + i, 0.0f - v); /* no negative zeros */
        in->typical[i % in->n_elems] += (double)v * v / (double)in->n_sets;
    }
    return DSCOMM_OK;
}

void perf_inputs_fini(struct perf_inputs *in)
{
    free(in->values);
    free(in->typical);
    free(in->want);
    free(in->mag);
    *in = (struct perf_inputs){ 0 };
}

static const uint8_t *set_of(const struct perf_inputs *in, int rank, uint64_t call)
{
    const size_t is_negative = perf_splitmix64(call) & 1;
    const size_t set = (size_t)(((uint64_t)rank + call) % in->n_sets) + is_negative * in->n_sets;

    return in->values + set * in->n_elems * perf_dtype_bytes(in->dtype);
}

void perf_repeat(void *dst, size_t count, const void *src, size_t period, size_t elem_bytes)
{
    for (size_t at = 0; at < count; at += period) {
        const size_t n = count - at < period ? count - at : period;

        memcpy((uint8_t *)dst + at * elem_bytes, src, n * elem_bytes);
    }
}

void perf_inputs_fill(const struct perf_inputs *in, void *dst, size_t count, uint64_t call)
{
    perf_repeat(dst, count, set_of(in, in->rank, call), in->n_elems, perf_dtype_bytes(in->dtype));
}

static double combine(dscomm_op_t op, double a, double b)
{
    if (op == DSCOMM_MAX)
        return a > b ? a : b;
    if (op == DSCOMM_MIN)
        return a < b ? a : b;
    return a + b;
}

void perf_inputs_expect(struct perf_inputs *in, uint64_t call, int rank)
{
    const int first = rank == PERF_ALL_RANKS ? 0 : rank;

    in->n_summed = rank == PERF_ALL_RANKS ? in->n_ranks : 1;
    for (int k = 0; k < in->n_summed; k++) {
        const uint8_t *const set = set_of(in, first + k, call);

        for (size_t i = 0; i < in->n_elems; i++) {
            const double v = perf_load(in->dtype, set, i);

            in->want[i] = k == 0 ? v : combine(in->op, in->want[i], v);
            in->mag[i] = k == 0 ? fabs(v) : in->mag[i] + fabs(v);
        }
    }
    for (size_t i = 0; in->op == DSCOMM_AVG && i < in->n_elems; i++) {
        in->want[i] /= in->n_ranks;
        in->mag[i] /= in->n_ranks;
    }
}

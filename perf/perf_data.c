/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs. A source is a few sets of float32, for example the gradients of four ranks. From call to
 * call the sets move on by one rank, and in half of the calls all signs change: what an element
 * gets is new, but of the scale of its own layer, as in training. (A residual that meets another
 * layer's scale would look like a worse codec.) Data for a call are a copy, and its exact sum is a
 * small table.
 */
#include "perf.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* docs/gradient_data.md, "File format". */
struct grad_header {
    char magic[8];
    uint32_t n_ranks;
    uint32_t reserved;
    uint64_t elems_per_rank;
    uint32_t step;
    uint32_t crc32;
    uint64_t offset;
    uint8_t zeros[24];
};
_Static_assert(sizeof(struct grad_header) == 64, "the data start at byte 64");

#define MAX_SETS 1024u
#define MAX_ELEMS ((uint64_t)1 << 26)

/* More ranks than sets repeat them. A prime: repetitions meet blocks and chunks elsewhere. */
#define NORMAL_SETS 16
#define NORMAL_ELEMS 65521

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

/* ---- sources ---- */

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In (0, 1]: its logarithm is finite. */
static double uniform(uint64_t counter)
{
    return ((double)(splitmix64(counter) >> 11) + 1.0) * 0x1p-53;
}

static bool source_alloc(struct perf_source *source, const struct perf_args *args, size_t n_sets,
                         size_t n_elems)
{
    source->n_sets = n_sets;
    source->n_elems = n_elems;
    source->values = malloc(n_sets * n_elems * sizeof(float));
    if (source->values == NULL)
        perf_complain(args, "--data", args->data, "out of memory");
    return source->values != NULL;
}

static bool make_normal(struct perf_source *source, const struct perf_args *args)
{
    const double two_pi = 6.283185307179586;

    if (!source_alloc(source, args, NORMAL_SETS, NORMAL_ELEMS))
        return false;
    for (uint64_t i = 0; i < (uint64_t)NORMAL_SETS * NORMAL_ELEMS; i++) {
        const double radius = sqrt(-2.0 * log(uniform(2 * i)));
        source->values[i] = (float)(radius * cos(two_pi * uniform(2 * i + 1)));
    }
    (void)snprintf(source->text, sizeof(source->text), "normal: mean 0, deviation 1");
    return true;
}

/* What is wrong with a header, or NULL. */
static const char *header_problem(const struct grad_header *h)
{
    if (memcmp(h->magic, "DSCGRAD1", sizeof(h->magic)) != 0)
        return "not a .grad file: magic DSCGRAD1 is missing";
    if (h->n_ranks == 0 || h->n_ranks > MAX_SETS)
        return "number of ranks in the header is not 1 to 1024";
    if (h->elems_per_rank == 0 || h->elems_per_rank > MAX_ELEMS / h->n_ranks)
        return "number of elements in the header is not 1 to 2^26";
    return NULL;
}

/* ISA-L leaves the upper halves of vector registers in use, which slows down all SSE code after it.
 */
static uint32_t crc32_of(const void *data, size_t bytes)
{
    const uint32_t crc = crc32_gzip_refl(0, (const unsigned char *)data, bytes);

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper");
#endif
    return crc;
}

static const char *data_problem(const struct perf_source *source, const struct grad_header *h,
                                FILE *file)
{
    const size_t n = source->n_sets * source->n_elems;

    if (fread(source->values, sizeof(float), n, file) != n || fgetc(file) != EOF)
        return "length is not what the header says";
    if (crc32_of(source->values, n * sizeof(float)) != h->crc32)
        return "CRC-32 of the data is not the header's";
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(source->values[i]))
            return "a value is not finite";
    }
    return NULL;
}

static bool read_grad(struct perf_source *source, const struct perf_args *args, FILE *file,
                      const char *path)
{
    struct grad_header header = { 0 };
    const bool whole = fread(&header, sizeof(header), 1, file) == 1;
    const char *problem = whole ? header_problem(&header) : "shorter than a header";

    if (problem == NULL) {
        if (!source_alloc(source, args, header.n_ranks, header.elems_per_rank))
            return false;
        problem = data_problem(source, &header, file);
    }
    if (problem != NULL) {
        perf_complain(args, "--data", args->data, "%s: %s", path, problem);
        return false;
    }
    const char *const slash = strrchr(path, '/');
    (void)snprintf(source->text, sizeof(source->text), "%.100s: %zu x %zu elements, step %u",
                   slash != NULL ? slash + 1 : path, source->n_sets, source->n_elems, header.step);
    return true;
}

/* Installed: beside the program, so that the tree can be moved. Else the tree it was built from. */
static FILE *open_known(const struct perf_args *args, char *path, size_t path_bytes)
{
    char exe[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (n > 0) {
        exe[n] = '\0';
        *strrchr(exe, '/') = '\0';
        (void)snprintf(path, path_bytes, "%s/../share/dscomm/%s.grad", exe, args->data);
        FILE *const file = fopen(path, "rb");
        if (file != NULL)
            return file;
    }
    (void)snprintf(path, path_bytes, "%s/%s.grad", PERF_DATA_DIR, args->data);
    return fopen(path, "rb");
}

bool perf_source_init(struct perf_source *source, const struct perf_args *args)
{
    char path[PATH_MAX + 64];
    FILE *file;

    *source = (struct perf_source){ 0 };
    if (strcmp(args->data, "normal") == 0)
        return make_normal(source, args);
    if (strncmp(args->data, "file:", 5) == 0) {
        (void)snprintf(path, sizeof(path), "%s", args->data + 5);
        file = fopen(path, "rb");
    } else {
        file = open_known(args, path, sizeof(path));
    }
    if (file == NULL) {
        perf_complain(args, "--data", args->data, "%s: %s", path, strerror(errno));
        return false;
    }
    const bool ok = read_grad(source, args, file, path);
    (void)fclose(file);
    return ok;
}

void perf_source_fini(struct perf_source *source)
{
    free(source->values);
    source->values = NULL;
}

/* ---- inputs ---- */

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
    const size_t is_negative = splitmix64(call) & 1;
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

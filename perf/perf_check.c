/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is right. Three judgements per row: all ranks have the same bits (perf_measure.c); a call on
 * values that the codec carries exactly gives exactly the known result; on the real data the result
 * is within rounding of the float64 sum where nothing is lossy, else within the codec's bound.
 */
#include "perf.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum probe_kind {
    PROBE_NONE,  /* no values are known to pass unchanged */
    PROBE_SMALL, /* integers whose sum over ranks has at most 8 significant bits */
    /* Codes of a block format, the largest in every run of 16: the scales are exact. */
    PROBE_INT8,
    PROBE_INT4,
    PROBE_E4M3,
    PROBE_E5M2,
    PROBE_SPARSE, /* one element in a period, the rest 0: what top-k keeps is all there is */
    PROBE_NVFP4,
    PROBE_POWERS /* scales are powers of two: sums have to have few significant bits themselves */
};

struct codec_row {
    const char *name; /* a spec, or the family of specs that have no row */
    enum probe_kind probe;
    double
        max_err; /* relative L2, several times the nominal error of one encode; 0: only rounding */
};

static const struct codec_row codecs[] = {
    { "none", PROBE_SMALL, 0.0 },
    { "fp32", PROBE_SMALL, 1e-6 },
    { "fp16", PROBE_SMALL, 0.01 },
    { "bf16", PROBE_SMALL, 0.02 },
    { "int8", PROBE_INT8, 0.05 },
    { "int4", PROBE_INT4, 0.6 },
    { "fp8", PROBE_E4M3, 0.15 },
    { "fp8:e5m2", PROBE_E5M2, 0.3 },
    /*
     * A call lacks nearly all that is new and brings what has waited, which is as much again: 1.4
     * to 1.6 of the result, with a sender's and an owner's selection. What is wrong beyond that is
     * found by the probe.
     */
    { "topk", PROBE_SPARSE, 3.0 },
    { "int4:signed", PROBE_NONE, 0.6 }, /* codes from -8 on: other values than int4's are exact */
    { "mxfp8", PROBE_POWERS, 0.17 },
    { "mxfp8:e5m2", PROBE_POWERS, 0.3 },
    { "mxfp8:e5m2,ceil", PROBE_POWERS, 0.3 },
    { "mxfp4", PROBE_POWERS, 0.65 },
    { "mxint8", PROBE_POWERS, 0.06 },
    { "nvfp4", PROBE_NVFP4, 0.55 },
    { "lossless", PROBE_SMALL, 0.0 },
};
/* A codec this file does not know may at most lose as much as there is. */
static const struct codec_row unknown_codec = { "", PROBE_NONE, 1.0 };

/* Rounding of the data type itself, met again with feedback. */
static const double dtype_max_err[] = {
    [DSCOMM_FLOAT32] = 0.0,
    [DSCOMM_FLOAT16] = 0.01,
    [DSCOMM_BFLOAT16] = 0.02,
};

static const struct codec_row *find_codec(const dscomm_codec_t *codec)
{
    const char *const spec = dscomm_codec_spec(codec);
    const size_t n = strcspn(spec, ":,");
    const struct codec_row *family = &unknown_codec;

    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
        if (strcmp(codecs[i].name, spec) == 0)
            return &codecs[i];
        if (strlen(codecs[i].name) == n && strncmp(codecs[i].name, spec, n) == 0)
            family = &codecs[i];
    }
    return family;
}

/* ---- exact probe ---- */

#define PROBE_PERIOD 4080   /* of 16, 15 and 255 */
#define PROBE_UNIT 0x1p-10f /* of values whose sums would not fit float16 */

struct probe {
    size_t period;
    uint8_t values[4 * PROBE_PERIOD]; /* of the data type: every rank's input */
    uint8_t want[4 * PROBE_PERIOD];
};

/* Exact with the scale of the values: their largest code, or 1. */
static float sparse_value(const char *spec, size_t i)
{
    if (i != 0)
        return 0;
    return strstr(spec, ",int8") != NULL ? 127 : strstr(spec, ",fp8") != NULL ? 448 : 1;
}

/* A segment of 65536 elements has 17 periods; a message with 17 values has 96 bytes or more. */
static bool sends_probe(const dscomm_codec_t *codec, enum probe_kind kind)
{
    return kind != PROBE_NONE && (kind != PROBE_SPARSE || dscomm_codec_bound(codec, 65536) >= 96);
}

/* Element i of a block format's probe. */
static float code_value(enum probe_kind kind, size_t i)
{
    static const float e4m3[16] = { 0,   1,   -1,   2.5f, -2.5f, 7,   -7,   30,
                                    -30, 240, -240, .5f,  -.5f,  112, -112, 3.25f };
    static const float largest[] = {
        [PROBE_INT8] = 127,
        [PROBE_INT4] = 7,
        [PROBE_E4M3] = 448,
        [PROBE_E5M2] = 57344 * PROBE_UNIT,
        [PROBE_NVFP4] = 448 * 6 * PROBE_UNIT,
        [PROBE_POWERS] = 4,
    };
    static const float e2m1[16] = {
        0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6
    };
    static const float powers[5] = { 0, 1, -2, -1, 4 };

    if (i % 16 == 0)
        return largest[kind];
    switch (kind) {
    case PROBE_INT8:
        return (float)(i * 37 % 255) - 127;
    case PROBE_INT4:
        return (float)(i * 11 % 15) - 7;
    case PROBE_E4M3:
        return e4m3[(i * 5 + 3) % 16];
    case PROBE_NVFP4:
        return e2m1[(i * 5 + 3) % 16] * 448 * PROBE_UNIT;
    case PROBE_POWERS:
        return powers[i % 5];
    default: /* codes from -3.5 to 4 */
        return ((float)((i * 5 + 3) % 16) * 0.5f - 3.5f) * PROBE_UNIT;
    }
}

/* A sum of equal values that are powers of two has a code of two bits, E2M1's, if so many are
 * added. */
static bool sums_to_a_code(const struct perf_row *row, const struct perf_rank *pr)
{
    int n = pr->n_ranks;

    while (n % 2 == 0 && n > 0)
        n /= 2;
    return n == 1 || n == 3 || !pr->coll->reduces || row->op != DSCOMM_SUM;
}

static void make_probe(struct probe *probe, enum probe_kind kind, const struct perf_rank *pr,
                       const struct perf_row *row)
{
    const int half = pr->n_ranks <= 256 ? 256 / pr->n_ranks : 0;
    const bool is_sum = pr->coll->reduces && row->op == DSCOMM_SUM;
    const float factor = is_sum ? (float)pr->n_ranks : 1.0f;
    const char *const spec = dscomm_codec_spec(row->codec);

    probe->period = kind == PROBE_SMALL ? (size_t)(2 * half + 1) : PROBE_PERIOD;
    for (size_t i = 0; i < probe->period; i++) {
        const float value = kind == PROBE_SMALL    ? (float)((int)i - half)
                            : kind == PROBE_SPARSE ? sparse_value(spec, i)
                                                   : code_value(kind, i);

        perf_store(row->dtype, probe->values, i, value);
        perf_store(row->dtype, probe->want, i, factor * value);
    }
}

/* Of one part of the output. */
static int64_t count_wrong(const struct probe *probe, const struct perf_row *row, const void *out)
{
    const size_t elem_bytes = perf_dtype_bytes(row->dtype);
    int64_t n_bad = 0;

    for (size_t at = 0; at < row->count; at += probe->period) {
        const uint8_t *const got = (const uint8_t *)out + at * elem_bytes;
        const size_t left = row->count - at;
        const size_t n = left < probe->period ? left : probe->period;

        if (memcmp(got, probe->want, n * elem_bytes) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            n_bad += perf_load(row->dtype, got, i) != perf_load(row->dtype, probe->want, i);
    }
    return n_bad;
}

dscomm_status_t perf_check_probe(const struct perf_rank *pr, const struct perf_row *row,
                                 bool in_place, int64_t *n_wrong)
{
    const enum probe_kind kind = find_codec(row->codec)->probe;
    const size_t part_bytes = row->count * perf_dtype_bytes(row->dtype);
    uint8_t *send, *recv;
    struct probe probe;
    int64_t n_bad = 0;
    double us;

    /* Options such as ,hadamard: what they make of the probe's values is not exact. */
    if (kind == PROBE_NONE || !sends_probe(row->codec, kind) ||
        (kind != PROBE_SPARSE && kind != PROBE_POWERS &&
         strchr(dscomm_codec_spec(row->codec), ',') != NULL) ||
        (kind == PROBE_POWERS && !sums_to_a_code(row, pr)))
        return DSCOMM_OK;
    make_probe(&probe, kind, pr, row);
    perf_place(pr, row, in_place, &send, &recv);
    /* from every share's start: blocks begin there */
    for (size_t at = 0; at < perf_send_count(pr, row); at += row->count)
        perf_repeat(send + at * perf_dtype_bytes(row->dtype), row->count, probe.values,
                    probe.period, perf_dtype_bytes(row->dtype));
    PERF_TRY(pr->where->put(pr, row, in_place));
    PERF_TRY(pr->where->call(pr, row, in_place, &us));
    PERF_TRY(pr->where->get(pr, row, in_place));

    for (int i = 0; i < perf_n_parts(pr); i++)
        n_bad += count_wrong(&probe, row, recv + (size_t)i * part_bytes);
    if (n_bad > 0 && pr->rank == 0)
        (void)fprintf(stderr, "%s: %lld of %zu elements of the exact probe are wrong\n",
                      pr->args->program, (long long)n_bad, row->count);
    *n_wrong += n_bad;
    /* Rounding to a 16-bit output may have left a residual. */
    return row->feedback != NULL ? dscomm_feedback_reset(row->feedback) : DSCOMM_OK;
}

/* ---- real data ---- */

/*
 * Bound of a float32 sum in any order and of a division after it: a rounding per addition, each of
 * at most half an ulp of a partial sum, which the magnitudes bound. One more for the result itself.
 */
static double rounding_bound(double magnitude, int n_ranks)
{
    return (double)(n_ranks + 1) * (0.5 * FLT_EPSILON) * magnitude + FLT_TRUE_MIN;
}

struct sums {
    double err2, want2, typical2;
    int64_t n_outside; /* elements beyond the rounding bound */
};

/* A part of the output against the inputs' elements from `first` on. */
static void compare(struct sums *sums, const struct perf_inputs *in, size_t first, const void *out,
                    size_t count)
{
    double typical2 = 0.0;

    for (size_t i = 0, k = first % in->n_elems; i < count; i++) {
        const double err = perf_load(in->dtype, out, i) - in->want[k];

        sums->err2 += err * err;
        sums->want2 += in->want[k] * in->want[k];
        typical2 += in->typical[k];
        sums->n_outside += !(fabs(err) <= rounding_bound(in->mag[k], in->n_summed)); /* NaN too */
        k = k + 1 < in->n_elems ? k + 1 : 0;
    }
    sums->typical2 += in->op == DSCOMM_SUM ? typical2 * in->n_summed : typical2;
}

/*
 * Relative to the result, or, where the result of this call is smaller, to what it would be on
 * average if ranks were independent: a short vector may sum up to nothing, and what feedback then
 * brings from the calls before is not an error without bound.
 */
static double relative_error(const struct sums *sums)
{
    return sums->err2 == 0.0 ? 0.0 : sqrt(sums->err2 / fmax(sums->want2, sums->typical2));
}

void perf_check_output(const struct perf_rank *pr, const struct perf_row *row, const void *out,
                       uint64_t call, double *err_out, int64_t *n_wrong)
{
    const double codec_err = find_codec(row->codec)->max_err;
    const double dtype_err = dtype_max_err[row->dtype];
    const double limit = codec_err > dtype_err ? codec_err : dtype_err;
    const size_t part_bytes = row->count * perf_dtype_bytes(row->dtype);
    struct sums sums = { 0 };

    for (int i = 0; i < perf_n_parts(pr); i++) {
        const struct perf_part part = perf_part(pr, row, i);

        perf_inputs_expect(row->in, call, part.rank);
        compare(&sums, row->in, part.first, (const uint8_t *)out + (size_t)i * part_bytes,
                row->count);
    }
    *err_out = relative_error(&sums);
    const bool ok = limit == 0.0 ? sums.n_outside == 0 : *err_out <= limit;
    if (ok)
        return;
    *n_wrong += limit == 0.0 ? sums.n_outside : (int64_t)row->count;
    if (pr->rank == 0)
        (void)fprintf(stderr, "%s: codec %s, %zu elements: error %.3g, allowed %s%.3g\n",
                      pr->args->program, dscomm_codec_spec(row->codec), row->count, *err_out,
                      limit == 0.0 ? "rounding " : "", limit == 0.0 ? 0.5 * FLT_EPSILON : limit);
}

uint64_t perf_hash(uint64_t seed, const void *bytes, size_t n_bytes)
{
    const uint8_t *p = bytes;
    uint64_t hash = seed ^ n_bytes;

    while (n_bytes > 0) {
        const size_t n = n_bytes < sizeof(uint64_t) ? n_bytes : sizeof(uint64_t);
        uint64_t word = 0;

        memcpy(&word, p, n);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
        p += n;
        n_bytes -= n;
    }
    return hash;
}

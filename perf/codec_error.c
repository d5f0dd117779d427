/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one encode of every codec loses: on the frozen gradients, and on made-up vectors that are
 * each hard for something. One line per codec and set, fields separated by tabs:
 *
 *     codec  set  relative L2 error  cosine  float32 bytes over message bytes  nominal error
 *
 * docs/figures/draw_codecs.py makes docs/codecs.md from it.
 */
#include "codec/codec.h"
#include "perf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ELEMS 65536u /* of a made-up set */

/* ---- random numbers: the same everywhere ---- */

struct random {
    uint64_t state;
};

/* In (0, 1). */
static double uniform(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

static double normal(struct random *r)
{
    const double radius = sqrt(-2.0 * log(uniform(r)));

    return radius * cos(2.0 * acos(-1.0) * uniform(r));
}

static double sign(struct random *r)
{
    return uniform(r) < 0.5 ? -1.0 : 1.0;
}

/* ---- made-up sets: element i ---- */

static double make_normal(struct random *r, size_t i)
{
    (void)i;
    return normal(r);
}

static double make_outliers_10(struct random *r, size_t i)
{
    return normal(r) * (i % 100 == 50 ? 10.0 : 1.0);
}

static double make_outliers_1000(struct random *r, size_t i)
{
    return normal(r) * (i % 1000 == 500 ? 1000.0 : 1.0);
}

static double make_laplace(struct random *r, size_t i)
{
    (void)i;
    return sign(r) * -log(uniform(r));
}

/* Student's t with three degrees of freedom. */
static double make_heavy_tail(struct random *r, size_t i)
{
    double square = 0.0;

    (void)i;
    for (int k = 0; k < 3; k++) {
        const double z = normal(r);

        square += z * z;
    }
    return normal(r) / sqrt(square / 3.0);
}

static double make_sparse(struct random *r, size_t i)
{
    const double x = normal(r);

    (void)i;
    return uniform(r) < 0.9 ? 0.0 : x;
}

static double make_log_uniform(struct random *r, size_t i)
{
    (void)i;
    return sign(r) * exp2(-40.0 + 60.0 * uniform(r));
}

static double make_lone(struct random *r, size_t i)
{
    return i % 256 == 77 ? normal(r) : 0.0;
}

static double make_subnormal(struct random *r, size_t i)
{
    (void)i;
    return normal(r) * 0x1p-130;
}

static double make_ramp(struct random *r, size_t i)
{
    (void)r;
    return (double)i / ELEMS;
}

static double make_alternating(struct random *r, size_t i)
{
    (void)r;
    return i % 2 == 0 ? 1.0 : -1.0;
}

static const struct set {
    const char *name;
    double (*make)(struct random *r, size_t i); /* NULL: the gradients of that name */
} sets[] = {
    { "lm", NULL },
    { "cnn", NULL },
    { "normal", make_normal },
    { "1 in 100 times 10", make_outliers_10 },
    { "1 in 1000 times 1000", make_outliers_1000 },
    { "Laplace", make_laplace },
    { "t, nu = 3", make_heavy_tail },
    { "90 % zeros", make_sparse },
    { "2^-40 to 2^20", make_log_uniform },
    { "1 in 256 not zero", make_lone },
    { "subnormal", make_subnormal },
    { "ramp", make_ramp },
    { "alternating", make_alternating },
};

/* ---- measuring ---- */

struct sums {
    double err2, x2, d2, xd;
    size_t elems, message_bytes;
};

/* Encodes n elements as one message. */
static bool add_errors(struct sums *s, const struct dsc_codec *codec, const float *x, size_t n)
{
    const size_t bytes = dscomm_codec_bound(codec, n);
    uint8_t *const message = dsc_calloc(DSC_MEM_CODEC, 1, bytes);
    float *const d = dsc_calloc(DSC_MEM_CODEC, n, sizeof(*d));
    size_t written = 0;
    bool ok = message != NULL && d != NULL &&
              dscomm_encode(codec, message, bytes, x, n, &written) == DSCOMM_OK &&
              dscomm_decode(codec, d, n, message, written) == DSCOMM_OK;

    for (size_t i = 0; ok && i < n; i++) {
        s->err2 += ((double)x[i] - (double)d[i]) * ((double)x[i] - (double)d[i]);
        s->x2 += (double)x[i] * (double)x[i];
        s->d2 += (double)d[i] * (double)d[i];
        s->xd += (double)x[i] * (double)d[i];
    }
    s->elems += n;
    s->message_bytes += written;
    dsc_free(message);
    dsc_free(d);
    return ok;
}

static void print_line(const struct dsc_codec *codec, const char *set, const struct sums *s)
{
    const double cosine = s->d2 > 0.0 ? s->xd / sqrt(s->x2 * s->d2) : 0.0;

    if (isfinite(s->d2))
        (void)printf("%s\t%s\t%.3g\t%.6f", codec->spec, set, sqrt(s->err2 / s->x2), cosine);
    else
        (void)printf("%s\t%s\toverflow\t-", codec->spec, set);
    (void)printf("\t%.2f\t%g\n", (double)s->elems * sizeof(float) / (double)s->message_bytes,
                 1e-6 * codec->e0_ppm);
}

/* values: n_vectors of n elements, a message each. */
static bool run_codecs(const char *name, const float *values, size_t n_vectors, size_t n)
{
    size_t n_specs;
    const char *const *const specs = dsc_codec_test_specs(&n_specs);

    for (size_t i = 0; i < n_specs; i++) {
        const struct dsc_codec *const codec = dscomm_codec(specs[i]);
        struct sums sums = { 0 };

        for (size_t v = 0; v < n_vectors; v++)
            if (!add_errors(&sums, codec, values + v * n, n))
                return false;
        print_line(codec, name, &sums);
    }
    return true;
}

static bool run_gradients(const char *name)
{
    const struct perf_args args = { .program = "codec_error", .data = name };
    struct perf_source source;
    bool ok;

    if (!perf_source_init(&source, &args))
        return false;
    ok = run_codecs(name, source.values, source.n_sets, source.n_elems);
    perf_source_fini(&source);
    return ok;
}

static bool run_made_up(const struct set *set)
{
    static float values[ELEMS];
    struct random r = { 1 };

    for (size_t i = 0; i < ELEMS; i++)
        values[i] = (float)set->make(&r, i);
    return run_codecs(set->name, values, 1, ELEMS);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        (void)fprintf(stderr, "codec_error: takes no argument, got %s\n", argv[1]);
        return 2;
    }
    for (size_t i = 0; i < DSC_ARRAY_LEN(sets); i++)
        if (!(sets[i].make == NULL ? run_gradients(sets[i].name) : run_made_up(&sets[i])))
            return 1;
    return 0;
}

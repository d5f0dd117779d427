/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the codecs on one core at the instruction set that the process has. Residuals lie as the
 * library has them: one vector is read, another written, and those of long calls are streamed. The
 * steps of a row are timed in turn, round by round, so that a slow moment of the machine meets all
 * of them; each figure is the median of its rounds.
 */
#include "codec_perf.h"
#include "codec/codec.h"
#include "perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_NS 300000u /* a timed step repeats until it takes about this long */

/* Four arrays of the first fit a 1 MiB second-level cache; the second is far beyond any cache. */
static const struct {
    const char *name;
    size_t bytes;
} default_sizes[] = { { "L2", 128u << 10 }, { "DRAM", 64u << 20 } };

/* What calls send at most in a message, about. */
#define CHUNK_ELEMS 65536
/*
 * The largest message of at most so many elements: 16-element blocks have 5 bytes for 4 elements,
 * fp32 has 16, and lossless tables and headers.
 */
#define MESSAGE_MAX(n) ((n) * sizeof(float) + 1024)

struct work {
    const struct dsc_codec *codec;
    size_t n;
    float *v, *r, *r_out;
    struct dsc_msg msg;   /* memory of a message and its elements, at most CHUNK_ELEMS */
    uint32_t *thresholds; /* of each chunk, for codecs that reuse them */
    unsigned flags;       /* what the library would pass for this size */
};

struct figures {
    double gbps[5], to_memcpy[5]; /* [N_STEPS] */
};

static void step_memcpy(const struct work *w)
{
    memcpy(w->r_out, w->v, w->n * sizeof(float));
    __asm__ volatile("" : : "r"(w->r_out) : "memory");
}

/*
 * A call's messages are chunks in slots that are used again and again, so a long vector here goes
 * through one message, too. Runs `step` for every chunk.
 */
static void each_chunk(const struct work *w,
                       void (*step)(const struct work *w, size_t at, size_t n))
{
    for (size_t at = 0; at < w->n; at += w->msg.n)
        step(w, at, dsc_min_size(w->msg.n, w->n - at));
}

/* The message to encode into. Thresholds are there to be reused, one per chunk. */
static struct dsc_msg own_message(const struct work *w, size_t at, size_t n)
{
    return (struct dsc_msg){ .bytes = w->msg.bytes,
                             .n = n,
                             .thresholds =
                                 w->codec->reuses ? w->thresholds + at / CHUNK_ELEMS : NULL };
}

static void encode_chunk(const struct work *w, size_t at, size_t n)
{
    const struct dsc_msg msg = own_message(w, at, n);

    w->codec->ops->encode(w->codec, &msg, 0, n, w->v + at, NULL);
}

static void encode_feedback_chunk(const struct work *w, size_t at, size_t n)
{
    const struct dsc_msg msg = own_message(w, at, n);

    w->codec->ops->encode_feedback(w->codec, &msg, 0, n, w->v + at, w->r + at, 1.0f, w->r_out + at,
                                   w->flags);
}

static void decode_chunk(const struct work *w, size_t at, size_t n)
{
    const struct dsc_msg msg = { .bytes = w->msg.bytes, .n = n };

    w->codec->ops->decode(w->codec, &msg, 0, n, w->r_out + at, w->flags);
}

static void decode_add_chunk(const struct work *w, size_t at, size_t n)
{
    const struct dsc_msg msg = { .bytes = w->msg.bytes, .n = n };

    w->codec->ops->decode_add(w->codec, &msg, 0, n, w->r_out + at);
}

static void step_encode(const struct work *w)
{
    each_chunk(w, encode_chunk);
}

static void step_encode_feedback(const struct work *w)
{
    each_chunk(w, encode_feedback_chunk);
}

static void step_decode(const struct work *w)
{
    each_chunk(w, decode_chunk);
}

static void step_decode_add(const struct work *w)
{
    each_chunk(w, decode_add_chunk);
}

/* Order of the columns. decode comes before decode_add, which needs sensible numbers to add to. */
static void (*const steps[])(const struct work *) = {
    step_encode, step_encode_feedback, step_decode, step_decode_add, step_memcpy,
};
#define N_STEPS DSC_ARRAY_LEN(steps)

static uint64_t time_ns(void (*step)(const struct work *), const struct work *w, size_t repeats)
{
    const uint64_t start_ns = dsc_now_ns();

    for (size_t i = 0; i < repeats; i++)
        step(w);
    return dsc_now_ns() - start_ns;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(values[0]), compare_doubles);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

static void measure(const struct work *w, int rounds, struct figures *out)
{
    static double gbps[N_STEPS][CODEC_PERF_ROUNDS_MAX], to_memcpy[N_STEPS][CODEC_PERF_ROUNDS_MAX];
    size_t repeats[N_STEPS];
    const double bytes = (double)(w->n * sizeof(float));

    for (size_t s = 0; s < N_STEPS; s++) {
        const uint64_t once_ns = time_ns(steps[s], w, 1) + 1;

        repeats[s] = (size_t)(ROUND_NS / once_ns) + 1;
    }
    for (int round = 0; round < rounds; round++) {
        for (size_t s = 0; s < N_STEPS; s++) {
            steps[s](w); /* brings its own operands into the cache again */
            gbps[s][round] =
                bytes * (double)repeats[s] / (double)(time_ns(steps[s], w, repeats[s]) + 1);
        }
        for (size_t s = 0; s < N_STEPS; s++)
            to_memcpy[s][round] = gbps[s][round] / gbps[N_STEPS - 1][round];
    }
    for (size_t s = 0; s < N_STEPS; s++) {
        out->gbps[s] = median(gbps[s], rounds);
        out->to_memcpy[s] = median(to_memcpy[s], rounds);
    }
}

static bool work_init(struct work *w, const struct perf_source *source, size_t n)
{
    const size_t wide = n * sizeof(float), chunk = dsc_min_size(n, CHUNK_ELEMS);

    w->n = n;
    w->flags = wide >= DSC_STREAM_BYTES ? DSC_STREAM : 0;
    w->v = dsc_calloc(DSC_MEM_CODEC, 1, wide);
    w->r = dsc_calloc(DSC_MEM_CODEC, 1, wide);
    w->r_out = dsc_calloc(DSC_MEM_CODEC, 1, wide);
    w->msg =
        (struct dsc_msg){ .bytes = dsc_calloc(DSC_MEM_CODEC, 1, MESSAGE_MAX(chunk)), .n = chunk };
    w->thresholds = dsc_calloc(DSC_MEM_CODEC, dsc_ceil_div(n, CHUNK_ELEMS), sizeof(uint32_t));
    if (w->v == NULL || w->r == NULL || w->r_out == NULL || w->msg.bytes == NULL ||
        w->thresholds == NULL)
        return false;
    perf_repeat(w->v, n, source->values, source->n_sets * source->n_elems, sizeof(float));
    return true;
}

/* The residual of a second call: what one encode left. Every page is touched on the way. */
static void work_use(struct work *w, const struct dsc_codec *codec)
{
    w->codec = codec;
    memset(w->r, 0, w->n * sizeof(float));
    memset(w->msg.bytes, 0, MESSAGE_MAX(w->msg.n));
    step_encode_feedback(w);
    memcpy(w->r, w->r_out, w->n * sizeof(float));
}

static void work_fini(struct work *w)
{
    dsc_free(w->v);
    dsc_free(w->r);
    dsc_free(w->r_out);
    dsc_free(w->msg.bytes);
    dsc_free(w->thresholds);
}

/* Of the whole vector; where the size hangs on the data, of the messages that each_chunk() makes.
 */
static size_t wire_bytes_of(const struct work *w)
{
    size_t bytes = 0;

    if (!w->codec->variable)
        return dsc_codec_message_bytes(w->codec, w->n);
    for (size_t at = 0; at < w->n; at += w->msg.n) {
        const struct dsc_msg msg = { .bytes = w->msg.bytes,
                                     .n = dsc_min_size(w->msg.n, w->n - at) };

        encode_chunk(w, at, msg.n);
        bytes += dsc_codec_used_bytes(w->codec, &msg);
    }
    return bytes;
}

static void print_row(const struct work *w, const char *name, const char *level, int rounds)
{
    const size_t bytes = w->n * sizeof(float);
    const size_t wire_bytes = wire_bytes_of(w);
    struct figures f;

    measure(w, rounds, &f);
    (void)printf("%-23s %-6s %10zu %6.2f", name, level, bytes, (double)bytes / (double)wire_bytes);
    for (size_t s = 0; s < N_STEPS - 1; s++)
        (void)printf(" %7.1f %5.2f", f.gbps[s], f.to_memcpy[s]);
    (void)printf(" %7.1f\n", f.gbps[N_STEPS - 1]);
    (void)fflush(stdout);
}

static void print_head(const char *name, size_t bytes)
{
    (void)printf("# %s%sarrays of %zu KiB, working set up to %zu KiB: v, r, r_out, message%s\n",
                 name, name[0] != '\0' ? ": " : "", bytes >> 10, 4 * bytes >> 10,
                 bytes >= DSC_STREAM_BYTES ? "; r_out streamed" : "");
    (void)printf("# %-21s %-6s %10s %6s %7s %5s %7s %5s %7s %5s %7s %5s %7s\n", "codec", "level",
                 "bytes", "ratio", "encode", "x", "enc+fb", "x", "decode", "x", "dec+add", "x",
                 "memcpy");
}

static int run_size(const char *name, size_t bytes, const struct perf_source *source,
                    const struct codec_perf_options *opt, const char *level)
{
    struct work w = { 0 };
    size_t n_specs;
    const char *const *const specs = dsc_codec_test_specs(&n_specs);

    if (!work_init(&w, source, bytes / sizeof(float))) {
        (void)fprintf(stderr, "codec_perf: no memory for arrays of %zu bytes\n", bytes);
        work_fini(&w);
        return 1;
    }
    print_head(name, bytes);
    for (size_t i = 0; i < (opt->codec != NULL ? 1 : n_specs); i++) {
        const struct dsc_codec *const codec =
            dscomm_codec(opt->codec != NULL ? opt->codec : specs[i]);

        work_use(&w, codec);
        print_row(&w, codec->spec, level, opt->rounds);
        if (!codec->by_dtype || !codec->variable)
            continue;
        work_use(&w, dsc_codec_resolve(codec, DSCOMM_BFLOAT16)); /* half the bytes to pack */
        print_row(&w, "lossless of bf16", level, opt->rounds);
    }
    work_fini(&w);
    return 0;
}

int codec_perf_host(const struct codec_perf_options *opt, const char *level)
{
    const struct perf_args args = { .program = "codec_perf", .data = opt->data };
    struct perf_source source;
    int rc = 0;

    if (!perf_source_init(&source, &args))
        return 1;
    if (opt->bytes != 0)
        rc = run_size("", opt->bytes, &source, opt, level);
    for (size_t i = 0; opt->bytes == 0 && rc == 0 && i < DSC_ARRAY_LEN(default_sizes); i++)
        rc = run_size(default_sizes[i].name, default_sizes[i].bytes, &source, opt, level);
    perf_source_fini(&source);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the codecs on one core, as GB/s of float32 elements, beside memcpy of the same bytes, on
 * gradients. Residuals lie as the library has them: one vector is read, another written, and those
 * of long calls are streamed. The steps of a row are timed in turn, round by round, so that a slow
 * moment of the machine meets all of them; each figure is the median of its rounds. The instruction
 * set is chosen once per process, so every level runs in a child of its own.
 */
#include "codec_perf.h"
#include "codec/codec.h"
#include "perf.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS_DEFAULT 9
#define ROUNDS_MAX 1000
#define BYTES_MAX ((size_t)1 << 32)
#define ROUND_NS 300000u /* a timed step repeats until it takes about this long */

/* Four arrays of the first fit a 1 MiB second-level cache; the second is far beyond any cache. */
static const struct {
    const char *name;
    size_t bytes;
} default_sizes[] = { { "L2", 128u << 10 }, { "DRAM", 64u << 20 } };

static const struct {
    const char *name;
    const char *cpu_mask; /* DSCOMM_CPU_MASK */
    uint32_t needs;
} levels[] = {
    { "c", "0", 0 },
#if defined(__aarch64__)
    { "neon", "4", DSC_CPU_NEON },
#else
    { "avx2", "1", DSC_CPU_AVX2 },
    { "avx512", "3", DSC_CPU_AVX2 | DSC_CPU_AVX512 },
#endif
};

/* What calls send at most in a message, about. */
#define CHUNK_ELEMS 65536
/*
 * The largest message of at most so many elements: 16-element blocks have 5 bytes for 4 elements,
 * fp32 has 16, and lossless tables and headers.
 */
#define MESSAGE_MAX(n) ((n) * sizeof(float) + 1024)

struct options {
    size_t bytes; /* 0: default_sizes */
    int rounds;
    const char *data;  /* as of all_reduce_perf */
    const char *codec; /* NULL: all */
    const char *level; /* NULL: all */
    bool on_cuda;
};

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
    static double gbps[N_STEPS][ROUNDS_MAX], to_memcpy[N_STEPS][ROUNDS_MAX];
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
                    const struct options *opt, const char *level)
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

static int run_sizes(const struct options *opt, const char *level)
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

/* In a child: nothing has asked for the kernels yet. */
static int run_level(size_t level, const struct options *opt)
{
    if (setenv("DSCOMM_CPU_MASK", levels[level].cpu_mask, 1) != 0)
        return 1;
    dsc_env_reload();
    if ((levels[level].needs & ~dsc_cpu_features()) != 0) {
        (void)printf("# level %s: not in this CPU\n", levels[level].name);
        return 0;
    }
    (void)dsc_fp_enter();
    return run_sizes(opt, levels[level].name);
}

static int run_level_in_child(size_t level, const struct options *opt)
{
    int status;

    (void)fflush(stdout);

    const pid_t pid = fork();

    if (pid == 0) {
        const int rc = run_level(level, opt);

        (void)fflush(stdout);
        _exit(rc);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("codec_perf: fork");
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int usage(const char *why)
{
    (void)fprintf(
        stderr,
        "codec_perf: %s\n"
        "usage: codec_perf [-b BYTES] [-n ROUNDS] [--codec SPEC] [--level c|avx2|avx512|neon]\n"
        "                  [--data lm|cnn|normal|file:PATH] [--device host|cuda]\n"
        "  -b  float32 bytes per message, 4 to 4G, suffixes K M G; default 128K and 64M\n"
        "  -n  rounds whose median is shown, 1 to %d; default %d\n",
        why, ROUNDS_MAX, ROUNDS_DEFAULT);
    return 2;
}

/* 0 when the text is not a number of bytes within 4 to BYTES_MAX. */
static size_t parse_bytes(const char *text)
{
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *const units = "KMG";
    const char *const unit = *end != '\0' ? strchr(units, *end) : NULL;
    const unsigned shift = unit != NULL ? 10u * (unsigned)(unit - units + 1) : 0;

    if (text[0] < '0' || text[0] > '9' || end[unit != NULL] != '\0' || value > BYTES_MAX >> shift)
        return 0;
    return (size_t)value << shift >= sizeof(float) ? (size_t)value << shift : 0;
}

static bool is_level(const char *name)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++) {
        if (strcmp(name, levels[i].name) == 0)
            return true;
    }
    return false;
}

static bool is_data(const char *name)
{
    return strcmp(name, "lm") == 0 || strcmp(name, "cnn") == 0 || strcmp(name, "normal") == 0 ||
           strncmp(name, "file:", 5) == 0;
}

/* NULL, or what is wrong. */
static const char *parse_options(int argc, char **argv, struct options *opt)
{
    static const struct option longs[] = {
        { "codec", required_argument, NULL, 'c' },
        { "level", required_argument, NULL, 'l' },
        { "data", required_argument, NULL, 'd' },
        { "device", required_argument, NULL, 'D' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "b:n:", longs, NULL)) != -1) {
        if (c == 'b' && (opt->bytes = parse_bytes(optarg)) == 0)
            return "-b takes a number of bytes";
        if (c == 'n' && ((opt->rounds = atoi(optarg)) < 1 || opt->rounds > ROUNDS_MAX))
            return "-n takes a number of rounds";
        if (c == 'c' && dscomm_codec(opt->codec = optarg) == NULL)
            return dscomm_last_error();
        if (c == 'l' && !is_level(opt->level = optarg))
            return "--level takes c, avx2, avx512 or neon";
        if (c == 'd' && !is_data(opt->data = optarg))
            return "--data takes lm, cnn, normal or file:PATH";
        if (c == 'D' && !(opt->on_cuda = strcmp(optarg, "cuda") == 0) &&
            strcmp(optarg, "host") != 0)
            return "--device takes host or cuda";
        if (c == '?')
            return "unknown option, or one without its value";
    }
    if (opt->on_cuda && opt->level != NULL)
        return "--level is of the host's CPU";
    return optind == argc ? NULL : "takes options only";
}

int main(int argc, char **argv)
{
    struct options opt = { .rounds = ROUNDS_DEFAULT, .data = "lm" };
    const char *const why = parse_options(argc, argv, &opt);
    int rc = 0;

    if (why != NULL)
        return usage(why);
    if (opt.on_cuda)
        return codec_perf_cuda(opt.codec, opt.bytes, opt.rounds);
    (void)printf(
        "# GB/s of float32 elements on one core, median of %d rounds; x: times memcpy of the "
        "same bytes in the same rounds; data %s\n",
        opt.rounds, opt.data);
    for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++) {
        if (opt.level == NULL || strcmp(opt.level, levels[i].name) == 0)
            rc |= run_level_in_child(i, &opt);
    }
    return rc;
}

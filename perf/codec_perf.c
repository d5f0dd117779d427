/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the codecs on one core, as GB/s of float32 elements, beside memcpy of the same bytes, on
 * gradients. The instruction set is chosen once per process, so every level runs in a child of its
 * own.
 */
#include "codec_perf.h"
#include "codec/codec.h"
#include "perf_values.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS_DEFAULT 9
#define BYTES_MAX ((size_t)1 << 32)

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

/* In a child: nothing has asked for the kernels yet. */
static int run_level(size_t level, const struct codec_perf_options *opt)
{
    if (setenv("DSCOMM_CPU_MASK", levels[level].cpu_mask, 1) != 0)
        return 1;
    dsc_env_reload();
    if ((levels[level].needs & ~dsc_cpu_features()) != 0) {
        (void)printf("# level %s: not in this CPU\n", levels[level].name);
        return 0;
    }
    (void)dsc_fp_enter();
    return codec_perf_host(opt, levels[level].name);
}

static int run_level_in_child(size_t level, const struct codec_perf_options *opt)
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
        why, CODEC_PERF_ROUNDS_MAX, ROUNDS_DEFAULT);
    return 2;
}

static bool is_level(const char *name)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++) {
        if (strcmp(name, levels[i].name) == 0)
            return true;
    }
    return false;
}

/* NULL, or what is wrong. */
static const char *parse_options(int argc, char **argv, struct codec_perf_options *opt)
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
        if (c == 'b' && !perf_parse_bytes(optarg, sizeof(float), BYTES_MAX, &opt->bytes))
            return "-b takes a number of bytes";
        if (c == 'n' && !perf_parse_int(optarg, 1, CODEC_PERF_ROUNDS_MAX, &opt->rounds))
            return "-n takes a number of rounds";
        if (c == 'c' && dscomm_codec(opt->codec = optarg) == NULL)
            return dscomm_last_error();
        if (c == 'l' && !is_level(opt->level = optarg))
            return "--level takes c, avx2, avx512 or neon";
        if (c == 'd' && !perf_is_data(opt->data = optarg))
            return "--data takes " PERF_DATA;
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
    struct codec_perf_options opt = { .rounds = ROUNDS_DEFAULT, .data = "lm" };
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the rows of check_rows.c on every level this CPU has, then the tests outside the table.
 * Level c is compared with itself, which still checks placement, shared operands and guard bytes.
 */
#include "check/check.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED_DEFAULT 20240229u

static const struct {
    const char *name;
    uint32_t cpu; /* what it needs */
} levels[] = {
    { "c", 0 },
#if defined(__aarch64__)
    { "neon", DSC_CPU_NEON },
#else
    { "avx2", DSC_CPU_AVX2 },
    { "avx512", DSC_CPU_AVX2 | DSC_CPU_AVX512 },
#endif
};

struct options {
    const char *test;  /* part of a name; NULL: all */
    const char *level; /* NULL: all */
    uint64_t seed;
    bool is_bench, is_list;
};

struct tally {
    int passed, failed, skipped, inherited;
};

static void *slot_of(const struct dsc_kernels *k, const struct check_row *row)
{
    void *fn;

    memcpy(&fn, (const char *)k + row->slot, sizeof(fn));
    return fn;
}

static bool is_wanted(const struct options *opt, const char *name)
{
    return opt->test == NULL || strstr(name, opt->test) != NULL;
}

/* Whether the level has nothing of its own here: the spelling of a lower level, checked there. */
static bool is_inherited(const struct check_row *row, size_t level, const struct dsc_kernels *got)
{
    struct dsc_kernels below;

    if (level == 0)
        return false;
    dsc_kernels_init(&below, levels[level - 1].cpu);
    return slot_of(&below, row) == slot_of(got, row);
}

static void check_row_at(const struct check_row *row, size_t level, const struct options *opt,
                         struct tally *tally)
{
    struct dsc_kernels ref, got;
    struct check_difference diff;

    dsc_kernels_init(&ref, 0);
    dsc_kernels_init(&got, levels[level].cpu);
    if (is_inherited(row, level, &got)) {
        tally->inherited++;
        return;
    }
    if (opt->is_bench) {
        (void)printf("%-22s %-6s %7.1f GB/s\n", row->name, levels[level].name,
                     check_bench(row, &got, row->block != 0 ? row->block : 256));
        return;
    }
    if (check_compare(row, &ref, &got, opt->seed, &diff)) {
        tally->passed++;
        return;
    }
    tally->failed++;
    (void)fprintf(stderr, "FAILED %s.%s --seed=%llu: %s\n", row->name, levels[level].name,
                  (unsigned long long)opt->seed, diff.text);
}

static const char *why_missing(uint32_t missing)
{
    const struct dsc_env *env;

    if (dsc_env_get(&env) >= 0 && (missing & (uint32_t)env->cpu_mask) != missing)
        return "masked by DSCOMM_CPU_MASK";
    return "not in this CPU";
}

static void check_level(size_t level, const struct options *opt, struct tally *tally)
{
    const uint32_t missing = levels[level].cpu & ~dsc_cpu_features();

    tally->inherited = 0;
    for (size_t i = 0; i < check_n_rows; i++) {
        if (!is_wanted(opt, check_rows[i].name))
            continue;
        if (opt->is_list)
            (void)printf("%s.%s\n", check_rows[i].name, levels[level].name);
        else if (missing != 0)
            tally->skipped++;
        else
            check_row_at(&check_rows[i], level, opt, tally);
    }
    if (missing != 0 && !opt->is_list)
        (void)printf("skipped level %s: %s\n", levels[level].name, why_missing(missing));
    if (tally->inherited > 0)
        (void)printf("level %s: %d rows run a lower level's code\n", levels[level].name,
                     tally->inherited);
}

static void run_tests(const struct check_test *tests, size_t n, const struct options *opt,
                      struct tally *tally)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(opt, tests[i].name))
            continue;
        if (opt->is_list) {
            (void)printf("%s\n", tests[i].name);
            continue;
        }

        const int result = tests[i].run(opt->seed);

        tally->passed += result > 0;
        tally->skipped += result < 0;
        tally->failed += result == 0;
        if (result == 0)
            (void)fprintf(stderr, "FAILED %s --seed=%llu\n", tests[i].name,
                          (unsigned long long)opt->seed);
    }
}

static int usage(const char *name)
{
    (void)fprintf(stderr,
                  "usage: %s [--test=PART] [--level=c|avx2|avx512] [--seed=N] [--bench] [--list]\n",
                  name);
    return 2;
}

static bool parse_options(int argc, char **argv, struct options *opt)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "level", required_argument, NULL, 'l' },
        { "seed", required_argument, NULL, 's' }, { "bench", no_argument, NULL, 'b' },
        { "list", no_argument, NULL, 'L' },       { NULL, 0, NULL, 0 },
    };
    bool is_level = true;
    char *end = NULL;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 't') {
            opt->test = optarg;
        } else if (c == 'l') {
            opt->level = optarg;
            is_level = false;
            for (size_t i = 0; i < DSC_ARRAY_LEN(levels); i++)
                is_level |= strcmp(optarg, levels[i].name) == 0;
        } else if (c == 's') {
            opt->seed = strtoull(optarg, &end, 0);
        } else if (c == 'b') {
            opt->is_bench = true;
        } else if (c == 'L') {
            opt->is_list = true;
        } else {
            return false;
        }
    }
    return is_level && optind == argc && (end == NULL || *end == '\0');
}

int main(int argc, char **argv)
{
    struct options opt = { .seed = SEED_DEFAULT };
    struct tally tally = { 0, 0, 0, 0 };

    if (!parse_options(argc, argv, &opt))
        return usage(argv[0]);

    const uint32_t saved = dsc_fp_enter();

    for (size_t level = 0; level < DSC_ARRAY_LEN(levels); level++) {
        if (opt.level == NULL || strcmp(opt.level, levels[level].name) == 0)
            check_level(level, &opt, &tally);
    }
    if (!opt.is_bench) {
        run_tests(check_self_tests, check_n_self_tests, &opt, &tally);
        run_tests(check_mode_tests, check_n_mode_tests, &opt, &tally);
    }
    dsc_fp_leave(saved);
    if (opt.is_list || opt.is_bench)
        return 0;
    if (tally.passed + tally.failed + tally.skipped + tally.inherited == 0) {
        (void)fprintf(stderr, "no test has \"%s\" in its name\n", opt.test);
        return 2;
    }
    (void)printf("seed %llu\n", (unsigned long long)opt.seed);
    (void)printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
    if (tally.failed > 0)
        return 1;
    return tally.passed == 0 ? 77 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a command line by the table of options: values, --help, and what is wrong with the rest.
 */
#include "perf_options.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

static const char *allowed_text(const struct perf_option *o, char *buf, size_t buf_bytes)
{
    if (o->allowed != NULL)
        return o->allowed;
    (void)snprintf(buf, buf_bytes, "%llu to %llu", (unsigned long long)o->min,
                   (unsigned long long)o->max);
    return buf;
}

static void print_help(const struct perf_args *args)
{
    printf("Usage: %s [options]\n\n", args->program);
    for (size_t i = 0; i < perf_n_options(); i++) {
        const struct perf_option *const o = perf_option(i);
        char left[48];

        if (o->letter < 256)
            (void)snprintf(left, sizeof(left), "-%c, --%s %s", o->letter, o->name,
                           o->value != NULL ? o->value : "");
        else
            (void)snprintf(left, sizeof(left), "    --%s %s", o->name, o->value);
        printf("  %-30s %s\n", left, o->help);
    }
    printf("\nTimes are of the slowest rank, mean of -n calls. Columns are explained in "
           "docs/perf.md.\nExit code: 0 all results right, 1 a wrong result or a failed rank, "
           "2 a bad option.\n");
}

static void complain_v(const struct perf_args *args, const char *option, const char *value,
                       const char *fmt, va_list ap)
{
    char text[1024];

    (void)vsnprintf(text, sizeof(text), fmt, ap);
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '\n')
            *c = ' ';
    }
    if (value != NULL)
        (void)fprintf(stderr, "%s: %s '%s': %s\n", args->program, option, value, text);
    else
        (void)fprintf(stderr, "%s: %s: %s\n", args->program, option, text);
}

void perf_complain(const struct perf_args *args, const char *option, const char *value,
                   const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain_v(args, option, value, fmt, ap);
    va_end(ap);
}

/* The option as the user may have written it: "-b" or "--codec". */
static const char *shown_name(const struct perf_option *o, char *buf, size_t buf_bytes)
{
    if (o->letter < 256)
        (void)snprintf(buf, buf_bytes, "-%c", o->letter);
    else
        (void)snprintf(buf, buf_bytes, "--%s", o->name);
    return buf;
}

static const struct perf_option *find_row(int letter)
{
    for (size_t i = 0; i < perf_n_options(); i++) {
        if (perf_option(i)->letter == letter)
            return perf_option(i);
    }
    return NULL;
}

static void make_getopt_tables(char *shorts, struct option *longs)
{
    *shorts++ = ':'; /* tells a missing value from an unknown option */
    for (size_t i = 0; i < perf_n_options(); i++) {
        const struct perf_option *const o = perf_option(i);

        longs[i] = (struct option){ .name = o->name,
                                    .has_arg = o->value != NULL ? required_argument : no_argument,
                                    .val = o->letter };
        if (o->letter > 255)
            continue;
        *shorts++ = (char)o->letter;
        if (o->value != NULL)
            *shorts++ = ':';
    }
    *shorts = '\0';
    longs[perf_n_options()] = (struct option){ 0 };
}

static bool check_sizes(const struct perf_args *args)
{
    char value[32];

    if (args->min_bytes <= args->max_bytes)
        return true;
    (void)snprintf(value, sizeof(value), "%zu", args->min_bytes);
    perf_complain(args, "-b", value, "allowed: at most -e, which is %zu", args->max_bytes);
    return false;
}

static void set_defaults(struct perf_args *args, int argc, char **argv)
{
    const char *const slash = strrchr(argv[0], '/');

    *args = (struct perf_args){
        .program = slash != NULL ? slash + 1 : argv[0],
        .argc = argc,
        .argv = argv,
        .min_bytes = 32u << 20,
        .max_bytes = 32u << 20,
        .step_bytes = 1u << 20,
        .n_iters = 20,
        .n_warmup = 1,
        .check = true,
        .feedback = true,
        .ops = { DSCOMM_SUM },
        .n_ops = 1,
        .dtypes = { DSCOMM_FLOAT32 },
        .n_dtypes = 1,
        .data = "lm",
    };
}

/* The main job: how much do a cast and INT8 gain over no codec? */
static void default_codecs(struct perf_args *args)
{
    static const char *const main_job[] = { "none", "bf16", "int8" };

    if (args->n_codecs > 0)
        return;
    for (size_t i = 0; i < sizeof(main_job) / sizeof(main_job[0]); i++)
        args->codecs[args->n_codecs++] = main_job[i];
}

/* What getopt_long rejected: a missing value (':') or no such option. */
static void complain_getopt(const struct perf_args *args, int what)
{
    const char *const word = args->argv[optind - 1];
    char name[8], allowed[48];
    const struct perf_option *const o = what == ':' ? find_row(optopt) : NULL;

    if (o != NULL) {
        perf_complain(args, word, NULL, "a value is missing, allowed: %s",
                      allowed_text(o, allowed, sizeof(allowed)));
        return;
    }
    (void)snprintf(name, sizeof(name), "-%c", optopt);
    perf_complain(args, "option", optopt != 0 && optopt < 256 ? name : word,
                  "not known, allowed are those of --help");
}

bool perf_args_parse(struct perf_args *args, int argc, char **argv, int *exit_code_out)
{
    char shorts[2 * PERF_OPTIONS_MAX + 2];
    struct option longs[PERF_OPTIONS_MAX + 1];
    char name[32], allowed[48];

    set_defaults(args, argc, argv);
    make_getopt_tables(shorts, longs);
    *exit_code_out = PERF_EXIT_USAGE;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == ':' || c == '?') {
            complain_getopt(args, c);
            return false;
        }
        if (c == 'h') {
            print_help(args);
            *exit_code_out = PERF_EXIT_OK;
            return false;
        }
        const struct perf_option *const o = find_row(c);
        if (!perf_option_parse(o, args, optarg)) {
            perf_complain(args, shown_name(o, name, sizeof(name)), optarg, "allowed: %s",
                          allowed_text(o, allowed, sizeof(allowed)));
            return false;
        }
    }
    if (optind < argc) {
        perf_complain(args, "argument", argv[optind], "not known, allowed are options, see --help");
        return false;
    }
    default_codecs(args);
    return check_sizes(args);
}

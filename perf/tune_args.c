/* SPDX-License-Identifier: Apache-2.0 */
/* One table makes the parser, the help text and the error lines. */
#include "tune_args.h"
#include "perf_values.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

struct row {
    const char *name, *value; /* value NULL: takes none */
    const char *allowed;      /* for values; else NULL */
    const char *help;
    bool (*take)(struct tune_args *args, const char *text);
    const char *only; /* program that has it; NULL: both */
};

/* ---- values ---- */

static bool to_number(const char *text, double min, double max, double *value_out)
{
    char *end;
    const double value = strtod(text, &end);

    *value_out = value;
    return end != text && *end == '\0' && value >= min && value <= max;
}

/* One of a list: the first len characters. */
static bool to_bytes(const char *text, size_t len, size_t *bytes_out)
{
    char copy[32];

    if (len >= sizeof(copy))
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    return perf_parse_bytes(copy, 1, (uint64_t)1 << 40, bytes_out);
}

static bool take_size(struct tune_args *args, const char *text)
{
    args->n_sizes = 0;
    while (args->n_sizes < TUNE_SIZES_MAX) {
        const size_t len = strcspn(text, ",");

        if (!to_bytes(text, len, &args->sizes[args->n_sizes++]))
            return false;
        if (text[len] == '\0')
            return true;
        text += len + 1;
    }
    return false;
}

static bool take_topo(struct tune_args *args, const char *text)
{
    args->machine.topo = text;
    return true;
}

static bool take_profile(struct tune_args *args, const char *text)
{
    args->machine.profile = text;
    return true;
}

static bool take_tiers(struct tune_args *args, const char *text)
{
    args->machine.tiers = text;
    return true;
}

static bool take_nodes(struct tune_args *args, const char *text)
{
    return perf_parse_int(text, 1, 65535, &args->machine.nodes);
}

static bool take_local(struct tune_args *args, const char *text)
{
    return perf_parse_int(text, 1, 65535, &args->machine.local);
}

static bool take_sm(struct tune_args *args, const char *text)
{
    return perf_parse_int(text, 30, 999, &args->machine.topo_config.sm);
}

static bool take_rates(struct tune_args *args, const char *text)
{
    args->machine.topo_config.rates =
        strcmp(text, "nccl") == 0 ? DSCOMM_RATES_NCCL : DSCOMM_RATES_PHYSICAL;
    return strcmp(text, "nccl") == 0 || strcmp(text, "physical") == 0;
}

static bool take_memory(struct tune_args *args, const char *text)
{
    double gbps;

    if (!to_number(text, 1, 1e6, &gbps))
        return false;
    args->machine.memory_bytes_per_s = (uint64_t)(gbps * 1e9);
    return true;
}

/* The word's place in the list; -1: not in it. */
static int find_word(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(text, words[i]) == 0)
            return (int)i;
    return -1;
}

static bool take_dtype(struct tune_args *args, const char *text)
{
    static const char *const words[] = { "fp32", "fp16", "bf16" };
    static const dscomm_dtype_t types[] = { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 };
    const int i = find_word(text, words, ARRAY_LEN(words));

    if (i >= 0)
        args->query.dtype = types[i];
    return i >= 0;
}

static bool take_op(struct tune_args *args, const char *text)
{
    static const char *const words[] = { "sum", "avg", "max", "min" };
    static const dscomm_op_t ops[] = { DSCOMM_SUM, DSCOMM_AVG, DSCOMM_MAX, DSCOMM_MIN };
    const int i = find_word(text, words, ARRAY_LEN(words));

    if (i >= 0)
        args->query.op = ops[i];
    return i >= 0;
}

static bool take_switch(const char *text, int *value_out)
{
    static const char *const words[] = { "off", "on" };

    *value_out = find_word(text, words, ARRAY_LEN(words));
    return *value_out >= 0;
}

static bool take_feedback(struct tune_args *args, const char *text)
{
    return take_switch(text, &args->query.feedback);
}

static bool take_overlap(struct tune_args *args, const char *text)
{
    return take_switch(text, &args->query.overlap);
}

static bool take_budget(struct tune_args *args, const char *text)
{
    args->query.budget = text; /* the library says what is allowed */
    return true;
}

static bool take_codec(struct tune_args *args, const char *text)
{
    args->codec = strcmp(text, "auto") == 0 ? NULL : text;
    return true;
}

static bool take_explain(struct tune_args *args, const char *text)
{
    (void)text;
    args->wants_table = true;
    return true;
}

static bool take_json(struct tune_args *args, const char *text)
{
    (void)text;
    args->wants_json = true;
    return true;
}

static const struct row rows[] = {
    { "topo", "FILE", "", "a machine by its topology: rates declared, latencies assumed", take_topo,
      NULL },
    { "profile", "FILE", "", "a machine that link_perf measured (this host's profile)",
      take_profile, NULL },
    { "nodes", "N", "1 to 65535", "of that kind (1)", take_nodes, NULL },
    { "local", "N", "1 to 65535", "ranks per node (all GPUs; as the profile)", take_local, NULL },
    { "tiers", "TEXT", "", "who is near whom, as DSCOMM_TIERS; with a profile", take_tiers, NULL },
    { "size", "LIST", PERF_BYTES ", separated by commas, at most 32",
      "of the vector (64K,1M,16M,64M)", take_size, NULL },
    { "dtype", "TYPE", "fp32 fp16 bf16", "of the data (fp32)", take_dtype, NULL },
    { "op", "OP", "sum avg max min", "(sum)", take_op, NULL },
    { "budget", "B", "", "exact high balanced aggressive, or a relative error (balanced)",
      take_budget, NULL },
    { "feedback", "on|off", "on off", "with a feedback object (on)", take_feedback, NULL },
    { "overlap", "on|off", "on off", "whether stages overlap (as the machine does)", take_overlap,
      NULL },
    { "memory", "GB/S", "1 to 1000000", "with --topo: rate of a GPU's memory (by generation)",
      take_memory, NULL },
    { "sm", "N", "30 to 999", "with --topo: compute capability times 10 where FILE has none",
      take_sm, NULL },
    { "rates", "KIND", "physical nccl", "with --topo: figures of links (physical)", take_rates,
      NULL },
    { "codec", "SPEC", "", "instead of the tuner's choice (auto)", take_codec, "dscomm_sim" },
    { "explain", NULL, NULL, "the whole table of every size, and why", take_explain,
      "dscomm_tune" },
    { "json", NULL, NULL, "for programs", take_json, NULL },
};

static bool is_of(const struct row *row, const char *program)
{
    return row->only == NULL || strcmp(row->only, program) == 0;
}

static void print_help(const char *program)
{
    printf("Usage: %s [OPTION ...]\n\n", program);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char left[32];

        if (!is_of(&rows[i], program))
            continue;
        (void)snprintf(left, sizeof(left), "--%s%s%s", rows[i].name,
                       rows[i].value != NULL ? " " : "",
                       rows[i].value != NULL ? rows[i].value : "");
        printf("  %-18s %s\n", left, rows[i].help);
    }
    printf("\ndocs/tuner.md explains the model and the tables.\n"
           "Exit code: 0, 1 the machine cannot be had or asked, 2 a bad option.\n");
}

static bool complain(const char *program, const char *option, const char *value,
                     const char *allowed)
{
    (void)fprintf(stderr, "%s: %s%s%s: %s%s\n", program, option, value != NULL ? " " : "",
                  value != NULL ? value : "", allowed[0] != '\0' ? "allowed: " : "not known",
                  allowed);
    return false;
}

static bool take(const struct row *row, const char *program, const char *value,
                 struct tune_args *args)
{
    char option[32];

    (void)snprintf(option, sizeof(option), "--%s", row->name);
    return row->take(args, value) || complain(program, option, value, row->allowed);
}

/* The program's options for getopt; val: the row's place + 1. */
static void list_options(const char *program, struct option *list)
{
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (is_of(&rows[i], program))
            list[n++] = (struct option){ rows[i].name,
                                         rows[i].value != NULL ? required_argument : no_argument,
                                         NULL, (int)i + 1 };
    list[n++] = (struct option){ "help", no_argument, NULL, 'h' };
    list[n] = (struct option){ NULL, 0, NULL, 0 };
}

bool tune_args_parse(struct tune_args *args, const char *program, int argc, char **argv,
                     int *exit_code_out)
{
    static const size_t sizes[] = { 65536, 1048576, 16777216, 67108864 };
    struct option list[ARRAY_LEN(rows) + 2];
    int option;

    *args = (struct tune_args){ .machine = DSCOMM_TUNER_CONFIG_INIT,
                                .query = DSCOMM_TUNER_QUERY_INIT,
                                .n_sizes = (int)ARRAY_LEN(sizes) };
    memcpy(args->sizes, sizes, sizeof(sizes));
    list_options(program, list);
    *exit_code_out = TUNE_USAGE;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", list, NULL)) != -1) {
        if (option == 'h') {
            print_help(program);
            *exit_code_out = TUNE_FINE;
            return false;
        }
        if (option == '?')
            return complain(program, argv[optind - 1], NULL, "see --help");
        if (!take(&rows[option - 1], program, optarg, args))
            return false;
    }
    return optind == argc || complain(program, argv[optind], NULL, "options, see --help");
}

size_t tune_count(const struct tune_args *args, size_t bytes)
{
    const size_t elem = args->query.dtype == DSCOMM_FLOAT32 ? sizeof(float) : sizeof(float) / 2;

    return bytes / elem > 0 ? bytes / elem : 1;
}

static void drop(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

void tune_quiet(void)
{
    dscomm_set_log(drop, NULL);
}

const char *tune_size_text(size_t bytes, char text[32])
{
    static const char units[] = "\0KMG";
    int unit = 0;

    while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, 32, "%zu%.1s", bytes, &units[unit]);
    return text;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dscomm_info --topo: the topology of this host or of a file as a tree, a graph or a picture. Odd
 * things about a file are part of what is printed, so the library's warnings are not.
 */
#include "info_topo.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dscomm/dscomm.h"
#include "dscomm/topo.h"

enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_BAD_OPTION = 2 };

static const char usage[] =
    "Usage: dscomm_info --topo [OPTION ...] [FILE [MORE ...]]\n\n"
    "Without FILE this host. FILE: XML of NCCL, RCCL or lstopo, output of nvidia-smi topo -m or\n"
    "nvlink -s, or a text of one's own; MORE is added to it (docs/topology.md).\n"
    "  --dot         a graph for Graphviz\n"
    "  --svg         a picture\n"
    "  --rates KIND  physical (default) or nccl: NCCL's own figures\n"
    "  --sm N        compute capability times 10 where FILE does not say, for example 90\n"
    "Exit code: 0, 1 a file cannot be read, 2 a bad option.\n";

static const struct option options[] = {
    { "dot", no_argument, NULL, 'd' },         { "svg", no_argument, NULL, 's' },
    { "rates", required_argument, NULL, 'r' }, { "sm", required_argument, NULL, 'm' },
    { "help", no_argument, NULL, 'h' },        { NULL, 0, NULL, 0 },
};

struct choice {
    dscomm_topo_config_t config;
    dscomm_topo_format_t format;
    bool wants_help;
};

static bool take_rates(const char *text, struct choice *choice)
{
    choice->config.rates = strcmp(text, "nccl") == 0 ? DSCOMM_RATES_NCCL : DSCOMM_RATES_PHYSICAL;
    if (strcmp(text, "nccl") == 0 || strcmp(text, "physical") == 0)
        return true;
    (void)fprintf(stderr, "dscomm_info: --rates %s: allowed: physical nccl\n", text);
    return false;
}

static bool take_sm(const char *text, struct choice *choice)
{
    char *end;
    const long sm = strtol(text, &end, 10);

    choice->config.sm = (int)sm;
    if (end != text && *end == '\0' && sm >= 30 && sm <= 999)
        return true;
    (void)fprintf(stderr, "dscomm_info: --sm %s: allowed: 30 to 999\n", text);
    return false;
}

static bool take_option(int option, char **argv, struct choice *choice)
{
    switch (option) {
    case 'd':
        choice->format = DSCOMM_TOPO_DOT;
        return true;
    case 's':
        choice->format = DSCOMM_TOPO_SVG;
        return true;
    case 'r':
        return take_rates(optarg, choice);
    case 'm':
        return take_sm(optarg, choice);
    case 'h':
        choice->wants_help = true;
        return true;
    default:
        (void)fprintf(stderr,
                      "dscomm_info: %s: not known or no value, allowed: --dot --svg --rates KIND "
                      "--sm N --help\n",
                      argv[optind - 1]);
        return false;
    }
}

static void drop(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static dscomm_status_t load(char **files, int n_files, const struct choice *choice,
                            dscomm_topo_t **topo_out)
{
    dscomm_status_t st = n_files == 0 ? dscomm_topo_load_host(&choice->config, topo_out)
                                      : dscomm_topo_load(files[0], &choice->config, topo_out);

    for (int i = 1; i < n_files && st >= 0; i++)
        st = dscomm_topo_add(*topo_out, files[i]);
    return st;
}

void info_topo_host(void)
{
    dscomm_topo_t *topo = NULL;

    dscomm_set_log(drop, NULL);
    if (dscomm_topo_load_host(NULL, &topo) < 0 ||
        dscomm_topo_print(topo, DSCOMM_TOPO_TREE, stdout) < 0)
        printf("unknown: %s\n", dscomm_last_error());
    dscomm_topo_destroy(topo);
    dscomm_set_log(NULL, NULL);
}

int info_topo(int argc, char **argv)
{
    struct choice choice = { .config = DSCOMM_TOPO_CONFIG_INIT, .format = DSCOMM_TOPO_TREE };
    dscomm_topo_t *topo = NULL;
    int option;

    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1)
        if (!take_option(option, argv, &choice))
            return EXIT_BAD_OPTION;
    if (choice.wants_help) {
        (void)fputs(usage, stdout);
        return EXIT_FINE;
    }
    dscomm_set_log(drop, NULL);
    if (load(argv + optind, argc - optind, &choice, &topo) < 0 ||
        dscomm_topo_print(topo, choice.format, stdout) < 0) {
        (void)fprintf(stderr, "dscomm_info: %s\n", dscomm_last_error());
        dscomm_topo_destroy(topo);
        return EXIT_FAILED;
    }
    dscomm_topo_destroy(topo);
    return EXIT_FINE;
}

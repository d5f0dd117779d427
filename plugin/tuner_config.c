/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner's files: rows in NCCL's CSV, and this project's profile for the network's latency. */
#include "tuner_plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "net.h"
#include "tuner/tuner.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define N_FIELDS_MIN 8
#define N_FIELDS_MAX 10

static const char *const func_names[] = { "broadcast", "reduce", "allgather", "reducescatter",
                                          "allreduce" };
static const char *const algo_names[] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"
};
static const char *const proto_names[] = { "ll", "ll128", "simple" };

static bool find_name(const char *const *names, size_t n, const char *text, int *index_out)
{
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(names[i], text) == 0) {
            *index_out = (int)i;
            return true;
        }
    }
    return false;
}

static bool find_number(const char *text, int64_t min, int64_t *number_out)
{
    char *end;

    errno = 0;
    *number_out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *number_out >= min;
}

/* Cuts a line at its commas, blanks around fields left out. */
static int cut(char *line, char *fields[N_FIELDS_MAX])
{
    int n = 0;

    for (char *rest = line; rest != NULL && n < N_FIELDS_MAX + 1; n++) {
        char *field = strsep(&rest, ",");
        size_t len;

        field += strspn(field, " \t");
        len = strlen(field);
        while (len > 0 && strchr(" \t\r", field[len - 1]) != NULL)
            field[--len] = '\0';
        if (n == N_FIELDS_MAX)
            return N_FIELDS_MAX + 1;
        fields[n] = field;
    }
    return n;
}

/* Returns NULL, or what is wrong. */
static const char *parse_row(char *line, struct tuner_row *row)
{
    char *fields[N_FIELDS_MAX];
    const int n = cut(line, fields);
    int64_t min, max, channels;

    row->n_pipe_ops = row->reg_buff = TUNER_ANY;
    if (n < N_FIELDS_MIN || n > N_FIELDS_MAX)
        return "needs 8 to 10 fields";
    if (!find_name(func_names, DSC_ARRAY_LEN(func_names), fields[0], &row->func))
        return "field 1 is one of broadcast reduce allgather reducescatter allreduce";
    if (!find_number(fields[1], 0, &min) || !find_number(fields[2], min, &max))
        return "fields 2 and 3 are bytes, the first at most the second";
    if (!find_name(algo_names, DSC_ARRAY_LEN(algo_names), fields[3], &row->algo))
        return "field 4 is one of tree ring collnet_direct collnet_chain nvls nvls_tree pat";
    if (!find_name(proto_names, DSC_ARRAY_LEN(proto_names), fields[4], &row->proto))
        return "field 5 is one of ll ll128 simple";
    if (!find_number(fields[5], -1, &channels) || channels == 0 || channels > 1024)
        return "field 6 is a number of channels, or -1";
    if (!find_number(fields[6], -1, &row->n_nodes) || !find_number(fields[7], -1, &row->n_ranks))
        return "fields 7 and 8 are numbers of nodes and ranks, or -1";
    if ((n > 8 && !find_number(fields[8], -1, &row->n_pipe_ops)) ||
        (n > 9 && !find_number(fields[9], -1, &row->reg_buff)))
        return "fields 9 and 10 are numbers, or -1";
    row->bytes_min = (uint64_t)min;
    /* What "everything" is in files for NCCL's example: a 32-bit limit. */
    row->bytes_max = max == UINT32_MAX ? UINT64_MAX : (uint64_t)max;
    row->n_channels = (int)channels;
    return NULL;
}

static bool is_comment(const char *line)
{
    line += strspn(line, " \t\r");
    return line[0] == '\0' || line[0] == '#' || strncmp(line, "collective_type", 15) == 0 ||
           strncmp(line, "colltype", 8) == 0;
}

/* Each line that is none is a warning. name: of the file, for these. */
static void parse_rows(const char *name, char *text, struct tuner_config *config)
{
    int number = 0;

    for (char *rest = text, *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        struct tuner_row row = { .line = ++number };
        const char *wrong;

        if (is_comment(line))
            continue;
        wrong = config->n_rows == TUNER_ROWS_MAX ? "there are more than 4096 rows"
                                                 : parse_row(line, &row);
        if (wrong == NULL)
            config->rows[config->n_rows++] = row;
        else
            net_warn("DSComm tuner: %s line %d is ignored: %s", name, number, wrong);
    }
}

/* NUL-terminated, to be freed with dsc_free(); NULL: a warning says why. */
static char *read_file(const char *path)
{
    FILE *const file = fopen(path, "re");
    char *const text = file != NULL ? dsc_calloc(DSC_MEM_TRANSPORT, 1, FILE_BYTES_MAX + 1) : NULL;
    size_t n = 0;

    if (file == NULL) {
        net_warn("DSComm tuner: cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    if (text != NULL)
        n = fread(text, 1, FILE_BYTES_MAX + 1, file);
    fclose(file);
    if (text == NULL || n <= FILE_BYTES_MAX)
        return text;
    net_warn("DSComm tuner: %s is ignored: more than %zu bytes", path, FILE_BYTES_MAX);
    dsc_free(text);
    return NULL;
}

/* One way, of the slowest tier that is a network. */
static void read_latency(const char *path, const char *text, struct tuner_config *config)
{
    struct dsc_profile *const profile = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*profile));
    char why[DSC_PROFILE_WHY_BYTES];

    if (profile == NULL)
        return;
    if (!dsc_profile_parse(text, strlen(text), profile, why, sizeof(why)))
        net_warn("DSComm tuner: profile %s is ignored: %s", path, why);
    else
        for (uint32_t i = 0; i < profile->rates.n_tiers; i++) {
            const struct dsc_tier_rates *const tier = &profile->rates.tiers[i];

            if (tier->kind == DSC_TIER_TCP || tier->kind == DSC_TIER_RDMA)
                config->net_latency_us = (double)tier->latency_ns * 1e-3;
        }
    dsc_free(profile);
}

static void add_name(struct tuner_config *config, const char *path, const char *text)
{
    const size_t used = config->hash == 0 ? 0 : strlen(config->names);
    const size_t len = strlen(path);

    snprintf(config->names + used, sizeof(config->names) - used, "%s%s", used > 0 ? "," : "",
             len > 40 ? path + len - 40 : path);
    config->hash = config->hash * 0x100000001b3u ^ dsc_hash_text(text);
    config->hash += config->hash == 0;
}

void tuner_config_read(struct tuner_config *config)
{
    const char *const rows_path = dsc_env_launcher("NCCL_TUNER_CONFIG_FILE");
    const struct dsc_env *env;
    char *text;

    *config = (struct tuner_config){ .names = "none" };
    text = rows_path != NULL && rows_path[0] != '\0' ? read_file(rows_path) : NULL;
    if (text != NULL) {
        add_name(config, rows_path, text);
        config->rows = dsc_calloc(DSC_MEM_TRANSPORT, TUNER_ROWS_MAX, sizeof(*config->rows));
        if (config->rows != NULL)
            parse_rows(rows_path, text, config);
        dsc_free(text);
    }
    if (dsc_env_get(&env) < 0 || env->profile[0] == '\0' || strcmp(env->profile, "none") == 0)
        return; /* a default one may differ from rank to rank */
    text = read_file(env->profile);
    if (text != NULL) {
        add_name(config, env->profile, text);
        read_latency(env->profile, text, config);
        dsc_free(text);
    }
}

void tuner_config_free(struct tuner_config *config)
{
    dsc_free(config->rows);
    config->rows = NULL;
    config->n_rows = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tuner would choose on a machine, for each size, and why. The machine is this host, or
 * any that there is a profile or a topology file of. A user of the library like any other.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "tune_args.h"

/* The table of one size as JSON; NULL: it failed, the library says why. */
static cJSON *ask(const dscomm_tuner_t *tuner, const struct tune_args *args, size_t bytes)
{
    dscomm_tuner_query_t query = args->query;
    size_t needed = 0;
    cJSON *root = NULL;
    char *text;

    query.count = tune_count(args, bytes);
    if (dscomm_tuner_explain_text(tuner, &query, DSCOMM_EXPLAIN_JSON, NULL, 0, &needed) < 0)
        return NULL;
    text = malloc(needed);
    if (text != NULL &&
        dscomm_tuner_explain_text(tuner, &query, DSCOMM_EXPLAIN_JSON, text, needed, NULL) >= 0)
        root = cJSON_Parse(text);
    free(text);
    return root;
}

static const char *text_of(const cJSON *object, const char *name)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsString(item) ? item->valuestring : "-";
}

static void print_line(const cJSON *root, size_t bytes)
{
    const cJSON *const choice = cJSON_GetObjectItemCaseSensitive(root, "choice");
    const cJSON *const total = cJSON_GetObjectItemCaseSensitive(choice, "total_ns");
    char size[32], time[32] = "-";

    if (cJSON_IsNumber(total))
        (void)snprintf(time, sizeof(time), "%.1f", total->valuedouble / 1000);
    printf("%10s %-14s %-8s %12s  %s\n", tune_size_text(bytes, size), text_of(choice, "codec"),
           text_of(choice, "shape"), time, text_of(choice, "reason"));
}

static bool print_lines(const dscomm_tuner_t *tuner, const struct tune_args *args)
{
    bool ok = true;

    for (int i = 0; ok && i < args->n_sizes; i++) {
        cJSON *const root = ask(tuner, args, args->sizes[i]);

        ok = root != NULL;
        if (ok && i == 0) {
            printf("# rates    %s\n", text_of(root, "rates"));
            if (text_of(root, "unknown")[0] != '\0')
                printf("# unknown  %s\n", text_of(root, "unknown"));
            printf("# ranks    %d, budget %s, feedback %s\n", dscomm_tuner_n_ranks(tuner),
                   args->query.budget, args->query.feedback != 0 ? "on" : "off");
            printf("#%9s %-14s %-8s %12s  %s\n", "size", "codec", "shape", "time us", "reason");
        }
        if (ok)
            print_line(root, args->sizes[i]);
        cJSON_Delete(root);
    }
    return ok;
}

static bool print_tables(const dscomm_tuner_t *tuner, const struct tune_args *args)
{
    for (int i = 0; i < args->n_sizes; i++) {
        dscomm_tuner_query_t query = args->query;

        query.count = tune_count(args, args->sizes[i]);
        if (i > 0)
            printf("\n");
        if (dscomm_tuner_explain(tuner, &query, DSCOMM_EXPLAIN_TEXT, stdout) < 0)
            return false;
    }
    return true;
}

/* An array with the table of each size. */
static bool print_json(const dscomm_tuner_t *tuner, const struct tune_args *args)
{
    cJSON *const array = cJSON_CreateArray();
    bool ok = array != NULL;
    char *text = NULL;

    for (int i = 0; ok && i < args->n_sizes; i++) {
        cJSON *const root = ask(tuner, args, args->sizes[i]);

        ok = root != NULL && cJSON_AddItemToArray(array, root);
    }
    if (ok)
        text = cJSON_Print(array);
    if (text != NULL)
        printf("%s\n", text);
    cJSON_free(text);
    cJSON_Delete(array);
    return ok && text != NULL;
}

int main(int argc, char **argv)
{
    struct tune_args args;
    dscomm_tuner_t *tuner = NULL;
    int exit_code;
    bool ok;

    if (!tune_args_parse(&args, "dscomm_tune", argc, argv, &exit_code))
        return exit_code;
    tune_quiet();
    ok = dscomm_tuner_create(&args.machine, &tuner) >= 0;
    if (ok && args.wants_json)
        ok = print_json(tuner, &args);
    else if (ok && args.wants_table)
        ok = print_tables(tuner, &args);
    else if (ok)
        ok = print_lines(tuner, &args);
    if (!ok)
        (void)fprintf(stderr, "dscomm_tune: %s\n", dscomm_last_error());
    dscomm_tuner_destroy(tuner);
    return ok ? TUNE_FINE : TUNE_FAILED;
}

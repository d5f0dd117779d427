/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment registry. env.def is expanded into the struct (core.h), the table below and the
 * documentation. Values are copied, because a later setenv() may free what getenv() gave. A bad
 * value is kept as a text and reported at every use: the process cannot know which call matters.
 */
#include "core/log.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "DSCOMM_"
#define NAME_MAX_BYTES 48 /* longer unknown names are compared by their first bytes */

enum kind { KIND_U64, KIND_TEXT };

struct spec {
    const char *name;
    enum kind kind;
    size_t offset; /* of the field in struct dsc_env */
    uint64_t dflt_u64, min, max;
    const char *dflt_text;
    const char *words; /* allowed words separated by blanks; NULL: any text */
};

#define SPEC_u64(member, suffix, dflt, low, high) \
    { .name = PREFIX suffix,                      \
      .kind = KIND_U64,                           \
      .offset = offsetof(struct dsc_env, member), \
      .dflt_u64 = (dflt),                         \
      .min = (low),                               \
      .max = (high) },
#define SPEC_text(member, suffix, dflt, list, unused) \
    { .name = PREFIX suffix,                          \
      .kind = KIND_TEXT,                              \
      .offset = offsetof(struct dsc_env, member),     \
      .dflt_text = (dflt),                            \
      .words = (list) },
#define ENV(field, kind, name, dflt, min, max, doc) SPEC_##kind(field, name, dflt, min, max)
static const struct spec specs[] = {
#include "env.def"
};
#undef ENV

#define DOC_u64(suffix, default_value, min, max, text) \
    { PREFIX suffix, #default_value, #min " to " #max, text },
#define DOC_text(suffix, default_value, list, unused, text) \
    { PREFIX suffix, default_value, list, text },
#define ENV(field, kind, name, dflt, min, max, doc) DOC_##kind(name, dflt, min, max, doc)
static struct dsc_env_doc docs[] = {
#include "env.def"
};
#undef ENV

static struct dsc_env values;
static char problem[512]; /* first bad value; empty: none */
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static pthread_once_t docs_once = PTHREAD_ONCE_INIT;

static void set_problem(const struct spec *spec, const char *value, const char *allowed)
{
    if (problem[0] == '\0')
        (void)snprintf(problem, sizeof(problem), "%s is \"%.64s\", allowed: %s", spec->name, value,
                       allowed);
}

/* Digits, or 0x and hex digits; strtoull alone would take "-1", " 1" and "010" as octal. */
static bool parse_u64(const char *text, uint64_t *value_out)
{
    const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *const first = is_hex ? text + 2 : text;
    char *end;

    if (!(is_hex ? isxdigit((unsigned char)*first) : isdigit((unsigned char)*first)))
        return false;
    errno = 0;
    *value_out = strtoull(first, &end, is_hex ? 16 : 10);
    return errno == 0 && *end == '\0';
}

static void load_u64(const struct spec *spec, const char *value, uint64_t *field)
{
    uint64_t number;
    char allowed[64];

    *field = spec->dflt_u64;
    if (value == NULL)
        return;
    if (parse_u64(value, &number) && number >= spec->min && number <= spec->max) {
        *field = number;
        return;
    }
    (void)snprintf(allowed, sizeof(allowed), "%llu to %llu", (unsigned long long)spec->min,
                   (unsigned long long)spec->max);
    set_problem(spec, value, allowed);
}

static void load_text(const struct spec *spec, const char *value, const char **field)
{
    char *const old = (char *)(uintptr_t)*field; /* a copy made here, or NULL */
    const bool is_bad = value != NULL && spec->words != NULL && !dsc_is_word_of(spec->words, value);

    if (is_bad)
        set_problem(spec, value, spec->words);
    *field = strdup(value == NULL || is_bad ? spec->dflt_text : value);
    free(old);
    if (*field == NULL)
        set_problem(spec, "?", "no memory to copy it");
}

/* Edit distance by rows. Source: the textbook dynamic program of Wagner and Fischer. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_BYTES + 1];
    const size_t len_b = dsc_min_size(strlen(b), NAME_MAX_BYTES);

    for (size_t j = 0; j <= len_b; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < len_b; j++) {
            const size_t replace = diagonal + (a[i] != b[j]);

            diagonal = row[j + 1];
            row[j + 1] = dsc_min_size(replace, dsc_min_size(row[j], row[j + 1]) + 1);
        }
    }
    return row[len_b];
}

static const char *nearest_name(const char *name)
{
    size_t best = 0;

    for (size_t i = 1; i < DSC_ARRAY_LEN(specs); i++)
        if (distance(specs[i].name, name) < distance(specs[best].name, name))
            best = i;
    return specs[best].name;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(specs); i++)
        if (strcmp(specs[i].name, name) == 0)
            return true;
    return false;
}

static void warn_unknown(void)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        char name[128];

        if (strncmp(*entry, PREFIX, sizeof(PREFIX) - 1) != 0)
            continue;
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
        if (!is_known(name))
            dsc_log_warn(ENV, "unknown variable %s is ignored, the nearest known is %s", name,
                         nearest_name(name));
    }
}

static void set_log_level(void)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };

    dsc_log_set_level(DSCOMM_LOG_WARN);
    for (size_t i = 0; values.log_level != NULL && i < DSC_ARRAY_LEN(names); i++)
        if (strcmp(values.log_level, names[i]) == 0)
            dsc_log_set_level((dscomm_log_level_t)i);
}

static void load(void)
{
    problem[0] = '\0';
    for (size_t i = 0; i < DSC_ARRAY_LEN(specs); i++) {
        const char *const value = getenv(specs[i].name);
        void *const field = (char *)&values + specs[i].offset;

        if (specs[i].kind == KIND_U64)
            load_u64(&specs[i], value, field);
        else
            load_text(&specs[i], value, field);
    }
    set_log_level(); /* before the first line: the log would ask for the environment again */
    warn_unknown();
}

static void complete_docs(void)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(docs); i++)
        if (docs[i].range == NULL)
            docs[i].range = "any text";
}

dscomm_status_t dsc_env_get(const struct dsc_env **env_out)
{
    (void)pthread_once(&load_once, load);
    if (problem[0] != '\0')
        return dsc_fail(DSCOMM_ERR_ENV, "%s", problem);

    *env_out = &values;
    return DSCOMM_OK;
}

void dsc_env_reload(void)
{
    static pthread_once_t fresh = PTHREAD_ONCE_INIT;

    load_once = fresh;
    (void)pthread_once(&load_once, load);
}

void dsc_env_unload(void)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(specs); i++) {
        const char **const field = (const char **)(void *)((char *)&values + specs[i].offset);

        if (specs[i].kind != KIND_TEXT)
            continue;
        free((char *)(uintptr_t)*field);
        *field = NULL;
    }
}

const struct dsc_env_doc *dsc_env_docs(size_t *n_out)
{
    (void)pthread_once(&docs_once, complete_docs);
    *n_out = DSC_ARRAY_LEN(docs);
    return docs;
}

const char *dsc_env_launcher(const char *name)
{
    DSC_ASSERT(strncmp(name, PREFIX, sizeof(PREFIX) - 1) != 0);
    return getenv(name);
}

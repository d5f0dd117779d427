/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between perf_args.c, which has the table of options, and perf_getopt.c, which reads a command line
 * by it.
 */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include "perf.h"

enum perf_option_kind {
    KIND_FLAG,
    KIND_BYTES,
    KIND_INT,
    KIND_SIZE,
    KIND_BOOL,
    KIND_TEXT,
    KIND_OTHER
};

struct perf_option {
    int letter; /* above 255: long form only */
    const char *name;
    const char *value; /* placeholder; NULL: takes none */
    enum perf_option_kind kind;
    size_t offset;       /* of the member, but for KIND_OTHER */
    uint64_t min, max;   /* of a number */
    const char *allowed; /* for the error line; NULL: min and max say it */
    const char *help;
    bool (*parse)(struct perf_args *args, const char *text); /* KIND_OTHER */
};

#define PERF_OPTIONS_MAX 32 /* rows */
size_t perf_n_options(void);
const struct perf_option *perf_option(size_t i);
/* Stores a value where its row says; false: not allowed. */
bool perf_option_parse(const struct perf_option *o, struct perf_args *args, const char *text);

#endif

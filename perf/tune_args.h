/* SPDX-License-Identifier: Apache-2.0 */
/* Options of dscomm_tune and dscomm_sim: which machine, which call. */
#ifndef DSC_TUNE_ARGS_H
#define DSC_TUNE_ARGS_H

#include <stdbool.h>

#include "dscomm/tuner.h"

#define TUNE_SIZES_MAX 32

enum { TUNE_FINE = 0, TUNE_FAILED = 1, TUNE_USAGE = 2 };

struct tune_args {
    dscomm_tuner_config_t machine;
    dscomm_tuner_query_t query;   /* its count is that of a size */
    size_t sizes[TUNE_SIZES_MAX]; /* bytes of the caller's vector */
    int n_sizes;
    bool wants_table, wants_json;
    const char *codec; /* dscomm_sim; NULL: what the tuner chooses */
};

/* False: *exit_code_out is what the program ends with; a text was printed. */
bool tune_args_parse(struct tune_args *args, const char *program, int argc, char **argv,
                     int *exit_code_out);

/* Elements of a size. */
size_t tune_count(const struct tune_args *args, size_t bytes);
/* The library's warnings about odd files are in what is printed; its errors come as statuses. */
void tune_quiet(void);
/* "64K" */
const char *tune_size_text(size_t bytes, char text[32]);

#endif

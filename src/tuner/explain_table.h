/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/tuner: a table of candidates as both forms of explain show it. */
#ifndef DSC_TUNER_EXPLAIN_TABLE_H
#define DSC_TUNER_EXPLAIN_TABLE_H

#include "tuner/tuner.h"

struct dsc_explain_table {
    const struct dsc_explain *about;
    struct dsc_option options[DSC_OPTIONS_MAX];
    size_t n;
    struct dsc_decision decision;
    struct dsc_decision other; /* of the model with overlap the other way */
};

/* Codec of the slowest tier. */
const struct dsc_codec *dsc_option_codec(const struct dsc_option *option);
/* "oneshot", "twoshot", "tiered". */
const char *dsc_option_shape(const struct dsc_option *option);

/* explain_json.c; false: no memory. */
bool dsc_explain_json(const struct dsc_explain_table *table, FILE *out);

#endif

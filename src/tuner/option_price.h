/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/tuner: one candidate, and what candidates of a table share. */
#ifndef DSC_TUNER_OPTION_PRICE_H
#define DSC_TUNER_OPTION_PRICE_H

#include "tuner/cost.h"

#define DSC_KINDS_MAX 8   /* ranks looked at: one of each kind */
#define DSC_SHAPES_MAX 64 /* plans that differ in more than codecs */

struct dsc_option_shape {
    enum dsc_algorithm algorithm;
    int n_tiers;
    size_t chunk_elems;
};

struct dsc_option_loads {
    struct dsc_option_shape shape;
    struct dsc_load loads[DSC_KINDS_MAX];
    int n;
};

/* question, rates and options are set; the rest is filled in. */
struct dsc_option_table {
    const struct dsc_question *q;
    const struct dsc_rates *rates;
    struct dsc_option *options;
    size_t n_options;
    const struct dsc_codec *none, *fp32;
    int kinds[DSC_KINDS_MAX]; /* ranks that stand for all */
    int n_kinds;
    struct dsc_option_loads cache[DSC_SHAPES_MAX];
    int n_cached;
};

dscomm_status_t dsc_option_table_init(struct dsc_option_table *table);
void dsc_option_table_fini(struct dsc_option_table *table);
/*
 * Adds a candidate with its price, and why it may not be taken; nothing once the table is full.
 * inner: codec of all tiers but the last; preference: the less, the better.
 */
dscomm_status_t dsc_option_add(struct dsc_option_table *table, const struct dsc_option_shape *shape,
                               const struct dsc_codec *inner, const struct dsc_codec *codec,
                               uint32_t preference);

#endif

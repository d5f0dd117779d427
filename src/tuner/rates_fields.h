/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/tuner. The one list of the numbers in struct dsc_rates: name, range, and which of
 * two values is the worse. Checks, merging, bytes on the wire and profiles walk it.
 */
#ifndef DSC_RATES_FIELDS_H
#define DSC_RATES_FIELDS_H

#include "tuner/rates.h"

enum dsc_worse {
    DSC_WORSE_SAME, /* must be equal */
    DSC_WORSE_MORE,
    DSC_WORSE_LESS,
    DSC_WORSE_NONE, /* merging has its own rule */
};

struct dsc_rates_field {
    const char *name;
    size_t offset, bytes; /* of an unsigned integer */
    uint64_t min, max;
    enum dsc_worse worse;
    const char *const *words; /* for its values in a profile; NULL: numbers */
};

struct dsc_rates_fields {
    const struct dsc_rates_field *fields;
    size_t n;
};

extern const struct dsc_rates_fields dsc_rates_fields, dsc_tier_fields, dsc_speed_fields;

uint64_t dsc_rates_field_get(const void *base, const struct dsc_rates_field *field);
void dsc_rates_field_set(void *base, const struct dsc_rates_field *field, uint64_t value);

/* Had this rank a partner in the tier? */
bool dsc_tier_is_measured(const struct dsc_tier_rates *tier);

#endif

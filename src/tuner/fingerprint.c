/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a measurement depends on. All of it as texts: they are only compared and shown. What this
 * host's are says fingerprint_host.c: who only reads profiles needs no topology.
 */
#include "tuner/profile.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define NAME(field, name) name,
    DSC_FINGERPRINT_MAP(NAME)
#undef NAME
};

const char *dsc_fingerprint_name(enum dsc_fingerprint_field field)
{
    return names[field];
}

void dsc_fingerprint_set(struct dsc_fingerprint *machine, enum dsc_fingerprint_field field,
                         const char *value)
{
    char *const to = machine->values[field];

    snprintf(to, DSC_FINGERPRINT_VALUE_BYTES, "%s", value);
    for (char *c = to; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

bool dsc_fingerprint_fits(const struct dsc_fingerprint *file, const struct dsc_fingerprint *here,
                          char *why, size_t why_bytes)
{
    for (size_t i = 0; i < DSC_FINGERPRINT_N; i++) {
        const char *const there = file->values[i], *const now = here->values[i];

        if (now[0] == '\0' || strcmp(there, now) == 0)
            continue;
        snprintf(why, why_bytes, "%s is '%s' in the profile, '%s' here", names[i], there, now);
        return false;
    }
    return true;
}

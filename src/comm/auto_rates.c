/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates for codec auto: from profiles if every rank has one that fits, else measured now, by all.
 * Either way ranks merge them, so that all have the same.
 */
#include "comm/comm.h"

#include <stdio.h>

#define MEASURE_MS 300

/* A rank's own, without asking the others. False: why. */
static bool own_rates(const struct dscomm_comm *comm, struct dsc_rates *rates, char *why,
                      size_t why_bytes)
{
    struct dsc_fingerprint machine;

    if (comm->rates_fn != NULL) {
        comm->rates_fn(comm->test_user, rates);
        return true;
    }
    if (dsc_comm_fingerprint(comm, &machine) < 0) {
        snprintf(why, why_bytes, "%s", dscomm_last_error());
        return false;
    }
    return dsc_profile_find(&machine, rates, why, why_bytes);
}

/* The first rank that has none, -1: all have. */
static dscomm_status_t who_has_none(struct dscomm_comm *comm, bool has, int *rank_out)
{
    const uint8_t own = has;
    uint8_t *const all = dsc_calloc(DSC_MEM_COMM, (size_t)comm->n_ranks, 1);
    dscomm_status_t st;

    if (all == NULL)
        return dsc_comm_fail(
            comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "a byte of %d ranks", comm->n_ranks), -1);
    st = comm->backend->gather(comm, &own, 1, all);
    *rank_out = -1;
    for (int r = comm->n_ranks - 1; st == DSCOMM_OK && r >= 0; r--)
        if (all[r] == 0)
            *rank_out = r;
    dsc_free(all);
    return st;
}

dscomm_status_t dsc_auto_rates(struct dscomm_comm *comm, struct dsc_rates *rates_out)
{
    struct dsc_measure_codec codecs[DSC_SPEEDS_MAX];
    struct dsc_measure what = { .codecs = codecs };
    char why[DSC_PROFILE_WHY_BYTES] = "";
    int without = -1;

    DSC_TRY(who_has_none(comm, own_rates(comm, rates_out, why, sizeof(why)), &without));
    if (without < 0) {
        dsc_log_info(TUNE, "auto: rates are those of profiles");
        return dsc_comm_merge_rates(comm, rates_out);
    }
    what.n_codecs = dsc_measure_all(codecs);
    dsc_log_info(TUNE, "auto: rank %d has no profile that fits%s%s; measuring for %d ms", without,
                 why[0] != '\0' ? ", here: " : "", why, MEASURE_MS);
    return comm->backend->measure(comm, &what, MEASURE_MS, rates_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiers of a communicator: which ranks are near each other, from what all ranks have told or from
 * DSCOMM_TIERS. They are made once, with the communicator, and are the same on all ranks.
 */
#include "comm/comm.h"
#include "tuner/tuner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(DSC_TIERS_MAX <= DSC_MAX_TIERS, "a plan takes the tiers of a communicator");

#define SHOWN_BYTES 96 /* of a text that says what tiers are: of many ranks it would be long */

/* The whole text of tiers, owned by the caller; NULL: out of memory. */
static char *whole_text(const struct dsc_tiers *tiers)
{
    const size_t n = dsc_tiers_text(tiers, NULL, 0) + 1;
    char *const text = dsc_calloc(DSC_MEM_COMM, n, 1);

    if (text != NULL)
        dsc_tiers_text(tiers, text, n);
    return text;
}

dscomm_status_t dsc_tiers_setting(const char *given, int n_ranks, char *text, size_t bytes)
{
    struct dsc_tiers tiers;
    char *whole;

    if (given[0] == '\0') {
        snprintf(text, bytes, "auto");
        return DSCOMM_OK;
    }
    DSC_TRY(dsc_tiers_build(NULL, n_ranks, given, &tiers));
    whole = whole_text(&tiers);
    dsc_tiers_fini(&tiers);
    if (whole == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "text of tiers of %d ranks", n_ranks);
    if (strlen(whole) < SHOWN_BYTES)
        snprintf(text, bytes, "%s", whole);
    else
        snprintf(text, bytes, "%.*s...%016" PRIx64, SHOWN_BYTES, whole, dsc_hash_text(whole));
    dsc_free(whole);
    return DSCOMM_OK;
}

/* "by host, tcp": kinds of links, fastest first. */
static void source_text(const struct dsc_tiers *tiers, const char *given, char *text, size_t bytes)
{
    size_t used =
        (size_t)snprintf(text, bytes, "%s", given[0] != '\0' ? "from DSCOMM_TIERS" : "by ");

    for (int t = 0; given[0] == '\0' && t < tiers->n_tiers && used < bytes; t++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", t > 0 ? ", " : "",
                                 dsc_tier_kind_name(tiers->kinds[t]));
}

dscomm_status_t dsc_comm_set_tiers(struct dscomm_comm *comm, const struct dsc_tier_facts *facts,
                                   const char *given)
{
    struct dsc_tiers tiers;
    char source[128];
    char *text;

    DSC_TRY(dsc_tiers_build(facts, comm->n_ranks, given, &tiers));
    text = whole_text(&tiers);
    if (text == NULL) {
        dsc_tiers_fini(&tiers);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "text of tiers of %d ranks", comm->n_ranks);
    }
    dsc_comm_drop_plans(comm);
    dsc_tiers_fini(&comm->tiers);
    dsc_free(comm->tiers_text);
    comm->tiers = tiers;
    comm->tiers_text = text;
    source_text(&tiers, given, source, sizeof(source));
    dsc_log_info(COMM, "tiers %.200s%s, %s", text, strlen(text) > 200 ? "..." : "", source);
    return DSCOMM_OK;
}

/* Appends tier t of comm as it is among the ranks, unless it joins none of them. */
static int add_some(struct dsc_tiers *some, const struct dscomm_comm *comm, int t, const int *ranks,
                    int n_before, int *number)
{
    int *const groups = some->groups + (size_t)some->n_tiers * (size_t)some->n_ranks;
    int n_groups = 0;

    memset(number, 0, (size_t)comm->n_ranks * sizeof(*number));
    for (int i = 0; i < some->n_ranks; i++) {
        const size_t at = (size_t)t * (size_t)comm->n_ranks + (size_t)ranks[i];
        int *const group = &number[comm->tiers.groups[at]];

        *group = *group == 0 ? ++n_groups : *group;
        groups[i] = *group - 1;
    }
    some->n_tiers += n_groups < n_before;
    return n_groups;
}

char *dsc_tiers_of_some(const struct dscomm_comm *comm, const int *ranks, int n)
{
    const bool is_given = comm->tiers.kinds[0] == DSC_TIER_GIVEN;
    struct dsc_tiers some = { .n_ranks = n };
    int *const number = dsc_calloc(DSC_MEM_COMM, (size_t)comm->n_ranks, sizeof(*number));
    int n_groups = n;
    char *text = NULL;

    some.groups = dsc_calloc(DSC_MEM_COMM, (size_t)n * DSC_TIERS_MAX, sizeof(*some.groups));
    if (number != NULL && some.groups != NULL) {
        for (int t = 0; is_given && t < comm->tiers.n_tiers; t++)
            n_groups = add_some(&some, comm, t, ranks, n_groups, number);
        text = whole_text(&some);
    }
    dsc_free(number);
    dsc_free(some.groups);
    return text;
}

const char *dscomm_comm_tiers(const dscomm_comm_t *comm)
{
    return comm == NULL ? "" : comm->tiers_text;
}

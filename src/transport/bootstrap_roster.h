/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. Who has come to a rendezvous and whether they agree: the logic of the
 * service without its sockets. The first error decides; it is what every rank is told.
 */
#ifndef DSC_BOOTSTRAP_ROSTER_H
#define DSC_BOOTSTRAP_ROSTER_H

#include "transport/bootstrap_internal.h"

struct dsc_roster {
    uint64_t first_ns;    /* when the first rank came; 0: nobody yet */
    uint64_t deadline_ns; /* of the impatientest rank that came */
    uint32_t n_ranks;     /* world size, as the first rank has it */
    uint32_t max_ranks;   /* largest world size that any rank has */
    uint32_t n_records;   /* ranks that came, admitted or not */
    uint32_t n_admitted;
    uint32_t first_rank;
    bool *is_here;               /* [n_ranks] */
    struct dsc_peer_info *infos; /* [n_ranks] */
    char settings[DSC_SETTINGS_MAX];
    dscomm_status_t status; /* DSCOMM_IN_PROGRESS until decided */
    char text[DSC_ANSWER_TEXT_MAX];
};

/* deadline_ns: for the first rank to come. */
void dsc_roster_init(struct dsc_roster *roster, uint64_t deadline_ns);
void dsc_roster_fini(struct dsc_roster *roster);
static inline bool dsc_roster_is_decided(const struct dsc_roster *roster)
{
    return roster->status != DSCOMM_IN_PROGRESS;
}
/* Adds a rank; decides when it is the last, or disagrees with those before. */
void dsc_roster_admit(struct dsc_roster *roster, const struct dsc_record *record);
/* The deadline passed: decides, naming the ranks that never came. */
void dsc_roster_expire(struct dsc_roster *roster);
/* Decides for an error, unless decided. */
void dsc_roster_fail(struct dsc_roster *roster, dscomm_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The answer, frame included, for dsc_free(); NULL when there is no memory. Decided rosters only.
 */
uint8_t *dsc_roster_answer(const struct dsc_roster *roster, size_t *bytes_out);

#endif

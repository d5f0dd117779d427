/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/comm: parts of a measurement. All of it is collective: ranks take the same turns,
 * and what one of them needs to know of the others it asks by dsc_meter_agree().
 *   measure.c          the whole, agreement            measure_calls.c     calls
 *   measure_links.c    links of a tier                 measure_burst.c     messages over them
 *   measure_codecs.c   operations of plans
 */
#ifndef DSC_MEASURE_H
#define DSC_MEASURE_H

#include "comm/comm.h"

#define DSC_ROUNDS_MAX 5

struct dsc_meter {
    struct dscomm_comm *comm;
    struct dsc_rates *rates;
    uint64_t budget_ns;
    uint32_t n_rounds; /* that a median is taken of, if time allows */
    uint64_t hash;     /* of its descriptor, in all messages */
};

/* CPU time of the calling thread. */
uint64_t dsc_thread_cpu_ns(void);
/* Both reorder values; n of 0: 0. Quartile: the lower one. */
uint64_t dsc_median(uint64_t *values, size_t n);
uint64_t dsc_quartile(uint64_t *values, size_t n);

/* Least (of those above 0; 0: none is), largest, and mean value of all ranks. Also a barrier. */
struct dsc_agreed {
    uint64_t least, most, mean;
};
dscomm_status_t dsc_meter_agree(struct dsc_meter *m, uint64_t value, struct dsc_agreed *agreed_out);

/* Rates of all tiers, the same on all ranks. */
dscomm_status_t dsc_meter_links(struct dsc_meter *m, uint64_t budget_ns);
/* What calls cost besides messages and elements. */
dscomm_status_t dsc_meter_calls(struct dsc_meter *m);
/* Speeds on this rank, while all ranks do the same. Codecs for which no time is left are left out.
 */
dscomm_status_t dsc_meter_codecs(struct dsc_meter *m, const struct dsc_measure *what,
                                 uint64_t budget_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/topo: tiers under construction. */
#ifndef DSC_TIERS_INTERNAL_H
#define DSC_TIERS_INTERNAL_H

#include "topo/topo.h"

/* Adds the tier of the groups that label gives, [n_ranks], any numbers from 0 to n_ranks - 1. */
dscomm_status_t dsc_tiers_add(struct dsc_tiers *tiers, enum dsc_tier_kind kind, const int *label);
/* Adds the last tier unless it is there. */
void dsc_tiers_close(struct dsc_tiers *tiers, enum dsc_tier_kind kind);
/* What DSCOMM_TIERS says, checked. */
dscomm_status_t dsc_tiers_parse(struct dsc_tiers *tiers, const char *given);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured, as tables for people: of link_perf and dscomm_info. */
#ifndef RATES_TABLE_H
#define RATES_TABLE_H

#include "tuner/tuner.h"

void rates_table_print(const struct dsc_rates *rates);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting of calls that a running collective must not make. A test that runs under the preloaded
 * library finds the two functions with dlsym(RTLD_DEFAULT, "dsc_count_start") and so on.
 */
#ifndef DSC_COUNT_CALLS_H
#define DSC_COUNT_CALLS_H

typedef void dsc_count_start_fn(void);
typedef long dsc_count_stop_fn(void);

/* Counters to zero, then every thread's calls count. */
__attribute__((visibility("default"))) dsc_count_start_fn dsc_count_start;
/* Stops, prints each function that was called with its first caller, returns the sum. */
__attribute__((visibility("default"))) dsc_count_stop_fn dsc_count_stop;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that compute operations for the thread that runs a call. One producer hands out job
 * numbers through a ring; workers and the producer itself take them. No locks: a ticket counter and
 * a futex for sleeping.
 */
#ifndef DSC_WORKERS_H
#define DSC_WORKERS_H

#include "core/core.h"

struct dsc_workers;

/* thread: 1 to n_workers for workers, 0 for the producer when it helps. */
typedef void dsc_job_fn(void *ctx, uint32_t job, int thread);

/* n_workers 0 is allowed: then the producer does every job itself. */
dscomm_status_t dsc_workers_create(int n_workers, uint32_t max_jobs, uint64_t spin_ns,
                                   struct dsc_workers **workers_out);
/* No job may be open. NULL allowed. */
void dsc_workers_destroy(struct dsc_workers *workers);
int dsc_workers_count(const struct dsc_workers *workers);

/* What the coming jobs are; only while no job is open. */
void dsc_workers_set(struct dsc_workers *workers, dsc_job_fn *fn, void *ctx);
/* At most max_jobs may be open. */
void dsc_workers_add(struct dsc_workers *workers, uint32_t job);
/* Runs one open job on this thread; false if none is left to take. */
bool dsc_workers_help(struct dsc_workers *workers);
/* Sleeps until a job ends, at most timeout_ns. `seen`: dsc_workers_done() of before looking. */
void dsc_workers_wait(struct dsc_workers *workers, uint32_t seen, uint64_t timeout_ns);
uint32_t dsc_workers_done(const struct dsc_workers *workers); /* jobs ended, wraps around */

#endif

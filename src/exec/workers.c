/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job ring. `tail` counts jobs added, `head` jobs taken: whoever moves head from i to i + 1
 * owns job i. The producer never has more than max_jobs open, so a slot is not reused before it is
 * taken.
 */
#include "exec/workers.h"

#include <pthread.h>
#include <string.h>

#define SLEEP_NS 1000000000u

struct worker {
    struct dsc_workers *pool;
    pthread_t thread;
    int number;
    bool started;
};

struct dsc_workers {
    dsc_job_fn *fn;
    void *ctx;
    uint64_t spin_ns;
    uint32_t mask; /* ring size - 1 */
    _Atomic uint32_t *ring;
    int n_workers;
    struct worker *workers;
    _Alignas(64) _Atomic uint32_t tail;
    _Atomic uint32_t wake; /* futex word of idle workers: +1 per job added and at the end */
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t done; /* futex word of the producer */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t producer_sleeps;
    _Atomic uint32_t stop;
};

static bool take(struct dsc_workers *pool, uint32_t *job_out)
{
    uint32_t head = atomic_load_explicit(&pool->head, memory_order_relaxed);

    for (;;) {
        const uint32_t tail = atomic_load_explicit(&pool->tail, memory_order_acquire);

        if (head == tail)
            return false;
        *job_out = atomic_load_explicit(&pool->ring[head & pool->mask], memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&pool->head, &head, head + 1,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return true;
    }
}

static void run(struct dsc_workers *pool, uint32_t job, int thread)
{
    pool->fn(pool->ctx, job, thread);
    atomic_fetch_add(&pool->done, 1);
    if (atomic_load(&pool->producer_sleeps))
        dsc_futex_wake(&pool->done, 1);
}

/* Spins a little, then sleeps until a job is added or the pool stops. */
static void wait_for_job(struct dsc_workers *pool)
{
    const uint64_t until = dsc_now_ns() + pool->spin_ns;
    uint32_t seen;

    do {
        if (atomic_load(&pool->tail) != atomic_load(&pool->head) || atomic_load(&pool->stop))
            return;
        dsc_cpu_relax();
    } while (pool->spin_ns > 0 && dsc_now_ns() < until);

    atomic_fetch_add(&pool->sleepers, 1);
    seen = atomic_load(&pool->wake);
    if (atomic_load(&pool->tail) == atomic_load(&pool->head) && !atomic_load(&pool->stop))
        dsc_futex_wait(&pool->wake, seen, SLEEP_NS);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    uint32_t job;

    dsc_fp_enter(); /* flush-to-zero is inherited from the creating thread */
    while (!atomic_load(&me->pool->stop)) {
        if (take(me->pool, &job))
            run(me->pool, job, me->number);
        else
            wait_for_job(me->pool);
    }
    return NULL;
}

dscomm_status_t dsc_workers_create(int n_workers, uint32_t max_jobs, uint64_t spin_ns,
                                   struct dsc_workers **workers_out)
{
    struct dsc_workers *pool = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*pool));
    uint32_t size = 1;

    while (size < max_jobs)
        size *= 2;
    if (pool == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "worker pool");
    pool->mask = size - 1;
    pool->spin_ns = spin_ns;
    pool->ring = dsc_calloc(DSC_MEM_EXEC, size, sizeof(*pool->ring));
    pool->workers = dsc_calloc(DSC_MEM_EXEC, (size_t)n_workers, sizeof(*pool->workers));
    if (pool->ring == NULL || pool->workers == NULL) {
        dsc_workers_destroy(pool);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "worker pool of %d threads", n_workers);
    }
    for (int i = 0; i < n_workers; i++) {
        struct worker *w = &pool->workers[i];

        *w = (struct worker){ .pool = pool, .number = i + 1 };
        pool->n_workers = i + 1;
        w->started = dsc_thread_start(&w->thread, worker_main, w);
        if (!w->started) {
            dsc_workers_destroy(pool);
            return dsc_fail(DSCOMM_ERR_LIMIT, "cannot start worker thread %d of %d", i + 1,
                            n_workers);
        }
    }
    *workers_out = pool;
    return DSCOMM_OK;
}

void dsc_workers_destroy(struct dsc_workers *workers)
{
    if (workers == NULL)
        return;
    atomic_store(&workers->stop, 1);
    atomic_fetch_add(&workers->wake, 1);
    dsc_futex_wake(&workers->wake, INT32_MAX);
    for (int i = 0; i < workers->n_workers; i++)
        if (workers->workers[i].started)
            pthread_join(workers->workers[i].thread, NULL);
    dsc_free(workers->workers);
    dsc_free(workers->ring);
    dsc_free(workers);
}

int dsc_workers_count(const struct dsc_workers *workers)
{
    return workers->n_workers;
}

void dsc_workers_set(struct dsc_workers *workers, dsc_job_fn *fn, void *ctx)
{
    workers->fn = fn;
    workers->ctx = ctx;
}

void dsc_workers_add(struct dsc_workers *workers, uint32_t job)
{
    const uint32_t tail = atomic_load_explicit(&workers->tail, memory_order_relaxed);

    atomic_store_explicit(&workers->ring[tail & workers->mask], job, memory_order_relaxed);
    atomic_store(&workers->tail, tail + 1);
    atomic_fetch_add(&workers->wake, 1);
    if (atomic_load(&workers->sleepers) > 0)
        dsc_futex_wake(&workers->wake, 1);
}

bool dsc_workers_help(struct dsc_workers *workers)
{
    uint32_t job;

    if (!take(workers, &job))
        return false;
    run(workers, job, 0);
    return true;
}

uint32_t dsc_workers_done(const struct dsc_workers *workers)
{
    return atomic_load(&workers->done);
}

void dsc_workers_wait(struct dsc_workers *workers, uint32_t seen, uint64_t timeout_ns)
{
    atomic_store(&workers->producer_sleeps, 1);
    if (atomic_load(&workers->done) == seen)
        dsc_futex_wait(&workers->done, seen, timeout_ns);
    atomic_store(&workers->producer_sleeps, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "net_workers.h"

#include <pthread.h>
#include <stddef.h>

#include "core/core.h"

#define THREADS_MAX 64

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER; /* start and end */
static int n_users;
static pthread_t threads[THREADS_MAX];
static int n_running;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the queue */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static struct net_job *first, **last = &first;
static bool is_over;

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct net_job *const job = first;

        if (job == NULL && is_over)
            break;
        if (job == NULL) {
            pthread_cond_wait(&wake, &lock);
            continue;
        }
        first = job->next;
        if (first == NULL)
            last = &first;
        pthread_mutex_unlock(&lock);
        job->run(job);
        atomic_store_explicit(&job->is_done, true, memory_order_release);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void join_all(void)
{
    pthread_mutex_lock(&lock);
    is_over = true;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n_running; i++)
        pthread_join(threads[i], NULL);
    n_running = 0;
}

bool net_workers_acquire(int n_threads)
{
    bool good;

    pthread_mutex_lock(&users_lock);
    if (n_users == 0) {
        is_over = false;
        while (n_running < n_threads && n_running < THREADS_MAX &&
               dsc_thread_start(&threads[n_running], work, NULL))
            n_running++;
    }
    good = n_running > 0;
    n_users += good;
    pthread_mutex_unlock(&users_lock);
    return good;
}

void net_workers_release(void)
{
    pthread_mutex_lock(&users_lock);
    if (--n_users == 0)
        join_all();
    pthread_mutex_unlock(&users_lock);
}

void net_workers_submit(struct net_job *job)
{
    job->next = NULL;
    atomic_store_explicit(&job->is_done, false, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    *last = job;
    last = &job->next;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

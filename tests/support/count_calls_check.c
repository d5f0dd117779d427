/* SPDX-License-Identifier: Apache-2.0 */
/* The counter itself: it sees every kind of call, on any thread, and nothing where there is none.
 */
#include "support/count_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static dsc_count_start_fn *count_start;
static dsc_count_stop_fn *count_stop;
static _Atomic int step; /* 1: the thread runs, 2: it may allocate, 3: it has, 4: it may end */

static int expect(const char *what, long got, long want)
{
    if (got != want)
        (void)fprintf(stderr, "%s: counted %ld, expected %ld\n", what, got, want);
    return got != want;
}

static void wait_for(int wanted)
{
    while (atomic_load(&step) != wanted)
        ;
}

static void *allocate(void *unused)
{
    void *volatile p;

    atomic_store(&step, 1);
    wait_for(2);
    p = malloc(10);
    free(p);
    atomic_store(&step, 3);
    wait_for(4); /* the end of a thread frees */
    return unused;
}

static int check_idle(void)
{
    volatile long sum = 0;

    count_start();
    for (int i = 0; i < 1000; i++)
        sum += i;
    return expect("nothing", count_stop(), 0);
}

static int check_allocator(void)
{
    void *volatile p;
    void *q;

    count_start();
    p = malloc(10);
    p = realloc(p, 20);
    free(p);
    p = calloc(2, 10);
    free(p);
    p = aligned_alloc(64, 64);
    free(p);
    if (posix_memalign(&q, 64, 10) != 0)
        q = NULL;
    free(q);
    return expect("allocator", count_stop(), 9);
}

static int check_locks(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

    count_start();
    (void)pthread_mutex_lock(&mutex);
    (void)pthread_mutex_unlock(&mutex); /* not counted: there was a lock before it */
    (void)pthread_mutex_trylock(&mutex);
    (void)pthread_mutex_unlock(&mutex);
    (void)pthread_rwlock_rdlock(&lock);
    (void)pthread_rwlock_unlock(&lock);
    (void)pthread_cond_signal(&cond);
    (void)pthread_cond_broadcast(&cond);
    return expect("locks", count_stop(), 5);
}

static int check_system(void)
{
    count_start();
    void *const p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)munmap(p, 4096);
    (void)getenv("HOME");
    (void)secure_getenv("HOME");
    return expect("system", count_stop(), 4);
}

static int check_thread(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, allocate, NULL) != 0)
        return expect("pthread_create", 1, 0);
    wait_for(1); /* the start of a thread allocates */
    count_start();
    atomic_store(&step, 2);
    wait_for(3);
    const long n = count_stop();

    atomic_store(&step, 4);
    (void)pthread_join(thread, NULL);
    return expect("another thread", n, 2);
}

int main(void)
{
    *(void **)(&count_start) = dlsym(RTLD_DEFAULT, "dsc_count_start");
    *(void **)(&count_stop) = dlsym(RTLD_DEFAULT, "dsc_count_stop");
    if (count_start == NULL || count_stop == NULL) {
        (void)fprintf(stderr, "the counter is not preloaded\n");
        return 1;
    }
    return check_idle() + check_allocator() + check_locks() + check_system() + check_thread();
}

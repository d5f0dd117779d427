/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, sleeping and waking. A futex word is all a waiter needs, so the same code serves threads
 * of one process and processes that share memory (hence never FUTEX_PRIVATE_FLAG), and a waker that
 * died leaves nothing locked.
 */
#include "core/core.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void dsc_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000u),
        .tv_nsec = (long)(timeout_ns % 1000000000u),
    };

    /* Value changed, interrupted, timed out: the caller looks at the word again in every case. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void dsc_futex_wake(_Atomic uint32_t *word, int n_waiters)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, n_waiters, NULL, NULL, 0);
}

bool dsc_thread_start(pthread_t *thread_out, void *(*main)(void *), void *arg)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits the mask */
    failed = pthread_create(thread_out, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

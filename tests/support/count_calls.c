/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD that counts calls which a running collective must not make, on all
 * threads, between dsc_count_start() and dsc_count_stop(). A test finds these two with dlsym(). The
 * allocator is reached by glibc's own names, because dlsym() itself allocates.
 *
 * Seen are calls through the dynamic linker, so also those that libc makes to malloc for strdup()
 * and the like, but not those of libc to its own internals.
 */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support/count_calls.h"

/* clang-format off */
#define CALLS(X)                                                                             \
    X(malloc) X(calloc) X(realloc) X(free) X(posix_memalign) X(aligned_alloc) X(memalign)    \
    X(mmap) X(munmap) X(getenv) X(secure_getenv) X(pthread_create)                           \
    X(pthread_mutex_lock) X(pthread_mutex_trylock) X(pthread_mutex_timedlock)                \
    X(pthread_rwlock_rdlock) X(pthread_rwlock_wrlock) X(pthread_rwlock_tryrdlock)            \
    X(pthread_rwlock_trywrlock) X(pthread_spin_lock)                                         \
    X(pthread_cond_wait) X(pthread_cond_timedwait) X(pthread_cond_signal)                    \
    X(pthread_cond_broadcast)
/* clang-format on */

enum call {
#define CALL_ENUM(name) CALL_##name,
    CALLS(CALL_ENUM)
#undef CALL_ENUM
        N_CALLS
};

static const char *const call_names[] = {
#define CALL_NAME(name) #name,
    CALLS(CALL_NAME)
#undef CALL_NAME
};

static atomic_bool counting;
static atomic_long counts[N_CALLS];
static _Atomic(void *) callers[N_CALLS]; /* of the first call */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *ptr);

static void note(enum call call, void *caller)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return;
    if (atomic_fetch_add(&counts[call], 1) == 0)
        atomic_store(&callers[call], caller);
}

#define NOTE(name) note(CALL_##name, __builtin_return_address(0))

void dsc_count_start(void)
{
    for (int i = 0; i < N_CALLS; i++)
        atomic_store(&counts[i], 0);
    atomic_store(&counting, true);
}

long dsc_count_stop(void)
{
    long total = 0;

    atomic_store(&counting, false);
    for (int i = 0; i < N_CALLS; i++) {
        const long n = atomic_load(&counts[i]);
        void *const caller = atomic_load(&callers[i]);
        Dl_info info;

        total += n;
        if (n == 0)
            continue;
        if (dladdr(caller, &info) == 0)
            info = (Dl_info){ .dli_fname = "?" };
        (void)fprintf(stderr, "counted %ld calls of %s, the first from %s %s+0x%zx\n", n,
                      call_names[i], info.dli_fname, info.dli_sname == NULL ? "" : info.dli_sname,
                      (size_t)((char *)caller - (char *)info.dli_fbase));
    }
    return total;
}

/* ---- the allocator ---- */

void *malloc(size_t size)
{
    NOTE(malloc);
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    NOTE(calloc);
    return __libc_calloc(n, size);
}

void *realloc(void *ptr, size_t size)
{
    NOTE(realloc);
    return __libc_realloc(ptr, size);
}

void free(void *ptr)
{
    NOTE(free);
    __libc_free(ptr);
}

int posix_memalign(void **ptr_out, size_t align, size_t size)
{
    NOTE(posix_memalign);
    void *const ptr = __libc_memalign(align, size);

    if (ptr == NULL)
        return ENOMEM; /* errno stays untouched, as POSIX wants */
    *ptr_out = ptr;
    return 0;
}

void *aligned_alloc(size_t align, size_t size)
{
    NOTE(aligned_alloc);
    return __libc_memalign(align, size);
}

void *memalign(size_t align, size_t size)
{
    NOTE(memalign);
    return __libc_memalign(align, size);
}

/* ---- the rest: forwarded to the next library's function of the same name and type ---- */

static void *next(_Atomic(void *) *cache, const char *name, const char *version)
{
    void *found = atomic_load_explicit(cache, memory_order_acquire);

    if (found == NULL) {
        /* Condition variables exist in two layouts; dlsym() would give the old one. */
        if (version != NULL)
            found = dlvsym(RTLD_NEXT, name, version);
        if (found == NULL)
            found = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(cache, found, memory_order_release);
    }
    return found;
}

/* FORWARD(result, name, version, (parameters), (arguments)) */
#define FORWARD(result, name, version, params, args)    \
    result name params                                  \
    {                                                   \
        static _Atomic(void *) cache;                   \
        result(*fn) params;                             \
                                                        \
        NOTE(name);                                     \
        *(void **)(&fn) = next(&cache, #name, version); \
        return fn args;                                 \
    }

#define COND_VERSION "GLIBC_2.3.2" /* x86-64's; elsewhere there is one version only */

FORWARD(void *, mmap, NULL, (void *addr, size_t len, int prot, int flags, int fd, off_t offset),
        (addr, len, prot, flags, fd, offset))
FORWARD(int, munmap, NULL, (void *addr, size_t len), (addr, len))
FORWARD(char *, getenv, NULL, (const char *name), (name))
FORWARD(char *, secure_getenv, NULL, (const char *name), (name))
FORWARD(int, pthread_create, NULL,
        (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
        (thread, attr, run, arg))
FORWARD(int, pthread_mutex_lock, NULL, (pthread_mutex_t * mutex), (mutex))
FORWARD(int, pthread_mutex_trylock, NULL, (pthread_mutex_t * mutex), (mutex))
FORWARD(int, pthread_mutex_timedlock, NULL, (pthread_mutex_t * mutex, const struct timespec *until),
        (mutex, until))
FORWARD(int, pthread_rwlock_rdlock, NULL, (pthread_rwlock_t * lock), (lock))
FORWARD(int, pthread_rwlock_wrlock, NULL, (pthread_rwlock_t * lock), (lock))
FORWARD(int, pthread_rwlock_tryrdlock, NULL, (pthread_rwlock_t * lock), (lock))
FORWARD(int, pthread_rwlock_trywrlock, NULL, (pthread_rwlock_t * lock), (lock))
FORWARD(int, pthread_spin_lock, NULL, (pthread_spinlock_t * lock), (lock))
FORWARD(int, pthread_cond_wait, COND_VERSION, (pthread_cond_t * cond, pthread_mutex_t *mutex),
        (cond, mutex))
FORWARD(int, pthread_cond_timedwait, COND_VERSION,
        (pthread_cond_t * cond, pthread_mutex_t *mutex, const struct timespec *until),
        (cond, mutex, until))
FORWARD(int, pthread_cond_signal, COND_VERSION, (pthread_cond_t * cond), (cond))
FORWARD(int, pthread_cond_broadcast, COND_VERSION, (pthread_cond_t * cond), (cond))

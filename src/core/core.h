/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Services every module uses: status helpers, log, environment, memory, time, CPU features, futex.
 * Depends on nothing else in the tree.
 */
#ifndef DSC_CORE_H
#define DSC_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dscomm/dscomm.h"

/*
 * Of an internal function: libdscomm_cuda calls it too, so it is exported, under the version
 * DSCOMM_PRIVATE (dscomm.map). Programs do not link to it: it may change in any release.
 */
#define DSC_SHARED __attribute__((visibility("default")))

/* Of a function that runs when a library is unloaded. It may not wait for threads. */
#define DSC_AT_UNLOAD __attribute__((destructor))

/* ---- status: log once where an error is decided, forward everywhere else ---- */

#define DSC_TRY(expr)                       \
    do {                                    \
        const dscomm_status_t st_ = (expr); \
        if (st_ < 0)                        \
            return st_;                     \
    } while (0)

/* For functions with a local `st` and one clean-up label. */
#define DSC_TRY_GOTO(label, expr) \
    do {                          \
        st = (expr);              \
        if (st < 0)               \
            goto label;           \
    } while (0)

/*
 * Logs at error level, sets the thread's last error text, evaluates to status. The status itself,
 * not a function's result: so the compiler sees that a failed call never goes on.
 */
#define dsc_fail(status, ...) (dsc_fail_at(__FILE__, __LINE__, __VA_ARGS__), (status))
/* The same with errno's text appended. */
#define dsc_fail_errno(status, ...) (dsc_fail_errno_at(__FILE__, __LINE__, __VA_ARGS__), (status))

DSC_SHARED void dsc_fail_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void dsc_fail_errno_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the last error text without logging: for an error that was logged on another thread. */
DSC_SHARED void dsc_set_last_error(const char *text);

#define DSC_ASSERT(cond) dsc_assert_that((cond), #cond, __FILE__, __LINE__)
DSC_SHARED void dsc_assert_failed(const char *cond, const char *file, int line)
    __attribute__((noreturn));
static inline void dsc_assert_that(bool ok, const char *cond, const char *file, int line)
{
#ifndef NDEBUG
    if (!ok)
        dsc_assert_failed(cond, file, line);
#else
    (void)ok, (void)cond, (void)file, (void)line;
#endif
}

/* ---- log: `NET`, `EXEC`, ... is the subsystem shown in the prefix ---- */

#define dsc_log_warn(sub, ...) dsc_log(DSCOMM_LOG_WARN, #sub, __VA_ARGS__)
#define dsc_log_info(sub, ...) dsc_log(DSCOMM_LOG_INFO, #sub, __VA_ARGS__)
#define dsc_log_debug(sub, ...) dsc_log(DSCOMM_LOG_DEBUG, #sub, __VA_ARGS__)
DSC_SHARED void dsc_log(dscomm_log_level_t level, const char *subsystem, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * Lines go to this function, without their prefix, and not to stderr or the application's; NULL: as
 * before. For a library inside another one, which has a log of its own.
 */
typedef void dsc_log_writer(dscomm_log_level_t level, const char *where, const char *text);
void dsc_log_set_writer(dsc_log_writer *writer);
/* Rank and world size in the prefix of this thread's lines; rank -1: none (the default). */
DSC_SHARED void dsc_log_set_rank(int rank, int n_ranks);

/* ---- environment: env.def is the one list; getenv appears in env.c alone ---- */

#define DSC_ALGORITHM_WORDS "auto oneshot twoshot tiered"
#define DSC_TRANSPORT_WORDS "auto loopback shm verbs tcp nccl_net"

struct dsc_env {
#define ENV(field, kind, name, dflt, min, max, doc) DSC_ENV_TYPE_##kind field;
#define DSC_ENV_TYPE_u64 uint64_t
#define DSC_ENV_TYPE_text const char *
#include "env.def"
#undef ENV
};

/* A description of one variable, for dscomm_info and docs/env.md. */
struct dsc_env_doc {
    const char *name;  /* with the DSCOMM_ prefix */
    const char *dflt;  /* as text */
    const char *range; /* as text */
    const char *doc;
};

/*
 * The registry, read once per process at first use. A bad value is DSCOMM_ERR_ENV naming variable,
 * value and range (again at every call); an unknown DSCOMM_* name warns once with the nearest
 * match.
 */
DSC_SHARED dscomm_status_t dsc_env_get(const struct dsc_env **env_out);
/* Reads again; for tests. Not while another thread uses the library. */
void dsc_env_reload(void);
/* Frees the registry's memory, before the code is unloaded. Not while a thread uses the library. */
void dsc_env_unload(void);
const struct dsc_env_doc *dsc_env_docs(size_t *n_out);
/* A launcher's variable (RANK, MASTER_ADDR, ...): NULL when unset. Not for DSCOMM_* names. */
const char *dsc_env_launcher(const char *name);

/* ---- memory: tagged so that tests can fail the n-th allocation and count what is left ---- */

enum dsc_mem_tag {
    DSC_MEM_CORE,
    DSC_MEM_CODEC,
    DSC_MEM_FEEDBACK,
    DSC_MEM_TOPO,
    DSC_MEM_TRANSPORT,
    DSC_MEM_PLAN,
    DSC_MEM_TUNER,
    DSC_MEM_EXEC,
    DSC_MEM_COMM,
    DSC_MEM_N_TAGS
};

/* Zeroed, 64-byte aligned, NULL when there is none. Size 0 gives a valid pointer. */
DSC_SHARED void *dsc_calloc(enum dsc_mem_tag tag, size_t n, size_t size);
DSC_SHARED void dsc_free(void *ptr);       /* NULL allowed */
size_t dsc_mem_live(enum dsc_mem_tag tag); /* blocks not freed yet */
/* The n-th next allocation fails, once; 1 is the next one, -1: never. */
void dsc_mem_fail_after(int64_t n_allocs);

/* ---- notes ---- */

/*
 * What a rank tells about its previous allreduce in the header of every data message, 32 bits that
 * docs/wire_format.md lays out. Sizes are coded by their logarithm in steps of 1/8 octave and come
 * back rounded down; ranks merge notes field by field by the maximum, so every field is coded such
 * that the maximum is what all should know. Any 32 bits are a note.
 */
struct dsc_note {
    uint64_t error_ppm;    /* relative error of lossy encodes; 0: none, or not known */
    uint64_t residual_ppm; /* what error feedback left behind, of the size of the input */
    uint64_t ns_per_kib;   /* of the caller's vector. Merged: the shortest, so of who came last and
                              waited for nobody who was late; 0: not known */
    uint32_t wait_ppm;     /* share of the call that the rank only waited */
    bool overflow;         /* an output element was not finite */
};

DSC_SHARED uint32_t dsc_note_pack(const struct dsc_note *note);
struct dsc_note dsc_note_unpack(uint32_t bits);
DSC_SHARED uint32_t dsc_note_merge(uint32_t a, uint32_t b);

/* ---- time ---- */

DSC_SHARED uint64_t dsc_now_ns(void); /* monotonic */
static inline uint64_t dsc_deadline_ns(int timeout_ms)
{
    return dsc_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* ---- CPU ---- */

enum {
    DSC_CPU_AVX2 = 1u << 0, /* with F16C */
    DSC_CPU_AVX512 = 1u << 1,
    DSC_CPU_NEON = 1u << 2,
};
uint32_t dsc_cpu_features(void); /* what the CPU has and DSCOMM_CPU_MASK allows */
int dsc_cpu_allowed(void);       /* CPUs this process may run on (affinity mask) */
/* Of the last-level cache, for each CPU that shares it; 0: not known. */
uint64_t dsc_cpu_cache_bytes(void);

/* Sets default rounding, no FTZ, no DAZ on this thread; returns what was there. */
uint32_t dsc_fp_enter(void);
void dsc_fp_leave(uint32_t saved);

static inline void dsc_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- futex: the only way threads wait; the word may lie in memory shared by processes ---- */

/* Sleeps while *word == expected, at most timeout_ns. Spurious returns happen. */
void dsc_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void dsc_futex_wake(_Atomic uint32_t *word, int n_waiters);

/* ---- threads ---- */

/*
 * Starts a thread that no signal handler of the application runs on. False: there is no more to be
 * had. To be joined with pthread_join().
 */
DSC_SHARED bool dsc_thread_start(pthread_t *thread_out, void *(*main)(void *), void *arg);

/* ---- small helpers ---- */

static inline size_t dsc_ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}
static inline size_t dsc_round_up(size_t a, size_t b)
{
    return dsc_ceil_div(a, b) * b;
}
static inline size_t dsc_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}
static inline size_t dsc_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}
static inline uint64_t dsc_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline int dsc_compare_u64(const void *a, const void *b) /* for qsort() */
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}
#define DSC_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* One of the words, which single blanks separate? */
bool dsc_is_word_of(const char *words, const char *text);

/* The first name that a library lacks goes to *missing, which is NULL at first. */
DSC_SHARED void *dsc_find_symbol(void *library, const char *name, const char **missing);

/* 64-bit FNV-1a over a NUL-terminated text. Source: the published FNV parameters. */
DSC_SHARED uint64_t dsc_hash_text(const char *text);

/*
 * CRC32C (Castagnoli) of n bytes; crc: of what came before, 0 at first. "123456789" gives
 * 0xe3069283.
 */
uint32_t dsc_crc32c(uint32_t crc, const void *data, size_t n);

DSC_SHARED const char *dsc_dtype_name(dscomm_dtype_t dtype); /* "fp32" ... or "?" */
DSC_SHARED const char *dsc_op_name(dscomm_op_t op);          /* "sum" ... or "?" */
DSC_SHARED size_t dsc_dtype_bytes(dscomm_dtype_t dtype);

#endif

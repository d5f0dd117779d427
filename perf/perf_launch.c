/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting ranks and not losing them. The parent forks before any call into the library (a process
 * with library threads must not be forked), watches its children, and ends what is left a bounded
 * time after the first failure. Children die with the parent.
 */
#include "perf.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Survivors of a failed rank report on their own well before this. */
#define GRACE_NS 10000000000u

enum { ID_PENDING, ID_READY, ID_FAILED };

/* The one page that all ranks share before they have a communicator. */
struct page {
    _Atomic int state; /* of the id */
    dscomm_unique_id_t id;
};

struct launch {
    const struct perf_args *args;
    int n_ranks;
    perf_rank_fn *fn;
    void *user;
    struct page *page;
};

uint64_t perf_now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

bool perf_launcher_present(const char **variable_out)
{
    static const char *const names[] = { "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *variable_out = names[i];
        if (getenv(names[i]) != NULL)
            return true;
    }
    return false;
}

/* ---- a rank ---- */

static void publish_id(struct page *page)
{
    const bool ok = dscomm_unique_id_create(&page->id) == DSCOMM_OK;

    atomic_store(&page->state, ok ? ID_READY : ID_FAILED);
}

/* Rank 0 decides within its own start; if it dies instead, the parent ends this process. */
static bool await_id(struct page *page)
{
    const struct timespec nap = { .tv_nsec = 1000000 };

    while (atomic_load(&page->state) == ID_PENDING)
        (void)nanosleep(&nap, NULL);
    return atomic_load(&page->state) == ID_READY;
}

static int run_rank(const struct launch *l, int rank)
{
    if (rank == 0)
        publish_id(l->page);
    if (!await_id(l->page))
        return PERF_EXIT_FAILED;
    return l->fn(l->user, rank, l->n_ranks, &l->page->id);
}

struct thread {
    pthread_t handle;
    const struct launch *launch;
    int rank;
    int code;
};

static void *thread_main(void *arg)
{
    struct thread *const t = arg;

    t->code = run_rank(t->launch, t->rank);
    return NULL;
}

static int worse(int a, int b)
{
    if (a == PERF_EXIT_FAILED || b == PERF_EXIT_FAILED)
        return PERF_EXIT_FAILED;
    return a > b ? a : b;
}

static int run_threads(const struct launch *l)
{
    struct thread *const threads = calloc((size_t)l->n_ranks, sizeof(*threads));
    int code = PERF_EXIT_OK;

    if (threads == NULL)
        return PERF_EXIT_FAILED;
    for (int rank = 0; rank < l->n_ranks; rank++) {
        threads[rank] = (struct thread){ .launch = l, .rank = rank };
        /* Ranks already running cannot finish without this one: the process is given up. */
        if (pthread_create(&threads[rank].handle, NULL, thread_main, &threads[rank]) != 0) {
            (void)fprintf(stderr, "%s: rank %d: no thread to be had\n", l->args->program, rank);
            _exit(PERF_EXIT_FAILED);
        }
    }
    for (int rank = 0; rank < l->n_ranks; rank++) {
        (void)pthread_join(threads[rank].handle, NULL);
        code = worse(code, threads[rank].code);
    }
    free(threads);
    return code;
}

/* ---- the parent ---- */

static const int watched_signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP };

static void make_watched(sigset_t *set)
{
    (void)sigemptyset(set);
    for (size_t i = 0; i < sizeof(watched_signals) / sizeof(watched_signals[0]); i++)
        (void)sigaddset(set, watched_signals[i]);
}

static void __attribute__((noreturn)) child_main(const struct launch *l, int rank, pid_t parent)
{
    sigset_t set;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(PERF_EXIT_FAILED);
    make_watched(&set);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);

    exit(rank < 0 ? run_threads(l) : run_rank(l, rank));
}

static void kill_all(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++) {
        if (pids[i] > 0)
            (void)kill(pids[i], SIGKILL);
    }
}

static int judge(const struct launch *l, int i, pid_t pid, int status, bool was_ended)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    (void)fprintf(stderr, "%s: rank %d (pid %d) %s by signal %d\n", l->args->program, i, (int)pid,
                  was_ended ? "did not end in time and was ended" : "was killed", WTERMSIG(status));
    return PERF_EXIT_FAILED;
}

/* Takes all that have ended; returns how many, merges their exit codes. */
static int collect(const struct launch *l, pid_t *pids, int n, bool was_ended, int *code)
{
    int n_ended = 0;

    for (int i = 0; i < n; i++) {
        int status;

        if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
            continue;
        *code = worse(*code, judge(l, i, pids[i], status, was_ended));
        pids[i] = 0;
        n_ended++;
    }
    return n_ended;
}

static int watch(const struct launch *l, pid_t *pids, int n, int code)
{
    const struct timespec tick = { .tv_nsec = 200000000 };
    uint64_t failed_ns = code != PERF_EXIT_OK ? perf_now_ns() : 0;
    bool was_ended = false;
    sigset_t set;
    int n_left = 0;

    make_watched(&set);
    for (int i = 0; i < n; i++)
        n_left += pids[i] > 0;
    while (n_left > 0) {
        const int sig = sigtimedwait(&set, NULL, &tick);
        const bool told = sig > 0 && sig != SIGCHLD;

        n_left -= collect(l, pids, n, was_ended, &code);
        if (code != PERF_EXIT_OK && failed_ns == 0)
            failed_ns = perf_now_ns();
        if (!was_ended && (told || (failed_ns != 0 && perf_now_ns() - failed_ns > GRACE_NS))) {
            was_ended = true;
            code = PERF_EXIT_FAILED;
            kill_all(pids, n);
        }
    }
    return code;
}

static int start(const struct launch *l, pid_t *pids, int n, bool as_threads)
{
    const pid_t parent = getpid();

    (void)fflush(NULL); /* or the children print it again */
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            free(pids);
            child_main(l, as_threads ? -1 : i, parent);
        }
        if (pids[i] > 0)
            continue;
        (void)fprintf(stderr, "%s: rank %d cannot be started: %s\n", l->args->program, i,
                      strerror(errno));
        kill_all(pids, i);
        return PERF_EXIT_FAILED;
    }
    return PERF_EXIT_OK;
}

int perf_launch(const struct perf_args *args, int n_ranks, bool as_threads, perf_rank_fn *fn,
                void *user)
{
    const int n = as_threads ? 1 : n_ranks;
    struct launch l = { .args = args, .n_ranks = n_ranks, .fn = fn, .user = user };
    pid_t *const pids = calloc((size_t)n, sizeof(*pids));
    int code = PERF_EXIT_FAILED;
    sigset_t set;

    l.page = mmap(NULL, sizeof(*l.page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pids != NULL && l.page != MAP_FAILED) {
        make_watched(&set);
        (void)sigprocmask(SIG_BLOCK, &set, NULL);
        code = watch(&l, pids, n, start(&l, pids, n, as_threads));
    } else {
        (void)fprintf(stderr, "%s: out of memory\n", args->program);
    }
    if (l.page != MAP_FAILED)
        (void)munmap(l.page, sizeof(*l.page));
    free(pids);
    return code;
}

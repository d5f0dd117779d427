/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of a rank. Commands and answers are lines:
 *
 *   -> know CODEC                        <- {"known":true}
 *   -> run CODEC BYTES WARM CALLS        <- {"times_ns":[...],"sent":N,"rss_kib":N,"err":X}
 *
 * The first line, sent when the rank is ready, is {"side":S,"rank":N,"version":V}. A rank that
 * cannot go on says why on stderr and ends; compare.py shows it.
 */
#include "compare_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Ends a rank whose peers are gone; longer than compare.py waits (sides.py). */
#define LIMIT_S 180

#define CODEC_BYTES 64
#define CALLS_MAX 100000

struct worker {
    const struct compare_backend *backend;
    struct compare_shared *shared;
    FILE *in, *out;
    float *send, *recv;
    size_t capacity;  /* bytes of each */
    uint64_t n_calls; /* so far: chooses the data */
    int64_t *times_ns;
};

struct command {
    char codec[CODEC_BYTES];
    size_t bytes;
    long n_warm, n_calls;
};

static int64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- memory ---- */

/* From here on the peak counts anew; where the kernel refuses, it stays that of the process. */
static void reset_peak(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (write(fd, "5", 1) != 1)
        (void)fprintf(stderr, "note: /proc/self/clear_refs: %s\n", strerror(errno));
    (void)close(fd);
}

static long peak_kib(void)
{
    FILE *const status = fopen("/proc/self/status", "re");
    char line[128];
    long kib = -1;

    if (status == NULL)
        return kib;
    while (kib < 0 && fgets(line, sizeof(line), status) != NULL)
        (void)sscanf(line, "VmHWM: %ld", &kib);
    (void)fclose(status);
    return kib;
}

/* Written once, so that no timed call meets a page for the first time. */
static bool grow(struct worker *w, size_t bytes)
{
    const size_t capacity = (bytes + 4095) / 4096 * 4096;

    if (capacity <= w->capacity)
        return true;
    free(w->send);
    free(w->recv);
    w->send = w->backend->in_place ? NULL : aligned_alloc(4096, capacity);
    w->recv = aligned_alloc(4096, capacity);
    w->capacity = capacity;
    if (w->recv == NULL || (w->send == NULL && !w->backend->in_place)) {
        (void)fprintf(stderr, "no memory for vectors of %zu bytes\n", bytes);
        return false;
    }
    memset(w->recv, 0, capacity);
    if (w->send != NULL)
        memset(w->send, 0, capacity);
    return true;
}

/* ---- commands ---- */

static bool one_call(struct worker *w, size_t count, int64_t *time_ns)
{
    const struct compare_backend *const backend = w->backend;
    float *const input = backend->in_place ? w->recv : w->send;

    w->n_calls++;
    compare_fill(w->shared, input, count, (uint64_t)backend->rank, w->n_calls);
    compare_barrier(w->shared);
    const int64_t start_ns = now_ns();
    const bool ok = backend->call(backend->self, w->send, w->recv, count);
    *time_ns = now_ns() - start_ns;
    return ok;
}

static bool all_calls(struct worker *w, const struct command *command, int64_t *sent)
{
    const struct compare_backend *const backend = w->backend;
    const size_t count = command->bytes / sizeof(float);
    int64_t unused;

    reset_peak();
    if (!backend->prepare(backend->self, command->codec, w->recv, count))
        return false;
    for (long i = 0; i < command->n_warm; i++) {
        if (!one_call(w, count, &unused))
            return false;
    }
    const int64_t before = backend->sent_bytes(backend->self);
    for (long i = 0; i < command->n_calls; i++) {
        if (!one_call(w, count, &w->times_ns[i]))
            return false;
    }
    *sent = before < 0 ? -1 : backend->sent_bytes(backend->self) - before;
    return true;
}

static void answer_run(struct worker *w, const struct command *command, int64_t sent)
{
    const double err =
        compare_error(w->shared, w->recv, command->bytes / sizeof(float), w->n_calls);

    (void)fprintf(w->out, "{\"times_ns\":[");
    for (long i = 0; i < command->n_calls; i++)
        (void)fprintf(w->out, "%s%" PRId64, i > 0 ? "," : "", w->times_ns[i]);
    /* JSON has no NaN; nothing that is right is further off than 1e9 */
    (void)fprintf(w->out, "],\"sent\":%" PRId64 ",\"rss_kib\":%ld,\"err\":%.9g}\n", sent,
                  peak_kib(), err < 1e9 ? err : 1e9);
}

static bool run(struct worker *w, const struct command *command)
{
    int64_t sent = -1;

    if (command->bytes < sizeof(float) || command->n_calls < 1 || command->n_calls > CALLS_MAX) {
        (void)fprintf(stderr, "%zu bytes and %ld calls, allowed: from %zu, 1 to %d\n",
                      command->bytes, command->n_calls, sizeof(float), CALLS_MAX);
        return false;
    }
    free(w->times_ns);
    w->times_ns = calloc((size_t)command->n_calls, sizeof(*w->times_ns));
    if (w->times_ns == NULL || !grow(w, command->bytes))
        return false;
    (void)alarm(LIMIT_S);
    if (!all_calls(w, command, &sent))
        return false;
    (void)alarm(0);
    answer_run(w, command, sent);
    return true;
}

static bool obey(struct worker *w, const char *line)
{
    struct command command;

    if (sscanf(line, "run %63s %zu %ld %ld", command.codec, &command.bytes, &command.n_warm,
               &command.n_calls) == 4)
        return run(w, &command);
    if (sscanf(line, "know %63s", command.codec) == 1) {
        const bool known = w->backend->knows(w->backend->self, command.codec);

        (void)fprintf(w->out, "{\"known\":%s}\n", known ? "true" : "false");
        return true;
    }
    (void)fprintf(stderr, "command \"%s\", allowed: know, run\n", line);
    return false;
}

/* ---- a rank's life ---- */

static bool open_control(struct worker *w, const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        perror(path);
        return false;
    }
    w->in = fdopen(fd, "r");
    w->out = fdopen(dup(fd), "w");
    return w->in != NULL && w->out != NULL;
}

/*
 * A core for each rank's calling thread where there are enough, as mpirun gives them by itself. Two
 * ranks that wake on one core stay there longer than small calls take. Threads that a side has
 * started before stay free. mpirun has left one core: nothing to choose.
 */
static void bind_to_core(int rank, uint64_t n_ranks)
{
    cpu_set_t allowed, mine;
    int n = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 ||
        (uint64_t)CPU_COUNT(&allowed) < n_ranks)
        return;
    CPU_ZERO(&mine);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&mine) == 0; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && n++ == rank)
            CPU_SET(cpu, &mine);
    }
    (void)sched_setaffinity(0, sizeof(mine), &mine);
}

int compare_worker_run(const struct compare_backend *backend, const char *control,
                       const char *shared, const char *side)
{
    struct worker w = { .backend = backend };
    char line[256];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody left to give commands */
    w.shared = compare_shared_map(shared);
    if (w.shared == NULL || !open_control(&w, control))
        return 1;
    bind_to_core(backend->rank, w.shared->n_ranks);
    (void)fprintf(w.out, "{\"side\":\"%s\",\"rank\":%d,\"version\":\"%s\"}\n", side, backend->rank,
                  backend->version);
    while (fflush(w.out) == 0 && fgets(line, sizeof(line), w.in) != NULL) {
        if (!obey(&w, line))
            return 1;
    }
    (void)fclose(w.in);
    (void)fclose(w.out);
    free(w.send);
    free(w.recv);
    free(w.times_ns);
    return 0;
}

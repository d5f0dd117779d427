/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line per event, prefix added here, to stderr or to the application's function. A
 * line leaves in one write() so that lines of several processes on one terminal do not mix. Time of
 * day is UTC, computed by hand: localtime() would read the environment and take a lock.
 */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define TEXT_BYTES 1536

static _Atomic int threshold = -1; /* -1: the environment was not read yet */
static _Atomic(dscomm_log_fn *) sink;
static _Atomic(void *) sink_user;
static _Atomic(dsc_log_writer *) whole_writer;
static _Thread_local int thread_rank = -1;
static _Thread_local int thread_n_ranks;

static const char *level_name(dscomm_log_level_t level)
{
    static const char *const names[] = { "ERROR", "WARN", "INFO", "DEBUG" };

    return (size_t)level < DSC_ARRAY_LEN(names) ? names[level] : "?";
}

static int format_prefix(char *line, size_t line_bytes, dscomm_log_level_t level, const char *where)
{
    struct timespec now;
    char host[64] = "?";
    char rank[32] = "";

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gethostname(host, sizeof(host) - 1);
    if (thread_rank >= 0)
        (void)snprintf(rank, sizeof(rank), " %d/%d", thread_rank, thread_n_ranks);

    const int sec = (int)(now.tv_sec % 86400);

    return snprintf(line, line_bytes, "%02d:%02d:%02d.%03d %s:%d%s %s %s ", sec / 3600,
                    sec / 60 % 60, sec % 60, (int)(now.tv_nsec / 1000000), host, (int)getpid(),
                    rank, where, level_name(level));
}

static void write_stderr(char *line, size_t len)
{
    line[len++] = '\n';

    while (len > 0) {
        const ssize_t n = write(STDERR_FILENO, line, len);

        if (n <= 0)
            return; /* nobody can be told that the log is broken */
        line += n;
        len -= (size_t)n;
    }
}

void dsc_log_write(dscomm_log_level_t level, const char *where, const char *text)
{
    dsc_log_writer *const writer = atomic_load(&whole_writer);
    char line[LINE_BYTES];

    if (writer != NULL) {
        writer(level, where, text);
        return;
    }

    const int prefix = format_prefix(line, sizeof(line) - 1, level, where);
    const size_t head = dsc_min_size(prefix < 0 ? 0 : (size_t)prefix, sizeof(line) - 2);
    const size_t len = dsc_min_size(strlen(text), sizeof(line) - 2 - head);
    dscomm_log_fn *const fn = atomic_load(&sink);

    memcpy(line + head, text, len);
    line[head + len] = '\0';

    if (fn != NULL)
        fn(atomic_load(&sink_user), level, line);
    else
        write_stderr(line, head + len);
}

void dsc_log_set_level(dscomm_log_level_t level)
{
    atomic_store(&threshold, (int)level);
}

void dsc_log_set_rank(int rank, int n_ranks)
{
    thread_rank = rank;
    thread_n_ranks = n_ranks;
}

static bool is_shown(dscomm_log_level_t level)
{
    if (atomic_load(&threshold) < 0) {
        const struct dsc_env *env;

        (void)dsc_env_get(&env); /* sets the level, even when another variable is bad */
    }
    return (int)level <= atomic_load(&threshold);
}

void dsc_log(dscomm_log_level_t level, const char *subsystem, const char *fmt, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    if (!is_shown(level))
        return;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    dsc_log_write(level, subsystem, text);
}

void dsc_log_set_writer(dsc_log_writer *writer)
{
    atomic_store(&whole_writer, writer);
}

void dscomm_set_log(dscomm_log_fn *fn, void *user)
{
    atomic_store(&sink_user, user);
    atomic_store(&sink, fn);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain driver for fuzz targets: no coverage, but any compiler and sanitizer. A failure is
 * repeated by the file it leaves (FUZZ_CRASH, default crash_input) as the only argument.
 */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CORPUS_MAX 1024
#define CHANGES_MAX 64
/* An input needs milliseconds; with a sanitizer on a busy machine still no seconds. */
#define STALL_S 60

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[CORPUS_MAX];
static size_t n_corpus;
/* What is being run, for the signal handler. */
static const uint8_t *now_data;
static size_t now_size;
static const char *crash_path = "crash_input";

static uint8_t *copy_of(const uint8_t *data, size_t size)
{
    uint8_t *const copy = malloc(size > 0 ? size : 1);

    if (copy == NULL)
        exit(2);
    memcpy(copy, data, size);
    return copy;
}

static bool load_file(const char *path)
{
    static uint8_t buf[FUZZ_INPUT_MAX];
    FILE *const file = fopen(path, "rb");

    if (file == NULL || n_corpus == CORPUS_MAX) {
        (void)fprintf(stderr, "cannot take %s\n", path);
        if (file != NULL)
            (void)fclose(file);
        return false;
    }

    const size_t size = fread(buf, 1, sizeof(buf), file);

    (void)fclose(file);
    corpus[n_corpus++] = (struct input){ copy_of(buf, size), size };
    return true;
}

static bool load_path(const char *path)
{
    DIR *const dir = opendir(path);
    const struct dirent *entry;
    bool is_ok = true;

    if (dir == NULL)
        return load_file(path);
    while ((entry = readdir(dir)) != NULL) {
        char name[4096];
        const int len = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);

        if (entry->d_name[0] != '.' && len > 0 && (size_t)len < sizeof(name))
            is_ok &= load_file(name);
    }
    (void)closedir(dir);
    return is_ok;
}

/* ---- when something does not hold ---- */

static void on_fatal(int number)
{
    static const char stalled[] = "stalled: one input took too long\n";
    const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (number == SIGALRM)
        (void)!write(STDERR_FILENO, stalled, sizeof(stalled) - 1);
    if (fd >= 0)
        (void)!write(fd, now_data, now_size);
    (void)signal(number == SIGALRM ? SIGABRT : number, SIG_DFL);
    (void)raise(number == SIGALRM ? SIGABRT : number);
}

static void run(const uint8_t *data, size_t size)
{
    uint8_t *const exact = copy_of(data, size); /* what is beyond belongs to the sanitizer */

    now_data = exact;
    now_size = size;
    (void)alarm(STALL_S);
    (void)LLVMFuzzerTestOneInput(exact, size);
    (void)alarm(0);
    free(exact);
}

/* ---- random changes ---- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Changes some bytes, the head sometimes included, and sometimes the size. */
static void run_changed(const struct input *in, uint64_t *state)
{
    static uint8_t data[FUZZ_INPUT_MAX];
    const size_t size =
        next_random(state) % 4 == 0 ? next_random(state) % FUZZ_INPUT_MAX : in->size;
    const uint32_t n_changes = next_random(state) % CHANGES_MAX;

    memset(data, 0, sizeof(data));
    memcpy(data, in->data, in->size);
    for (uint32_t i = 0; i < n_changes; i++) {
        const size_t range = i < 2 && size >= FUZZ_HEAD_BYTES ? FUZZ_HEAD_BYTES : size;

        if (range > 0)
            data[next_random(state) % range] = (uint8_t)next_random(state);
    }
    run(data, size);
}

struct options {
    long runs, seconds;
    uint64_t seed;
};

static bool read_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--runs=", 7) == 0)
            options->runs = strtol(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "--seconds=", 10) == 0)
            options->seconds = strtol(argv[i] + 10, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            options->seed = strtoull(argv[i] + 7, NULL, 10);
        else if (!load_path(argv[i]))
            return false;
    }
    return n_corpus > 0;
}

int main(int argc, char **argv)
{
    struct options options = { .seed = 1 };
    const time_t begin = time(NULL);
    long n_changed = 0;

    if (!read_options(argc, argv, &options)) {
        (void)fprintf(stderr, "usage: %s [--runs=N] [--seconds=N] [--seed=N] FILE_OR_FOLDER...\n",
                      argv[0]);
        return 2;
    }
    if (getenv("FUZZ_CRASH") != NULL)
        crash_path = getenv("FUZZ_CRASH");
    (void)signal(SIGABRT, on_fatal);
    (void)signal(SIGALRM, on_fatal);
#ifndef __SANITIZE_ADDRESS__ /* it has a report of its own to make */
    (void)signal(SIGSEGV, on_fatal);
    (void)signal(SIGBUS, on_fatal);
    (void)signal(SIGFPE, on_fatal);
#endif
    (void)LLVMFuzzerInitialize(&argc, &argv);

    for (size_t i = 0; i < n_corpus; i++)
        run(corpus[i].data, corpus[i].size);

    uint64_t state = options.seed;

    while (n_changed < options.runs || time(NULL) - begin < options.seconds) {
        run_changed(&corpus[next_random(&state) % n_corpus], &state);
        n_changed++;
    }
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    (void)printf("%zu files, %ld changed with seed %llu, all held\n", n_corpus, n_changed,
                 (unsigned long long)options.seed);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way through a program: options, what can be refused before a rank exists, then the ranks.
 * What is found here is one line on stderr and exit code 2, whatever the number of ranks.
 */
#include "perf.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct job {
    const struct perf_args *args;
    const struct perf_collective *coll;
    struct perf_source source;
};

static int run_rank(void *user, int rank, int n_ranks, const dscomm_unique_id_t *id)
{
    const struct job *const job = user;

    return perf_rank_run(job->args, job->coll, &job->source, rank, n_ranks, id);
}

static void no_log(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static int check_codecs(const struct perf_args *args)
{
    dscomm_set_log(no_log, NULL); /* the line below says it */
    for (int i = 0; i < args->n_codecs; i++) {
        const dscomm_codec_t *codec;

        if (dscomm_codec_parse(args->codecs[i], &codec) == DSCOMM_OK)
            continue;
        perf_complain(args, "--codec", args->codecs[i], "%s", dscomm_last_error());
        return PERF_EXIT_USAGE;
    }
    return PERF_EXIT_OK;
}

/* In a child, so that the process that forks the ranks has never called the library. */
static int check_codecs_apart(const struct perf_args *args)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(check_codecs(args));
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        (void)fprintf(stderr, "%s: cannot check --codec: %s\n", args->program, strerror(errno));
        return PERF_EXIT_FAILED;
    }
    return WEXITSTATUS(status);
}

/* What all local ranks need at the largest size: both vectors and two of residual. */
static double bytes_needed(const struct perf_args *args, int n_ranks)
{
    size_t smallest_elem = 4;

    for (int i = 0; i < args->n_dtypes; i++) {
        if (perf_dtype_bytes(args->dtypes[i]) < smallest_elem)
            smallest_elem = perf_dtype_bytes(args->dtypes[i]);
    }
    const double per_elem = args->feedback ? 2.0 * sizeof(float) : 0.0;
    return (double)n_ranks * (double)args->max_bytes * (2.0 + per_elem / (double)smallest_elem);
}

/* Asks for the memory once and gives it back, so that "too large" is not found by n ranks at once.
 */
static bool check_memory(const struct perf_args *args, int n_ranks)
{
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double all = bytes_needed(args, n_ranks);
    const size_t one = (size_t)bytes_needed(args, 1);
    char value[32];

    if (one == 0)
        return true;
    (void)snprintf(value, sizeof(value), "%zu", args->max_bytes);
    void *const trial =
        mmap(NULL, one, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (trial == MAP_FAILED) {
        perf_complain(args, "-e", value, "a rank needs %zu bytes, allowed: less (%s)", one,
                      strerror(errno));
        return false;
    }
    (void)munmap(trial, one);
    if (all <= machine)
        return true;
    perf_complain(args, "-e", value, "%d ranks need %.0f bytes, allowed: the machine's %.0f",
                  n_ranks, all, machine);
    return false;
}

/* A long run should not end with "cannot be written". Under a launcher only rank 0 may create it.
 */
static bool check_json(const struct perf_args *args)
{
    FILE *const file = args->json_path != NULL ? fopen(args->json_path, "a") : NULL;

    if (file == NULL && args->json_path != NULL)
        perf_complain(args, "-J", args->json_path, "cannot be written: %s", strerror(errno));
    if (file != NULL)
        (void)fclose(file);
    return file != NULL || args->json_path == NULL;
}

/* What this build, and the rest of the options, make of --device. */
static bool check_device(const struct perf_args *args)
{
    char value[16];

    if (args->on_cuda && perf_on_cuda == NULL) {
        perf_complain(args, "--device", "cuda",
                      "built without CUDA (no nvcc or nccl.h was found), allowed: host");
        return false;
    }
    if (args->n_replays == 0 || args->on_cuda)
        return true;
    (void)snprintf(value, sizeof(value), "%d", args->n_replays);
    perf_complain(args, "-G", value, "graphs need --device cuda, allowed without: 0");
    return false;
}

static int run(struct job *job, bool launched)
{
    const struct perf_args *const args = job->args;
    const int n_ranks = launched || args->n_ranks == 0 ? 1 : args->n_ranks;
    const bool as_threads = args->transport != NULL && strcmp(args->transport, "loopback") == 0;

    const int code = check_codecs_apart(args);
    if (code != PERF_EXIT_OK)
        return code;
    if (!check_memory(args, n_ranks) || !perf_source_init(&job->source, args))
        return PERF_EXIT_USAGE;
    if (launched)
        return perf_rank_run(args, job->coll, &job->source, -1, 0, NULL);
    if (!check_json(args))
        return PERF_EXIT_USAGE;
    return perf_launch(args, n_ranks, as_threads, run_rank, job);
}

int perf_main(const struct perf_collective *coll, int argc, char **argv)
{
    struct perf_args args;
    struct job job = { .args = &args, .coll = coll };
    const char *variable;
    int code;

    if (!perf_args_parse(&args, argc, argv, &code))
        return code;
    if (!check_device(&args))
        return PERF_EXIT_USAGE;
    if (!coll->reduces) { /* one row, whatever -o says, as in nccl-tests */
        args.ops[0] = DSCOMM_SUM;
        args.n_ops = 1;
    }
    args.feedback = args.feedback && !coll->has_root;
    const bool launched = perf_launcher_present(&variable);
    if (launched && args.n_ranks > 1) {
        char value[16];

        (void)snprintf(value, sizeof(value), "%d", args.n_ranks);
        perf_complain(&args, "-g", value,
                      "%s is set, so a launcher starts the ranks, allowed: 1 (or unset %s)",
                      variable, variable);
        return PERF_EXIT_USAGE;
    }
    code = run(&job, launched);
    perf_source_fini(&job.source);
    return code;
}

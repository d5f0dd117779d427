/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what the library's tuner decides by: links of every tier, through the library's own
 * connections, and codecs. Prints it and writes a profile, which communicators on this machine then
 * find. Ranks are started as by the other programs.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "perf.h"
#include "perf_values.h"
#include "rates_table.h"

#define BUDGET_MS 10000
#define QUICK_MS 300

struct job {
    struct perf_args args; /* program, ranks, threads, timeout, transport, JSON */
    int budget_ms;
    const char *path; /* of the profile; NULL: where it is looked for; "none": none is written */
};

/* ---- a rank ---- */

static int fail(const struct job *job, int rank, const char *what)
{
    (void)fprintf(stderr, "%s: rank %d: %s: %s\n", job->args.program, rank, what,
                  dscomm_last_error());
    return PERF_EXIT_FAILED;
}

static dscomm_status_t measure(struct dscomm_comm *comm, int budget_ms, struct dsc_rates *rates)
{
    struct dsc_measure_codec codecs[DSC_SPEEDS_MAX];
    const struct dsc_measure what = { codecs, dsc_measure_all(codecs) };
    const uint32_t ticket = dsc_turns_take(&comm->turns);
    dscomm_status_t st;

    dsc_turns_wait(&comm->turns, ticket);
    st = dsc_comm_measure(comm, &what, budget_ms, rates);
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

/* One rank of each host writes: the lowest of its group where a tier joins ranks of a host. */
static bool is_writer(const struct dscomm_comm *comm)
{
    for (int t = 0; t < comm->tiers.n_tiers; t++) {
        const int *const groups = comm->tiers.groups + (size_t)t * (size_t)comm->n_ranks;

        if (comm->tiers.kinds[t] != DSC_TIER_HOST)
            continue;
        for (int r = 0; r < comm->rank; r++)
            if (groups[r] == groups[comm->rank])
                return false;
    }
    return true;
}

/* The path it was written to; "": none. False: could not be, dscomm_last_error() says why. */
static bool write_profile(const struct job *job, const struct dsc_profile *profile,
                          char path[DSC_PROFILE_PATH_BYTES], char *why, size_t why_bytes)
{
    path[0] = '\0';
    if (job->path != NULL && strcmp(job->path, "none") == 0) {
        (void)snprintf(why, why_bytes, "-o is none");
        return true;
    }
    if (job->path != NULL)
        (void)snprintf(path, DSC_PROFILE_PATH_BYTES, "%s", job->path);
    else if (!dsc_profile_path(&profile->machine, path, why, why_bytes)) {
        path[0] = '\0';
        return true;
    }
    return dsc_profile_save(path, profile) == DSCOMM_OK;
}

static cJSON *make_json(const struct job *job, int n_ranks, const struct dsc_profile *profile,
                        const char *path)
{
    char *const text = dsc_profile_text(profile);
    cJSON *const top = cJSON_CreateObject();
    cJSON *const args = cJSON_AddArrayToObject(top, "args");

    for (int i = 0; i < job->args.argc; i++)
        cJSON_AddItemToArray(args, cJSON_CreateString(job->args.argv[i]));
    cJSON_AddStringToObject(top, "dscomm_version", dscomm_version());
    cJSON_AddStringToObject(top, "program", job->args.program);
    cJSON_AddNumberToObject(top, "ranks", n_ranks);
    cJSON_AddNumberToObject(top, "budget_ms", job->budget_ms);
    cJSON_AddStringToObject(top, "profile_path", path);
    cJSON_AddItemToObject(top, "profile", text == NULL ? NULL : cJSON_Parse(text));
    free(text);
    return top;
}

static bool write_json(const struct job *job, int n_ranks, const struct dsc_profile *profile,
                       const char *path)
{
    cJSON *const top = make_json(job, n_ranks, profile, path);
    char *const text = cJSON_Print(top);
    FILE *const file = fopen(job->args.json_path, "w");
    bool ok = text != NULL && file != NULL && fputs(text, file) >= 0 && fputc('\n', file) != EOF;

    if (file != NULL && fclose(file) != 0)
        ok = false;
    if (!ok)
        perf_complain(&job->args, "-J", job->args.json_path, "cannot be written: %s",
                      strerror(errno));
    cJSON_free(text);
    cJSON_Delete(top);
    return ok;
}

static void print_report(const struct job *job, const struct dscomm_comm *comm,
                         const struct dsc_profile *profile)
{
    printf("# %s, dscomm %s\n# nRanks %d transport %s budget %d ms\n#\n", job->args.program,
           dscomm_version(), comm->n_ranks, comm->transport, job->budget_ms);
    rates_table_print(&profile->rates);
}

static int report(const struct job *job, const struct dscomm_comm *comm,
                  const struct dsc_profile *profile)
{
    char path[DSC_PROFILE_PATH_BYTES] = "", why[DSC_PROFILE_WHY_BYTES] = "";
    bool ok = true;

    if (comm->rank == 0)
        print_report(job, comm, profile);
    if (is_writer(comm))
        ok = write_profile(job, profile, path, why, sizeof(why));
    if (!ok)
        return fail(job, comm->rank, "the profile");
    if (comm->rank != 0)
        return PERF_EXIT_OK;
    if (path[0] != '\0')
        printf("# profile written to %s\n", path);
    else
        printf("# no profile written: %s\n", why);
    if (job->args.json_path != NULL)
        ok = write_json(job, comm->n_ranks, profile, path);
    return ok ? PERF_EXIT_OK : PERF_EXIT_FAILED;
}

static int run_on(const struct job *job, struct dscomm_comm *comm)
{
    struct dsc_profile *const profile = calloc(1, sizeof(*profile));
    int code = PERF_EXIT_FAILED;

    if (profile == NULL)
        (void)fprintf(stderr, "%s: out of memory\n", job->args.program);
    else if (measure(comm, job->budget_ms, &profile->rates) < 0 ||
             dsc_comm_fingerprint(comm, &profile->machine) < 0)
        fail(job, comm->rank, "measuring");
    else
        code = report(job, comm, profile);
    free(profile);
    return code;
}

static int run_rank(void *user, int rank, int n_ranks, const dscomm_unique_id_t *id)
{
    const struct job *const job = user;
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    dscomm_comm_t *comm = NULL;
    dscomm_status_t st;
    int code;

    config.transport = job->args.transport;
    config.n_threads = job->args.n_threads;
    config.timeout_ms = job->args.timeout_s * 1000;
    st = id != NULL ? dscomm_comm_create(n_ranks, rank, id, &config, &comm)
                    : dscomm_comm_create_from_env(&config, &comm);
    if (st < 0)
        return fail(job, rank, "joining");
    code = run_on(job, comm);
    (void)fflush(stdout);
    (void)dscomm_comm_destroy(comm);
    return code;
}

/* ---- options ---- */

static const struct option options[] = {
    { "ngpus", required_argument, NULL, 'g' },   { "nthreads", required_argument, NULL, 't' },
    { "timeout", required_argument, NULL, 'T' }, { "transport", required_argument, NULL, 'x' },
    { "budget", required_argument, NULL, 'B' },  { "quick", no_argument, NULL, 'q' },
    { "output", required_argument, NULL, 'o' },  { "output_file", required_argument, NULL, 'J' },
    { "help", no_argument, NULL, 'h' },          { NULL, 0, NULL, 0 },
};

static void print_help(const char *program)
{
    printf("Usage: %s [options]\n\n"
           "  -g, --ngpus N             ranks to start on this machine; without it a launcher's\n"
           "  -t, --nthreads N          threads that compute in each rank (DSCOMM_THREADS)\n"
           "  -T, --timeout SECONDS     deadline of every wait (DSCOMM_TIMEOUT_MS)\n"
           "      --transport NAME      " PERF_TRANSPORTS " (DSCOMM_TRANSPORT)\n"
           "  -B, --budget MS           time to measure in, about (%d)\n"
           "      --quick               the same as -B %d\n"
           "  -o, --output FILE         the profile; none: write none (where it is looked for)\n"
           "  -J, --output_file FILE    write JSON too; replaces FILE\n"
           "  -h, --help                this text\n\n"
           "Columns are explained in docs/tuner.md.\n"
           "Exit code: 0, 1 a failed rank or a file that cannot be written, 2 a bad option.\n",
           program, BUDGET_MS, QUICK_MS);
}

static bool parse_int(const struct job *job, const char *option, int min, int max, int *value_out)
{
    if (perf_parse_int(optarg, min, max, value_out))
        return true;
    perf_complain(&job->args, option, optarg, "allowed: %d to %d", min, max);
    return false;
}

static bool parse_transport(struct job *job)
{
    job->args.transport = optarg;
    if (perf_is_one_of(optarg, PERF_TRANSPORTS))
        return true;
    perf_complain(&job->args, "--transport", optarg, "allowed: " PERF_TRANSPORTS);
    return false;
}

static bool parse_path(const struct job *job, const char *option, const char **path_out)
{
    *path_out = optarg;
    if (optarg[0] == '\0' || strlen(optarg) >= DSC_PROFILE_PATH_BYTES) {
        perf_complain(&job->args, option, optarg, "allowed: a file name");
        return false;
    }
    return true;
}

static bool parse_one(struct job *job, int option)
{
    switch (option) {
    case 'g':
        return parse_int(job, "-g", 1, 1024, &job->args.n_ranks);
    case 't':
        return parse_int(job, "-t", 1, 256, &job->args.n_threads);
    case 'T':
        return parse_int(job, "-T", 1, 86400, &job->args.timeout_s);
    case 'B':
        return parse_int(job, "-B", 20, 600000, &job->budget_ms);
    case 'q':
        job->budget_ms = QUICK_MS;
        return true;
    case 'x':
        return parse_transport(job);
    case 'o':
        return parse_path(job, "-o", &job->path);
    case 'J':
        return parse_path(job, "-J", &job->args.json_path);
    default:
        perf_complain(&job->args, "option", job->args.argv[optind - 1],
                      option == ':' ? "a value is missing"
                                    : "not known, allowed are those of --help");
        return false;
    }
}

/* False: *code_out is the exit code. */
static bool parse(struct job *job, int argc, char **argv, int *code_out)
{
    const char *const slash = strrchr(argv[0], '/');

    *job = (struct job){
        .args = { .program = slash != NULL ? slash + 1 : argv[0], .argc = argc, .argv = argv },
        .budget_ms = BUDGET_MS
    };
    *code_out = PERF_EXIT_USAGE;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":g:t:T:B:o:J:h", options, NULL)) != -1;) {
        if (c == 'h') {
            print_help(job->args.program);
            *code_out = PERF_EXIT_OK;
            return false;
        }
        if (!parse_one(job, c))
            return false;
    }
    if (optind < argc) {
        perf_complain(&job->args, "argument", argv[optind],
                      "not known, allowed are options, see --help");
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct job job;
    const char *variable;
    int code;

    if (!parse(&job, argc, argv, &code))
        return code;
    if (perf_launcher_present(&variable)) {
        if (job.args.n_ranks <= 1)
            return run_rank(&job, -1, 0, NULL);
        perf_complain(&job.args, "-g", NULL, "%s is set, so a launcher starts the ranks", variable);
        return PERF_EXIT_USAGE;
    }
    return perf_launch(&job.args, job.args.n_ranks == 0 ? 1 : job.args.n_ranks,
                       job.args.transport != NULL && strcmp(job.args.transport, "loopback") == 0,
                       run_rank, &job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_conformance --plugin=PATH [--abi=N] [--case=NAME,...] [--lines=N] [--cycles=N]
 *                 [--must-fail=NAME] [--rdma]
 *
 * Runs all cases, or some, against a plugin, by one version of NCCL's interface. Exit code 0: all
 * passed; with --must-fail: that one failed. The last line counts. --rdma: the cases of
 * net_cases_rdma.c and no others.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net_case.h"

struct options options = { .abi = 12, .lines = 1000000, .cycles = 100 };

static const struct net_test *const lists[] = { load_cases,  connect_cases,   data_cases,
                                                lines_cases, end_cases,       stranger_cases,
                                                tuner_cases, tuner_text_cases };
static const struct net_test *const rdma_lists[] = { rdma_cases };
static const char *only;

/* In a process of its own: what it spoils or leaks is gone with it. */
static bool passes(const struct net_test *test)
{
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm((unsigned)CASE_LIMIT_S);
        test->run();
        exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return false;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s: ended by signal %d%s\n", test->name, WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? ", out of time" : "");
    return status == 0;
}

/* The names are separated by commas. */
static bool is_wanted(const char *name)
{
    const size_t n = strlen(name);

    for (const char *at = only; at != NULL && (at = strstr(at, name)) != NULL; at += n)
        if ((at == only || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return only == NULL;
}

static bool parse(const char *word)
{
    const char *const value = strchr(word, '=');

    if (value == NULL)
        return false;
    if (strncmp(word, "--plugin=", 9) == 0)
        options.plugin = value + 1;
    else if (strncmp(word, "--abi=", 6) == 0)
        options.abi = atoi(value + 1);
    else if (strncmp(word, "--case=", 7) == 0)
        only = value + 1;
    else if (strncmp(word, "--lines=", 8) == 0)
        options.lines = atol(value + 1);
    else if (strncmp(word, "--cycles=", 9) == 0)
        options.cycles = atoi(value + 1);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    const char *must_fail = NULL;
    int n_passed = 0, n_failed = 0;
    const struct net_test *const *chosen = lists;
    size_t n_lists = sizeof(lists) / sizeof(lists[0]);
    bool did_fail = false;

    if (getenv("DSC_VM") != NULL)
        slowness = 3;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--must-fail=", 12) == 0)
            must_fail = argv[i] + 12;
        else if (strcmp(argv[i], "--rdma") == 0)
            chosen = rdma_lists, n_lists = 1;
        else if (!parse(argv[i]))
            return fprintf(stderr, "unknown argument %s\n", argv[i]), 2;
    }
    if (options.plugin == NULL)
        return fprintf(stderr, "--plugin=PATH is missing\n"), 2;
    for (size_t l = 0; l < n_lists; l++) {
        for (const struct net_test *test = chosen[l]; test->name != NULL; test++) {
            bool passed;

            if (!is_wanted(test->name))
                continue;
            passed = passes(test);
            printf("%s %s\n", passed ? "pass" : "FAIL", test->name);
            did_fail = did_fail || (!passed && must_fail != NULL && !strcmp(must_fail, test->name));
            n_passed += passed;
            n_failed += !passed;
        }
    }
    printf("v%d: %d cases passed, %d failed\n", options.abi, n_passed, n_failed);
    if (must_fail != NULL)
        return did_fail ? 0 : 1;
    return n_failed == 0 && n_passed > 0 ? 0 : 1;
}

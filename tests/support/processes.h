/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes: a test program starts itself once per rank.
 */
#ifndef DSC_TEST_PROCESSES_H
#define DSC_TEST_PROCESSES_H

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace processes {

/* This program again, with these arguments. exec, because a fork shares device memory. */
inline pid_t start_self(std::vector<std::string> arguments)
{
    std::vector<char *> argv = { const_cast<char *>("self") };
    const pid_t pid = fork();

    if (pid != 0)
        return pid;
    for (std::string &argument : arguments)
        argv.push_back(&argument[0]);
    argv.push_back(nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
}

/* Exit status; 1000 + signal if it was killed, -1 if there is no such process. */
inline int wait_for(pid_t pid)
{
    int status = 0;

    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Runs ranks 0 to n_ranks - 1 with `--rank R` and more arguments; what wait_for() says of each. */
inline std::vector<int> run_ranks(int n_ranks, const std::vector<std::string> &more)
{
    std::vector<pid_t> pids;
    std::vector<int> result;

    for (int r = 0; r < n_ranks; r++) {
        std::vector<std::string> arguments = { "--rank", std::to_string(r) };

        arguments.insert(arguments.end(), more.begin(), more.end());
        pids.push_back(start_self(arguments));
    }
    for (const pid_t pid : pids)
        result.push_back(wait_for(pid));
    return result;
}

} // namespace processes

#endif

// SPDX-License-Identifier: Apache-2.0
// Ranks as threads and as processes.
#include "emu/selftest/nccl_ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <mutex>
#include <thread>

Rank::Rank(int r, int n_ranks, const ncclUniqueId &unique) : rank(r), n(n_ranks), id(unique)
{
    RANK_CUDA(this, cudaSetDevice(rank));
    RANK_CUDA(this, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

Rank::~Rank()
{
    if (comm)
        ncclCommAbort(comm);
    cudaStreamDestroy(stream);
}

bool Rank::check(bool is_true, const char *text, int line)
{
    if (is_true)
        return true;
    failures.push_back("rank " + std::to_string(rank) + ", line " + std::to_string(line) + ": " +
                       text + "; last error: " + last_error());
    return false;
}

void Rank::init()
{
    RANK_OK(this, ncclCommInitRank(&comm, n, id, rank));
}

ncclResult_t Rank::finish()
{
    ncclResult_t e = ncclInternalError;

    RANK_CUDA(this, cudaStreamSynchronize(stream));
    RANK_OK(this, ncclCommGetAsyncError(comm, &e));
    return e;
}

std::string Rank::last_error() const
{
    return ncclGetLastError(comm);
}

// ---- threads ----
std::vector<std::string> run_threads(const NamedCase &c)
{
    std::vector<std::thread> threads;
    std::vector<std::string> failures;
    std::mutex m;
    ncclUniqueId id;

    if (ncclGetUniqueId(&id) != ncclSuccess)
        return { "ncclGetUniqueId" };
    for (int r = 0; r < c.n_ranks; r++) {
        threads.emplace_back([&, r] {
            Rank rank(r, c.n_ranks, id);

            c.run(&rank);
            std::lock_guard<std::mutex> l(m);
            failures.insert(failures.end(), rank.failures.begin(), rank.failures.end());
        });
    }
    for (std::thread &t : threads)
        t.join();
    return failures;
}

// ---- processes ----
static std::string to_hex(const ncclUniqueId &id)
{
    std::string hex;
    char two[3];

    for (unsigned char c : id.internal) {
        snprintf(two, sizeof(two), "%02x", c);
        hex += two;
    }
    return hex;
}

static pid_t start(const NamedCase &c, int r, const std::string &id)
{
    const std::string rank = std::to_string(r), n = std::to_string(c.n_ranks);
    const pid_t pid = fork();

    if (pid == 0) {
        execl("/proc/self/exe", "emu_nccl_test", "--rank", c.name, rank.c_str(), n.c_str(),
              id.c_str(), nullptr);
        _exit(127);
    }
    return pid;
}

std::vector<std::string> run_processes(const NamedCase &c)
{
    std::vector<pid_t> pids;
    std::vector<std::string> failures;
    ncclUniqueId id;

    if (ncclGetUniqueId(&id) != ncclSuccess)
        return { "ncclGetUniqueId" };
    for (int r = 0; r < c.n_ranks; r++)
        pids.push_back(start(c, r, to_hex(id)));
    for (size_t r = 0; r < pids.size(); r++) {
        int status = 1;

        if (waitpid(pids[r], &status, 0) != pids[r] || status != 0)
            failures.push_back("process of rank " + std::to_string(r) + " ended with status " +
                               std::to_string(status));
    }
    return failures;
}

int rank_main(char **argv)
{
    ncclUniqueId id;

    for (size_t i = 0; i < sizeof(id); i++) {
        unsigned byte;

        if (sscanf(argv[3] + 2 * i, "%2x", &byte) != 1)
            return 2;
        id.internal[i] = static_cast<char>(byte);
    }
    for (const NamedCase &c : rank_cases) {
        if (strcmp(c.name, argv[0]) != 0)
            continue;
        Rank rank(atoi(argv[1]), atoi(argv[2]), id);
        c.run(&rank);
        for (const std::string &f : rank.failures)
            fprintf(stderr, "%s\n", f.c_str());
        return rank.failures.empty() ? 0 : 1;
    }
    return 3;
}

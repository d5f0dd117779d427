// SPDX-License-Identifier: Apache-2.0
// Ranks as threads and as processes.
#include "emu/selftest/nccl_ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <mutex>
#include <thread>

#include "support/nccl_id.h"
#include "support/processes.h"

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
std::vector<std::string> run_processes(const NamedCase &c)
{
    std::vector<pid_t> pids;
    std::vector<std::string> failures;
    ncclUniqueId id;

    if (ncclGetUniqueId(&id) != ncclSuccess)
        return { "ncclGetUniqueId" };
    for (int r = 0; r < c.n_ranks; r++)
        pids.push_back(processes::start_self({ "--rank", c.name, std::to_string(r),
                                               std::to_string(c.n_ranks), nccl_id::to_hex(id) }));
    for (size_t r = 0; r < pids.size(); r++) {
        const int status = processes::wait_for(pids[r]);

        if (status != 0)
            failures.push_back("process of rank " + std::to_string(r) + " ended with status " +
                               std::to_string(status));
    }
    return failures;
}

int rank_main(char **argv)
{
    ncclUniqueId id;

    if (!nccl_id::from_hex(argv[3], &id))
        return 2;
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

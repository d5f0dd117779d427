// SPDX-License-Identifier: Apache-2.0
// Runs one function as several ranks, each a thread of this process or a process of its own, and
// collects what they found wrong.
#ifndef DSC_EMU_NCCL_RANKS_H
#define DSC_EMU_NCCL_RANKS_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>
#include <string>
#include <vector>

struct Rank {
    int rank, n;
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<std::string> failures;

    Rank(int r, int n_ranks, const ncclUniqueId &unique);
    ~Rank(); // destroys what is left

    bool check(bool is_true, const char *text, int line);
    void init(); // comm
    // The stream is synchronized, and the communicator says what became of it.
    ncclResult_t finish();
    std::string last_error() const;
};
#define RANK_CHECK(r, condition) (r)->check(condition, #condition, __LINE__)
#define RANK_OK(r, call) RANK_CHECK(r, (call) == ncclSuccess)
#define RANK_CUDA(r, call) RANK_CHECK(r, (call) == cudaSuccess)

// Device memory of a rank.
template <class T> struct Buffer {
    Rank *r;
    T *p = nullptr;
    size_t n;

    Buffer(Rank *rank, const std::vector<T> &v) : r(rank), n(v.size())
    {
        RANK_CUDA(r, cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof(T)));
        RANK_CUDA(r, cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~Buffer()
    {
        RANK_CUDA(r, cudaFree(p));
    }
    Buffer(const Buffer &) = delete;

    std::vector<T> get() const
    {
        std::vector<T> v(n);

        RANK_CUDA(r, cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

using RankCase = void(Rank *r);
struct NamedCase {
    const char *name;
    int n_ranks;
    RankCase *run;
};
extern const std::vector<NamedCase> rank_cases; // nccl_cases.cc
// In this process, a thread for each rank.
std::vector<std::string> run_threads(const NamedCase &c);
std::vector<std::string> run_processes(const NamedCase &c);
// What the other process does: --rank CASE RANK N ID.
int rank_main(char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world of ranks as threads, each with a CUDA communicator on a device of its own and a host one
 * over loopback: what the one computes is compared with what the other does.
 */
#ifndef DSC_TEST_GPU_WORLD_H
#define DSC_TEST_GPU_WORLD_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>

#include "cuda/device_memory.h"
#include "dscomm/nccl.h"
#include "support/world.h"

inline dscomm_comm_config_t gpu_config()
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.chunk_bytes = 8192; /* several chunks in small vectors */
    config.exact_order = 1;    /* the host's bits */
    config.timeout_ms = 20000;
    return config;
}

/* dscomm_comm_destroy() ends the communicators first; NCCL's after them, unless they were aborted.
 */
struct GpuWorld {
    int n;
    std::vector<ncclComm_t> nccl;
    std::vector<dscomm_comm_t *> comms;
    std::vector<cudaStream_t> streams;
    std::vector<dscomm_status_t> status; /* of making a communicator */
    std::vector<std::string> error;
    std::unique_ptr<World> host;

    /* config_of: a rank's config, for ranks that differ. */
    explicit GpuWorld(int n_ranks, dscomm_comm_config_t config = gpu_config(),
                      const std::function<void(int, dscomm_comm_config_t *)> &config_of = nullptr)
        : n(n_ranks), nccl(n_ranks), comms(n_ranks), streams(n_ranks), status(n_ranks),
          error(n_ranks)
    {
        ncclUniqueId id;

        EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
        each([&](int r) {
            dscomm_comm_config_t mine = config;

            if (config_of)
                config_of(r, &mine);
            EXPECT_EQ(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking), cudaSuccess);
            EXPECT_EQ(ncclCommInitRank(&nccl[r], n, id, r), ncclSuccess) << ncclGetLastError(NULL);
            status[r] = dscomm_comm_create_nccl(nccl[r], &mine, &comms[r]);
            error[r] = dscomm_last_error();
        });
        config.exact_order = 0;
        host = std::make_unique<World>(n, "loopback", config);
    }

    ~GpuWorld()
    {
        each([&](int r) {
            const bool has_failed =
                comms[r] != nullptr && dscomm_comm_async_error(comms[r], NULL) < 0;

            EXPECT_EQ(dscomm_comm_destroy(comms[r]), DSCOMM_OK) << dscomm_last_error();
            if (!has_failed)
                ncclCommDestroy(nccl[r]);
            cudaStreamDestroy(streams[r]);
        });
    }

    GpuWorld(const GpuWorld &) = delete;
    GpuWorld &operator=(const GpuWorld &) = delete;

    /* Runs fn(rank) in a thread per rank, on its device. */
    void each(const std::function<void(int)> &fn) const
    {
        std::vector<std::thread> threads;

        for (int r = 0; r < n; r++)
            threads.emplace_back([&fn, r] {
                EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
                fn(r);
            });
        for (auto &t : threads)
            t.join();
    }

    dscomm_stream_t *stream(int r) const
    {
        return dscomm_cuda_stream(streams[r]);
    }

    void sync(int r) const
    {
        EXPECT_EQ(cudaStreamSynchronize(streams[r]), cudaSuccess);
    }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world of ranks as threads of the test process, each with a communicator. Any transport works
 * between threads too, so one process tests them all.
 */
#ifndef DSC_TEST_WORLD_H
#define DSC_TEST_WORLD_H

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dscomm/dscomm.h"

/* Statistics so far. */
inline dscomm_stats_t stats_of(const dscomm_comm_t *comm)
{
    dscomm_stats_t stats = {};

    stats.struct_bytes = sizeof(stats);
    EXPECT_EQ(dscomm_comm_stats(comm, &stats), DSCOMM_OK);
    return stats;
}

struct World {
    int n;
    std::vector<dscomm_comm_t *> comms;
    std::vector<dscomm_status_t> status; /* of joining */
    std::vector<std::string> error;

    explicit World(int n_ranks, const char *transport = "loopback",
                   dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT)
        : n(n_ranks), comms(n_ranks, nullptr), status(n_ranks), error(n_ranks)
    {
        dscomm_unique_id_t id;

        config.transport = transport;
        if (config.timeout_ms == 0)
            config.timeout_ms = 10000;
        EXPECT_EQ(dscomm_unique_id_create(&id), DSCOMM_OK) << dscomm_last_error();
        each([&](int r) {
            status[r] = dscomm_comm_create(n, r, &id, &config, &comms[r]);
            error[r] = dscomm_last_error();
        });
        for (int r = 0; r < n; r++)
            EXPECT_EQ(status[r], DSCOMM_OK) << "rank " << r << ": " << error[r];
    }

    ~World()
    {
        each([&](int r) { dscomm_comm_destroy(comms[r]); });
    }

    World(const World &) = delete;
    World &operator=(const World &) = delete;

    bool ok() const
    {
        for (int r = 0; r < n; r++)
            if (status[r] != DSCOMM_OK)
                return false;
        return true;
    }

    /* Runs fn(rank) in a thread per rank and waits for all. */
    void each(const std::function<void(int)> &fn) const
    {
        std::vector<std::thread> threads;

        for (int r = 0; r < n; r++)
            threads.emplace_back(fn, r);
        for (auto &t : threads)
            t.join();
    }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint where one transport is not enough to see it: loopback's faults, ranks that end
 * early, limits, and what is left after it is gone.
 */
#include "support/net_world.h"

#include <dirent.h>
#include <sys/resource.h>

#include <fstream>

using namespace net_world;

namespace {

/* ---- loopback's faults ---- */

TEST(Net, LoopbackFaults)
{
    World world(2, "loopback");

    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 1) {
            conn->ops->rx_expect(conn, 4);
            EXPECT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn); }));
            const uint64_t start_ns = dsc_now_ns();
            EXPECT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn); }));
            EXPECT_GE(dsc_now_ns() - start_ns, 50000000u) << "delayed";
            EXPECT_EQ(DSCOMM_IN_PROGRESS, drive(
                                              net, [&] { return try_receive(conn); }, 100))
                << "dropped";
            conn->rx_next++;
            EXPECT_EQ(DSCOMM_ERR_CORRUPT, drive(net, [&] { return try_receive(conn); }));
            EXPECT_TRUE(says(net, "from rank 0"));
            dsc_net_fail(net, DSCOMM_ERR_CORRUPT, dsc_net_error_text(net));
            return;
        }
        const dsc_fault faults[] = { { DSC_FAULT_NONE, 0, -1, 0 },
                                     { DSC_FAULT_DELAY, 0, 0, 100 },
                                     { DSC_FAULT_DROP, 0, 0, 0 },
                                     { DSC_FAULT_CORRUPT, 0, 0, 0 } };
        for (const dsc_fault &f : faults) {
            dsc_loopback_set_fault(&f);
            ASSERT_TRUE(try_send(conn, 0, 10));
        }
        EXPECT_EQ(DSCOMM_ERR_CORRUPT, drive_to_error(net, 3000));
    });
}

/* ---- ends before a connection stands ---- */

TEST(Net, RankThatDiedBeforeItConnectedIsNamed)
{
    for (const int victim : { 0, 2 }) {
        World world(3, "tcp");

        close(world.take_listener(victim)); /* as the kernel does for a dead process */
        const int alive = 1;
        dsc_net *const net = world.create(alive);
        const uint64_t start_ns = dsc_now_ns();
        EXPECT_EQ(DSCOMM_ERR_PEER_LOST, dsc_net_connect(net, &victim, 1));
        EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
        EXPECT_TRUE(says(net, ("rank " + std::to_string(victim)).c_str()));
        EXPECT_TRUE(says(net, "refused")) << dsc_net_error_text(net);
        dsc_net_destroy(net);
    }
}

/* Rank 1 waits for `failing`, which never connects: it fails while it waits for the third, or
 * alone. */
void fail_instead_of_connecting(const char *transport, int failing, bool in_connect)
{
    World world(3, transport);
    std::atomic<bool> heard{ false };
    const auto until_heard = [&] {
        for (int i = 0; i < 1000 && !heard; i++)
            usleep(1000);
    };

    world.run([&](int rank, dsc_net *net) {
        const int peer = rank == 1 ? failing : 2 - failing;

        if (rank == 1) {
            EXPECT_EQ(DSCOMM_ERR_NO_MEMORY, dsc_net_connect(net, &peer, 1))
                << transport << " " << failing << " " << in_connect;
            EXPECT_TRUE(says(net, "no memory for a plan")) << dsc_net_error_text(net);
            heard = true;
            return;
        }
        if (rank != failing) { /* is there but does nothing */
            until_heard();
            return;
        }
        if (in_connect) {
            std::thread end([net] {
                usleep(300000);
                dsc_net_abort(net);
            });
            EXPECT_EQ(DSCOMM_ERR_ABORTED, dsc_net_connect(net, &peer, 1));
            end.join();
        } else {
            usleep(300000);
        }
        dsc_net_fail(net, DSCOMM_ERR_NO_MEMORY, "no memory for a plan");
        until_heard();
    });
}

TEST(Net, RankThatFailsInsteadOfConnectingIsHeard)
{
    for (const char *const transport : { "tcp", "shm", "loopback" })
        for (const int failing : { 0, 2 })
            fail_instead_of_connecting(transport, failing, failing == 0);
    fail_instead_of_connecting("tcp", 0, false);
    fail_instead_of_connecting("tcp", 2, true);
}

/* Rank 0 waits for rank 2, which is not there; its peer 1 is in the same call, another, or ahead.
 */
void wait_in_call(const char *transport, const char *theirs, uint32_t n_ahead)
{
    const bool differs = n_ahead == 0 && std::strcmp(theirs, "count=1000") != 0;
    const dscomm_status_t lonely = differs ? DSCOMM_ERR_MISMATCH : DSCOMM_ERR_TIMEOUT;
    const dscomm_status_t other = differs ? DSCOMM_ERR_MISMATCH : DSCOMM_IN_PROGRESS;
    World world(3, transport);
    std::atomic<bool> done{ false };

    world.params.timeout_ms = 350;
    world.run([&](int rank, dsc_net *net) {
        const int peer = rank == 0 ? 1 : 0, missing = 2;

        if (rank == missing) {
            while (!done)
                usleep(1000);
            return;
        }
        ASSERT_EQ(DSCOMM_OK, dsc_net_connect(net, &peer, 1));
        if (rank == 0) {
            dsc_net_enter(net, 7, 1, "count=1000");
            EXPECT_EQ(lonely, dsc_net_connect(net, &missing, 1)) << dsc_net_error_text(net);
            EXPECT_TRUE(says(net, differs ? theirs : "rank 2")) << dsc_net_error_text(net);
            done = true;
            return;
        }
        for (uint32_t i = 0; i <= n_ahead; i++)
            dsc_net_enter(net, 7 + i, 2, theirs);
        EXPECT_EQ(other, drive_to_error(net, 300));
        EXPECT_TRUE(!differs || says(net, "rank 0: call=7 count=1000")) << dsc_net_error_text(net);
        if (differs)
            dsc_net_fail(net, DSCOMM_ERR_MISMATCH, theirs);
        while (!done)
            usleep(1000);
    });
}

TEST(Net, CallsThatDifferAreFoundWhileConnecting)
{
    for (const char *const transport : { "loopback", "shm", "tcp" })
        wait_in_call(transport, "count=998", 0);
    wait_in_call("loopback", "count=1000", 0);
    wait_in_call("tcp", "count=998", 1);
}

/* ---- limits and leftovers ---- */

TEST(Net, DescriptorLimitIsNamed)
{
    World world(8, "tcp");
    rlimit old;
    Log log;

    getrlimit(RLIMIT_NOFILE, &old);
    world.params.timeout_ms = 1000;
    const int top = dup(0);
    close(top);
    dsc_net *const net = world.create(7);
    const rlimit low = { static_cast<rlim_t>(top) + 6, old.rlim_max };
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &low));
    const dscomm_status_t st = world.connect_all(net, 7);
    setrlimit(RLIMIT_NOFILE, &old);
    EXPECT_EQ(DSCOMM_ERR_LIMIT, st);
    EXPECT_TRUE(says(net, "RLIMIT_NOFILE")) << dsc_net_error_text(net);
    EXPECT_TRUE(says(net, std::to_string(low.rlim_cur).c_str()));
    EXPECT_TRUE(says(net, std::to_string(7 * 2 + 16).c_str()));
    dsc_net_destroy(net);
}

size_t count_entries(const char *folder)
{
    size_t n = 0;
    DIR *const dir = opendir(folder);

    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

size_t count_shared_mappings()
{
    std::ifstream maps("/proc/self/maps");
    std::string line;
    size_t n = 0;

    while (std::getline(maps, line))
        n += line.find("memfd:dscomm") != std::string::npos;
    return n;
}

TEST(Net, TwoHundredRoundsLeaveNothing)
{
    size_t fds = 0, threads = 0;

    for (int round = 0; round < 200; round++) {
        const char *const transports[] = { "loopback", "shm", "tcp", "auto" };
        {
            World world(2, transports[round % 4]);

            if (round % 8 == 7)
                world.peers[1].process_id = 2;
            world.run([&](int rank, dsc_net *net) {
                ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
                ASSERT_EQ(DSCOMM_OK,
                          exchange(net, rank, { 1 - rank }, 5, [](uint64_t) { return 1024; }));
            });
        }
        if (round == 8) {
            fds = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
        }
    }
    EXPECT_EQ(fds, count_entries("/proc/self/fd"));
    for (int i = 0; i < 1000 && count_entries("/proc/self/task") > threads; i++)
        std::this_thread::sleep_for(
            std::chrono::milliseconds(1)); /* a joined thread lingers there */
    EXPECT_GE(threads, count_entries("/proc/self/task"));
    EXPECT_EQ(0u, count_shared_mappings());
    EXPECT_EQ(0u, dsc_mem_live(DSC_MEM_TRANSPORT));
}

/* Every allocation of setting up, one after the other, fails once: no crash, nothing left. */
TEST(Net, FailedAllocations)
{
    for (const char *const transport : { "loopback", "shm", "tcp" }) {
        bool worked = false;

        for (int nth = 1; !worked; nth++) {
            World world(2, transport);
            Log log;
            std::atomic<int> n_connected{ 0 };
            const auto rank_body = [&](int rank) {
                dsc_net *const net = world.create(rank);

                if (net != nullptr)
                    n_connected += world.connect_all(net, rank) == DSCOMM_OK;
                dsc_net_destroy(net);
            };

            ASSERT_LT(nth, 100);
            world.params.timeout_ms = 20;
            dsc_mem_fail_after(nth);
            std::thread other(rank_body, 1);
            rank_body(0);
            other.join();
            dsc_mem_fail_after(-1);
            ASSERT_EQ(0u, dsc_mem_live(DSC_MEM_TRANSPORT)) << transport << " " << nth;
            worked = n_connected == 2 && log.count(DSCOMM_LOG_ERROR) == 0;
            if (worked) {
                EXPECT_LT(10, nth) << "allocations were never made to fail";
            }
        }
    }
}

} // namespace

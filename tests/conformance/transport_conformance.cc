/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport promises, for every transport in the registry. */
#include "support/net_world.h"

#include <sys/time.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <numeric>
#include <random>

using namespace net_world;

namespace {

struct Case {
    std::string transport;
    uint32_t n_socks;
};

std::vector<Case> all_cases()
{
    std::vector<Case> cases;
    size_t n;
    const dsc_transport_ops *const *const all = dsc_transports(&n);

    for (size_t i = 0; i < n; i++) {
        if (all[i] == &dsc_transport_verbs && rdma_key() == 0)
            continue;
        /* with each plugin by a run of its own */
        if (all[i] == &dsc_transport_nccl_net && std::getenv("DSCOMM_NET_PLUGIN") == nullptr)
            continue;
        cases.push_back({ all[i]->name, 1 });
    }
    cases.push_back({ "tcp", 3 });
    return cases;
}

class Transport : public testing::TestWithParam<Case> {
  protected:
    void prepare(World *world) const
    {
        world->params.n_socks = GetParam().n_socks;
    }
    const char *name() const
    {
        return GetParam().transport.c_str();
    }
    bool is(const char *transport) const
    {
        return GetParam().transport == transport;
    }
};

TEST_P(Transport, TableIsComplete)
{
    size_t n;
    const dsc_transport_ops *const *const all = dsc_transports(&n);

    for (size_t i = 0; i < n; i++) {
        EXPECT_NE(nullptr, all[i]->reaches);
        if (all[i] == &dsc_transport_verbs && !DSCOMM_VERBS)
            continue; /* not in this build: it reaches nobody */
        EXPECT_NE(nullptr, all[i]->tx_slot);
        EXPECT_NE(nullptr, all[i]->tx_post);
        EXPECT_NE(nullptr, all[i]->tx_post_from);
        EXPECT_NE(nullptr, all[i]->settle);
        EXPECT_NE(nullptr, all[i]->rx_msg);
        EXPECT_NE(nullptr, all[i]->rx_release);
        EXPECT_NE(nullptr, all[i]->rx_expect);
        EXPECT_NE(nullptr, all[i]->progress);
        EXPECT_NE(nullptr, all[i]->arm);
        EXPECT_NE(nullptr, all[i]->flushed);
        EXPECT_NE(nullptr, all[i]->notify);
        EXPECT_NE(nullptr, all[i]->shut);
        EXPECT_NE(nullptr, all[i]->destroy);
        if (i > 0) {
            EXPECT_LT(all[i]->preference, all[i - 1]->preference) << "best first";
        }
    }
}

TEST_P(Transport, EverySizeBothWays)
{
    World world(2, name());
    constexpr size_t kSlot = 70000;
    const std::vector<size_t> sizes = { 0,     1,    31,    32,    33,    63,    64,    65,
                                        4095,  4096, 16383, 16384, 16385, 65536, kSlot, 0,
                                        16384, 100,  0,     20000, 1,     kSlot };

    prepare(&world);
    world.params.slot_bytes = kSlot;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_STREQ(name(), dsc_net_transport_name(net, 1 - rank));
        EXPECT_EQ(DSCOMM_OK, exchange(net, rank, { 1 - rank }, 3 * sizes.size(),
                                      [&](uint64_t i) { return sizes[i % sizes.size()]; }));
        const size_t payload = 3 * std::accumulate(sizes.begin(), sizes.end(), size_t{ 0 });
        const size_t total = payload + 3 * sizes.size() * DSC_HEADER_BYTES;
        EXPECT_GE(dsc_net_wire_tx_bytes(net), total);
        EXPECT_LE(dsc_net_wire_tx_bytes(net), total + 1024);
        EXPECT_GE(dsc_net_wire_rx_bytes(net), total);
        EXPECT_LE(dsc_net_wire_rx_bytes(net), total + 1024);
    });
}

/* Payloads outside of the slots, mixed with others; after settle() their memory is used again. */
TEST_P(Transport, PayloadsInTheCallersMemory)
{
    World world(2, name());
    constexpr uint64_t kRounds = 20, kWindow = 4;
    const std::vector<size_t> sizes = { 4194304, 0, 1, 4194303, 65536, 33 };

    prepare(&world);
    world.params.slot_bytes = sizes[0];
    world.params.n_slots = kWindow;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        uint64_t n_unsent = 0;

        for (uint64_t i = 0; i < kRounds * kWindow; i++) {
            const size_t bytes = sizes[i % sizes.size()];

            if (rank == 1) { /* the window is full by then, and more than the sockets hold */
                if (i % kWindow == 0)
                    ASSERT_EQ(DSCOMM_IN_PROGRESS, drive_to_error(net, 2));
                conn->ops->rx_expect(conn, i + 1);
                ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn, bytes); }));
                continue;
            }
            if (i % 3 == 2) {
                ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_send(conn, rank, bytes); }));
                continue;
            }
            std::vector<uint8_t> memory(bytes + 1);
            ASSERT_EQ(DSCOMM_OK,
                      drive(net, [&] { return conn->ops->tx_slot(conn, i) != nullptr; }));
            for (size_t k = 0; k < bytes; k++)
                memory[k] = content(rank, i, k);
            const dsc_header header = test_header(i, bytes);
            conn->ops->tx_post_from(conn, i, &header, memory.data());
            conn->tx_next++;
            n_unsent += conn->ops->flushed(conn) ? 0 : 1;
            conn->ops->settle(conn);
            std::fill(memory.begin(), memory.end(), uint8_t{ 0xee });
        }
        ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return conn->ops->flushed(conn); }));
        if (rank == 0 && is("tcp")) {
            EXPECT_GT(n_unsent, 0u) << "settle() had nothing to do";
        }
    });
}

TEST_P(Transport, TenThousandRandomMessages)
{
    World world(2, name());

    prepare(&world);
    world.params.slot_bytes = 2048;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_EQ(DSCOMM_OK, exchange(net, rank, { 1 - rank }, 10000, [](uint64_t i) {
                      return std::minstd_rand(static_cast<unsigned>(i) + 1)() % 2049;
                  }));
    });
}

/* Posts and releases in any order inside the window. */
TEST_P(Transport, OutOfOrderInsideTheWindow)
{
    World world(2, name());
    constexpr uint64_t kRounds = 300;

    prepare(&world);
    world.params.n_slots = 8;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        std::minstd_rand random(static_cast<unsigned>(rank) + 5);
        std::vector<uint64_t> order(8);

        std::iota(order.begin(), order.end(), 0);
        for (uint64_t base = 0; base < 8 * kRounds; base += 8) {
            std::shuffle(order.begin(), order.end(), random);
            if (rank == 0) {
                for (const uint64_t k : order) {
                    uint8_t *slot = nullptr;
                    dsc_header h = {};

                    ASSERT_EQ(DSCOMM_OK, drive(net, [&] {
                                  slot = conn->ops->tx_slot(conn, base + k);
                                  return slot != nullptr;
                              }));
                    std::memset(slot, static_cast<int>(base + k) & 255, 100);
                    h.payload_bytes = 100;
                    h.sequence = static_cast<uint32_t>(base + k);
                    conn->ops->tx_post(conn, base + k, &h);
                }
                continue;
            }
            conn->ops->rx_expect(conn, base + 8);
            for (const uint64_t k : order) {
                const uint8_t *payload = nullptr;
                const dsc_header *h = nullptr;

                ASSERT_EQ(DSCOMM_OK, drive(net, [&] {
                              h = conn->ops->rx_msg(conn, base + k, &payload);
                              return h != nullptr;
                          }));
                ASSERT_EQ(static_cast<uint32_t>(base + k), h->sequence);
                ASSERT_EQ((base + k) & 255, payload[99]);
                conn->ops->rx_release(conn, base + k);
            }
        }
    });
}

TEST_P(Transport, PingPong)
{
    World world(2, name());

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        conn->ops->rx_expect(conn, 1000);
        for (int i = 0; i < 1000; i++) {
            if (rank == 0) {
                ASSERT_TRUE(try_send(conn, rank, 8));
            }
            ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn, 8); }));
            if (rank == 1) {
                ASSERT_TRUE(try_send(conn, rank, 8));
            }
        }
    });
}

/* Without spinning every message has to wake a sleeper. */
TEST_P(Transport, SleepersAreWoken)
{
    World world(3, name());

    prepare(&world);
    world.params.spin_ns = 0;
    world.run([&](int rank, dsc_net *net) {
        const uint64_t start_ns = dsc_now_ns();

        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        for (int i = 0; i < 400; i++)
            ASSERT_EQ(DSCOMM_OK,
                      exchange(net, rank, world.others(rank), 1, [](uint64_t) { return 64; }));
        /* Without being woken a sleeper looks up every 10 ms: 2 s for as many rounds. */
        EXPECT_LT(dsc_now_ns() - start_ns,
                  uint64_t{ 900000000 } * static_cast<uint64_t>(slowness()));
    });
}

/* A receiver that does not read stops its sender; nothing is lost or reordered. */
TEST_P(Transport, FullWindowStopsTheSender)
{
    World world(2, name());
    constexpr size_t kSlot = 1 << 20;
    std::atomic<uint64_t> n_sent{ 0 };

    prepare(&world);
    world.params.slot_bytes = kSlot;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 0) {
            uint64_t n = 0;

            for (int idle = 0; idle < 50; idle++) {
                ASSERT_EQ(DSCOMM_OK, dsc_net_progress(net));
                while (try_send(conn, 0, n == 0 ? kSlot : 1000)) {
                    idle = 0;
                    ASSERT_LT(++n, 100000u) << "the sender is never stopped";
                }
                dsc_net_wait(net, 1000000);
            }
            if (!is("tcp") && !is("nccl_net")) { /* these have memory of their own */
                EXPECT_EQ(world.params.n_slots, n);
            }
            n_sent = n;
            return;
        }
        while (n_sent == 0)
            ASSERT_EQ(DSCOMM_OK, drive(net, [] { return true; }));
        conn->ops->rx_expect(conn, n_sent);
        ASSERT_EQ(DSCOMM_OK, drive(net, [&] {
                      while (conn->rx_next < n_sent &&
                             try_receive(conn, conn->rx_next == 0 ? kSlot : 1000))
                          ;
                      return conn->rx_next == n_sent;
                  }));
    });
}

TEST_P(Transport, ConnectionIsMadeOnceWithSlotsOfTheGivenSize)
{
    for (const size_t slot : { 1, 64, 65, 4000, 65536 }) {
        World world(3, name());

        prepare(&world);
        world.params.slot_bytes = slot;
        world.run([&](int rank, dsc_net *net) {
            ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
            dsc_conn *const conn = dsc_net_conn(net, (rank + 1) % 3);
            EXPECT_EQ(dsc_round_up(slot, 64), conn->slot_bytes);
            ASSERT_EQ(DSCOMM_OK, exchange(net, rank, world.others(rank), 10,
                                          [&](uint64_t i) { return slot - i % 2; }));
            ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
            EXPECT_EQ(conn, dsc_net_conn(net, (rank + 1) % 3));
        });
    }
}

TEST_P(Transport, SlotSizesThatDifferAreNamedOnBothSides)
{
    for (const size_t big : { 0, 1 }) {
        World world(2, name());
        dsc_net *nets[2];

        prepare(&world);
        for (const size_t rank : { 0, 1 }) {
            world.params.slot_bytes = rank == big ? 9000 : 100;
            nets[rank] = world.create(static_cast<int>(rank));
        }
        const auto connect = [&](int rank) {
            dsc_net *const net = nets[rank];

            EXPECT_EQ(DSCOMM_ERR_MISMATCH, world.connect_all(net, rank));
            for (const char *const bytes : { "9024", "128" })
                EXPECT_NE(nullptr, std::strstr(dsc_net_error_text(net), bytes))
                    << dsc_net_error_text(net);
            dsc_net_fail(net, DSCOMM_ERR_MISMATCH, dsc_net_error_text(net));
        };
        std::thread other(connect, 1);
        connect(0);
        other.join();
        dsc_net_destroy(nets[0]);
        dsc_net_destroy(nets[1]);
    }
}

/* Rank 0 connects with 1 only after it has been asked by 1 during its connect with 2. */
TEST_P(Transport, PeerWhosePlanIsAhead)
{
    World world(3, name());

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        const std::vector<std::vector<int>> first = { { 2 }, { 0 }, { 0 } };

        if (rank == 2)
            usleep(50000);
        ASSERT_EQ(DSCOMM_OK, dsc_net_connect(net, first[static_cast<size_t>(rank)].data(), 1));
        if (rank == 0) {
            EXPECT_EQ(nullptr, dsc_net_conn(net, 1));
        }
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_EQ(DSCOMM_OK,
                  exchange(net, rank, world.others(rank), 20, [](uint64_t) { return 256; }));
    });
}

TEST_P(Transport, EightRanksAllToAll)
{
    World world(8, name());

    prepare(&world);
    world.params.slot_bytes = 4096;
    world.params.spin_ns = 0;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_EQ(DSCOMM_OK, exchange(net, rank, world.others(rank), 100,
                                      [](uint64_t i) { return 4096 - i % 7; }));
    });
}

/* ---- ends ---- */

TEST_P(Transport, ErrorReachesEveryoneThroughFullWindows)
{
    World world(4, name());
    std::atomic<int> n_connected{ 0 };

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        n_connected++;
        while (n_connected < 4)
            std::this_thread::yield();
        for (const int peer : world.others(rank)) { /* nobody reads */
            dsc_conn *const conn = dsc_net_conn(net, peer);

            for (int i = 0; i < 20000 && try_send(conn, rank, 64); i++)
                ;
        }
        if (rank == 2) {
            const uint64_t start_ns = dsc_now_ns();

            dsc_net_fail(net, DSCOMM_ERR_MISMATCH, "count: 1000 here, 998 there");
            EXPECT_LT(dsc_now_ns() - start_ns, 200000000u);
            EXPECT_EQ(DSCOMM_ERR_MISMATCH, dsc_net_progress(net));
            usleep(200000);
            return;
        }
        EXPECT_EQ(DSCOMM_ERR_MISMATCH, drive_to_error(net, 1000));
        EXPECT_NE(nullptr, std::strstr(dsc_net_error_text(net), "count: 1000 here, 998 there"));
        EXPECT_EQ(2, dsc_net_error_rank(net));
    });
}

/* A chain 0 - 1 - 2 - 3: the ends share no connection. */
TEST_P(Transport, ErrorIsPassedOn)
{
    World world(4, name());
    std::atomic<int> n_connected{ 0 };

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        std::vector<int> list;

        if (rank > 0)
            list.push_back(rank - 1);
        if (rank < 3)
            list.push_back(rank + 1);
        ASSERT_EQ(DSCOMM_OK, dsc_net_connect(net, list.data(), static_cast<int>(list.size())));
        n_connected++;
        while (n_connected < 4)
            std::this_thread::yield();
        if (rank == 0)
            dsc_net_fail(net, DSCOMM_ERR_ABORTED, "stop it");
        else
            EXPECT_EQ(DSCOMM_ERR_ABORTED, drive_to_error(net, 1000));
        EXPECT_NE(nullptr, std::strstr(dsc_net_error_text(net), "stop it"));
        usleep(100000);
    });
}

/* A rank that has what it needs may go while others still read what it sent. */
TEST_P(Transport, DataSentBeforeGoodbyeArrives)
{
    World world(2, name());

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 1) {
            for (int i = 0; i < 4; i++)
                ASSERT_TRUE(try_send(conn, 1, 65536));
            return;
        }
        ASSERT_EQ(DSCOMM_IN_PROGRESS, drive_to_error(net, 100)) << "nothing was expected";
        conn->ops->rx_expect(conn, 4);
        for (int i = 0; i < 4; i++)
            ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn, 65536); }));
        EXPECT_EQ(DSCOMM_OK, dsc_net_progress(net));
        conn->ops->rx_expect(conn, 5);
        EXPECT_EQ(DSCOMM_ERR_PEER_LOST, drive_to_error(net, 1000));
        EXPECT_NE(nullptr, std::strstr(dsc_net_error_text(net), "rank 1 left"));
    });
}

/* Rank 1 is a process that is killed; with loopback, a fault that looks the same. */
TEST_P(Transport, DeathIsNoticed)
{
    World world(2, name());
    std::atomic<bool> is_met{ false };

    prepare(&world);
    const auto survive = [&](dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, 0));
        dsc_conn *const conn = dsc_net_conn(net, 1);
        conn->ops->rx_expect(conn, 100);
        ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn); }));
        is_met = true;
        const uint64_t start_ns = dsc_now_ns();
        EXPECT_EQ(DSCOMM_ERR_PEER_LOST, drive_to_error(net, 3000));
        EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
        EXPECT_NE(nullptr, std::strstr(dsc_net_error_text(net), "lost rank 1"))
            << dsc_net_error_text(net);
        EXPECT_EQ(1, dsc_net_error_rank(net));
    };
    const auto victim = [&](dsc_net *net) {
        if (world.connect_all(net, 1) == DSCOMM_OK)
            try_send(dsc_net_conn(net, 0), 1, 100);
    };

    if (is("loopback")) {
        world.run([&](int rank, dsc_net *net) {
            if (rank == 0) {
                survive(net);
                return;
            }
            victim(net);
            usleep(50000);
            const dsc_fault kill_it = { DSC_FAULT_KILL, 1, 0, 0 };
            dsc_loopback_set_fault(&kill_it);
            try_send(dsc_net_conn(net, 0), 1, 100);
            usleep(100000);
        });
        return;
    }
    const pid_t child = fork();
    if (child == 0) {
        dsc_net *const net = world.create(1);

        if (net != nullptr)
            victim(net);
        for (;;)
            pause();
    }
    close(world.take_listener(1));
    dsc_net *const net = world.create(0);
    std::thread killer([&] {
        for (int ms = 0; ms < 10000 && !is_met; ms++)
            usleep(1000);
        usleep(50000);
        kill(child, SIGKILL);
    });
    survive(net);
    killer.join();
    waitpid(child, nullptr, 0);
    dsc_net_destroy(net);
}

TEST_P(Transport, AbortEndsAWait)
{
    World world(2, name());

    prepare(&world);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        if (rank == 1) {
            EXPECT_EQ(DSCOMM_ERR_ABORTED, drive_to_error(net, 3000));
            return;
        }
        std::thread other([net] {
            usleep(50000);
            dsc_net_abort(net);
        });
        const uint64_t start_ns = dsc_now_ns();
        EXPECT_EQ(DSCOMM_ERR_ABORTED, drive_to_error(net, 3000));
        EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
        dsc_net_fail(net, DSCOMM_ERR_ABORTED, dsc_net_error_text(net));
        other.join();
    });
}

TEST_P(Transport, AbortEndsAConnect)
{
    for (const int rank : { 0, 1 }) {
        World world(2, name());
        prepare(&world);
        dsc_net *const net = world.create(rank);
        const int peer = 1 - rank;
        std::thread other([net] {
            usleep(50000);
            dsc_net_abort(net);
        });

        EXPECT_EQ(DSCOMM_ERR_ABORTED, dsc_net_connect(net, &peer, 1));
        other.join();
        dsc_net_destroy(net);
    }
}

TEST_P(Transport, ConnectTimeoutNamesTheRanks)
{
    World world(4, name());

    prepare(&world);
    world.params.timeout_ms = 300;
    dsc_net *const net = world.create(1); /* 0 should accept, 2 and 3 should connect */
    const uint64_t start_ns = dsc_now_ns();

    EXPECT_EQ(DSCOMM_ERR_TIMEOUT, world.connect_all(net, 1));
    EXPECT_GE(dsc_now_ns() - start_ns, 290000000u);
    EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
    EXPECT_STREQ("waited 0.3 s for a connection with ranks 0, 2, 3", dsc_net_error_text(net));
    dsc_net_destroy(net);
}

/* A signal every millisecond, without SA_RESTART. */
TEST_P(Transport, SignalsDisturbNothing)
{
    World world(2, name());
    struct sigaction action = {}, old = {};
    const itimerval on = { { 0, 1000 }, { 0, 1000 } }, off = {};

    prepare(&world);
    world.params.slot_bytes = 100000;
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &on, nullptr);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_EQ(DSCOMM_OK,
                  exchange(net, rank, { 1 - rank }, 300, [](uint64_t i) { return 100000 - i; }));
    });
    setitimer(ITIMER_REAL, &off, nullptr);
    sigaction(SIGALRM, &old, nullptr);
}

std::string case_name(const testing::TestParamInfo<Case> &info)
{
    return info.param.transport +
           (info.param.n_socks > 1 ? std::to_string(info.param.n_socks) : std::string());
}

INSTANTIATE_TEST_SUITE_P(All, Transport, testing::ValuesIn(all_cases()), case_name);

} // namespace

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA between two processes, rank 0 on rxe0 and rank 1 on rxe1, over a link that loses packets or
 * goes down. Runs in the virtual machine of tests/vm/run.py; elsewhere there is nothing to test.
 */
#include "support/net_world.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

using namespace net_world;

namespace {

constexpr size_t kSlot = 65536;

void shell(const char *command)
{
    ASSERT_EQ(0, std::system(command)) << command;
}

void set_env(const char *name, const std::string &value)
{
    setenv(name, value.c_str(), 1);
    dsc_env_reload();
}

/* A rank as a process of its own. */
class Rank {
  public:
    explicit Rank(const std::function<void()> &body) : pid_(fork())
    {
        if (pid_ != 0)
            return;
        set_env("DSCOMM_IB_HCA", "=rxe1");
        body();
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;
    ~Rank()
    {
        if (pid_ > 0)
            end();
    }
    void end()
    {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
    /* Its own expectations held. */
    bool is_good()
    {
        int status = -1;

        waitpid(pid_, &status, 0);
        pid_ = -1;
        return status == 0;
    }

  private:
    pid_t pid_;
};

class Verbs : public testing::Test {
  protected:
    Verbs() : world(2, "verbs")
    {
        world.params.slot_bytes = kSlot;
        world.params.timeout_ms = 60000;
        apart(&world);
        set_env("DSCOMM_IB_HCA", "=rxe0");
        set_env("DSCOMM_IB_TIMEOUT", "14"); /* 67 ms */
        set_env("DSCOMM_IB_RETRY_COUNT", "3");
    }
    ~Verbs() override
    {
        for (const char *const name : { "IB_MTU", "IB_GID_INDEX", "IB_TIMEOUT", "IB_RETRY_COUNT" })
            unsetenv((std::string("DSCOMM_") + name).c_str());
        dsc_env_reload();
        (void)std::system("tc qdisc del dev veth0 root 2>/dev/null; ip link set veth0 mtu 4200 up;"
                          "ip link set veth1 mtu 4200 up; sleep 0.2");
    }

    /* As ranks of two hosts. */
    static void apart(World *ranks)
    {
        ranks->peers[1].process_id = 2;
        std::snprintf(ranks->peers[1].host_id, DSC_HOST_ID_BYTES, "host-b");
    }

    /* n messages from each rank to the other, of which rank 1's are the child's business. */
    void both_send(uint64_t n)
    {
        Rank other([&] { send_as(1, n); });

        send_as(0, n);
        EXPECT_TRUE(other.is_good());
    }
    void send_as(int rank, uint64_t n)
    {
        dsc_net *const net = world.create(rank);

        ASSERT_NE(nullptr, net);
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank)) << dsc_net_error_text(net);
        EXPECT_STREQ("verbs", dsc_net_transport_name(net, 1 - rank));
        EXPECT_EQ(DSCOMM_OK,
                  exchange(net, rank, { 1 - rank }, n, [](uint64_t i) { return kSlot - i % 1000; }))
            << dsc_net_error_text(net);
        dsc_net_destroy(net);
    }

    /*
     * Rank 0 sends until it cannot, with rank 1 reading; `trouble` comes after some messages. The
     * status and, in error_text, the text.
     */
    dscomm_status_t send_into(const std::function<void(Rank *)> &trouble, uint64_t limit_ms)
    {
        Rank other([&] { read_for_ever(); });
        dsc_net *const net = world.create(0);

        EXPECT_EQ(DSCOMM_OK, world.connect_all(net, 0)) << dsc_net_error_text(net);
        dsc_conn *const conn = dsc_net_conn(net, 1);
        if (conn == nullptr)
            return DSCOMM_ERR_BAD_STATE;
        EXPECT_EQ(DSCOMM_OK, drive(net, [&] {
                      while (conn->tx_next < 20 && try_send(conn, 0, kSlot))
                          ;
                      return conn->tx_next == 20;
                  }));
        trouble(&other);
        const uint64_t start_ns = dsc_now_ns();
        const dscomm_status_t st = drive(net, [&] {
            while (try_send(conn, 0, kSlot))
                ;
            return false;
        });
        EXPECT_LT(dsc_now_ns() - start_ns, limit_ms * 1000000u);
        error_text = dsc_net_error_text(net);
        const uint64_t end_ns = dsc_now_ns();
        dsc_net_destroy(net);
        /* rxe may wait some seconds for packets that lie in the queue of a link that is down */
        EXPECT_LT(dsc_now_ns() - end_ns, 6000000000u) << "ends late";
        return st;
    }
    void read_for_ever()
    {
        dsc_net *const net = world.create(1);

        if (world.connect_all(net, 1) == DSCOMM_OK) {
            dsc_conn *const conn = dsc_net_conn(net, 0);

            conn->ops->rx_expect(conn, UINT64_MAX);
            (void)drive(net, [&] {
                while (try_receive(conn, kSlot))
                    ;
                return false;
            });
        }
        _exit(0);
    }
    bool error_says(const char *text) const
    {
        return error_text.find(text) != std::string::npos;
    }
    /* What a process says that wants to use RDMA. */
    static dscomm_status_t probe(dsc_rdma_wish wish = DSC_RDMA_MUST)
    {
        uint64_t key = 0;
        const dscomm_status_t st = dsc_verbs_probe(wish, &key);

        EXPECT_EQ(st == DSCOMM_OK && wish == DSC_RDMA_MUST, key != 0);
        return st;
    }
    static bool probe_says(const char *text)
    {
        return std::strstr(dscomm_last_error(), text) != nullptr;
    }

    World world;
    std::string error_text;
};

uint64_t packets_received(const char *device)
{
    const std::string path =
        std::string("/sys/class/infiniband/") + device + "/ports/1/hw_counters/rcvd_pkts";
    FILE *const file = std::fopen(path.c_str(), "r");
    unsigned long long n = 0;

    if (file == nullptr || std::fscanf(file, "%llu", &n) != 1)
        ADD_FAILURE() << path;
    if (file != nullptr)
        std::fclose(file);
    return n;
}

TEST_F(Verbs, DataCrossesTheLink)
{
    const uint64_t before[2] = { packets_received("rxe0"), packets_received("rxe1") };

    both_send(50);
    EXPECT_GT(packets_received("rxe0"), before[0] + 50 * 16);
    EXPECT_GT(packets_received("rxe1"), before[1] + 50 * 16);
}

TEST_F(Verbs, AutoTakesItBetweenHostsThatBothHaveIt)
{
    world.params.transport = "auto";
    both_send(2);
}

TEST_F(Verbs, AutoTakesTcpWhereOneHasNone)
{
    world.params.transport = "auto";
    world.peers[1].rdma_key = 0;
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        EXPECT_STREQ("tcp", dsc_net_transport_name(net, 1 - rank));
    });
}

/* ---- a link in trouble ---- */

TEST_F(Verbs, OnePercentLossIsSurvived)
{
    set_env("DSCOMM_IB_RETRY_COUNT", "6");
    shell("tc qdisc add dev veth0 root netem loss 1%");
    both_send(100);
    shell("tc -s qdisc show dev veth0 | grep -q 'dropped [1-9]'");
}

/* Packets of the peer's end are lost; both send meanwhile. */
TEST_F(Verbs, AnOutageOfOneSecondIsSurvived)
{
    unsetenv("DSCOMM_IB_TIMEOUT");
    unsetenv("DSCOMM_IB_RETRY_COUNT"); /* the defaults: 7 times 1.07 s */
    dsc_env_reload();
    std::thread outage([] {
        usleep(500000);
        shell("tc qdisc add dev veth1 root netem loss 100%; sleep 1; tc qdisc del dev veth1 root");
    });

    both_send(400);
    outage.join();
}

/* rxe fails at once what is sent by the end that is down, so here only the other one sends. */
TEST_F(Verbs, ThePeersLinkComesBack)
{
    unsetenv("DSCOMM_IB_TIMEOUT");
    unsetenv("DSCOMM_IB_RETRY_COUNT");
    dsc_env_reload();
    Rank other([&] { read_for_ever(); });
    dsc_net *const net = world.create(0);

    ASSERT_EQ(DSCOMM_OK, world.connect_all(net, 0)) << dsc_net_error_text(net);
    dsc_conn *const conn = dsc_net_conn(net, 1);
    const auto send_to = [&](uint64_t end) {
        EXPECT_EQ(DSCOMM_OK, drive(net,
                                   [&] {
                                       while (conn->tx_next < end && try_send(conn, 0, kSlot))
                                           ;
                                       return conn->tx_next == end && conn->ops->flushed(conn);
                                   }))
            << dsc_net_error_text(net);
    };
    send_to(20);
    ASSERT_EQ(DSCOMM_IN_PROGRESS, drive_to_error(net, 300)); /* until all is read and told */
    shell("ip link set veth1 down");
    std::thread up([] { shell("sleep 1; ip link set veth1 up"); });
    send_to(24);
    up.join();
    send_to(60);
    dsc_net_destroy(net);
}

TEST_F(Verbs, AllPacketsLostIsAnErrorThatNamesPeerDeviceAndReason)
{
    const auto lose = [](Rank *) { shell("tc qdisc add dev veth0 root netem loss 100%"); };

    EXPECT_EQ(DSCOMM_ERR_PEER_LOST, send_into(lose, 5000));
    EXPECT_TRUE(error_says("lost rank 1 (verbs 127.0.0.1:")) << error_text;
    EXPECT_TRUE(error_says("rxe0 port 1: transport retry counter exceeded (12)")) << error_text;
}

TEST_F(Verbs, OwnLinkDown)
{
    EXPECT_GT(DSCOMM_OK, send_into([](Rank *) { shell("ip link set veth0 down"); }, 5000));
    EXPECT_TRUE(error_says("rxe0 port 1: ")) << error_text;
    EXPECT_TRUE(error_says("; the port is down")) << error_text;
}

TEST_F(Verbs, PeersLinkDown)
{
    EXPECT_EQ(DSCOMM_ERR_PEER_LOST,
              send_into([](Rank *) { shell("ip link set veth1 down"); }, 5000));
    EXPECT_TRUE(error_says("transport retry counter exceeded (12)")) << error_text;
}

TEST_F(Verbs, PeerKilled)
{
    EXPECT_EQ(DSCOMM_ERR_PEER_LOST, send_into([](Rank *other) { other->end(); }, 2000));
    EXPECT_TRUE(error_says("lost rank 1 (verbs")) << error_text;
}

/* ---- what is missing, too low, or too high ---- */

TEST_F(Verbs, TooLittleMemoryMayBeLocked)
{
    for (const char *const transport : { "verbs", "auto" }) {
        Rank user([&] {
            const rlimit limit = { 65536, 65536 };
            World own(2, transport);
            Log log;

            own.params.slot_bytes = kSlot;
            apart(&own);
            ASSERT_EQ(0, setrlimit(RLIMIT_MEMLOCK, &limit));
            ASSERT_EQ(0, setuid(65534)); /* root may lock what it wants */
            own.run([&](int rank, dsc_net *net) {
                const bool is_auto = std::string(transport) == "auto";
                const dscomm_status_t st = own.connect_all(net, rank);

                if (is_auto) {
                    EXPECT_EQ(DSCOMM_OK, st);
                    EXPECT_STREQ("tcp", dsc_net_transport_name(net, 1 - rank));
                    return;
                }
                EXPECT_GT(DSCOMM_OK, st);
                if (rank == 1) {
                    EXPECT_EQ(DSCOMM_ERR_LIMIT, st);
                    for (const char *const text : { "KiB of slots", "rxe1", "at most 64 KiB",
                                                    "ulimit -l", "DSCOMM_CHUNK_BYTES" })
                        EXPECT_TRUE(says(net, text)) << dsc_net_error_text(net);
                }
                dsc_net_fail(net, st, dsc_net_error_text(net));
            });
            if (std::string(transport) == "auto") {
                EXPECT_EQ(1u, log.count(DSCOMM_LOG_WARN, "no RDMA with rank 0, using tcp: cannot "
                                                         "register"));
            }
        });
        EXPECT_TRUE(user.is_good()) << transport;
    }
}

TEST_F(Verbs, AnMtuAboveThePortsIsRefused)
{
    shell("ip link set veth0 mtu 1500; ip link set veth1 mtu 1500; sleep 0.2");
    set_env("DSCOMM_IB_MTU", "4096");
    EXPECT_EQ(DSCOMM_ERR_ENV, probe());
    EXPECT_TRUE(probe_says("DSCOMM_IB_MTU=4096, rxe0 port 1 has an active MTU of 1024"))
        << dscomm_last_error();
    set_env("DSCOMM_IB_MTU", "512");
    both_send(10);
}

TEST_F(Verbs, TheLowerMtuOfBothEndsIsUsed)
{
    set_env("DSCOMM_IB_MTU", "1024");
    Rank other([&] {
        unsetenv("DSCOMM_IB_MTU");
        dsc_env_reload();
        send_as(1, 10);
    });

    send_as(0, 10);
    EXPECT_TRUE(other.is_good());
}

TEST_F(Verbs, AMissingDeviceIsNamedWithThoseThereAre)
{
    set_env("DSCOMM_IB_HCA", "mlx5");
    for (const dsc_rdma_wish wish : { DSC_RDMA_MAY, DSC_RDMA_MUST }) {
        EXPECT_EQ(DSCOMM_ERR_ENV, probe(wish));
        EXPECT_TRUE(
            probe_says("DSCOMM_IB_HCA=mlx5 fits no port of the RDMA devices here: rxe0, rxe1"))
            << dscomm_last_error();
    }
    EXPECT_EQ(DSCOMM_OK, probe(DSC_RDMA_NO));
}

TEST_F(Verbs, NamesBeginningsAndExclusions)
{
    for (const char *const spec : { "", "rxe", "rxe1", "rxe0:1", "=rxe1,rxe0", "^mlx5", "^rxe0" }) {
        set_env("DSCOMM_IB_HCA", spec);
        EXPECT_EQ(DSCOMM_OK, probe()) << spec;
    }
    for (const char *const spec : { "=rxe", "rxe0:2", "mlx5_0,mlx5_1" }) {
        set_env("DSCOMM_IB_HCA", spec);
        EXPECT_EQ(DSCOMM_ERR_ENV, probe()) << spec;
    }
}

TEST_F(Verbs, APortThatIsDownIsNone)
{
    shell("ip link set veth0 down; sleep 0.2");
    EXPECT_EQ(DSCOMM_ERR_UNSUPPORTED, probe());
    EXPECT_TRUE(probe_says("no RDMA port is active: rxe0:1 is down")) << dscomm_last_error();
    EXPECT_EQ(DSCOMM_OK, probe(DSC_RDMA_MAY));
}

TEST_F(Verbs, D21_GidIndex)
{
    set_env("DSCOMM_IB_GID_INDEX", "900");
    EXPECT_EQ(DSCOMM_ERR_INVALID, probe());
    EXPECT_TRUE(probe_says("GID index 900")) << dscomm_last_error();
    set_env("DSCOMM_IB_GID_INDEX", "0"); /* the link-local address, else it is the IPv4 one */
    both_send(3);
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (std::getenv("DSC_VM") == nullptr) {
        std::puts("skipped: this is not the virtual machine of tests/vm/run.py");
        return 77;
    }
    return RUN_ALL_TESTS();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks meet: interfaces and addresses by DSCOMM_SOCKET_IFNAME, and rank, world size, address
 * and port from launchers' variables.
 */
#include "unit/bootstrap_support.h"

#include <netinet/tcp.h>

#include <fstream>
#include <random>

namespace {

/* ---- interfaces ---- */

TEST_F(Bootstrap, InterfaceErrorsNameVariableValueAndWhatExists)
{
    const char *const bad[] = {
        "nosuch0",         "=l",          "^lo,eth,ens,enp,ifb,docker,veth,br,wlan,=",
        "fe80::1%nosuch0", "203.0.113.9", "2001:db8::9"
    };
    dsc_addr addr;

    for (const char *value : bad) {
        if (value[0] == '^' && dsc_netif_choose(value, &addr) == DSCOMM_OK)
            continue; /* this machine has yet other interfaces */
        EXPECT_EQ(dsc_netif_choose(value, &addr), DSCOMM_ERR_ENV) << value;
        const std::string text = dscomm_last_error();
        EXPECT_TRUE(contains(text, "DSCOMM_SOCKET_IFNAME")) << text;
        EXPECT_TRUE(contains(text, std::string("\"") + value + "\"")) << text;
        EXPECT_TRUE(contains(text, "lo (127.0.0.1)")) << text;
    }
    EXPECT_EQ(dsc_netif_choose("fe80::1", &addr), DSCOMM_ERR_ENV);
    EXPECT_TRUE(contains(dscomm_last_error(), "fe80::1%eth0")) << dscomm_last_error();

    set("DSCOMM_SOCKET_IFNAME", "nosuch0");
    dscomm_unique_id_t id;
    EXPECT_EQ(dscomm_unique_id_create(&id), DSCOMM_ERR_ENV);
}

TEST_F(Bootstrap, RankWithABadInterfaceFailsItself)
{
    const dscomm_unique_id_t id = make_id();
    Rank rank(1, 0);

    set("DSCOMM_SOCKET_IFNAME", "nosuch0");
    rank.join(id);
    EXPECT_EQ(rank.status, DSCOMM_ERR_ENV);
    EXPECT_TRUE(contains(rank.text, "nosuch0")) << rank.text;
    set("DSCOMM_SOCKET_IFNAME", "lo");
    rank.join(id);
    EXPECT_EQ(rank.status, DSCOMM_OK);
    rank.leave();
}

TEST_F(Bootstrap, InterfaceByNameBeginningOrAddress)
{
    dsc_addr addr;
    char text[DSC_ADDR_TEXT_BYTES];

    for (const char *value : { "lo", "=lo", "l", "nosuch0,lo", "127.0.0.1", "=nosuch,lo" }) {
        ASSERT_EQ(dsc_netif_choose(value, &addr), DSCOMM_OK) << value;
        EXPECT_STREQ(dsc_addr_text(&addr, text), "127.0.0.1") << value;
    }
    ASSERT_EQ(dsc_netif_choose("127.0.0.9", &addr), DSCOMM_OK) << "all of 127/8 is here";
    EXPECT_STREQ(dsc_addr_text(&addr, text), "127.0.0.9");
    ASSERT_EQ(dsc_netif_choose("", &addr), DSCOMM_OK);
    EXPECT_GE(count_lines("using interface"), 8u) << "the choice is logged";
}

/* ---- congestion control ---- */

std::string congestion_of(int fd)
{
    char name[64] = "";
    socklen_t len = sizeof(name) - 1;

    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0) << strerror(errno);
    return name;
}

std::string systems_congestion()
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const std::string name = congestion_of(fd);

    close(fd);
    return name;
}

TEST_F(Bootstrap, ConnectionsHaveTheCongestionControlThatIsAskedFor)
{
    for (const std::string value : { "system", "reno", "auto" }) {
        const std::string system = systems_congestion();
        dsc_addr addr = {};
        int listener = -1, fd = -1;

        set("DSCOMM_SOCKET_CONGESTION", value.c_str());
        ASSERT_EQ(dsc_netif_choose("lo", &addr), DSCOMM_OK);
        ASSERT_EQ(dsc_netif_listen(&addr, &listener), DSCOMM_OK) << dscomm_last_error();
        ASSERT_EQ(dsc_socket_create(AF_INET, &fd), DSCOMM_OK) << dscomm_last_error();
        ASSERT_TRUE(connect(fd, &addr.any, dsc_addr_len(&addr)) == 0 || errno == EINPROGRESS);
        struct pollfd ready = { listener, POLLIN, 0 };
        ASSERT_EQ(poll(&ready, 1, kLong), 1);
        const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        for (const int end : { fd, accepted }) {
            const std::string name = congestion_of(end);

            if (value == "system")
                EXPECT_EQ(name, system);
            else if (value == "reno")
                EXPECT_EQ(name, "reno");
            else if (contains(system, "bbr"))
                EXPECT_TRUE(name == "cubic" || name == "reno") << name;
            else
                EXPECT_EQ(name, system);
        }
        close(accepted);
        close(fd);
        close(listener);
    }
}

/* A socket that has BBR, whatever the system's is. */
TEST_F(Bootstrap, BbrIsLeftWhereItIsNotAskedFor)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0) {
        EXPECT_EQ(dsc_socket_congestion(fd, "system"), DSCOMM_OK);
        EXPECT_EQ(congestion_of(fd), "bbr");
        EXPECT_EQ(dsc_socket_congestion(fd, "auto"), DSCOMM_OK);
        EXPECT_FALSE(contains(congestion_of(fd), "bbr"));
        EXPECT_EQ(dsc_socket_congestion(fd, "bbr"), DSCOMM_OK);
        EXPECT_EQ(congestion_of(fd), "bbr");
    }
    EXPECT_EQ(dsc_socket_congestion(fd, "reno"), DSCOMM_OK);
    EXPECT_EQ(dsc_socket_congestion(fd, "auto"), DSCOMM_OK);
    EXPECT_EQ(congestion_of(fd), "reno") << "no BBR: left as it is";
    close(fd);
}

TEST_F(Bootstrap, UnknownCongestionControlNamesVariableValueAndWhatExists)
{
    for (const std::string value : { "nosuch", "auto ", "reno,cubic", "a_name_longer_than_16" }) {
        set("DSCOMM_SOCKET_CONGESTION", value.c_str());
        dscomm_unique_id_t id;
        EXPECT_EQ(dscomm_unique_id_create(&id), DSCOMM_ERR_ENV);
        const std::string text = dscomm_last_error();
        EXPECT_TRUE(contains(text, "DSCOMM_SOCKET_CONGESTION is \"" + value + "\"")) << text;
        EXPECT_TRUE(contains(text, "auto, system")) << text;
        EXPECT_TRUE(contains(text, "reno")) << text;
    }
}

TEST_F(Bootstrap, AddressTextsAndWireForm)
{
    const std::pair<const char *, const char *> cases[] = { { "10.1.2.3", "10.1.2.3:500" },
                                                            { "2001:db8::1", "[2001:db8::1]:500" },
                                                            { "fe80::1", "[fe80::1%lo]:500" } };
    for (const auto &c : cases) {
        dsc_addr addr = {}, back = {};
        uint8_t wire[DSC_ADDR_WIRE_BYTES];
        char text[DSC_ADDR_TEXT_BYTES];
        if (inet_pton(AF_INET, c.first, &addr.v4.sin_addr) == 1) {
            addr.v4.sin_family = AF_INET;
        } else {
            ASSERT_EQ(inet_pton(AF_INET6, c.first, &addr.v6.sin6_addr), 1);
            addr.v6.sin6_family = AF_INET6;
            addr.v6.sin6_scope_id = dsc_addr_is_link_local(&addr) ? 1 : 0;
        }
        dsc_addr_set_port(&addr, 500);
        EXPECT_STREQ(dsc_addr_text(&addr, text), c.second);
        dsc_addr_encode(&addr, wire);
        ASSERT_TRUE(dsc_addr_decode(wire, &back));
        EXPECT_EQ(memcmp(&addr, &back, sizeof(addr)), 0);
        wire[0] = 7;
        EXPECT_FALSE(dsc_addr_decode(wire, &back));
    }
}

/* ---- launchers ---- */

/* Whether rank 0 could listen at the port, on every interface. */
bool is_free(int port)
{
    dsc_addr any = {};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    any.v4.sin_family = AF_INET;
    dsc_addr_set_port(&any, (uint16_t)port);
    const bool ok = bind(fd, &any.any, dsc_addr_len(&any)) == 0;
    close(fd);
    return ok;
}

/*
 * A port that was free a moment ago and is not one of those that the kernel gives to any connection
 * at any time.
 */
int free_port()
{
    std::mt19937 random(std::random_device{}());
    std::uniform_int_distribution<int> ports(15000, 31000);
    std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
    int low = 0, high = 0, port = 0;

    range >> low >> high;
    for (int i = 0; i < 10000; i++) {
        port = ports(random);
        if ((port < low || port > high) && is_free(port))
            return port;
    }
    return port;
}

class BootstrapEnv : public Bootstrap {
  protected:
    void set_torchrun(int n_ranks, int rank, int port)
    {
        set("RANK", std::to_string(rank));
        set("WORLD_SIZE", std::to_string(n_ranks));
        set("MASTER_ADDR", "127.0.0.1");
        set("MASTER_PORT", std::to_string(port - 1));
    }
    dscomm_status_t start(dscomm_unique_id_t *id, int *n_ranks = nullptr, int *rank = nullptr)
    {
        int n = -1, r = -1;
        const dscomm_status_t st = dsc_bootstrap_env(kLong, &n, &r, id);
        if (n_ranks != nullptr)
            *n_ranks = n;
        if (rank != nullptr)
            *rank = r;
        return st;
    }
};

TEST_F(BootstrapEnv, TwentyRoundsOnOnePort)
{
    const int port = free_port();

    for (int round = 0; round < 20; round++) {
        dscomm_unique_id_t id[2];
        std::vector<Rank> ranks = make_ranks(2);
        for (int r = 0; r < 2; r++) {
            int n = 0, rank = -1;
            set_torchrun(2, r, port);
            ASSERT_EQ(start(&id[r], &n, &rank), DSCOMM_OK) << round << dscomm_last_error();
            EXPECT_EQ(n, 2);
            EXPECT_EQ(rank, r);
        }
        EXPECT_EQ(memcmp(&id[0], &id[1], sizeof(id[0])), 0) << "equal on all ranks";
        EXPECT_EQ(port_of(id[0]), port);
        join_all(ranks, id[0]);
        expect_met(ranks);
        leave_all(ranks);
    }
    EXPECT_EQ(count_lines("WARN"), 0u);
    EXPECT_EQ(count_lines("keeps accidents out"), 20u) << "once per job, on rank 0";
}

/* A rank that leaves early and comes back meets the next job, not the rest of the last. */
TEST_F(BootstrapEnv, RoundsWithoutPauseBetween)
{
    const int port = free_port();
    dscomm_unique_id_t id;

    set_torchrun(2, 1, port);
    ASSERT_EQ(start(&id), DSCOMM_OK);
    set_torchrun(2, 0, port);
    std::thread other([&] {
        for (int round = 0; round < 30; round++) {
            Rank rank(2, 1);
            rank.join(id);
            EXPECT_EQ(rank.status, DSCOMM_OK) << round << rank.text;
            rank.leave();
        }
    });
    for (int round = 0; round < 30; round++) {
        Rank rank(2, 0);
        dscomm_unique_id_t mine;
        ASSERT_EQ(start(&mine), DSCOMM_OK) << round << dscomm_last_error();
        rank.join(mine);
        EXPECT_EQ(rank.status, DSCOMM_OK) << round << rank.text;
        rank.leave();
    }
    other.join();
}

TEST_F(BootstrapEnv, RankZeroMayBeLast)
{
    const int port = free_port();
    dscomm_unique_id_t id;
    std::vector<Rank> ranks = make_ranks(3);

    set_torchrun(3, 1, port);
    ASSERT_EQ(start(&id), DSCOMM_OK);
    std::thread late([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        dsc_addr addr = {};
        addr.v4.sin_family = AF_INET;
        dsc_addr_set_port(&addr, (uint16_t)port);
        uint8_t key[DSC_SECRET_BYTES];
        dsc_rendezvous rv = {};
        EXPECT_EQ(dsc_unique_id_decode(&id, &rv), DSCOMM_OK);
        EXPECT_EQ(dsc_bootstrap_key(rv.secret, key), DSCOMM_OK);
        EXPECT_EQ(dsc_root_start(&addr, key, kLong), DSCOMM_OK);
    });
    join_all(ranks, id);
    late.join();
    expect_met(ranks);
    leave_all(ranks);
}

TEST_F(BootstrapEnv, SecondJobAtThePortFailsAtOnce)
{
    const int port = free_port();
    dscomm_unique_id_t id, second;

    set_torchrun(2, 0, port);
    ASSERT_EQ(start(&id), DSCOMM_OK);
    const double begin = now_s();
    EXPECT_EQ(start(&second), DSCOMM_ERR_SYSTEM);
    EXPECT_LE(now_s() - begin, 0.5);
    EXPECT_TRUE(contains(dscomm_last_error(), "port " + std::to_string(port) + " is in use"))
        << dscomm_last_error();

    std::vector<Rank> ranks = make_ranks(2); /* the first job is not disturbed */
    join_all(ranks, id);
    expect_met(ranks);
    leave_all(ranks);
}

TEST_F(BootstrapEnv, RankZeroThatFailsTellsTheOthersAndMayTryAgain)
{
    const int port = free_port();
    dscomm_unique_id_t id;

    for (int round = 0; round < 10; round++) {
        std::vector<Rank> ranks = make_ranks(3);
        set_torchrun(3, 0, port);
        ASSERT_EQ(start(&id), DSCOMM_OK) << round << dscomm_last_error();
        ranks[0].timeout_ms = 0;
        ranks[0].delay_ms = round % 2 == 0 ? 50 : 0; /* the others wait for it, or come after */
        ranks[1].delay_ms = round % 2 == 0 ? 0 : 50;
        join_all(ranks, id);
        EXPECT_EQ(ranks[0].text, "timeout_ms is 0, it must be at least 1");
        expect_all_fail({ ranks[1], ranks[2] }, DSCOMM_ERR_INVALID,
                        "rank 0: timeout_ms is 0, it must be at least 1", 2.0);

        std::vector<Rank> again = make_ranks(3);
        ASSERT_EQ(start(&id), DSCOMM_OK) << round << dscomm_last_error();
        join_all(again, id);
        expect_met(again);
        leave_all(again);
    }
}

/* Twice from the public call, without a moment between; the other rank comes after the second. */
TEST_F(BootstrapEnv, RankZeroWithABadInterfaceKeepsNoPort)
{
    const int port = free_port();
    dscomm_comm_t *comm = nullptr;
    dscomm_unique_id_t id;
    Rank other(2, 1);

    set_torchrun(2, 0, port);
    set("DSCOMM_SOCKET_IFNAME", "nosuch0");
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(dscomm_comm_create_from_env(nullptr, &comm), DSCOMM_ERR_ENV);
        EXPECT_TRUE(contains(dscomm_last_error(), "nosuch0")) << dscomm_last_error();
    }
    set("DSCOMM_SOCKET_IFNAME", "lo");
    set_torchrun(2, 1, port);
    ASSERT_EQ(start(&id), DSCOMM_OK);
    other.join(id);
    EXPECT_EQ(other.status, DSCOMM_ERR_ENV);
    EXPECT_TRUE(contains(other.text, "rank 0: DSCOMM_SOCKET_IFNAME")) << other.text;
    EXPECT_LE(other.seconds, 2.0);
}

/* Whatever fails on the way, the next try has the port, and the last one succeeds. */
TEST_F(BootstrapEnv, AnyAllocationMayFailAndTheNextTryHasThePort)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    int n_failed = 0;

    set_torchrun(1, 0, free_port());
    config.timeout_ms = 300;
    config.n_threads = 1;
    const Usage before = stable_usage();
    for (int nth = 1; nth <= 60; nth++) {
        dscomm_comm_t *comm = nullptr;
        dsc_mem_fail_after(nth);
        const dscomm_status_t st = dscomm_comm_create_from_env(&config, &comm);
        dsc_mem_fail_after(-1);
        n_failed += st != DSCOMM_OK;
        EXPECT_FALSE(contains(st < 0 ? dscomm_last_error() : "", "is in use")) << nth;
        if (st == DSCOMM_OK)
            dscomm_comm_destroy(comm);
        else
            EXPECT_TRUE(comm == nullptr) << nth;
    }
    EXPECT_GE(n_failed, 8);
    expect_no_more_than(before);
}

TEST_F(BootstrapEnv, LaunchersAndPorts)
{
    const int port = free_port();
    const std::map<std::string, std::string> cases[] = {
        { { "OMPI_COMM_WORLD_RANK", "1" },
          { "OMPI_COMM_WORLD_SIZE", "4" },
          { "OMPI_COMM_WORLD_LOCAL_SIZE", "4" } },
        { { "PMI_RANK", "1" }, { "PMI_SIZE", "4" }, { "PMI_LOCAL_SIZE", "4" } },
        { { "PMI_RANK", "1" }, { "PMI_SIZE", "4" }, { "MPI_LOCALNRANKS", "4" } },
        { { "SLURM_PROCID", "1" }, { "SLURM_NTASKS", "4" }, { "SLURM_NNODES", "1" } },
        { { "RANK", "1" }, { "WORLD_SIZE", "4" }, { "LOCAL_WORLD_SIZE", "4" } },
    };
    for (const auto &variables : cases) {
        dscomm_unique_id_t id;
        int n = 0, rank = -1;
        char text[DSC_ADDR_TEXT_BYTES];
        for (const auto &v : variables)
            set(v.first.c_str(), v.second);
        ASSERT_EQ(start(&id, &n, &rank), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(n, 4);
        EXPECT_EQ(rank, 1);
        dsc_addr addr = open_id(id).addr;
        EXPECT_STREQ(dsc_addr_text(&addr, text), "127.0.0.1:29501");
        set("MASTER_PORT", "1234");
        ASSERT_EQ(start(&id), DSCOMM_OK);
        EXPECT_EQ(port_of(id), 1235);
        set("DSCOMM_PORT", std::to_string(port));
        ASSERT_EQ(start(&id), DSCOMM_OK);
        EXPECT_EQ(port_of(id), port);
        for (const auto &v : variables)
            clear(v.first.c_str());
        clear("MASTER_PORT");
        clear("DSCOMM_PORT");
    }
}

TEST_F(BootstrapEnv, JobsAtOneAddressHaveOtherSecrets)
{
    dscomm_unique_id_t a, b;

    set_torchrun(2, 1, 29501);
    set("TORCHELASTIC_RUN_ID", "one");
    ASSERT_EQ(start(&a), DSCOMM_OK);
    set("TORCHELASTIC_RUN_ID", "two");
    ASSERT_EQ(start(&b), DSCOMM_OK);
    EXPECT_NE(memcmp(open_id(a).secret, open_id(b).secret, DSC_SECRET_BYTES), 0);
}

TEST_F(BootstrapEnv, BadVariablesAreNamed)
{
    struct Case {
        std::map<std::string, std::string> variables;
        std::vector<std::string> parts;
    };
    const Case cases[] = {
        { {}, { "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID" } },
        { { { "RANK", "0" } }, { "RANK is set but WORLD_SIZE is not" } },
        { { { "SLURM_NTASKS", "2" } }, { "SLURM_NTASKS is set but SLURM_PROCID is not" } },
        { { { "RANK", "x" }, { "WORLD_SIZE", "2" } }, { "RANK is \"x\"", "0 to 1" } },
        { { { "RANK", "2" }, { "WORLD_SIZE", "2" } }, { "RANK is \"2\"", "0 to 1" } },
        { { { "RANK", "-1" }, { "WORLD_SIZE", "2" } }, { "RANK is \"-1\"", "0 to 1" } },
        { { { "RANK", "" }, { "WORLD_SIZE", "2" } }, { "RANK is \"\"", "0 to 1" } },
        { { { "RANK", "0" }, { "WORLD_SIZE", "70000" } },
          { "WORLD_SIZE is \"70000\"", "1 to 65535" } },
        { { { "RANK", "0" }, { "WORLD_SIZE", "99999999999999999999" } }, { "WORLD_SIZE" } },
        { { { "RANK", "1" }, { "WORLD_SIZE", "2" }, { "MASTER_PORT", "65535" } },
          { "MASTER_PORT is \"65535\"", "1 to 65534" } },
        { { { "RANK", "1" }, { "WORLD_SIZE", "2" } }, { "MASTER_ADDR is not set" } },
        { { { "PMI_RANK", "1" }, { "PMI_SIZE", "4" }, { "PMI_LOCAL_SIZE", "2" } },
          { "MASTER_ADDR is not set" } },
        { { { "PMI_RANK", "1" }, { "PMI_SIZE", "4" }, { "MPI_LOCALNRANKS", "2" } },
          { "MASTER_ADDR is not set" } },
        { { { "PMI_RANK", "1" }, { "PMI_SIZE", "4" }, { "MPI_LOCALNRANKS", "x" } },
          { "MPI_LOCALNRANKS is \"x\"" } },
        { { { "RANK", "1" }, { "WORLD_SIZE", "2" }, { "MASTER_ADDR", "300.1.1.1.1.x y" } },
          { "MASTER_ADDR is \"300.1.1.1.1.x y\"" } },
    };
    for (const Case &c : cases) {
        dscomm_unique_id_t id;
        for (const auto &v : c.variables)
            set(v.first.c_str(), v.second);
        EXPECT_EQ(start(&id), DSCOMM_ERR_ENV);
        const std::string text = dscomm_last_error();
        for (const std::string &part : c.parts)
            EXPECT_TRUE(contains(text, part)) << text << " without " << part;
        for (const auto &v : c.variables)
            clear(v.first.c_str());
    }
}

} /* namespace */

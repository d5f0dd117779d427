/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput and latency of verbs against perftest's programs, in the virtual machine, where only
 * ratios mean something. Both run in turn, so that a change in the host's load meets both; medians.
 */
#include "support/net_world.h"

#include <sys/wait.h>

#include <algorithm>

using namespace net_world;

namespace {

constexpr size_t kBulk = 1 << 20, kSmall = 64;
constexpr uint64_t kBulkMessages = 60, kPings = 400;
constexpr int kRounds = 3, kAttempts = 3;
constexpr double kLeastRate = 0.9, kMostLatency = 1.3;

using Values = std::vector<double>;

double median(Values values)
{
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

/* ---- DSComm: nothing is written or read, as in perftest ---- */

uint64_t post(dsc_conn *conn, size_t bytes)
{
    const dsc_header header = test_header(conn->tx_next, bytes);

    conn->ops->tx_post(conn, conn->tx_next, &header);
    return conn->tx_next++;
}

bool can_post(dsc_conn *conn)
{
    return conn->ops->tx_slot(conn, conn->tx_next) != nullptr;
}

bool take(dsc_conn *conn)
{
    const uint8_t *payload;

    if (conn->ops->rx_msg(conn, conn->rx_next, &payload) == nullptr)
        return false;
    conn->ops->rx_release(conn, conn->rx_next++);
    return true;
}

void receive_all(dsc_net *net, uint64_t n)
{
    dsc_conn *const conn = dsc_net_conn(net, 0);

    conn->ops->rx_expect(conn, n);
    EXPECT_EQ(DSCOMM_OK, drive(net, [&] {
                  while (conn->rx_next < n && take(conn))
                      ;
                  return conn->rx_next == n;
              }));
}

/* MiB/s */
double send_all(dsc_net *net, uint64_t n)
{
    dsc_conn *const conn = dsc_net_conn(net, 1);
    const uint64_t start_ns = dsc_now_ns();

    EXPECT_EQ(DSCOMM_OK, drive(net, [&] {
                  while (conn->tx_next < n && can_post(conn))
                      post(conn, kBulk);
                  return conn->tx_next == n && conn->ops->flushed(conn);
              }));
    return static_cast<double>(n) * 1e9 / static_cast<double>(dsc_now_ns() - start_ns);
}

/* Microseconds one way, the median. */
double ping(dsc_net *net, int rank, uint64_t n)
{
    dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
    Values times;

    conn->ops->rx_expect(conn, n);
    uint64_t start_ns = dsc_now_ns();

    for (uint64_t i = 0; i < n; i++) {
        if (rank == 0 && can_post(conn))
            post(conn, kSmall);
        for (bool waits = !take(conn); waits && dsc_net_progress(net) == DSCOMM_OK;) {
            waits = !take(conn);
            if (waits)
                dsc_net_wait(net, 1000000000);
            waits = waits && !take(conn);
        }
        if (rank == 1 && can_post(conn))
            post(conn, kSmall);
        const uint64_t now_ns = dsc_now_ns();
        times.push_back(static_cast<double>(now_ns - start_ns) / 2e3);
        start_ns = now_ns;
    }
    EXPECT_EQ(n, conn->rx_next) << dsc_net_error_text(net);
    return median(times);
}

/* Rank 0's result of body(net, rank), rank 1 being another process on the other device. */
double measure(const std::function<double(dsc_net *, int)> &body)
{
    World world(2, "verbs");
    double result = 0;

    world.params.slot_bytes = kBulk;
    world.params.n_slots = 8;
    world.params.spin_ns = 1000000000; /* perftest never sleeps */
    const pid_t child = fork();
    const int rank = child == 0;

    setenv("DSCOMM_IB_HCA", rank == 0 ? "=rxe0" : "=rxe1", 1);
    dsc_env_reload();
    dsc_net *const net = world.create(rank);
    EXPECT_EQ(DSCOMM_OK, world.connect_all(net, rank));
    if (dsc_net_conn(net, 1 - rank) != nullptr)
        result = body(net, rank);
    dsc_net_destroy(net);
    if (child == 0)
        _exit(testing::Test::HasFailure());
    waitpid(child, nullptr, 0);
    return result;
}

/* ---- perftest ---- */

/* Column `column` of the line of results that a pair of the program prints. */
double perftest(const char *program, size_t bytes, uint64_t n, int column)
{
    char command[512], line[512];
    double result = 0;

    std::snprintf(command, sizeof(command),
                  "%s -F -d rxe1 -x 1 -s %zu -n %llu >/dev/null 2>&1 & "
                  "until grep -q :4853 /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done; "
                  "timeout 60 %s -F -d rxe0 -x 1 -s %zu -n %llu 127.0.0.1 2>&1; wait",
                  program, bytes, static_cast<unsigned long long>(n), program, bytes,
                  static_cast<unsigned long long>(n));
    FILE *const pipe = popen(command, "r");
    while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
        double values[6] = {};

        if (std::sscanf(line, "%lf %lf %lf %lf %lf %lf", &values[0], &values[1], &values[2],
                        &values[3], &values[4], &values[5]) >= column + 1 &&
            values[0] == static_cast<double>(bytes))
            result = values[column];
    }
    EXPECT_EQ(0, pipe != nullptr ? pclose(pipe) : -1) << program;
    EXPECT_GT(result, 0) << program;
    return result;
}

void report(const char *what, const char *unit, const Values &theirs, const Values &own)
{
    std::printf("%s: perftest %.1f, DSComm %.1f %s: %.2f (medians of %zu)\n", what, median(theirs),
                median(own), unit, median(own) / median(theirs), own.size());
}

/* perftest's median and DSComm's; a busy host spoils one attempt, a slow path all of them. */
template <typename Theirs, typename Own, typename Holds>
void compare(const char *what, const char *unit, Theirs theirs, Own own, Holds holds)
{
    bool held = false;

    for (int attempt = 0; attempt < kAttempts && !held; attempt++) {
        Values a, b;

        for (int i = 0; i < kRounds; i++) {
            a.push_back(theirs());
            b.push_back(own());
        }
        report(what, unit, a, b);
        held = holds(median(b) / median(a));
    }
    EXPECT_TRUE(held);
}

TEST(VerbsRate, ThroughputOfLargeMessages)
{
    compare(
        "1 MiB", "MiB/s", [] { return perftest("ib_send_bw -t 8", kBulk, kBulkMessages, 3); },
        [] {
            return measure([](dsc_net *net, int rank) {
                if (rank == 0)
                    return send_all(net, kBulkMessages);
                receive_all(net, kBulkMessages);
                return 0.0;
            });
        },
        [](double ratio) { return ratio >= kLeastRate; });
}

TEST(VerbsRate, LatencyOfSmallMessages)
{
    compare(
        "64 bytes", "us", [] { return perftest("ib_send_lat", kSmall, kPings, 4); },
        [] { return measure([](dsc_net *net, int rank) { return ping(net, rank, kPings); }); },
        [](double ratio) { return ratio <= kMostLatency; });
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (std::getenv("DSC_VM") == nullptr ||
        std::system("command -v ib_write_bw ib_send_lat >/dev/null") != 0) {
        std::puts("skipped: needs the virtual machine of tests/vm/run.py, and perftest");
        return 77;
    }
    return RUN_ALL_TESTS();
}

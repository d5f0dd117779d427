/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DSComm's plugin over RDMA, from rxe0 to rxe1 over a link that loses packets or goes down, and with
 * what is missing or too low. In the virtual machine of tests/vm/run.py, with --rdma.
 */
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net_case.h"
#include "transport/nccl_load.h"

#define N_MESSAGES 40

static void shell(const char *command)
{
    const int rc = system(command);

    CHECK(rc == 0, "%s: %d", command, rc);
}

/* A case may be tried again in the same machine: the link is whole before each. */
static void begin(void)
{
    (void)!system(
        "tc qdisc del dev veth0 root 2>/dev/null; tc qdisc del dev veth1 root 2>/dev/null;"
        "ip link set veth0 mtu 4200 up; ip link set veth1 mtu 4200 up; sleep 0.3");
    setenv("DSCOMM_NET", "verbs", 1);
}

/* After some 70 ms a packet is repeated, three times. */
static void give_up_soon(void)
{
    setenv("DSCOMM_IB_TIMEOUT", "14", 1);
    setenv("DSCOMM_IB_RETRY_COUNT", "3", 1);
}

static void own_port(bool sends)
{
    setenv("DSCOMM_IB_HCA", sends ? "=rxe0" : "=rxe1", 1);
}

static void run_apart(side_fn *sender, side_fn *receiver)
{
    load_plugin();
    run_prepared_sides(own_port, sender, receiver);
}

static bool says(const char *text)
{
    return strstr(last_warning(), text) != NULL;
}

/* ---- messages, each checked ---- */

static size_t message_bytes(int i)
{
    return (size_t)(i * 40503) % 300000;
}

static void send_from(struct side *side, int first, int end)
{
    uint8_t *const data = malloc(300000);
    void *const mr = reg(side->comm, data, 300000);

    for (int i = first; i < end; i++) {
        fill(data, message_bytes(i), (uint64_t)i);
        wait_done(send_now(side->comm, data, message_bytes(i), mr));
    }
    dereg(side->comm, mr);
    free(data);
}

static void receive_from(struct side *side, int first, int end)
{
    uint8_t *const data = malloc(300000);
    void *const mr = reg(side->comm, data, 300000);

    for (int i = first; i < end; i++) {
        const int bytes = wait_done(recv_now(side->comm, data, 300000, mr));

        CHECK((size_t)bytes == message_bytes(i) && is_filled(data, (size_t)bytes, (uint64_t)i),
              "message %d", i);
    }
    dereg(side->comm, mr);
    free(data);
}

static void send_all(struct side *side)
{
    send_from(side, 0, N_MESSAGES);
}

static void receive_all(struct side *side)
{
    receive_from(side, 0, N_MESSAGES);
}

static uint64_t packets_received(const char *device)
{
    unsigned long long n = 0;
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/rcvd_pkts", device);
    file = fopen(path, "r");
    CHECK(file != NULL && fscanf(file, "%llu", &n) == 1, "%s", path);
    fclose(file);
    return n;
}

static void case_crosses(void)
{
    const uint64_t before = packets_received("rxe1");

    begin();
    run_apart(send_all, receive_all);
    CHECK(packets_received("rxe1") > before + N_MESSAGES, "the link was not used");
}

static void case_mtu(void)
{
    begin();
    setenv("DSCOMM_IB_MTU", "512", 1);
    run_apart(send_all, receive_all);
}

static void case_loss(void)
{
    begin();
    setenv("DSCOMM_IB_TIMEOUT", "14", 1);
    shell("tc qdisc add dev veth0 root netem loss 1%");
    run_apart(send_all, receive_all);
    shell("tc -s qdisc show dev veth0 | grep -q 'dropped [1-9]'");
}

static void send_through_outage(struct side *side)
{
    const double start = now_s();

    send_from(side, 0, 10);
    shell("tc qdisc add dev veth1 root netem loss 100%; (sleep 1; tc qdisc del dev veth1 root) &");
    send_from(side, 10, N_MESSAGES);
    CHECK(now_s() - start > 1, "the outage was not noticed");
}

static void case_outage(void)
{
    begin();
    run_apart(send_through_outage, receive_all);
}

/* The receiver sends as well, credits: they wait until its port is back. */
static void send_while_down(struct side *side)
{
    send_from(side, 0, 10);
    usleep(300000); /* all is acknowledged: rxe fails at once what the end sends that is down */
    shell("ip link set veth1 down");
    tell(side);
    (void)!system("(sleep 1; ip link set veth1 up) &");
    send_from(side, 10, N_MESSAGES);
}

static void receive_while_down(struct side *side)
{
    receive_from(side, 0, 10);
    await_told(side);
    usleep(100000); /* until the port's state has been looked at */
    receive_from(side, 10, N_MESSAGES);
}

static void case_peer_comes_back(void)
{
    begin();
    run_apart(send_while_down, receive_while_down);
}

/* ---- errors, in bounded time ---- */

static const char *trouble, *expected;
static double limit_s;

static nccl_result_t send_one(struct side *side, void *data, size_t bytes, void *mr)
{
    void *request = NULL;
    const nccl_result_t result = net->isend(side->comm, data, bytes, 0, mr, NULL, &request);

    return result == NCCL_SUCCESS && request != NULL ? wait_result(request) : result;
}

static void send_into_trouble(struct side *side)
{
    enum { BYTES = 1 << 18 };
    uint8_t *const data = calloc(1, BYTES);
    void *const mr = reg(side->comm, data, BYTES);
    nccl_result_t result = NCCL_SUCCESS;
    double start;

    for (int i = 0; i < 5; i++)
        OK(send_one(side, data, BYTES, mr));
    if (trouble != NULL)
        shell(trouble);
    else
        tell(side);
    start = now_s();
    while (result == NCCL_SUCCESS) {
        result = send_one(side, data, BYTES, mr);
        CHECK(now_s() - start < limit_s * slowness, "no error in %.0f s", limit_s * slowness);
    }
    CHECK(says(expected) && says("rxe0 port 1, peer ") && says(":"), "the warning: %s",
          last_warning());
    dereg(side->comm, mr);
    start = now_s();
    OK(net->close_send(side->comm));
    /* rxe may wait some seconds for packets that lie in the queue of a link that is down */
    CHECK(now_s() - start < 6 * slowness, "close took %.1f s", now_s() - start);
    side->comm = NULL;
    shell("ip link set veth0 up; ip link set veth1 up");
    if (trouble != NULL)
        tell(side);
    free(data);
}

/* Reads for ever; dies when told to. */
static void receive_in_trouble(struct side *side)
{
    enum { BYTES = 1 << 18 };
    uint8_t *const data = malloc(BYTES);
    void *const mr = reg(side->comm, data, BYTES);
    void *requests[8] = { 0 };
    nccl_result_t result = NCCL_SUCCESS;

    for (unsigned i = 0; !is_told(side); i++) {
        void **const at = &requests[i % 8];
        int size = 0, done = 0;

        if (*at != NULL && result == NCCL_SUCCESS)
            result = net->test(*at, &done, &size);
        if (done)
            *at = NULL;
        if (*at == NULL && result == NCCL_SUCCESS)
            *at = try_recv(side->comm, data, BYTES, mr, NULL);
    }
    if (trouble == NULL)
        raise(SIGKILL);
    dereg(side->comm, mr);
    free(data);
}

static void run_trouble(const char *command, double seconds, const char *text)
{
    trouble = command;
    limit_s = seconds;
    expected = text;
    begin();
    give_up_soon();
    run_apart(send_into_trouble, receive_in_trouble);
}

static void case_all_lost(void)
{
    run_trouble("tc qdisc add dev veth0 root netem loss 100%", 5,
                "transport retry counter exceeded (12)");
}

static void case_own_link_down(void)
{
    run_trouble("ip link set veth0 down", 5, "; the port is down");
}

static void case_peers_link_down(void)
{
    run_trouble("ip link set veth1 down", 5, "; the port is down"); /* neither has a carrier */
}

static void case_peer_killed(void)
{
    run_trouble(NULL, 2, "it has closed the connection before it received message");
}

/* ---- settings and limits ---- */

static void check_init_fails(const char *text)
{
    struct nccl_comm_config config = { NCCL_UNDEFINED };
    void *ctx = NULL;

    CHECK(net->init(&ctx, 1, &config, warning_logger(), NULL) != NCCL_SUCCESS, "no error");
    CHECK(says(text), "the warning: %s", last_warning());
}

static void case_missing_device(void)
{
    begin();
    setenv("DSCOMM_IB_HCA", "mlx5", 1);
    load_plugin();
    check_init_fails("DSCOMM_IB_HCA=mlx5 fits no port of the RDMA devices here: rxe0, rxe1");
}

static void case_mtu_too_large(void)
{
    begin();
    shell("ip link set veth0 mtu 1500; ip link set veth1 mtu 1500; sleep 0.3");
    setenv("DSCOMM_IB_MTU", "4096", 1);
    load_plugin();
    check_init_fails("DSCOMM_IB_MTU=4096, rxe0 port 1 has an active MTU of 1024");
}

static void case_port_down(void)
{
    struct nccl_props_v12 props;
    void *ctx;

    begin();
    setenv("DSCOMM_IB_HCA", "=rxe0", 1);
    shell("ip link set veth0 down; sleep 0.3");
    load_plugin();
    check_init_fails("no RDMA port is active: rxe0:1 is down");
    dsc_nccl_unload();
    setenv("DSCOMM_NET", "auto", 1);
    load_plugin();
    ctx = start_plugin();
    OK(net->get_properties(0, &props));
    CHECK(strncmp(props.name, "rxe", 3) != 0, "%s is used", props.name);
    OK(net->finalize(ctx));
}

static void case_auto(void)
{
    struct nccl_props_v12 props;
    void *ctx;
    int n = 0;

    begin();
    setenv("DSCOMM_NET", "auto", 1);
    load_plugin();
    ctx = start_plugin();
    OK(net->devices(&n));
    CHECK(n == 2, "%d devices", n);
    for (int i = 0; i < n; i++) {
        OK(net->get_properties(i, &props));
        CHECK(strcmp(props.name, i == 0 ? "rxe0:1" : "rxe1:1") == 0 && props.port == 1, "%s",
              props.name);
        CHECK(props.ptr_support == NCCL_PTR_HOST, "memory of kinds %d", props.ptr_support);
    }
    OK(net->finalize(ctx));
}

/* A handle of a side that uses another network: an error that says what to set. */
static void case_kinds_differ(void)
{
    struct guarded_handle handle;
    struct nccl_device_handle *device = NULL;
    void *ctx, *listen = NULL, *comm = NULL;

    begin();
    load_plugin();
    ctx = start_plugin();
    OK(net->listen(ctx, 0, handle.bytes, &listen));
    OK(net->close_listen(listen));
    OK(net->finalize(ctx));
    dsc_nccl_unload();
    setenv("DSCOMM_NET", "tcp", 1);
    load_plugin();
    ctx = start_plugin();
    CHECK(net->connect(ctx, 0, handle.bytes, &comm, &device) != NCCL_SUCCESS, "no error");
    CHECK(says("set DSCOMM_NET alike on all hosts"), "the warning: %s", last_warning());
    OK(net->finalize(ctx));
}

/* 64 KiB may be locked, by one who is not root. */
static void use_little_memory(void)
{
    enum { BYTES = 20 << 10 };
    const struct rlimit limit = { 65536, 65536 };
    uint8_t *const small = aligned_alloc(4096, BYTES), *const other = aligned_alloc(4096, BYTES);
    void *mrs[10], *mr = NULL;
    struct ends ends;

    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setgroups(0, NULL) == 0 && setuid(65534) == 0,
          "limits");
    load_plugin();
    connect_ends(&ends, start_plugin());
    for (int i = 0; i < 10; i++)
        mrs[i] = reg(ends.recv, small, BYTES); /* pinned once */
    CHECK(net->reg_mr(ends.recv, other, BYTES, NCCL_PTR_HOST, &mr) != NCCL_SUCCESS,
          "80 KiB are locked");
    for (int i = 0; i < 4; i++)
        CHECK(says(((const char *[]){ "cannot register 20 KiB", "rxe0", "at most 64 KiB",
                                      "ulimit -l" })[i]),
              "the warning: %s", last_warning());
    for (int i = 0; i < 10; i++)
        dereg(ends.recv, mrs[i]);
    dereg(ends.recv, reg(ends.recv, other, BYTES)); /* the last user has let go */
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
    free(small);
    free(other);
}

static void case_memlock(void)
{
    begin();
    use_little_memory();
}

static void case_not_registered(void)
{
    uint8_t data[4096];
    void *request = NULL, *mr;
    struct ends ends;

    begin();
    load_plugin();
    connect_ends(&ends, start_plugin());
    mr = reg(ends.send, data, sizeof(data));
    CHECK(net->isend(ends.send, data + 4096, 4096 * 2, 0, mr, NULL, &request) != NCCL_SUCCESS &&
              request == NULL,
          "memory that is not registered is sent");
    CHECK(says("are not registered"), "the warning: %s", last_warning());
    dereg(ends.send, mr);
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
}

const struct net_test rdma_cases[] = {
    { "crosses", case_crosses },
    { "mtu", case_mtu },
    { "loss", case_loss },
    { "outage", case_outage },
    { "peer_comes_back", case_peer_comes_back },
    { "all_lost", case_all_lost },
    { "own_link_down", case_own_link_down },
    { "peers_link_down", case_peers_link_down },
    { "peer_killed", case_peer_killed },
    { "missing_device", case_missing_device },
    { "mtu_too_large", case_mtu_too_large },
    { "port_down", case_port_down },
    { "auto", case_auto },
    { "kinds_differ", case_kinds_differ },
    { "memlock", case_memlock },
    { "not_registered", case_not_registered },
    { 0 },
};

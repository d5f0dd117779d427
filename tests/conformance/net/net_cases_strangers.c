/* SPDX-License-Identifier: Apache-2.0 */
/* A listener in hard times: strangers, crowds, no descriptors left. The peer comes through. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_case.h"

#define N_STRANGERS 300
#define N_FILLERS 4096
#define N_CONNECTIONS 1000
#define N_CONNECTIONS_OLD 50 /* by older versions of the interface: the same code; or slowly */
#define FEW_DESCRIPTORS 256

static int stranger(const uint8_t *handle)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_port = htons((uint16_t)(handle[18] | handle[19] << 8));
    memcpy(&addr.sin_addr, handle + 24, 4);
    CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0, "connect");
    return fd;
}

/* Silent ones, ones that talk nonsense, and ones that are gone again do not keep the peer out. */
static void meet_among(int n_strangers, bool all_silent)
{
    static const char hello[] = "GET / HTTP/1.1\r\n\r\n";
    int fds[N_STRANGERS];
    struct ends ends;
    int n = 0;

    begin_ends(&ends);
    for (; n < n_strangers && is_dscomm_tcp(ends.handle.bytes); n++) {
        fds[n] = stranger(ends.handle.bytes);
        if (!all_silent && n % 3 == 1)
            (void)!send(fds[n], hello, sizeof(hello), MSG_NOSIGNAL);
        if (!all_silent && n % 3 == 2)
            shutdown(fds[n], SHUT_WR);
    }
    end_ends(&ends);
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

static void case_strangers(void)
{
    meet_among(9, false);
}

/* More than a listener may want to keep, and none of them ever says a word. */
static void case_silent_strangers(void)
{
    meet_among(N_STRANGERS, true);
}

/* ---- descriptors ---- */

static void limit_descriptors(rlim_t n)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

static int use_up(int fillers[N_FILLERS])
{
    int n = 0;

    while (n < N_FILLERS && (fillers[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    return n;
}

/* Neither side is lost when there are none for a while. */
static void case_no_descriptors(void)
{
    static int fillers[N_FILLERS];
    uint8_t copy[NCCL_HANDLE_BYTES];
    struct nccl_device_handle *device = NULL;
    struct ends ends;
    void *comm = NULL;
    int n;

    begin_ends(&ends);
    memcpy(copy, ends.handle.bytes, sizeof(copy));
    limit_descriptors(FEW_DESCRIPTORS);
    ends.send = try_connect(ends.ctx, ends.handle.bytes);
    n = use_up(fillers);
    for (int i = 0; i < 20; i++, usleep(1000))
        CHECK(try_accept(ends.listen) == NULL, "a connection without descriptors");
    CHECK(!is_dscomm_tcp(copy) || strstr(last_warning(), "descriptor") != NULL,
          "no word of descriptors: %s", last_warning());
    CHECK(net->connect(ends.ctx, 0, copy, &comm, &device) != NCCL_SUCCESS || comm == NULL,
          "a connection without descriptors");
    while (n > 0)
        close(fillers[--n]);
    end_ends(&ends);
}

/* ---- crowds ---- */

struct pair {
    struct ends ends;
    void *send_mr, *recv_mr, *sent, *received;
    uint8_t out[100], in[100];
};

static void open_pair(struct pair *pair, const struct ends *first)
{
    pair->ends = *first;
    finish_ends(&pair->ends);
    pair->send_mr = reg(pair->ends.send, pair->out, sizeof(pair->out));
    pair->recv_mr = reg(pair->ends.recv, pair->in, sizeof(pair->in));
}

static void use_pair(struct pair *pair, uint64_t seed)
{
    fill(pair->out, sizeof(pair->out), seed);
    pair->received = recv_now(pair->ends.recv, pair->in, sizeof(pair->in), pair->recv_mr);
    pair->sent = send_now(pair->ends.send, pair->out, sizeof(pair->out), pair->send_mr);
}

static void close_pair(struct pair *pair, uint64_t seed)
{
    wait_both(pair->sent, pair->received, (int)sizeof(pair->in));
    CHECK(is_filled(pair->in, sizeof(pair->in), seed), "pair %d", (int)seed);
    dereg(pair->ends.send, pair->send_mr);
    dereg(pair->ends.recv, pair->recv_mr);
    close_ends(&pair->ends);
}

static rlim_t descriptors_left(void)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    return limit.rlim_cur - (rlim_t)count_entries("/proc/self/fd");
}

/* Through one listener, as many as descriptors allow open at a time, a message in each. */
static void case_many_connections(void)
{
    struct pair *const pairs = calloc(N_CONNECTIONS, sizeof(*pairs));
    struct ends ends;
    const bool all = options.abi == 12 && slowness == 1;
    const int n_max = all ? N_CONNECTIONS : N_CONNECTIONS_OLD;
    rlim_t before, each;
    int n = 1;

    CHECK(pairs != NULL, "memory");
    limit_descriptors(65536);
    begin_ends(&ends);
    before = descriptors_left();
    open_pair(&pairs[0], &ends);
    each = before - descriptors_left();
    for (; n < n_max && descriptors_left() > each; n++)
        open_pair(&pairs[n], &ends);
    for (int i = 0; i < n; i++)
        use_pair(&pairs[i], (uint64_t)i);
    for (int i = 0; i < n; i++)
        close_pair(&pairs[i], (uint64_t)i);
    OK(net->close_listen(ends.listen));
    OK(net->finalize(ends.ctx));
    free(pairs);
}

const struct net_test stranger_cases[] = {
    { "strangers", case_strangers },
    { "silent_strangers", case_silent_strangers },
    { "no_descriptors", case_no_descriptors },
    { "many_connections", case_many_connections },
    { 0 },
};

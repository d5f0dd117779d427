/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput and latency of a net plugin of NCCL, by what NCCL would call: two processes, one
 * connection each way, host memory.
 *
 *   net_perf --plugin=PATH [--bytes=N] [--in-flight=N] [--warm=S] [--seconds=S] [--data=KIND]
 *            [--latency]
 *   net_perf --bare --latency            the same ping-pong over plain sockets, one per direction
 *   ... --role=send|receive --meet=FILE  one of both processes, for different hosts or namespaces;
 *                                        FILE.0 and FILE.1 carry the handles
 *
 * KIND is zeros, random, or FILE[:ll]: the contents of a file over and over, with :ll as the data
 * of NCCL's protocol LL. Prints one JSON object per process: bytes are what came or went in so many
 * seconds after the first message and the warm-up, all_bytes with these; cpu_s is the process's CPU
 * time in them, waited_s how much of that went into calls while nothing came or went: NCCL's
 * progress thread polls, too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/nccl_load.h"

#define IN_FLIGHT_MAX 32
#define CONNECT_S 20.0
#define BATCH 64 /* messages between looks at the clock */
/*
 * A round of calls that costs less CPU time and finishes no message has moved no bytes to speak of:
 * moving one packet of 64 KiB costs more.
 */
#define IDLE_ROUND_S 4e-6

static struct {
    const char *plugin, *data, *meet, *role;
    size_t bytes;
    int in_flight, abi;
    double seconds, warm;
    bool latency, bare;
} opt = { .data = "random", .meet = NULL, .bytes = 1 << 20, .in_flight = 8, .seconds = 1 };

static const struct nccl_net_v12 *net;

static void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "net_perf: ");
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void logger(int level, unsigned long subsystems, const char *file, int line, const char *fmt,
                   ...)
{
    va_list args;

    (void)subsystems, (void)file, (void)line;
    if (level != NCCL_LOG_WARN && getenv("NCCL_DEBUG") == NULL)
        return;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

static void ok(nccl_result_t result, const char *what)
{
    if (result != NCCL_SUCCESS)
        die("%s: result %d", what, result);
}

static double clock_s(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

static double cpu_s(void)
{
    return clock_s(CLOCK_PROCESS_CPUTIME_ID);
}

/* ---- how the processes meet: files that appear whole ---- */

static void put_file(int number, const void *data, size_t bytes)
{
    char path[512], temporary[520];
    FILE *file;

    snprintf(path, sizeof(path), "%s.%d", opt.meet, number);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    file = fopen(temporary, "we");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0 ||
        rename(temporary, path) != 0)
        die("cannot write %s: %s", path, strerror(errno));
}

static void take_file(int number, void *data, size_t bytes)
{
    const double end = now_s() + CONNECT_S;
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s.%d", opt.meet, number);
    while ((file = fopen(path, "re")) == NULL) {
        if (now_s() > end)
            die("%s did not appear in %.0f s", path, CONNECT_S);
        usleep(1000);
    }
    if (fread(data, 1, bytes, file) != bytes)
        die("%s is too short", path);
    fclose(file);
    unlink(path);
}

/* ---- through the plugin ---- */

struct link { /* one connection each way */
    void *send, *recv;
};

static void connect_link(void *ctx, int self, struct link *link)
{
    uint8_t mine[NCCL_HANDLE_BYTES], peer[NCCL_HANDLE_BYTES];
    struct nccl_device_handle *device = NULL;
    const double end = now_s() + CONNECT_S;
    void *listen = NULL;

    ok(net->listen(ctx, 0, mine, &listen), "listen");
    put_file(self, mine, sizeof(mine));
    take_file(1 - self, peer, sizeof(peer));
    while (link->send == NULL || link->recv == NULL) {
        if (link->send == NULL)
            ok(net->connect(ctx, 0, peer, &link->send, &device), "connect");
        if (link->recv == NULL)
            ok(net->accept(listen, &link->recv, &device), "accept");
        if (now_s() > end)
            die("no connection in %.0f s", CONNECT_S);
    }
    ok(net->close_listen(listen), "close_listen");
}

static void *begin(void *comm, bool sends, void *data, size_t bytes, void *mr)
{
    void *request = NULL, *profiler = NULL;
    int tag = 0;

    if (sends)
        ok(net->isend(comm, data, bytes, tag, mr, NULL, &request), "isend");
    else
        ok(net->irecv(comm, 1, &data, &bytes, &tag, &mr, &profiler, &request), "irecv");
    return request;
}

static bool is_done(void *request, int *bytes)
{
    int sizes[64] = { 0 }, done = 0;

    ok(net->test(request, &done, sizes), "test");
    *bytes = sizes[0];
    return done != 0;
}

static void finish_one(void *comm, bool sends, void *data, size_t bytes, void *mr)
{
    void *request = NULL;
    int moved;

    while (request == NULL)
        request = begin(comm, sends, data, bytes, mr);
    while (!is_done(request, &moved))
        continue;
}

/* ---- data ---- */

static void fill_random(uint8_t *data, size_t bytes)
{
    uint64_t x = 88172645463325252u;

    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        data[i] = (uint8_t)(x >> 24);
    }
}

static void fill_file(uint8_t *data, size_t bytes, const char *name)
{
    FILE *const file = fopen(name, "re");
    size_t n = 0;

    if (file == NULL)
        die("cannot read %s: %s", name, strerror(errno));
    while (n < bytes) {
        const size_t got = fread(data + n, 1, bytes - n, file);

        n += got;
        if (got == 0 && (n == 0 || fseek(file, 0, SEEK_SET) != 0))
            die("%s is empty", name);
    }
    fclose(file);
}

/* Puts a flag behind every 32 bits; the last half of the bytes is dropped. */
static void make_ll(uint8_t *data, size_t bytes)
{
    uint32_t *const words = (uint32_t *)(void *)data;

    for (size_t i = bytes / 8; i-- > 0;) {
        words[2 * i] = words[i];
        words[2 * i + 1] = 77;
    }
}

static void fill_data(uint8_t *data, size_t bytes)
{
    const size_t len = strlen(opt.data);
    const bool ll = len > 3 && strcmp(opt.data + len - 3, ":ll") == 0;
    char name[512];

    snprintf(name, sizeof(name), "%.*s", (int)(ll ? len - 3 : len), opt.data);
    if (strcmp(name, "zeros") == 0)
        memset(data, 0, bytes);
    else if (strcmp(name, "random") == 0)
        fill_random(data, bytes);
    else
        fill_file(data, bytes, name);
    if (ll)
        for (size_t i = 0; i < (size_t)opt.in_flight; i++)
            make_ll(data + i * opt.bytes, opt.bytes);
}

/* ---- throughput: messages until the sender's time is over; an empty one is the last ---- */

struct stream {
    void *requests[IN_FLIGHT_MAX];
    uint64_t begun, done, all_bytes;
    double warm_until_s; /* 0: no message is done yet */
    double start_s;      /* of what is measured; 0: not yet */
    uint64_t bytes;      /* since then, as all below */
    double seconds, start_cpu_s, cpu_s;
    double waited_s; /* in rounds that moved nothing */
    double round_s;  /* CPU time when the present round of calls began */
};

/* A message is done: the first one after the warm-up starts the clocks, the empty one stops them. */
static void count(struct stream *s, int bytes)
{
    s->all_bytes += (uint64_t)bytes;
    if (s->start_s == 0) {
        const double now = now_s();

        if (s->warm_until_s == 0)
            s->warm_until_s = now + opt.warm;
        if (now < s->warm_until_s)
            return;
        s->start_s = now;
        s->start_cpu_s = cpu_s();
        s->waited_s = 0;
        return;
    }
    s->bytes += (uint64_t)bytes;
    if (bytes == 0) {
        s->seconds = now_s() - s->start_s;
        s->cpu_s = cpu_s() - s->start_cpu_s;
    }
}

/* The end of a round, and the beginning of the next. */
static void end_round(struct stream *s, bool moved)
{
    double end;

    if (!moved)
        sched_yield(); /* as NCCL's progress thread does */
    end = clock_s(CLOCK_THREAD_CPUTIME_ID);
    if (!moved && s->round_s != 0 && end - s->round_s < IDLE_ROUND_S)
        s->waited_s += end - s->round_s;
    s->round_s = end;
}

/* True: the oldest message is done. */
static bool finish_oldest(struct stream *s, int *bytes)
{
    void **const oldest = &s->requests[s->done % (uint64_t)opt.in_flight];

    if (s->done == s->begun || !is_done(*oldest, bytes))
        return false;
    s->done++;
    count(s, *bytes);
    return true;
}

static void send_stream(void *comm, uint8_t *data, void *mr, struct stream *s)
{
    const double end = now_s() + opt.warm + opt.seconds;
    bool over = false, last = false;
    int bytes;

    while (!last || s->done < s->begun) {
        const uint64_t i = s->begun % (uint64_t)opt.in_flight;
        bool moved = false;

        if (!last && s->begun - s->done < (uint64_t)opt.in_flight) {
            s->requests[i] = begin(comm, true, data + i * opt.bytes, over ? 0 : opt.bytes, mr);
            moved = s->requests[i] != NULL;
            s->begun += moved;
            last = moved && over;
        }
        over = over || (s->begun % BATCH == 0 || opt.bytes >= 65536 ? now_s() > end : false);
        moved = finish_oldest(s, &bytes) || moved;
        end_round(s, moved);
    }
}

static void receive_stream(void *comm, uint8_t *data, void *mr, struct stream *s)
{
    bool over = false;
    int bytes;

    while (!over) {
        const uint64_t i = s->begun % (uint64_t)opt.in_flight;
        bool moved = false;

        if (s->begun - s->done < (uint64_t)opt.in_flight) {
            s->requests[i] = begin(comm, false, data + i * opt.bytes, opt.bytes, mr);
            moved = s->requests[i] != NULL;
            s->begun += moved;
        }
        if (finish_oldest(s, &bytes)) {
            moved = true;
            over = bytes == 0;
        }
        end_round(s, moved);
    }
}

/* The sender stays until all has arrived. */
static void await_the_end(int self, const struct link *link, uint8_t *data)
{
    void *const comm = self == 0 ? link->recv : link->send;
    void *mr = NULL;

    ok(net->reg_mr(comm, data, 1, NCCL_PTR_HOST, &mr), "reg_mr");
    finish_one(comm, self != 0, data, 0, mr);
    ok(net->dereg_mr(comm, mr), "dereg_mr");
}

static void measure_throughput(int self, const struct link *link)
{
    const size_t total = opt.bytes * (size_t)opt.in_flight;
    uint8_t *const data = aligned_alloc(4096, (total + 4095) / 4096 * 4096);
    void *const comm = self == 0 ? link->send : link->recv;
    struct stream s = { 0 };
    void *mr = NULL;

    if (data == NULL)
        die("no memory for %zu bytes", total);
    fill_data(data, total);
    ok(net->reg_mr(comm, data, total, NCCL_PTR_HOST, &mr), "reg_mr");
    if (self == 0)
        send_stream(comm, data, mr, &s);
    else
        receive_stream(comm, data, mr, &s);
    printf("{\"role\": \"%s\", \"bytes\": %llu, \"all_bytes\": %llu, \"seconds\": %.6f, "
           "\"cpu_s\": %.6f, \"waited_s\": %.6f}\n",
           self == 0 ? "send" : "receive", (unsigned long long)s.bytes,
           (unsigned long long)s.all_bytes, s.seconds, s.cpu_s, s.waited_s);
    await_the_end(self, link, data);
    ok(net->dereg_mr(comm, mr), "dereg_mr");
    free(data);
}

/* ---- latency ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* one_way() sends or receives opt.bytes of data, whose first byte says whether it is the last. */
static void measure_latency(int self, void (*one_way)(void *arg, bool sends), void *arg,
                            uint8_t *data)
{
    enum { WARM = 200, N_MAX = 200000 };
    double *const times = calloc(N_MAX, sizeof(double));
    const double end = now_s() + opt.seconds;
    int n = 0;

    if (times == NULL)
        die("no memory");
    for (int i = 0; data[0] == 0; i++) {
        const double start = now_s();

        if (self == 0)
            data[0] = i == WARM + N_MAX - 1 || (i >= WARM && start > end);
        one_way(arg, self == 0);
        one_way(arg, self != 0);
        if (i >= WARM && n < N_MAX)
            times[n++] = now_s() - start;
    }
    if (self == 0) {
        qsort(times, (size_t)n, sizeof(double), compare);
        printf("{\"role\": \"ping\", \"round_trips\": %d, \"p50_us\": %.3f, \"p99_us\": %.3f}\n", n,
               times[n / 2] * 1e6, times[n / 100 * 99] * 1e6);
    }
    free(times);
}

/* The next receive is there before the message that makes the other end send, as with NCCL. */
struct net_end {
    struct link link;
    uint8_t *data;
    void *send_mr, *recv_mr, *sent, *received;
};

static void *begin_now(void *comm, bool sends, void *data, void *mr)
{
    void *request = NULL;

    while (request == NULL)
        request = begin(comm, sends, data, opt.bytes, mr);
    return request;
}

static void net_one_way(void *arg, bool sends)
{
    struct net_end *const end = arg;
    bool is_here = false;
    int moved;

    if (sends) {
        end->sent = begin_now(end->link.send, true, end->data, end->send_mr);
        return;
    }
    while (!is_here || end->sent != NULL) {
        is_here = is_here || is_done(end->received, &moved);
        if (end->sent != NULL && is_done(end->sent, &moved))
            end->sent = NULL;
    }
    end->received = begin_now(end->link.recv, false, end->data, end->recv_mr);
}

static void measure_net_latency(int self, const struct link *link)
{
    struct net_end end = { .link = *link, .data = calloc(1, opt.bytes) };
    int moved;

    if (end.data == NULL)
        die("no memory for %zu bytes", opt.bytes);
    ok(net->reg_mr(link->send, end.data, opt.bytes, NCCL_PTR_HOST, &end.send_mr), "reg_mr");
    ok(net->reg_mr(link->recv, end.data, opt.bytes, NCCL_PTR_HOST, &end.recv_mr), "reg_mr");
    end.received = begin_now(link->recv, false, end.data, end.recv_mr);
    measure_latency(self, net_one_way, &end, end.data);
    while (end.sent != NULL && !is_done(end.sent, &moved))
        continue;
    ok(net->dereg_mr(link->send, end.send_mr), "dereg_mr");
    ok(net->dereg_mr(link->recv, end.recv_mr), "dereg_mr");
    free(end.data);
}

struct bare_end {
    int send_fd, recv_fd;
    uint8_t *data;
};

static void bare_one_way(void *arg, bool sends)
{
    struct bare_end *const end = arg;
    size_t done = 0;

    while (done < opt.bytes) {
        const size_t left = opt.bytes - done;
        const ssize_t n =
            sends ? send(end->send_fd, end->data + done, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                  : recv(end->recv_fd, end->data + done, left, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN))
            die("the other end is gone");
        done += n > 0 ? (size_t)n : 0;
    }
}

static int bare_socket(bool listens, int number)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listens) {
        const int listen_fd = fd;

        if (bind(listen_fd, (struct sockaddr *)&addr, len) != 0 || listen(listen_fd, 1) != 0 ||
            getsockname(listen_fd, (struct sockaddr *)&addr, &len) != 0)
            die("cannot listen: %s", strerror(errno));
        put_file(number, &addr, sizeof(addr));
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        close(listen_fd);
    } else {
        take_file(number, &addr, sizeof(addr));
        if (connect(fd, (struct sockaddr *)&addr, len) != 0)
            die("cannot connect: %s", strerror(errno));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

/* ---- one process ---- */

static void run_bare(int self)
{
    struct bare_end end = { .data = calloc(1, opt.bytes) };
    const int first = bare_socket(self == 0, 0), second = bare_socket(self == 0, 1);

    end.send_fd = self == 0 ? first : second;
    end.recv_fd = self == 0 ? second : first;

    measure_latency(self, bare_one_way, &end, end.data);
    free(end.data);
    close(first);
    close(second);
}

static void run_net(int self)
{
    struct nccl_comm_config config = { NCCL_UNDEFINED };
    struct link link = { 0 };
    char error[512];
    void *ctx = NULL;
    int n;

    net = dsc_nccl_load(opt.plugin, opt.abi, error, sizeof(error));
    if (net == NULL)
        die("%s", error);
    ok(net->init(&ctx, 1, &config, logger, NULL), "init");
    ok(net->devices(&n), "devices");
    connect_link(ctx, self, &link);
    if (opt.latency)
        measure_net_latency(self, &link);
    else
        measure_throughput(self, &link);
    ok(net->close_send(link.send), "close_send");
    ok(net->close_recv(link.recv), "close_recv");
    ok(net->finalize(ctx), "finalize");
}

static void run(int self)
{
    if (opt.bare)
        run_bare(self);
    else
        run_net(self);
}

static int run_both(void)
{
    char meet[] = "/tmp/net_perf.XXXXXX";
    int status = 0;
    pid_t pid;

    close(mkstemp(meet));
    opt.meet = meet;
    pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    run(pid == 0);
    if (pid == 0)
        return 0;
    waitpid(pid, &status, 0);
    unlink(meet);
    return status == 0 ? 0 : 1;
}

static bool parse(const char *word)
{
    const char *const value = strchr(word, '=') != NULL ? strchr(word, '=') + 1 : "";

    if (strncmp(word, "--plugin=", 9) == 0)
        opt.plugin = value;
    else if (strncmp(word, "--abi=", 6) == 0)
        opt.abi = atoi(value);
    else if (strncmp(word, "--bytes=", 8) == 0)
        opt.bytes = strtoull(value, NULL, 10);
    else if (strncmp(word, "--in-flight=", 12) == 0)
        opt.in_flight = atoi(value);
    else if (strncmp(word, "--seconds=", 10) == 0)
        opt.seconds = atof(value);
    else if (strncmp(word, "--warm=", 7) == 0)
        opt.warm = atof(value);
    else if (strncmp(word, "--data=", 7) == 0)
        opt.data = value;
    else if (strncmp(word, "--meet=", 7) == 0)
        opt.meet = value;
    else if (strncmp(word, "--role=", 7) == 0)
        opt.role = value;
    else if (strcmp(word, "--latency") == 0)
        opt.latency = true;
    else if (strcmp(word, "--bare") == 0)
        opt.bare = true;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!parse(argv[i]))
            die("unknown argument %s; see the top of net_perf.c", argv[i]);
    if ((opt.plugin == NULL) != opt.bare || (opt.bare && !opt.latency))
        die("either --plugin=PATH or --bare --latency");
    if (opt.bytes < 1 || opt.in_flight < 1 || opt.in_flight > IN_FLIGHT_MAX)
        die("--bytes is at least 1, --in-flight 1 to %d", IN_FLIGHT_MAX);
    if (opt.role == NULL)
        return run_both();
    if (opt.meet == NULL || (strcmp(opt.role, "send") != 0 && strcmp(opt.role, "receive") != 0))
        die("--role is send or receive, and needs --meet=FILE");
    run(strcmp(opt.role, "receive") == 0);
    return 0;
}

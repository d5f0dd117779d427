/* SPDX-License-Identifier: Apache-2.0 */
#include "net_case.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/nccl_load.h"

const struct nccl_net_v12 *net;
int slowness = 1;

static char warning[512] = "none";
static int infos, warnings;

void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    va_list args;

    fprintf(stderr, "%s:%d: %s: ", file, line, cond);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(1);
}

double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void logger(int level, unsigned long subsystems, const char *file, int line, const char *fmt,
                   ...)
{
    static volatile int busy;
    va_list args;

    (void)subsystems, (void)file, (void)line;
    if (level == NCCL_LOG_INFO)
        __atomic_fetch_add(&infos, 1, __ATOMIC_RELAXED);
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    if (level == NCCL_LOG_WARN) {
        warnings++;
        va_start(args, fmt);
        vsnprintf(warning, sizeof(warning), fmt, args);
        va_end(args);
    }
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

nccl_logger_t *warning_logger(void)
{
    return logger;
}

const char *last_warning(void)
{
    return warning;
}

int n_infos(void)
{
    return __atomic_load_n(&infos, __ATOMIC_RELAXED);
}

int n_warnings(void)
{
    return warnings;
}

/* ---- one process ---- */

void load_plugin(void)
{
    char error[512];

    net = dsc_nccl_load(options.plugin, options.abi, error, sizeof(error));
    CHECK(net != NULL, "%s", error);
}

void *start_plugin(void)
{
    struct nccl_comm_config config = { NCCL_UNDEFINED };
    void *ctx = NULL;
    int n = 0;

    OK(net->init(&ctx, 1, &config, logger, NULL));
    OK(net->devices(&n));
    CHECK(n > 0 && n <= NCCL_DEVICES_MAX, "%d devices", n);
    return ctx;
}

static void handle_prepare(struct guarded_handle *handle)
{
    memset(handle, HANDLE_GUARD, sizeof(*handle));
}

static void handle_check(const struct guarded_handle *handle)
{
    for (size_t i = 0; i < sizeof(handle->before); i++)
        CHECK(handle->before[i] == HANDLE_GUARD, "byte -%zu of a handle was written",
              sizeof(handle->before) - i);
    for (size_t i = 0; i < sizeof(handle->after); i++)
        CHECK(handle->after[i] == HANDLE_GUARD, "byte %zu of a handle was written",
              NCCL_HANDLE_BYTES + i);
}

void *try_connect(void *ctx, void *handle)
{
    const double start = now_s();
    struct nccl_device_handle *device = NULL;
    void *comm = NULL;

    alarm((unsigned)CALL_ALARM_S);
    OK(net->connect(ctx, 0, handle, &comm, &device));
    alarm((unsigned)CASE_LIMIT_S);
    CHECK(now_s() - start < CALL_LIMIT_S, "connect() took %.1f s", now_s() - start);
    return comm;
}

void *try_accept(void *listen)
{
    const double start = now_s();
    struct nccl_device_handle *device = NULL;
    void *comm = NULL;

    alarm((unsigned)CALL_ALARM_S);
    OK(net->accept(listen, &comm, &device));
    alarm((unsigned)CASE_LIMIT_S);
    CHECK(now_s() - start < CALL_LIMIT_S, "accept() took %.1f s", now_s() - start);
    return comm;
}

bool is_dscomm_tcp(const uint8_t *handle)
{
    return strcmp(net->name, "DSComm") == 0 && handle[16] == 4;
}

void connect_ends(struct ends *ends, void *ctx)
{
    memset(ends, 0, sizeof(*ends));
    ends->ctx = ctx;
    handle_prepare(&ends->handle);
    OK(net->listen(ctx, 0, ends->handle.bytes, &ends->listen));
    CHECK(ends->listen != NULL, "listen() gave nothing");
    finish_ends(ends);
    OK(net->close_listen(ends->listen));
}

void finish_ends(struct ends *ends)
{
    const double end = now_s() + CASE_WAIT_S;

    while (ends->send == NULL || ends->recv == NULL) {
        if (ends->send == NULL)
            ends->send = try_connect(ends->ctx, ends->handle.bytes);
        if (ends->recv == NULL)
            ends->recv = try_accept(ends->listen);
        CHECK(now_s() < end, "no connection in %d s", CASE_WAIT_S);
    }
    handle_check(&ends->handle);
}

void close_ends(struct ends *ends)
{
    OK(net->close_send(ends->send));
    OK(net->close_recv(ends->recv));
}

void begin_ends(struct ends *ends)
{
    load_plugin();
    memset(ends, 0, sizeof(*ends));
    ends->ctx = start_plugin();
    handle_prepare(&ends->handle);
    OK(net->listen(ends->ctx, 0, ends->handle.bytes, &ends->listen));
    CHECK(ends->listen != NULL, "listen() gave nothing");
    handle_check(&ends->handle);
}

void end_ends(struct ends *ends)
{
    finish_ends(ends);
    close_ends(ends);
    OK(net->close_listen(ends->listen));
    OK(net->finalize(ends->ctx));
}

/* ---- two processes ---- */

void move_bytes(int socket, void *data, size_t bytes, bool sends)
{
    size_t done = 0;

    while (done < bytes) {
        struct pollfd fd = { socket, sends ? POLLOUT : POLLIN, 0 };
        const ssize_t n = poll(&fd, 1, CASE_WAIT_S * 1000) != 1 ? -1
                          : sends ? write(socket, (uint8_t *)data + done, bytes - done)
                                  : read(socket, (uint8_t *)data + done, bytes - done);

        CHECK(n > 0, "the other process is gone or silent");
        done += (size_t)n;
    }
}

void tell(struct side *side)
{
    char c = 1;

    move_bytes(side->socket, &c, 1, true);
}

void await_told(struct side *side)
{
    char c;

    move_bytes(side->socket, &c, 1, false);
}

bool is_told(struct side *side)
{
    struct pollfd fd = { side->socket, POLLIN, 0 };

    return poll(&fd, 1, 0) == 1;
}

void *side_accept(struct side *side)
{
    const double end = now_s() + CASE_WAIT_S;
    struct guarded_handle handle;
    void *listen = NULL, *comm = NULL;

    handle_prepare(&handle);
    OK(net->listen(side->ctx, 0, handle.bytes, &listen));
    handle_check(&handle);
    move_bytes(side->socket, handle.bytes, sizeof(handle.bytes), true);
    while (comm == NULL) {
        comm = try_accept(listen);
        CHECK(now_s() < end, "nobody connected in %d s", CASE_WAIT_S);
    }
    OK(net->close_listen(listen));
    return comm;
}

void *side_connect(struct side *side)
{
    const double end = now_s() + CASE_WAIT_S;
    struct guarded_handle handle;
    void *comm = NULL;

    handle_prepare(&handle);
    move_bytes(side->socket, handle.bytes, sizeof(handle.bytes), false);
    while (comm == NULL) {
        comm = try_connect(side->ctx, handle.bytes);
        CHECK(now_s() < end, "no connection in %d s", CASE_WAIT_S);
    }
    handle_check(&handle);
    return comm;
}

static void run_side(struct side *side, bool sends, side_fn *run)
{
    side->ctx = start_plugin();
    side->comm = sends ? side_connect(side) : side_accept(side);
    run(side);
    if (side->comm != NULL)
        OK((sends ? net->close_send : net->close_recv)(side->comm));
    OK(net->finalize(side->ctx));
}

void run_sides(side_fn *sender, side_fn *receiver)
{
    run_prepared_sides(NULL, sender, receiver);
}

void run_prepared_sides(void (*prepare)(bool sends), side_fn *sender, side_fn *receiver)
{
    int sockets[2], status = 0;
    struct side side = { 0 };
    pid_t pid;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0, "fork");
    side.socket = sockets[pid == 0];
    close(sockets[pid != 0]);
    if (prepare != NULL)
        prepare(pid != 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_side(&side, false, receiver);
        exit(0); /* so that a sanitizer looks for leaks */
    }
    run_side(&side, true, sender);
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL,
          "the receiver's process ended with status %#x", status);
}

int count_entries(const char *folder)
{
    DIR *const dir = opendir(folder);
    int n = 0;

    CHECK(dir != NULL, "%s", folder);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

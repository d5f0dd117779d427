/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: any order of calls, no call blocks, nothing but the handle is written. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "net_case.h"

static void case_connect_first(void)
{
    struct ends ends;

    begin_ends(&ends);
    for (int i = 0; i < 50 && ends.send == NULL; i++, usleep(1000))
        ends.send = try_connect(ends.ctx, ends.handle.bytes);
    end_ends(&ends);
}

static void case_accept_first(void)
{
    struct ends ends;

    begin_ends(&ends);
    for (int i = 0; i < 50; i++, usleep(1000))
        CHECK(try_accept(ends.listen) == NULL, "a connection from nobody");
    end_ends(&ends);
}

/* Both ends are left where they are: the peer was aborted. */
static void case_peer_never_comes(void)
{
    struct ends ends;

    begin_ends(&ends);
    for (int i = 0; i < 20; i++, usleep(1000))
        CHECK(try_accept(ends.listen) == NULL, "a connection from nobody");
    OK(net->close_listen(ends.listen));
    OK(net->finalize(ends.ctx));
}

static void case_connect_abandoned(void)
{
    struct ends ends;
    void *recv = NULL;

    begin_ends(&ends);
    ends.send = try_connect(ends.ctx, ends.handle.bytes);
    memset(ends.handle.bytes, 0, sizeof(ends.handle.bytes)); /* NCCL frees it */
    for (int i = 0; i < 20 && recv == NULL; i++, usleep(1000))
        recv = try_accept(ends.listen);
    if (ends.send != NULL)
        OK(net->close_send(ends.send));
    if (recv != NULL)
        OK(net->close_recv(recv));
    OK(net->close_listen(ends.listen));
    OK(net->finalize(ends.ctx));
}

/* One listener, several connections, the handle copied for each. */
static void case_listener_reused(void)
{
    struct ends ends;

    begin_ends(&ends);
    for (int i = 0; i < 4; i++) {
        uint8_t copy[NCCL_HANDLE_BYTES];
        void *send = NULL, *recv = NULL;
        const double end = now_s() + CASE_WAIT_S;

        memcpy(copy, ends.handle.bytes, sizeof(copy));
        while (send == NULL || recv == NULL) {
            if (send == NULL)
                send = try_connect(ends.ctx, copy);
            if (recv == NULL)
                recv = try_accept(ends.listen);
            CHECK(now_s() < end, "no connection in %d s", CASE_WAIT_S);
        }
        OK(net->close_send(send));
        OK(net->close_recv(recv));
    }
    end_ends(&ends);
}

/* NCCL closes the listener at once, and the sender may not know yet that it is connected. */
static void nothing(struct side *side)
{
    (void)side;
}

static void case_two_processes(void)
{
    load_plugin();
    run_sides(nothing, nothing);
}

/* A handle of something else gives an error in bounded time, never a connection. */
static void case_foreign_handle(void)
{
    struct ends ends;
    struct nccl_device_handle *device = NULL;
    void *comm = NULL;
    nccl_result_t result = NCCL_SUCCESS;
    const double end = now_s() + 5;

    begin_ends(&ends);
    for (size_t i = 0; i < sizeof(ends.handle.bytes); i++)
        ends.handle.bytes[i] = (uint8_t)(ends.handle.bytes[i] ^ 0x55);
    while (result == NCCL_SUCCESS && comm == NULL && now_s() < end) {
        result = net->connect(ends.ctx, 0, ends.handle.bytes, &comm, &device);
        (void)try_accept(ends.listen);
        usleep(1000);
    }
    CHECK(comm == NULL, "a connection by a handle that is none");
    OK(net->close_listen(ends.listen));
    OK(net->finalize(ends.ctx));
}

static void case_bad_device(void)
{
    struct guarded_handle handle;
    void *ctx, *listen = NULL;
    int n;

    load_plugin();
    ctx = start_plugin();
    OK(net->devices(&n));
    CHECK(net->listen(ctx, n, handle.bytes, &listen) != NCCL_SUCCESS, "device %d of %d", n, n);
    OK(net->finalize(ctx));
}

static void *connect_some(void *arg)
{
    for (int i = 0; i < 8; i++) {
        struct ends ends;

        connect_ends(&ends, arg);
        close_ends(&ends);
    }
    return NULL;
}

static void case_connect_threads(void)
{
    pthread_t threads[4];
    void *ctx;

    load_plugin();
    ctx = start_plugin();
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, connect_some, ctx) == 0, "thread");
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(net->finalize(ctx));
}

const struct net_test connect_cases[] = {
    { "connect_first", case_connect_first },       { "accept_first", case_accept_first },
    { "peer_never_comes", case_peer_never_comes }, { "connect_abandoned", case_connect_abandoned },
    { "listener_reused", case_listener_reused },   { "two_processes", case_two_processes },
    { "foreign_handle", case_foreign_handle },     { "bad_device", case_bad_device },
    { "connect_threads", case_connect_threads },   { 0 },
};

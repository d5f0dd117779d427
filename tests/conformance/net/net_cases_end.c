/* SPDX-License-Identifier: Apache-2.0 */
/* Ends: requests in flight, peers that are killed; close always succeeds, in time. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "net_case.h"

static void close_in_time(nccl_result_t (*close_comm)(void *), void *comm)
{
    const double start = now_s();

    OK(close_comm(comm));
    CHECK(now_s() - start < 2, "close took %.1f s", now_s() - start);
}

static void case_close_in_flight(void)
{
    enum { BYTES = 8 << 20 };
    uint8_t *const out = malloc(BYTES), *const in = malloc(BYTES);
    struct ends ends;
    void *ctx;

    load_plugin();
    ctx = start_plugin();
    fill(out, BYTES, 1);
    for (int first = 0; first < 2; first++) {
        void *send_mr, *recv_mr, *request;
        int bytes;

        connect_ends(&ends, ctx);
        send_mr = reg(ends.send, out, BYTES);
        recv_mr = reg(ends.recv, in, BYTES);
        request = recv_now(ends.recv, in, BYTES, recv_mr);
        recv_now(ends.recv, in, BYTES, recv_mr);
        send_now(ends.send, out, BYTES, send_mr);
        send_now(ends.send, out, BYTES, send_mr);
        (void)try_test(request, &bytes);
        dereg(ends.send, send_mr);
        dereg(ends.recv, recv_mr);
        close_in_time(first == 0 ? net->close_send : net->close_recv,
                      first == 0 ? ends.send : ends.recv);
        close_in_time(first != 0 ? net->close_send : net->close_recv,
                      first != 0 ? ends.send : ends.recv);
    }
    OK(net->finalize(ctx));
    free(out);
    free(in);
}

/* A sender that closes at once after its last request is done loses nothing of it. */
static void send_and_close(struct side *side)
{
    static uint8_t out[4][1 << 16];
    void *requests[4];
    void *const mr = reg(side->comm, out, sizeof(out));

    for (int i = 0; i < 4; i++) {
        fill(out[i], sizeof(out[i]), (uint64_t)i);
        requests[i] = send_now(side->comm, out[i], sizeof(out[i]), mr);
    }
    for (int i = 0; i < 4; i++)
        wait_done(requests[i]);
    dereg(side->comm, mr);
    OK(net->close_send(side->comm));
    side->comm = NULL;
    tell(side);
}

/*
 * Nothing is looked at until the sender is gone, but after a while: some nets send only while the
 * receiver is at work.
 */
static void receive_late(struct side *side)
{
    static uint8_t in[4][1 << 16];
    void *const mr = reg(side->comm, in, sizeof(in));
    const double work = now_s() + 1, end = now_s() + CASE_WAIT_S;
    void *requests[4];
    int n_done = 0, bytes;

    for (int i = 0; i < 4; i++)
        requests[i] = recv_now(side->comm, in[i], sizeof(in[i]), mr);
    while (!is_told(side) || n_done < 4) {
        if ((is_told(side) || now_s() > work) && n_done < 4 && try_test(requests[n_done], &bytes)) {
            CHECK((size_t)bytes == sizeof(in[0]) &&
                      is_filled(in[n_done], sizeof(in[0]), (uint64_t)n_done),
                  "message %d", n_done);
            n_done++;
        }
        CHECK(now_s() < end, "message %d after %d s", n_done, CASE_WAIT_S);
    }
    dereg(side->comm, mr);
}

static void case_close_after_last(void)
{
    load_plugin();
    run_sides(send_and_close, receive_late);
}

/* ---- a peer that is killed ---- */

static void die(struct side *side)
{
    tell(side);
    raise(SIGKILL);
}

static void send_to_dead(struct side *side)
{
    enum { BYTES = 1 << 20 };
    uint8_t *const out = calloc(1, BYTES);
    void *const mr = reg(side->comm, out, BYTES);
    const double end = now_s() + CASE_WAIT_S;
    nccl_result_t result = NCCL_SUCCESS;

    await_told(side);
    while (result == NCCL_SUCCESS) {
        void *request = NULL;

        result = net->isend(side->comm, out, BYTES, 0, mr, NULL, &request);
        if (result == NCCL_SUCCESS && request != NULL)
            result = wait_result(request);
        CHECK(now_s() < end, "no error in %d s", CASE_WAIT_S);
    }
    CHECK(strlen(last_warning()) > 20, "no word of what is wrong: %s", last_warning());
    dereg(side->comm, mr);
    free(out);
}

static void case_receiver_killed(void)
{
    load_plugin();
    run_sides(send_to_dead, die);
}

/* The roles of the processes are fixed, so the sender kills itself in a process of its own. */
static void receive_from_dead(struct side *side)
{
    uint8_t in[1000];
    void *const mr = reg(side->comm, in, sizeof(in));
    void *const request = recv_now(side->comm, in, sizeof(in), mr);
    nccl_result_t result;

    tell(side);
    result = wait_result(request);
    CHECK(result != NCCL_SUCCESS, "a message from the dead");
    dereg(side->comm, mr);
}

static void vanish(struct side *side)
{
    await_told(side);
    OK(net->close_send(side->comm)); /* as the kernel does for a process that is gone */
    side->comm = NULL;
}

static void case_sender_gone(void)
{
    load_plugin();
    run_sides(vanish, receive_from_dead);
}

/* A message that ends in the middle: the receive fails, unless all of it was under way. */
static void send_half(struct side *side)
{
    enum { BYTES = 64 << 20 };
    uint8_t *const out = malloc(BYTES);
    void *const mr = reg(side->comm, out, BYTES);
    void *request;
    int bytes;

    fill(out, BYTES, 1);
    request = send_now(side->comm, out, BYTES, mr);

    await_told(side);
    (void)try_test(request, &bytes);
    dereg(side->comm, mr);
    OK(net->close_send(side->comm));
    side->comm = NULL;
    free(out);
}

static void receive_half(struct side *side)
{
    enum { BYTES = 64 << 20 };
    uint8_t *const in = calloc(1, BYTES);
    void *const mr = reg(side->comm, in, BYTES);
    void *const request = recv_now(side->comm, in, BYTES, mr);
    nccl_result_t result;

    tell(side);
    result = wait_result(request);
    CHECK(result != NCCL_SUCCESS || is_filled(in, BYTES, 1), "half a message");
    dereg(side->comm, mr);
    free(in);
}

static void case_half_message(void)
{
    load_plugin();
    run_sides(send_half, receive_half);
}

/* ---- deadlines, of DSComm's plugin ---- */

/* With a short deadline a peer that never answers is an error that names it. */
static void case_deadline(void)
{
    const double end = now_s() + CASE_WAIT_S;
    struct guarded_handle handle;
    struct nccl_device_handle *device = NULL;
    nccl_result_t result = NCCL_SUCCESS;
    void *ctx, *listen = NULL, *comm = NULL;

    setenv("DSCOMM_TIMEOUT_MS", "300", 1);
    load_plugin();
    ctx = start_plugin();
    OK(net->listen(ctx, 0, handle.bytes, &listen));
    if (is_dscomm_tcp(handle.bytes)) {
        while (result == NCCL_SUCCESS && now_s() < end) {
            result = net->connect(ctx, 0, handle.bytes, &comm, &device);
            CHECK(comm == NULL, "a connection that nobody accepted");
            usleep(1000);
        }
        CHECK(result != NCCL_SUCCESS, "no error in %d s", CASE_WAIT_S);
        CHECK(strstr(last_warning(), "127.0.0.1:") != NULL || strchr(last_warning(), ':') != NULL,
              "the warning names nobody: %s", last_warning());
    }
    OK(net->close_listen(listen));
    OK(net->finalize(ctx));
}

const struct net_test end_cases[] = {
    { "close_in_flight", case_close_in_flight },
    { "close_after_last", case_close_after_last },
    { "receiver_killed", case_receiver_killed },
    { "sender_gone", case_sender_gone },
    { "half_message", case_half_message },
    { "deadline", case_deadline },
    { 0 },
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: sizes, order, requests, threads. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "net_case.h"

static const size_t sizes[] = { 0,      1,       7,       4096,     131072, 524288, 0,
                                614400, 1 << 20, 3000001, 64 << 20, 5,      0 };
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LARGEST ((size_t)64 << 20)

static void send_sizes(struct side *side)
{
    uint8_t *const data = malloc(LARGEST);
    void *const mr = reg(side->comm, data, LARGEST);

    for (size_t i = 0; i < N_SIZES; i++) {
        fill(data, sizes[i], i);
        wait_done(send_now(side->comm, data, sizes[i], mr));
    }
    dereg(side->comm, mr);
    free(data);
}

/* Every receive has more room than is sent, as NCCL's have. */
static void receive_sizes(struct side *side)
{
    uint8_t *const data = malloc(LARGEST + 64);
    void *const mr = reg(side->comm, data, LARGEST + 64);

    for (size_t i = 0; i < N_SIZES; i++) {
        int bytes;

        memset(data + sizes[i], 0x77, 64);
        bytes = wait_done(recv_now(side->comm, data, sizes[i] + 64, mr));
        CHECK((size_t)bytes == sizes[i], "%zu bytes were sent, test() says %d", sizes[i], bytes);
        CHECK(is_filled(data, sizes[i], i), "message %zu of %zu bytes is wrong", i, sizes[i]);
        for (size_t k = 0; k < 64; k++)
            CHECK(data[sizes[i] + k] == 0x77, "byte %zu behind %zu was written", k, sizes[i]);
    }
    dereg(side->comm, mr);
    free(data);
}

static void case_sizes(void)
{
    load_plugin();
    run_sides(send_sizes, receive_sizes);
}

/* ---- contents: what a plugin may shrink must come back as it was, with its own size ---- */

enum { ZEROS, ONES, HALVES, WORDS, LL, LL128, FEW, RANDOM, N_CONTENTS };

static const size_t content_sizes[] = { 16, 2048, 2176, 16384, 65536, 1000003, 1 << 20 };
#define N_CONTENT_SIZES (sizeof(content_sizes) / sizeof(content_sizes[0]))

static void make_content(uint8_t *data, size_t bytes, int kind)
{
    fill(data, bytes, (uint64_t)kind);
    for (size_t i = 0; i < bytes; i++) {
        const bool is_flag = kind == LL ? i % 8 >= 4 : i % 128 >= 120;

        if (kind == ZEROS || kind == ONES || (kind == FEW && i % 97 != 0))
            data[i] = kind == ONES;
        if ((kind == HALVES && i % 2 == 1) || (kind == WORDS && i % 4 == 3))
            data[i] = (uint8_t)(0x38 | (data[i] & 0x83)); /* exponents that are near each other */
        if ((kind == LL || kind == LL128) && is_flag)
            data[i] = (uint8_t)(i % 4 == 0 ? 9 : 0);
    }
}

static void send_contents(struct side *side)
{
    uint8_t *const data = malloc(1 << 20);
    void *const mr = reg(side->comm, data, 1 << 20);

    for (int kind = 0; kind < N_CONTENTS; kind++)
        for (size_t i = 0; i < N_CONTENT_SIZES; i++) {
            make_content(data, content_sizes[i], kind);
            wait_done(send_now(side->comm, data, content_sizes[i], mr));
        }
    dereg(side->comm, mr);
    free(data);
}

static void receive_contents(struct side *side)
{
    uint8_t *const data = malloc(1 << 20), *const expected = malloc(1 << 20);
    void *const mr = reg(side->comm, data, 1 << 20);

    for (int kind = 0; kind < N_CONTENTS; kind++)
        for (size_t i = 0; i < N_CONTENT_SIZES; i++) {
            int bytes;

            memset(data, 0x77, 1 << 20);
            bytes = wait_done(recv_now(side->comm, data, 1 << 20, mr));
            make_content(expected, content_sizes[i], kind);
            CHECK((size_t)bytes == content_sizes[i], "kind %d: %zu bytes, test() says %d", kind,
                  content_sizes[i], bytes);
            CHECK(memcmp(data, expected, content_sizes[i]) == 0, "kind %d of %zu bytes is wrong",
                  kind, content_sizes[i]);
        }
    dereg(side->comm, mr);
    free(data);
    free(expected);
}

static void case_contents(void)
{
    load_plugin();
    run_sides(send_contents, receive_contents);
}

/* ---- order, with as many messages in flight as there may be ---- */

#define N_MESSAGES 600
#define MESSAGE_MAX 20000

static size_t message_bytes(int i)
{
    return (size_t)(i * 7919) % MESSAGE_MAX;
}

/* Returns how often there was no request. */
static int stream(struct side *side, bool sends, int in_flight)
{
    uint8_t *const data = malloc((size_t)in_flight * MESSAGE_MAX);
    void *const mr = reg(side->comm, data, (size_t)in_flight * MESSAGE_MAX);
    void *requests[NCCL_REQUESTS_MAX * 2];
    const double end = now_s() + CASE_WAIT_S;
    int n_begun = 0, n_done = 0, n_busy = 0;

    while (n_done < N_MESSAGES) {
        uint8_t *const p = data + (size_t)(n_begun % in_flight) * MESSAGE_MAX;

        if (n_begun < N_MESSAGES && n_begun - n_done < in_flight) {
            if (sends)
                fill(p, message_bytes(n_begun), (uint64_t)n_begun);
            requests[n_begun % in_flight] =
                sends ? try_send(side->comm, p, message_bytes(n_begun), mr)
                      : try_recv(side->comm, p, MESSAGE_MAX, mr,
                                 n_begun % 2 != 0 ? NCCL_OPTIONAL_COMPLETION : (void *)0xdeadbeef);
            n_busy += requests[n_begun % in_flight] == NULL;
            n_begun += requests[n_begun % in_flight] != NULL;
        }
        if (n_done < n_begun) {
            int bytes;

            if (try_test(requests[n_done % in_flight], &bytes)) {
                CHECK(sends || (size_t)bytes == message_bytes(n_done), "message %d: %d bytes",
                      n_done, bytes);
                CHECK(sends || is_filled(data + (size_t)(n_done % in_flight) * MESSAGE_MAX,
                                         (size_t)bytes, (uint64_t)n_done),
                      "message %d is wrong or at the wrong place", n_done);
                n_done++;
            }
        }
        CHECK(now_s() < end, "message %d of %d after %d s", n_done, N_MESSAGES, CASE_WAIT_S);
    }
    dereg(side->comm, mr);
    free(data);
    return n_busy;
}

static void send_8(struct side *side)
{
    stream(side, true, 8);
}

static void receive_8(struct side *side)
{
    stream(side, false, 8);
}

static void send_32(struct side *side)
{
    stream(side, true, 32);
}

static void receive_32(struct side *side)
{
    stream(side, false, 32);
}

static void case_order(void)
{
    load_plugin();
    run_sides(send_8, receive_8);
}

static void case_order_32(void)
{
    load_plugin();
    run_sides(send_32, receive_32);
}

/* ---- bursts of long messages: the first of each comes alone, which may be cut over sockets ---- */

enum { N_BURSTS = 6, BURST = 8, BURST_BYTES = 3 << 20 };

static size_t burst_bytes(int i)
{
    return 400000 + (size_t)i * 262139 % 2600000;
}

static void move_bursts(struct side *side, bool sends)
{
    uint8_t *const data = malloc((size_t)BURST * BURST_BYTES);
    void *const mr = reg(side->comm, data, (size_t)BURST * BURST_BYTES);
    void *requests[BURST];

    for (int first = 0; first < N_BURSTS * BURST; first += BURST) {
        for (int i = 0; i < BURST && sends; i++)
            fill(data + (size_t)i * BURST_BYTES, burst_bytes(first + i), (uint64_t)(first + i));
        for (int i = 0; i < BURST; i++) {
            uint8_t *const p = data + (size_t)i * BURST_BYTES;

            requests[i] = sends ? send_now(side->comm, p, burst_bytes(first + i), mr)
                                : recv_now(side->comm, p, BURST_BYTES, mr);
        }
        for (int i = 0; i < BURST; i++) {
            const int bytes = wait_done(requests[i]);

            CHECK((size_t)bytes == burst_bytes(first + i), "message %d: %d bytes", first + i,
                  bytes);
            CHECK(is_filled(data + (size_t)i * BURST_BYTES, (size_t)bytes, (uint64_t)(first + i)),
                  "message %d is wrong or at the wrong place", first + i);
        }
    }
    dereg(side->comm, mr);
    free(data);
}

static void send_bursts(struct side *side)
{
    move_bursts(side, true);
}

static void receive_bursts(struct side *side)
{
    move_bursts(side, false);
}

static void case_bursts(void)
{
    load_plugin();
    run_sides(send_bursts, receive_bursts);
}

/* As many sends as there may be, before anybody receives; more are refused or taken, never lost. */
static void case_back_pressure(void)
{
    enum { N = 4 * NCCL_REQUESTS_MAX, BYTES = 1 << 17 };
    uint8_t *const out = malloc((size_t)N * BYTES), *const in = malloc(BYTES);
    void *requests[N], *send_mr, *recv_mr;
    const double end = now_s() + CASE_WAIT_S;
    int n_sent = 0, n_tested = 0, n_received = 0, bytes;
    struct ends ends;

    load_plugin();
    connect_ends(&ends, start_plugin());
    send_mr = reg(ends.send, out, (size_t)N * BYTES);
    recv_mr = reg(ends.recv, in, BYTES);
    for (int i = 0; i < N; i++)
        fill(out + (size_t)i * BYTES, BYTES, (uint64_t)i);
    while (n_sent < N) {
        requests[n_sent] = try_send(ends.send, out + (size_t)n_sent * BYTES, BYTES, send_mr);
        if (requests[n_sent] == NULL)
            break;
        n_sent++;
    }
    CHECK(n_sent >= NCCL_REQUESTS_MAX, "only %d sends in flight", n_sent);
    while (n_received < n_sent) {
        void *recv = recv_now(ends.recv, in, BYTES, recv_mr);

        while (!try_test(recv, &bytes)) {
            if (n_tested < n_sent)
                n_tested += try_test(requests[n_tested], &bytes);
            CHECK(now_s() < end, "message %d after %d s", n_received, CASE_WAIT_S);
        }
        CHECK(bytes == BYTES && is_filled(in, BYTES, (uint64_t)n_received), "message %d",
              n_received);
        n_received++;
    }
    for (; n_tested < n_sent; n_tested++)
        wait_done(requests[n_tested]);
    dereg(ends.send, send_mr);
    dereg(ends.recv, recv_mr);
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
    free(out);
    free(in);
}

/* More receives than the plugin takes: refused with *request = NULL, and usable after. */
static void case_too_many_receives(void)
{
    enum { N = 4 * NCCL_REQUESTS_MAX };
    static uint8_t in[N][64], out[64];
    void *requests[N], *recv_mr, *send_mr;
    struct ends ends;
    int n = 0;

    load_plugin();
    connect_ends(&ends, start_plugin());
    recv_mr = reg(ends.recv, in, sizeof(in));
    send_mr = reg(ends.send, out, sizeof(out));
    for (; n < N; n++) {
        requests[n] = try_recv(ends.recv, in[n], 64, recv_mr,
                               n % 2 ? NCCL_OPTIONAL_COMPLETION : (void *)0xdeadbeef);
        if (requests[n] == NULL)
            break;
    }
    CHECK(n >= NCCL_REQUESTS_MAX, "only %d receives in flight", n);
    for (int i = 0; i < n; i++) {
        fill(out, 64, (uint64_t)i);
        wait_both(send_now(ends.send, out, 64, send_mr), requests[i], 64);
        CHECK(is_filled(in[i], 64, (uint64_t)i), "message %d", i);
    }
    dereg(ends.send, send_mr);
    dereg(ends.recv, recv_mr);
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
}

/* ---- what does not fit ---- */

static void send_too_much(struct side *side)
{
    uint8_t data[1000] = { 0 };
    void *const mr = reg(side->comm, data, sizeof(data));
    const double end = now_s() + CASE_WAIT_S;
    nccl_result_t result = NCCL_SUCCESS;
    void *request = NULL;

    while (result == NCCL_SUCCESS && request == NULL) {
        result = net->isend(side->comm, data, sizeof(data), 7, mr, NULL, &request);
        CHECK(now_s() < end, "isend() gives no request in %d s", CASE_WAIT_S);
    }
    if (result == NCCL_SUCCESS)
        (void)wait_result(request);
    await_told(side);
    dereg(side->comm, mr);
}

static void receive_too_little(struct side *side)
{
    uint8_t data[1000];
    void *mr = reg(side->comm, data, sizeof(data)), *request = NULL, *buffer = data;
    void *profiler = NULL;
    const double end = now_s() + CASE_WAIT_S;
    nccl_result_t result = NCCL_SUCCESS;
    size_t room = 900;
    int tag = 7;

    memset(data, 0x77, sizeof(data));
    while (result == NCCL_SUCCESS && request == NULL) {
        result = net->irecv(side->comm, 1, &buffer, &room, &tag, &mr, &profiler, &request);
        CHECK(now_s() < end, "irecv() gives no request in %d s", CASE_WAIT_S);
    }
    if (result == NCCL_SUCCESS)
        result = wait_result(request);
    CHECK(result != NCCL_SUCCESS, "1000 bytes into 900 are no error");
    CHECK(strstr(last_warning(), "1000") != NULL && strstr(last_warning(), "900") != NULL,
          "the warning does not name both sizes: %s", last_warning());
    for (size_t i = 900; i < sizeof(data); i++)
        CHECK(data[i] == 0x77, "byte %zu behind 900 was written", i);
    tell(side);
    dereg(side->comm, mr);
}

static void case_does_not_fit(void)
{
    load_plugin();
    run_sides(send_too_much, receive_too_little);
}

/* ---- memory ---- */

static void case_registration(void)
{
    uint8_t data[4096];
    void *mrs[64], *mr = NULL;
    struct ends ends;

    load_plugin();
    connect_ends(&ends, start_plugin());
    for (int i = 0; i < 64; i++)
        mrs[i] = reg(i % 2 ? ends.send : ends.recv, data, sizeof(data));
    for (int i = 0; i < 64; i++)
        dereg(i % 2 ? ends.send : ends.recv, mrs[i]);
    CHECK(net->reg_mr(ends.send, data, sizeof(data), 0x40, &mr) != NCCL_SUCCESS,
          "memory of no kind was registered");
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
}

/* ---- threads ---- */

static void *register_often(void *arg)
{
    static uint8_t data[4096];
    struct side *const side = arg;

    for (int i = 0; i < 2000; i++)
        dereg(side->comm, reg(side->comm, data, sizeof(data)));
    return NULL;
}

/* NCCL's service thread registers while its progress thread sends. */
static void send_beside(struct side *side)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, register_often, side) == 0, "thread");
    stream(side, true, 8);
    pthread_join(thread, NULL);
}

static void receive_beside(struct side *side)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, register_often, side) == 0, "thread");
    stream(side, false, 8);
    pthread_join(thread, NULL);
}

static void case_register_beside(void)
{
    load_plugin();
    run_sides(send_beside, receive_beside);
}

static void *stream_alone(void *arg)
{
    enum { BYTES = 100000 };
    uint8_t *const out = malloc(BYTES), *const in = malloc(BYTES);
    void *send_mr, *recv_mr;
    struct ends ends;

    connect_ends(&ends, arg);
    send_mr = reg(ends.send, out, BYTES);
    recv_mr = reg(ends.recv, in, BYTES);
    for (int i = 0; i < 50; i++) {
        void *const recv = recv_now(ends.recv, in, BYTES, recv_mr);

        fill(out, BYTES, (uint64_t)i);
        wait_both(send_now(ends.send, out, BYTES, send_mr), recv, BYTES);
        CHECK(is_filled(in, BYTES, (uint64_t)i), "message %d", i);
    }
    dereg(ends.send, send_mr);
    dereg(ends.recv, recv_mr);
    close_ends(&ends);
    free(out);
    free(in);
    return NULL;
}

static void case_threads(void)
{
    pthread_t threads[4];
    void *ctx;

    load_plugin();
    ctx = start_plugin();
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, stream_alone, ctx) == 0, "thread");
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(net->finalize(ctx));
}

static void case_flush(void)
{
    struct ends ends;
    uint8_t data[64];
    void *const p = data;
    void *mr, *request = (void *)0xdeadbeef, *buffers[1] = { p }, *mrs[1];
    int size = 64, done = 0;

    load_plugin();
    connect_ends(&ends, start_plugin());
    mr = mrs[0] = reg(ends.recv, data, sizeof(data));
    OK(net->iflush(ends.recv, 1, buffers, &size, mrs, &request));
    CHECK(request != (void *)0xdeadbeef, "iflush() did not write *request");
    while (request != NULL && !done)
        OK(net->test(request, &done, NULL));
    dereg(ends.recv, mr);
    close_ends(&ends);
    OK(net->finalize(ends.ctx));
}

const struct net_test data_cases[] = {
    { "sizes", case_sizes },
    { "contents", case_contents },
    { "order", case_order },
    { "order_32", case_order_32 },
    { "bursts", case_bursts },
    { "back_pressure", case_back_pressure },
    { "too_many_receives", case_too_many_receives },
    { "does_not_fit", case_does_not_fit },
    { "registration", case_registration },
    { "register_beside", case_register_beside },
    { "threads", case_threads },
    { "flush", case_flush },
    { 0 },
};

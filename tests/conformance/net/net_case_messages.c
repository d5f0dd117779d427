/* SPDX-License-Identifier: Apache-2.0 */
#include "net_case.h"

#include <sched.h>
#include <string.h>

#define POISON ((void *)(uintptr_t)0xdeadbeef)

void *reg(void *comm, void *data, size_t bytes)
{
    void *mr = NULL;

    OK(net->reg_mr(comm, data, bytes, NCCL_PTR_HOST, &mr));
    return mr;
}

void dereg(void *comm, void *mr)
{
    OK(net->dereg_mr(comm, mr));
}

void *try_send(void *comm, void *data, size_t bytes, void *mr)
{
    void *request = POISON;

    OK(net->isend(comm, data, bytes, 7, mr, NULL, &request));
    CHECK(request != POISON, "isend() did not write *request");
    return request;
}

void *try_recv(void *comm, void *data, size_t bytes, void *mr, void *mark)
{
    void *request = mark;
    void *profiler = NULL;
    int tag = 7;

    OK(net->irecv(comm, 1, &data, &bytes, &tag, &mr, &profiler, &request));
    CHECK(request != POISON && request != NCCL_OPTIONAL_COMPLETION,
          "irecv() did not write *request");
    return request;
}

void *send_now(void *comm, void *data, size_t bytes, void *mr)
{
    const double end = now_s() + CASE_WAIT_S;
    void *request = NULL;

    while (request == NULL) {
        request = try_send(comm, data, bytes, mr);
        CHECK(now_s() < end, "isend() gives no request in %d s", CASE_WAIT_S);
    }
    return request;
}

void *recv_now(void *comm, void *data, size_t bytes, void *mr)
{
    const double end = now_s() + CASE_WAIT_S;
    void *request = NULL;

    while (request == NULL) {
        request = try_recv(comm, data, bytes, mr, POISON);
        CHECK(now_s() < end, "irecv() gives no request in %d s", CASE_WAIT_S);
    }
    return request;
}

bool try_test(void *request, int *bytes)
{
    int sizes[64] = { 0 }; /* as NCCL has them */
    int done = 0;

    OK(net->test(request, &done, sizes));
    if (done)
        *bytes = sizes[0];
    else
        sched_yield();
    return done != 0;
}

int wait_done(void *request)
{
    const double end = now_s() + CASE_WAIT_S;
    int bytes = -1;

    while (!try_test(request, &bytes))
        CHECK(now_s() < end, "a request is not done in %d s", CASE_WAIT_S);
    return bytes;
}

void wait_both(void *send, void *recv, int expected)
{
    const double end = now_s() + CASE_WAIT_S;
    bool sent = false, received = false;
    int bytes = 0;

    while (!sent || !received) {
        sent = sent || try_test(send, &bytes);
        if (!received && try_test(recv, &bytes)) {
            received = true;
            CHECK(bytes == expected, "%d bytes came, not %d", bytes, expected);
        }
        CHECK(now_s() < end, "a message took %d s", CASE_WAIT_S);
    }
}

nccl_result_t wait_result(void *request)
{
    const double end = now_s() + CASE_WAIT_S;

    for (;;) {
        int sizes[64] = { 0 }, done = 0;
        const nccl_result_t result = net->test(request, &done, sizes);

        if (result != NCCL_SUCCESS || done)
            return result;
        CHECK(now_s() < end, "a request neither fails nor ends in %d s", CASE_WAIT_S);
        sched_yield();
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void fill(void *data, size_t bytes, uint64_t seed)
{
    uint8_t *const p = data;

    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = mix(seed * 0x9e3779b97f4a7c15u + i + 1);
        const size_t n = bytes - i < sizeof(word) ? bytes - i : sizeof(word);

        memcpy(p + i, &word, n);
    }
}

bool is_filled(const void *data, size_t bytes, uint64_t seed)
{
    const uint8_t *const p = data;

    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = mix(seed * 0x9e3779b97f4a7c15u + i + 1);
        const size_t n = bytes - i < sizeof(word) ? bytes - i : sizeof(word);

        if (memcmp(p + i, &word, n) != 0)
            return false;
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that is bad in one way, NET_BAD, around a good one, NET_BAD_INNER: the conformance tests
 * must find each of the first eight. The others break down, which is a transport's to notice.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/nccl_load.h"

enum bad {
    REORDER,
    UNWRITTEN,
    LEAK,
    SIZE,
    FLAG_FIRST,
    BLOCK,
    CLOSE_ERROR,
    HANDLE,
    NEVER_DONE,
    TEST_ERROR,
    HUGE_SIZE,
    DAMAGE,
    N_BAD
};
static const char *const names[N_BAD] = { "reorder",    "unwritten",     "leak",        "size",
                                          "flag_first", "block_connect", "close_error", "handle",
                                          "never_done", "test_error",    "huge_size",   "damage" };
#define GOOD_TESTS 100 /* after so many requests are done it begins to break down */

#define EXPORT __attribute__((visibility("default")))
#define N_REQUESTS 4096

/* Only of modes that need more than the inner request. */
struct request {
    void *inner;
    void *send_comm; /* REORDER: not sent yet */
    void *data, *mr;
    size_t bytes;
    int tag, n_tests;
    uint8_t *received; /* DAMAGE */
    uint64_t *target;  /* FLAG_FIRST */
    uint64_t *staged;
    size_t room;
};

static const struct nccl_net_v12 *net;
static enum bad bad;
static struct request requests[N_REQUESTS];
static unsigned next_request;
static struct request *held;
static int n_done;

static nccl_result_t bad_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                              nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    const char *const mode = getenv("NET_BAD"), *const path = getenv("NET_BAD_INNER");
    char error[512];

    if (net == NULL) {
        net = path != NULL ? dsc_nccl_load(path, 12, error, sizeof(error)) : NULL;
        for (bad = 0; mode == NULL || (bad < N_BAD && strcmp(names[bad], mode) != 0);)
            bad++;
    }
    if (net == NULL || bad == N_BAD)
        return NCCL_INVALID_USAGE;
    return net->init(ctx, comm_id, config, logger, profiler);
}

__attribute__((destructor)) static void unload(void)
{
    dsc_nccl_unload();
}

static nccl_result_t bad_devices(int *n)
{
    return net->devices(n);
}

static nccl_result_t bad_get_properties(int dev, struct nccl_props_v12 *props)
{
    return net->get_properties(dev, props);
}

static nccl_result_t bad_listen(void *ctx, int dev, void *handle, void **comm)
{
    const nccl_result_t result = net->listen(ctx, dev, handle, comm);

    if (bad == HANDLE)
        ((uint8_t *)handle)[NCCL_HANDLE_BYTES] = 0;
    return result;
}

static nccl_result_t bad_connect(void *ctx, int dev, void *handle, void **comm,
                                 struct nccl_device_handle **device)
{
    nccl_result_t result = net->connect(ctx, dev, handle, comm, device);

    while (bad == BLOCK && result == NCCL_SUCCESS && *comm == NULL) {
        usleep(1000);
        result = net->connect(ctx, dev, handle, comm, device);
    }
    return result;
}

static nccl_result_t bad_accept(void *listen_comm, void **comm, struct nccl_device_handle **device)
{
    return net->accept(listen_comm, comm, device);
}

static nccl_result_t bad_reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
    return net->reg_mr(comm, data, bytes, type, mr);
}

static nccl_result_t bad_dereg_mr(void *comm, void *mr)
{
    return net->dereg_mr(comm, mr);
}

static struct request *new_request(void)
{
    struct request *const request = &requests[next_request++ % N_REQUESTS];

    memset(request, 0, sizeof(*request));
    return request;
}

static nccl_result_t send_held(struct request *request)
{
    nccl_result_t result = NCCL_SUCCESS;

    while (result == NCCL_SUCCESS && request->inner == NULL) {
        result = net->isend(request->send_comm, request->data, request->bytes, request->tag,
                            request->mr, NULL, &request->inner);
        sched_yield();
    }
    return result;
}

/* Every other message is held until the next one is gone. */
static nccl_result_t reorder_isend(void *comm, void *data, size_t bytes, int tag, void *mr,
                                   void **request)
{
    struct request *const mine = new_request();
    nccl_result_t result;

    *mine =
        (struct request){ .send_comm = comm, .data = data, .bytes = bytes, .tag = tag, .mr = mr };
    *request = mine;
    if (held == NULL) {
        held = mine;
        return NCCL_SUCCESS;
    }
    result = send_held(mine);
    if (result == NCCL_SUCCESS && held->inner == NULL)
        result = send_held(held);
    held = NULL;
    return result;
}

static nccl_result_t bad_isend(void *comm, void *data, size_t bytes, int tag, void *mr,
                               void *profiler, void **request)
{
    struct request *mine;
    void *inner = NULL;
    nccl_result_t result;

    if (bad == REORDER)
        return reorder_isend(comm, data, bytes, tag, mr, request);
    result = net->isend(comm, data, bytes, tag, mr, profiler, &inner);
    if (inner == NULL && bad == UNWRITTEN)
        return result;
    mine = inner != NULL ? new_request() : NULL;
    if (mine != NULL)
        mine->inner = inner;
    *request = mine;
    return result;
}

static nccl_result_t bad_irecv(void *comm, int n, void **data, size_t *bytes, int *tags, void **mrs,
                               void **profilers, void **request)
{
    struct request *const mine = new_request();
    void *buffer = data[0];
    void *inner = NULL;
    nccl_result_t result;

    if (bad == FLAG_FIRST) {
        mine->target = data[0];
        mine->room = bytes[0];
        mine->staged = aligned_alloc(128, (bytes[0] + 255) / 128 * 128);
        buffer = mine->staged;
    }
    result = net->irecv(comm, n, &buffer, bytes, tags, mrs, profilers, &inner);
    mine->inner = inner;
    mine->received = data[0];
    if (inner == NULL && bad == UNWRITTEN)
        return result;
    *request = inner != NULL ? mine : NULL;
    return result;
}

/* First the last word of every line, then the others. */
static void publish_flags_first(struct request *request, size_t bytes)
{
    for (size_t i = 15; i < bytes / 8; i += 16)
        __atomic_store_n(&request->target[i], request->staged[i], __ATOMIC_RELEASE);
    usleep(100);
    memcpy(request->target, request->staged, bytes);
    free(request->staged);
}

static nccl_result_t break_down(struct request *request, int *done, int *bytes)
{
    if (*done == 0 || ++n_done < GOOD_TESTS)
        return NCCL_SUCCESS;
    if (bad == NEVER_DONE)
        *done = 0;
    if (bad == HUGE_SIZE && bytes != NULL)
        bytes[0] = 1 << 30;
    if (bad == DAMAGE && request->received != NULL)
        request->received[100] ^= 1;
    return bad == TEST_ERROR ? NCCL_REMOTE_ERROR : NCCL_SUCCESS;
}

static nccl_result_t bad_test(void *request, int *done, int *bytes)
{
    struct request *const mine = request;
    int sizes[64] = { 0 };
    nccl_result_t result;

    *done = 0;
    if (mine->inner == NULL && ++mine->n_tests < 1000)
        return NCCL_SUCCESS;
    if (mine->inner == NULL) { /* nothing follows */
        held = NULL;
        result = send_held(mine);
        if (result != NCCL_SUCCESS)
            return result;
    }
    result = net->test(mine->inner, done, sizes);
    if (*done && mine->staged != NULL)
        publish_flags_first(mine, (size_t)sizes[0]);
    if (*done && bytes != NULL)
        bytes[0] = sizes[0] + (bad == SIZE);
    return result == NCCL_SUCCESS ? break_down(mine, done, bytes) : result;
}

static nccl_result_t bad_iflush(void *comm, int n, void **data, int *bytes, void **mrs,
                                void **request)
{
    return net->iflush(comm, n, data, bytes, mrs, request);
}

static nccl_result_t bad_close_send(void *comm)
{
    const nccl_result_t result = net->close_send(comm);

    return bad == CLOSE_ERROR ? NCCL_SYSTEM_ERROR : result;
}

static nccl_result_t bad_close_recv(void *comm)
{
    if (bad == LEAK)
        (void)!dup(0);
    return net->close_recv(comm);
}

static nccl_result_t bad_close_listen(void *comm)
{
    return net->close_listen(comm);
}

static nccl_result_t bad_finalize(void *ctx)
{
    return net->finalize(ctx);
}

extern const struct nccl_net_v12 ncclNetPlugin_v12;
EXPORT const struct nccl_net_v12 ncclNetPlugin_v12 = {
    .name = "bad",
    .init = bad_init,
    .devices = bad_devices,
    .get_properties = bad_get_properties,
    .listen = bad_listen,
    .connect = bad_connect,
    .accept = bad_accept,
    .reg_mr = bad_reg_mr,
    .dereg_mr = bad_dereg_mr,
    .isend = bad_isend,
    .irecv = bad_irecv,
    .iflush = bad_iflush,
    .test = bad_test,
    .close_send = bad_close_send,
    .close_recv = bad_close_recv,
    .close_listen = bad_close_listen,
    .finalize = bad_finalize,
};

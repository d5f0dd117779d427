/* SPDX-License-Identifier: Apache-2.0 */
/* The net over TCP: its table, memory and requests. */
#include "net_tcp.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "net_lines.h"

/* Written by the first init() of the process, before anything else; only read from then on. */
static struct net_device devices[NET_DEVICES_MAX];
static int n_devices;

static nccl_result_t tcp_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                              nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    (void)comm_id, (void)config, (void)logger, (void)profiler;
    *ctx = NULL;
    if (n_devices == 0) {
        if (sodium_init() < 0) {
            net_warn("DSComm: libsodium finds no source of random numbers");
            return NCCL_SYSTEM_ERROR;
        }
        return net_result(net_devices_find(devices, NET_DEVICES_MAX, &n_devices));
    }
    return NCCL_SUCCESS;
}

static nccl_result_t tcp_devices(int *n)
{
    *n = n_devices;
    return NCCL_SUCCESS;
}

static const struct net_device *tcp_device(int dev)
{
    return dev >= 0 && dev < n_devices ? &devices[dev] : NULL;
}

static int tcp_n_devices(void)
{
    return n_devices;
}

static nccl_result_t tcp_get_properties(int dev, struct nccl_props_v12 *props)
{
    const struct net_device *const device = tcp_device(dev);

    if (device == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, n_devices);
        return NCCL_INVALID_ARGUMENT;
    }
    net_device_props(device, dev, props);
    return NCCL_SUCCESS;
}

nccl_result_t tcp_fail(struct tcp_comm *comm, nccl_result_t result, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    net_warn("DSComm: peer %s %s", comm->peer, text);
    comm->failed = result;
    return result;
}

nccl_result_t tcp_fail_socket(struct tcp_comm *comm, ssize_t moved, int error)
{
    if (moved == 0)
        return tcp_fail(comm, NCCL_REMOTE_ERROR,
                        "has closed the connection before it sent message %llu",
                        (unsigned long long)comm->next_seq - 1);
    return tcp_fail(comm, NCCL_REMOTE_ERROR, "is lost: %s", strerror(error));
}

/* ---- memory: nothing to do but to say what cannot be used ---- */

struct tcp_mr {
    void *data;
    size_t bytes;
};

static nccl_result_t tcp_reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
    struct tcp_mr *region;

    (void)comm;
    *mr = NULL;
    if (type != NCCL_PTR_HOST) {
        net_warn("DSComm: memory of type %d cannot be sent, only host memory (%d)", type,
                 NCCL_PTR_HOST);
        return NCCL_INVALID_ARGUMENT;
    }
    region = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*region));
    if (region == NULL)
        return NCCL_SYSTEM_ERROR;
    *region = (struct tcp_mr){ data, bytes };
    *mr = region;
    return NCCL_SUCCESS;
}

static nccl_result_t tcp_dereg_mr(void *comm, void *mr)
{
    (void)comm;
    dsc_free(mr);
    return NCCL_SUCCESS;
}

/* ---- requests ---- */

/* The next message's request, or NULL: there are too many in flight. */
static struct tcp_request *begin_request(struct tcp_comm *comm, void *data, size_t bytes)
{
    struct tcp_request *const request = tcp_request_of(comm, comm->next_seq);

    if (request->used)
        return NULL;
    *request = (struct tcp_request){
        .comm = comm, .data = data, .bytes = bytes, .left = TCP_HEADER_BYTES + bytes, .used = true
    };
    comm->next_seq++;
    return request;
}

/*
 * A message that comes so soon after another one goes whole: at that rate CPU time is short, and the
 * other sockets have the messages around it.
 */
#define STREAM_NS 200000u

static int stripes_of_next(struct tcp_comm *comm)
{
    const uint64_t now = comm->n_socks > 1 ? dsc_now_ns() : 0;
    const bool is_stream = now - comm->begun_ns < STREAM_NS || comm->n_unsent >= comm->n_socks;

    comm->begun_ns = now;
    return is_stream ? 1 : comm->n_socks;
}

static nccl_result_t tcp_isend(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                               void *profiler_handle, void **request)
{
    struct tcp_comm *const comm = send_comm;
    struct tcp_request *begun;

    (void)tag, (void)mr, (void)profiler_handle;
    *request = NULL;
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    begun = begin_request(comm, data, bytes);
    if (begun == NULL)
        return tcp_send_progress(comm);
    begun->stripes = stripes_of_next(comm);
    comm->n_unsent++;
    begun->ordered = net_lines_kind(data, bytes) != NET_LINES_NONE;
    *request = begun;
    return tcp_send_progress(comm);
}

static nccl_result_t tcp_irecv(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                               void **mrs, void **profiler_handles, void **request)
{
    struct tcp_comm *const comm = recv_comm;
    const bool polled = *request == NCCL_OPTIONAL_COMPLETION;
    struct tcp_request *begun;

    (void)tags, (void)mrs, (void)profiler_handles;
    *request = NULL;
    if (n != 1) {
        net_warn("DSComm: a receive of %d buffers, allowed: 1 (maxRecvs)", n);
        return NCCL_INVALID_USAGE;
    }
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    begun = begin_request(comm, data[0], bytes[0]);
    if (begun != NULL)
        begun->ordered = polled;
    *request = begun;
    return NCCL_SUCCESS;
}

/* Host memory is coherent: what test() has reported is there. */
static nccl_result_t tcp_iflush(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                                void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)bytes, (void)mrs;
    *request = NULL;
    return NCCL_SUCCESS;
}

static bool is_done(const struct tcp_request *request)
{
    return request->left == 0 && (request->comm->sends || request->started);
}

static nccl_result_t tcp_test(void *request, int *done, int *bytes)
{
    struct tcp_request *const r = request;
    struct tcp_comm *const comm = r->comm;

    *done = 0;
    if (!is_done(r)) {
        nccl_result_t result = comm->failed;

        if (result == NCCL_SUCCESS)
            result = comm->sends ? tcp_send_progress(comm) : tcp_recv_progress(comm);
        if (!is_done(r))
            return result;
    }
    if (bytes != NULL)
        bytes[0] = (int)dsc_min_size(r->bytes, INT32_MAX);
    *done = 1;
    r->used = false;
    return NCCL_SUCCESS;
}

/* ---- connections ---- */

/*
 * What has been sent stays in the kernel's hands; the peer of a receiver that closes early sees a
 * reset. Neither waits.
 */
static nccl_result_t tcp_close(void *comm)
{
    tcp_comm_destroy(comm);
    return NCCL_SUCCESS;
}

static int tcp_n_socks(const struct dsc_env *env)
{
    return (int)env->socket_nsocks;
}

const struct net_kind net_tcp_kind = {
    .name = "tcp",
    .id = 0,
    .version = TCP_WIRE_VERSION,
    .device = tcp_device,
    .n_devices = tcp_n_devices,
    .n_socks = tcp_n_socks,
    .open_comm = tcp_open_comm,
    .close = tcp_close,
};

static nccl_result_t tcp_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    return net_listen(&net_tcp_kind, ctx, dev, handle, listen_comm);
}

static nccl_result_t tcp_connect(void *ctx, int dev, void *handle, void **send_comm,
                                 struct nccl_device_handle **device)
{
    (void)device;
    return net_connect(&net_tcp_kind, ctx, dev, handle, send_comm);
}

static nccl_result_t tcp_finalize(void *ctx)
{
    (void)ctx;
    net_connect_abandon_all();
    return NCCL_SUCCESS;
}

const struct nccl_net_v12 net_tcp = {
    .name = "tcp",
    .init = tcp_init,
    .devices = tcp_devices,
    .get_properties = tcp_get_properties,
    .listen = tcp_listen,
    .connect = tcp_connect,
    .accept = net_accept,
    .reg_mr = tcp_reg_mr,
    .dereg_mr = tcp_dereg_mr,
    .isend = tcp_isend,
    .irecv = tcp_irecv,
    .iflush = tcp_iflush,
    .test = tcp_test,
    .close_send = tcp_close,
    .close_recv = tcp_close,
    .close_listen = net_close_listen,
    .finalize = tcp_finalize,
};

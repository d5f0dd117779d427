/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks up, one per version of its interface. What a version lacks is filled
 * in here, and nothing else is done.
 */
#include <limits.h>

#include "net.h"

#define NET_EXPORT __attribute__((visibility("default")))

/* ---- as in v12 ---- */

static nccl_result_t init_v11(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                              nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    struct net_ctx *made;
    const nccl_result_t result = net_init(&made, config, logger);

    (void)comm_id, (void)profiler;
    *ctx = made;
    return result;
}

static nccl_result_t finalize_v11(void *ctx)
{
    return net_finalize(ctx);
}

static nccl_result_t devices(int *n)
{
    return net_chosen()->devices(n);
}

static nccl_result_t get_properties_v12(int dev, struct nccl_props_v12 *props)
{
    return net_chosen()->get_properties(dev, props);
}

static nccl_result_t listen_v11(void *ctx, int dev, void *handle, void **comm)
{
    return net_chosen()->listen(ctx, dev, handle, comm);
}

static nccl_result_t connect_v11(void *ctx, int dev, void *handle, void **comm,
                                 struct nccl_device_handle **device)
{
    return net_chosen()->connect(ctx, dev, handle, comm, device);
}

static nccl_result_t accept_v7(void *listen_comm, void **comm, struct nccl_device_handle **device)
{
    return net_chosen()->accept(listen_comm, comm, device);
}

static nccl_result_t reg_mr_v8(void *comm, void *data, size_t bytes, int type, void **mr)
{
    return net_chosen()->reg_mr(comm, data, bytes, type, mr);
}

static nccl_result_t reg_mr_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr)
{
    if (net_chosen()->reg_mr_dma_buf != NULL)
        return net_chosen()->reg_mr_dma_buf(comm, data, bytes, type, offset, fd, mr);
    *mr = NULL;
    net_warn(NET_NAME ": %s cannot use a dma-buf", net_chosen()->name);
    return NCCL_INVALID_USAGE;
}

static nccl_result_t dereg_mr(void *comm, void *mr)
{
    return net_chosen()->dereg_mr(comm, mr);
}

static nccl_result_t isend_v10(void *comm, void *data, size_t bytes, int tag, void *mr,
                               void *profiler, void **request)
{
    return net_chosen()->isend(comm, data, bytes, tag, mr, profiler, request);
}

static nccl_result_t irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags, void **mrs,
                               void **profilers, void **request)
{
    return net_chosen()->irecv(comm, n, data, bytes, tags, mrs, profilers, request);
}

static nccl_result_t iflush(void *comm, int n, void **data, int *bytes, void **mrs, void **request)
{
    return net_chosen()->iflush(comm, n, data, bytes, mrs, request);
}

static nccl_result_t test(void *request, int *done, int *bytes)
{
    return net_chosen()->test(request, done, bytes);
}

static nccl_result_t close_send(void *comm)
{
    return net_chosen()->close_send(comm);
}

static nccl_result_t close_recv(void *comm)
{
    return net_chosen()->close_recv(comm);
}

static nccl_result_t close_listen(void *comm)
{
    return net_chosen()->close_listen(comm);
}

/* ---- before v11: no context, the configuration comes with connect() ---- */

static nccl_result_t init_v6(nccl_logger_t *logger)
{
    return net_init(NULL, NULL, logger);
}

static nccl_result_t init_v10(nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    (void)profiler;
    return net_init(NULL, NULL, logger);
}

static nccl_result_t listen_v6(int dev, void *handle, void **comm)
{
    return net_chosen()->listen(NULL, dev, handle, comm);
}

static nccl_result_t connect_v10(int dev, struct nccl_comm_config *config, void *handle,
                                 void **comm, struct nccl_device_handle **device)
{
    struct net_ctx ctx = { config != NULL ? config->traffic_class : NCCL_UNDEFINED };

    return net_chosen()->connect(&ctx, dev, handle, comm, device);
}

static nccl_result_t connect_v7(int dev, void *handle, void **comm,
                                struct nccl_device_handle **device)
{
    return net_chosen()->connect(NULL, dev, handle, comm, device);
}

static nccl_result_t connect_v6(int dev, void *handle, void **comm)
{
    return net_chosen()->connect(NULL, dev, handle, comm, NULL);
}

static nccl_result_t accept_v6(void *listen_comm, void **comm)
{
    return net_chosen()->accept(listen_comm, comm, NULL);
}

/* ---- before v10: nothing for a profiler; before v9: sizes are int ---- */

static nccl_result_t isend_v9(void *comm, void *data, size_t bytes, int tag, void *mr,
                              void **request)
{
    return net_chosen()->isend(comm, data, bytes, tag, mr, NULL, request);
}

static nccl_result_t irecv_v9(void *comm, int n, void **data, size_t *bytes, int *tags, void **mrs,
                              void **request)
{
    return net_chosen()->irecv(comm, n, data, bytes, tags, mrs, NULL, request);
}

static nccl_result_t refuse_size(int bytes, void **out)
{
    net_warn(NET_NAME ": %d bytes, allowed: 0 to %d", bytes, INT_MAX);
    *out = NULL;
    return NCCL_INVALID_ARGUMENT;
}

static nccl_result_t isend_v6(void *comm, void *data, int bytes, int tag, void *mr, void **request)
{
    if (bytes < 0)
        return refuse_size(bytes, request);
    return net_chosen()->isend(comm, data, (size_t)bytes, tag, mr, NULL, request);
}

static nccl_result_t irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **mrs,
                              void **request)
{
    size_t size; /* maxRecvs is 1; another n is refused before sizes are looked at */

    if (bytes[0] < 0)
        return refuse_size(bytes[0], request);
    size = (size_t)bytes[0];
    return net_chosen()->irecv(comm, n, data, &size, tags, mrs, NULL, request);
}

static nccl_result_t reg_mr_v6(void *comm, void *data, int bytes, int type, void **mr)
{
    if (bytes < 0)
        return refuse_size(bytes, mr);
    return net_chosen()->reg_mr(comm, data, (size_t)bytes, type, mr);
}

/* ---- properties ---- */

/* What all versions have; the rest is zero, and NCCL_NET_DEVICE_HOST is 0. */
#define NET_PROPS_COMMON(p)                                                                       \
    .name = (p).name, .pci_path = (p).pci_path, .guid = (p).guid, .ptr_support = (p).ptr_support, \
    .speed = (p).speed, .port = (p).port, .latency = (p).latency, .max_comms = (p).max_comms,     \
    .max_recvs = (p).max_recvs
#define NET_PROPS_V9(p)                                                                      \
    NET_PROPS_COMMON(p), .reg_is_global = (p).reg_is_global, .force_flush = (p).force_flush, \
                         .vdevice = { .n_devs = 1, .devs = { (p).vdevice.devs[0] } },        \
                         .max_p2p_bytes = (p).max_p2p_bytes, .max_coll_bytes = (p).max_coll_bytes

#define NET_GET_PROPERTIES(version, ...)                                                       \
    static nccl_result_t get_properties_##version(int dev, struct nccl_props_##version *props) \
    {                                                                                          \
        struct nccl_props_v12 p;                                                               \
        const nccl_result_t result = net_chosen()->get_properties(dev, &p);                    \
                                                                                               \
        if (result == NCCL_SUCCESS)                                                            \
            *props = (struct nccl_props_##version){ __VA_ARGS__ };                             \
        return result;                                                                         \
    }

NET_GET_PROPERTIES(v11, NET_PROPS_V9(p), .max_multi_request = p.max_multi_request)
NET_GET_PROPERTIES(v9, NET_PROPS_V9(p))
NET_GET_PROPERTIES(v8, NET_PROPS_COMMON(p), .reg_is_global = p.reg_is_global)
NET_GET_PROPERTIES(v7, NET_PROPS_COMMON(p))
NET_GET_PROPERTIES(v6, NET_PROPS_COMMON(p))

/* ---- the tables ---- */

/* Members that are named alike and do the same in all versions. */
#define NET_TABLE_COMMON                                                                          \
    .name = NET_NAME, .devices = devices, .reg_mr_dma_buf = reg_mr_dma_buf, .dereg_mr = dereg_mr, \
    .iflush = iflush, .test = test, .close_send = close_send, .close_recv = close_recv,           \
    .close_listen = close_listen

extern const struct nccl_net_v12 ncclNetPlugin_v12;
extern const struct nccl_net_v11 ncclNetPlugin_v11;
extern const struct nccl_net_v10 ncclNetPlugin_v10;
extern const struct nccl_net_v9 ncclNetPlugin_v9;
extern const struct nccl_net_v8 ncclNetPlugin_v8;
extern const struct nccl_net_v7 ncclNetPlugin_v7;
extern const struct nccl_net_v6 ncclNetPlugin_v6;

NET_EXPORT const struct nccl_net_v12 ncclNetPlugin_v12 = {
    NET_TABLE_COMMON,         .init = init_v11,       .get_properties = get_properties_v12,
    .listen = listen_v11,     .connect = connect_v11, .accept = accept_v7,
    .reg_mr = reg_mr_v8,      .isend = isend_v10,     .irecv = irecv_v10,
    .finalize = finalize_v11,
};

NET_EXPORT const struct nccl_net_v11 ncclNetPlugin_v11 = {
    NET_TABLE_COMMON,         .init = init_v11,       .get_properties = get_properties_v11,
    .listen = listen_v11,     .connect = connect_v11, .accept = accept_v7,
    .reg_mr = reg_mr_v8,      .isend = isend_v10,     .irecv = irecv_v10,
    .finalize = finalize_v11,
};

NET_EXPORT const struct nccl_net_v10 ncclNetPlugin_v10 = {
    NET_TABLE_COMMON,    .init = init_v10,       .get_properties = get_properties_v9,
    .listen = listen_v6, .connect = connect_v10, .accept = accept_v7,
    .reg_mr = reg_mr_v8, .isend = isend_v10,     .irecv = irecv_v10,
};

NET_EXPORT const struct nccl_net_v9 ncclNetPlugin_v9 = {
    NET_TABLE_COMMON,    .init = init_v6,       .get_properties = get_properties_v9,
    .listen = listen_v6, .connect = connect_v7, .accept = accept_v7,
    .reg_mr = reg_mr_v8, .isend = isend_v9,     .irecv = irecv_v9,
};

NET_EXPORT const struct nccl_net_v8 ncclNetPlugin_v8 = {
    NET_TABLE_COMMON,    .init = init_v6,       .get_properties = get_properties_v8,
    .listen = listen_v6, .connect = connect_v7, .accept = accept_v7,
    .reg_mr = reg_mr_v8, .isend = isend_v6,     .irecv = irecv_v6,
};

NET_EXPORT const struct nccl_net_v7 ncclNetPlugin_v7 = {
    NET_TABLE_COMMON,    .init = init_v6,       .get_properties = get_properties_v7,
    .listen = listen_v6, .connect = connect_v7, .accept = accept_v7,
    .reg_mr = reg_mr_v6, .isend = isend_v6,     .irecv = irecv_v6,
};

NET_EXPORT const struct nccl_net_v6 ncclNetPlugin_v6 = {
    NET_TABLE_COMMON,    .init = init_v6,       .get_properties = get_properties_v6,
    .listen = listen_v6, .connect = connect_v6, .accept = accept_v6,
    .reg_mr = reg_mr_v6, .isend = isend_v6,     .irecv = irecv_v6,
};

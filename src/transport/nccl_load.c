/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

static void *library;
static int loaded_version;
static union {
    const void *any;
    const struct nccl_net_v6 *v6;
    const struct nccl_net_v7 *v7;
    const struct nccl_net_v8 *v8;
    const struct nccl_net_v9 *v9;
    const struct nccl_net_v10 *v10;
    const struct nccl_net_v11 *v11;
    const struct nccl_net_v12 *v12;
} table;
static struct nccl_comm_config legacy_config = { NCCL_UNDEFINED }; /* v10 wants it at connect() */

static nccl_result_t load_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                               nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    *ctx = NULL;
    if (loaded_version == 12)
        return table.v12->init(ctx, comm_id, config, logger, profiler);
    if (loaded_version == 11)
        return table.v11->init(ctx, comm_id, config, logger, profiler);
    if (config != NULL)
        legacy_config = *config;
    if (loaded_version == 10)
        return table.v10->init(logger, profiler);
    return table.v6->init(logger); /* at the same place in v6 to v9 */
}

static nccl_result_t load_finalize(void *ctx)
{
    if (loaded_version == 12)
        return table.v12->finalize(ctx);
    return loaded_version == 11 ? table.v11->finalize(ctx) : NCCL_SUCCESS;
}

static nccl_result_t load_devices(int *n)
{
    return table.v6->devices(n); /* at the same place in all versions */
}

/* ---- properties ---- */

#define LOAD_PROPS_COMMON(p)                                                                      \
    .name = (p).name, .pci_path = (p).pci_path, .guid = (p).guid, .ptr_support = (p).ptr_support, \
    .speed = (p).speed, .port = (p).port, .latency = (p).latency, .max_comms = (p).max_comms,     \
    .max_recvs = (p).max_recvs
#define LOAD_PROPS_OLD(p)                                                                      \
    LOAD_PROPS_COMMON(p), .vdevice = { .n_devs = 1, .devs = { dev } },                         \
                          .max_p2p_bytes = (size_t)1 << 30, .max_coll_bytes = (size_t)1 << 30, \
                          .max_multi_request = 1, .rail = NCCL_UNDEFINED, .plane = NCCL_UNDEFINED
#define LOAD_PROPS_V9(p)                                                                        \
    LOAD_PROPS_COMMON(p), .device_type = (p).device_type, .device_version = (p).device_version, \
                          .reg_is_global = (p).reg_is_global, .force_flush = (p).force_flush,   \
                          .vdevice = { .n_devs = 1, .devs = { (p).vdevice.devs[0] } },          \
                          .max_p2p_bytes = (p).max_p2p_bytes,                                   \
                          .max_coll_bytes = (p).max_coll_bytes, .max_multi_request = 1,         \
                          .rail = NCCL_UNDEFINED, .plane = NCCL_UNDEFINED

#define LOAD_PROPS(version, props_version, ...)                                 \
    static nccl_result_t props_##version(int dev, struct nccl_props_v12 *props) \
    {                                                                           \
        struct nccl_props_##props_version p;                                    \
        const nccl_result_t result = table.version->get_properties(dev, &p);    \
                                                                                \
        if (result == NCCL_SUCCESS)                                             \
            *props = (struct nccl_props_v12){ __VA_ARGS__ };                    \
        return result;                                                          \
    }

LOAD_PROPS(v6, v6, LOAD_PROPS_OLD(p))
LOAD_PROPS(v7, v7, LOAD_PROPS_OLD(p), .device_type = p.device_type,
           .device_version = p.device_version)
LOAD_PROPS(v8, v8, LOAD_PROPS_OLD(p), .device_type = p.device_type,
           .device_version = p.device_version, .reg_is_global = p.reg_is_global)
LOAD_PROPS(v9, v9, LOAD_PROPS_V9(p))
LOAD_PROPS(v11, v11, LOAD_PROPS_V9(p))

static nccl_result_t load_get_properties(int dev, struct nccl_props_v12 *props)
{
    switch (loaded_version) {
    case 6:
        return props_v6(dev, props);
    case 7:
        return props_v7(dev, props);
    case 8:
        return props_v8(dev, props);
    case 9:
    case 10: /* the same struct at the same place */
        return props_v9(dev, props);
    case 11:
        return props_v11(dev, props);
    default:
        return table.v12->get_properties(dev, props);
    }
}

/* ---- connections ---- */

static nccl_result_t load_listen(void *ctx, int dev, void *handle, void **comm)
{
    if (loaded_version >= 11)
        return table.v11->listen(ctx, dev, handle, comm);
    return table.v6->listen(dev, handle, comm);
}

static nccl_result_t load_connect(void *ctx, int dev, void *handle, void **comm,
                                  struct nccl_device_handle **device)
{
    if (loaded_version >= 11)
        return table.v11->connect(ctx, dev, handle, comm, device);
    if (loaded_version == 10)
        return table.v10->connect(dev, &legacy_config, handle, comm, device);
    if (loaded_version == 6)
        return table.v6->connect(dev, handle, comm);
    return table.v7->connect(dev, handle, comm, device);
}

static nccl_result_t load_accept(void *listen_comm, void **comm, struct nccl_device_handle **device)
{
    if (loaded_version == 6)
        return table.v6->accept(listen_comm, comm);
    return table.v7->accept(listen_comm, comm, device); /* at the same place from v7 on */
}

/* Members from here on are at the same place in all versions. */

static nccl_result_t load_reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
    if (loaded_version >= 8)
        return table.v8->reg_mr(comm, data, bytes, type, mr);
    if (bytes > INT_MAX)
        return NCCL_INVALID_ARGUMENT;
    return table.v6->reg_mr(comm, data, (int)bytes, type, mr);
}

static nccl_result_t load_dereg_mr(void *comm, void *mr)
{
    return table.v6->dereg_mr(comm, mr);
}

static nccl_result_t load_isend(void *comm, void *data, size_t bytes, int tag, void *mr,
                                void *profiler, void **request)
{
    if (loaded_version >= 10)
        return table.v10->isend(comm, data, bytes, tag, mr, profiler, request);
    if (loaded_version == 9)
        return table.v9->isend(comm, data, bytes, tag, mr, request);
    if (bytes > INT_MAX)
        return NCCL_INVALID_ARGUMENT;
    return table.v6->isend(comm, data, (int)bytes, tag, mr, request);
}

static nccl_result_t load_irecv(void *comm, int n, void **data, size_t *bytes, int *tags,
                                void **mrs, void **profilers, void **request)
{
    int sizes[8];

    if (loaded_version >= 10)
        return table.v10->irecv(comm, n, data, bytes, tags, mrs, profilers, request);
    if (loaded_version == 9)
        return table.v9->irecv(comm, n, data, bytes, tags, mrs, request);
    if (*request == NCCL_OPTIONAL_COMPLETION)
        *request = NULL; /* as NCCL does */
    for (int i = 0; i < n && i < 8; i++)
        sizes[i] = bytes[i] > INT_MAX ? INT_MAX : (int)bytes[i];
    return table.v6->irecv(comm, n, data, sizes, tags, mrs, request);
}

static nccl_result_t load_iflush(void *comm, int n, void **data, int *bytes, void **mrs,
                                 void **request)
{
    return table.v6->iflush(comm, n, data, bytes, mrs, request);
}

static nccl_result_t load_test(void *request, int *done, int *bytes)
{
    return table.v6->test(request, done, bytes);
}

static nccl_result_t load_close_send(void *comm)
{
    return table.v6->close_send(comm);
}

static nccl_result_t load_close_recv(void *comm)
{
    return table.v6->close_recv(comm);
}

static nccl_result_t load_close_listen(void *comm)
{
    return table.v6->close_listen(comm);
}

/* Not const: the name is the other plugin's. */
static struct nccl_net_v12 adapted = {
    .init = load_init,
    .devices = load_devices,
    .get_properties = load_get_properties,
    .listen = load_listen,
    .connect = load_connect,
    .accept = load_accept,
    .reg_mr = load_reg_mr,
    .dereg_mr = load_dereg_mr,
    .isend = load_isend,
    .irecv = load_irecv,
    .iflush = load_iflush,
    .test = load_test,
    .close_send = load_close_send,
    .close_recv = load_close_recv,
    .close_listen = load_close_listen,
    .finalize = load_finalize,
};

const struct nccl_net_v12 *dsc_nccl_load(const char *path, int version, char *error_text,
                                         size_t error_bytes)
{
    const int newest = version != 0 ? version : DSC_NCCL_NEWEST;
    const int oldest = version != 0 ? version : DSC_NCCL_OLDEST;

    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error_text, error_bytes, "%s", dlerror());
        return NULL;
    }
    table.any = NULL;
    for (int v = newest; v >= oldest && table.any == NULL; v--) {
        char symbol[32];

        snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
        table.any = dlsym(library, symbol);
        loaded_version = v;
    }
    if (table.any != NULL) {
        adapted.name = table.v6->name;
        return &adapted;
    }
    snprintf(error_text, error_bytes, "%s has no ncclNetPlugin_v%d to v%d", path, oldest, newest);
    dsc_nccl_unload();
    return NULL;
}

const void *dsc_nccl_table(void)
{
    return table.any;
}

int dsc_nccl_version(void)
{
    return loaded_version;
}

void dsc_nccl_unload(void)
{
    if (library != NULL)
        dlclose(library);
    library = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapping net: its table, which net is inside, and requests. See net_wrap.h. */
#include "net_wrap.h"

#include <stdarg.h>
#include <stdio.h>

#include "transport/nccl_load.h"

extern const struct nccl_net_v12 ncclNetPlugin_v12; /* what NCCL sees of this plugin */

/* Written by the first init() of the process, before anything else. */
static const struct nccl_net_v12 *inner;
static void *inner_ctx; /* of another plugin: one for all communicators */
static bool inner_is_loaded;

const struct nccl_net_v12 *wrap_inner(void)
{
    return inner;
}

static nccl_result_t load_inner(const char *path, struct nccl_comm_config *config,
                                nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    char error[512];
    const struct nccl_net_v12 *const loaded = dsc_nccl_load(path, 0, error, sizeof(error));
    nccl_result_t result;

    if (loaded == NULL) {
        net_warn(NET_NAME ": DSCOMM_NET_INNER: %s", error);
        return NCCL_INVALID_USAGE;
    }
    if (dsc_nccl_table() == &ncclNetPlugin_v12) {
        net_warn(NET_NAME ": DSCOMM_NET_INNER is %s, which is this plugin itself", path);
        dsc_nccl_unload();
        return NCCL_INVALID_USAGE;
    }
    result = loaded->init(&inner_ctx, 1, config, logger, profiler);
    if (result != NCCL_SUCCESS) {
        net_warn(NET_NAME ": DSCOMM_NET_INNER: init() of %s failed with %d", path, result);
        dsc_nccl_unload();
        return result;
    }
    inner = loaded;
    inner_is_loaded = true;
    return NCCL_SUCCESS;
}

static nccl_result_t wrap_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                               nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    const struct dsc_env *env;
    nccl_result_t result;

    *ctx = NULL;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (inner != NULL)
        return NCCL_SUCCESS;
    if (env->net_inner[0] != '\0')
        return load_inner(env->net_inner, config, logger, profiler);
    result = net_carrier(env, &inner);
    if (result == NCCL_SUCCESS)
        result = inner->init(ctx, comm_id, config, logger, profiler);
    if (result != NCCL_SUCCESS)
        inner = NULL;
    return result;
}

static nccl_result_t wrap_finalize(void *ctx)
{
    const nccl_result_t result =
        inner == NULL ? NCCL_SUCCESS : inner->finalize(inner_is_loaded ? inner_ctx : ctx);

    if (inner_is_loaded)
        dsc_nccl_unload();
    inner = NULL;
    inner_is_loaded = false;
    return result;
}

static nccl_result_t wrap_devices(int *n)
{
    return inner->devices(n);
}

/* One receive per request, in host memory: the rest of what the inner net offers is not passed on.
 */
static nccl_result_t wrap_get_properties(int dev, struct nccl_props_v12 *props)
{
    const nccl_result_t result = inner->get_properties(dev, props);

    if (result == NCCL_SUCCESS) {
        props->max_recvs = 1;
        props->max_multi_request = 1;
        props->ptr_support = NCCL_PTR_HOST;
        props->reg_is_global = 0;
        props->force_flush = 0;
        props->device_type = 0;
        props->device_version = 0;
    }
    return result;
}

nccl_result_t wrap_fail(struct wrap_comm *comm, nccl_result_t result, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    net_warn(NET_NAME ": over %s: %s", inner->name, text);
    comm->failed = result;
    return result;
}

/* ---- connections ---- */

static nccl_result_t wrap_listen(void *ctx, int dev, void *handle, void **comm)
{
    return inner->listen(inner_is_loaded ? inner_ctx : ctx, dev, handle, comm);
}

static nccl_result_t wrap_connect(void *ctx, int dev, void *handle, void **comm,
                                  struct nccl_device_handle **device)
{
    void *made = NULL;
    const nccl_result_t result =
        inner->connect(inner_is_loaded ? inner_ctx : ctx, dev, handle, &made, device);

    *comm = NULL;
    return result == NCCL_SUCCESS && made != NULL ? wrap_comm_make(made, true, comm) : result;
}

static nccl_result_t wrap_accept(void *listen_comm, void **comm, struct nccl_device_handle **device)
{
    void *made = NULL;
    const nccl_result_t result = inner->accept(listen_comm, &made, device);

    *comm = NULL;
    return result == NCCL_SUCCESS && made != NULL ? wrap_comm_make(made, false, comm) : result;
}

static nccl_result_t wrap_close_listen(void *comm)
{
    return inner->close_listen(comm);
}

static nccl_result_t wrap_reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
    return inner->reg_mr(((struct wrap_comm *)comm)->inner, data, bytes, type, mr);
}

static nccl_result_t wrap_dereg_mr(void *comm, void *mr)
{
    return inner->dereg_mr(((struct wrap_comm *)comm)->inner, mr);
}

/* ---- requests ---- */

static struct wrap_request *begin(struct wrap_comm *comm, void *data, size_t bytes, int tag,
                                  void *mr)
{
    struct wrap_request *const r = wrap_request_of(comm, comm->next_seq);

    if (r->used)
        return NULL;
    *r = (struct wrap_request){ .comm = comm,
                                .state = WRAP_READY,
                                .used = true,
                                .data = data,
                                .mr = mr,
                                .bytes = bytes,
                                .frame = -1,
                                .tag = tag };
    comm->next_seq++;
    wrap_meter_begin(&comm->meter);
    return r;
}

static nccl_result_t progress(struct wrap_comm *comm)
{
    if (comm->failed == NCCL_SUCCESS)
        comm->failed = comm->sends ? wrap_send_progress(comm) : wrap_recv_progress(comm);
    return comm->failed;
}

static nccl_result_t wrap_isend(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                                void *profiler_handle, void **request)
{
    struct wrap_comm *const comm = send_comm;
    struct wrap_request *r;

    (void)profiler_handle;
    *request = NULL;
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    r = begin(comm, data, bytes, tag, mr);
    if (r != NULL)
        wrap_send_begin(comm, r);
    *request = r;
    return progress(comm);
}

static nccl_result_t wrap_irecv(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                                void **mrs, void **profiler_handles, void **request)
{
    void *const mark = *request == NCCL_OPTIONAL_COMPLETION ? *request : NULL;
    struct wrap_comm *const comm = recv_comm;
    struct wrap_request *r;

    (void)profiler_handles;
    *request = NULL;
    if (n != 1) {
        net_warn(NET_NAME ": a receive of %d buffers, allowed: 1 (maxRecvs)", n);
        return NCCL_INVALID_USAGE;
    }
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    r = begin(comm, data[0], bytes[0], tags != NULL ? tags[0] : 0, mrs != NULL ? mrs[0] : NULL);
    if (r != NULL)
        r->mark = mark;
    *request = r;
    return NCCL_SUCCESS;
}

static nccl_result_t wrap_iflush(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                                 void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)bytes, (void)mrs;
    *request = NULL;
    return NCCL_SUCCESS;
}

/* What the inner net has of a sent message. */
static nccl_result_t test_part(void **part)
{
    int done = 0;
    nccl_result_t result = NCCL_SUCCESS;

    if (*part != NULL)
        result = inner->test(*part, &done, NULL);
    if (done)
        *part = NULL;
    return result;
}

static nccl_result_t test_sent(struct wrap_request *r)
{
    nccl_result_t result;

    if (r->state != WRAP_POSTED)
        return NCCL_SUCCESS;
    result = test_part(&r->announcement);
    if (result == NCCL_SUCCESS)
        result = test_part(&r->payload);
    if (result == NCCL_SUCCESS && r->announcement == NULL && r->payload == NULL)
        r->state = WRAP_DONE;
    return result;
}

static nccl_result_t wrap_test(void *request, int *done, int *bytes)
{
    struct wrap_request *const r = request;
    struct wrap_comm *const comm = r->comm;

    *done = 0;
    if (r->state != WRAP_DONE) {
        nccl_result_t result = progress(comm);

        if (result == NCCL_SUCCESS && comm->sends)
            result = comm->failed = test_sent(r);
        if (r->state != WRAP_DONE)
            return result;
    }
    wrap_frame_give(comm, r);
    wrap_meter_end(&comm->meter, r->bytes, r->packed + WRAP_HEAD_BYTES);
    if (bytes != NULL)
        bytes[0] = (int)dsc_min_size(r->bytes, INT32_MAX);
    *done = 1;
    r->used = false;
    return NCCL_SUCCESS;
}

const struct nccl_net_v12 net_wrap = {
    .name = "wrapped",
    .init = wrap_init,
    .devices = wrap_devices,
    .get_properties = wrap_get_properties,
    .listen = wrap_listen,
    .connect = wrap_connect,
    .accept = wrap_accept,
    .reg_mr = wrap_reg_mr,
    .dereg_mr = wrap_dereg_mr,
    .isend = wrap_isend,
    .irecv = wrap_irecv,
    .iflush = wrap_iflush,
    .test = wrap_test,
    .close_send = wrap_close,
    .close_recv = wrap_close,
    .close_listen = wrap_close_listen,
    .finalize = wrap_finalize,
};

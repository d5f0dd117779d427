/* SPDX-License-Identifier: Apache-2.0 */
/* The net over RDMA: its table, memory and requests. See net_verbs.h. */
#include "net_verbs.h"

#include <string.h>

#include <sodium.h>

#include "net_lines.h"

static nccl_result_t verbs_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                                nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    char text[DSC_VERBS_TEXT_BYTES] = "no port";
    nccl_result_t result;
    int n = 0;

    (void)comm_id, (void)config, (void)logger, (void)profiler;
    *ctx = NULL;
    if (sodium_init() < 0) {
        net_warn(NET_NAME ": libsodium finds no source of random numbers");
        return NCCL_SYSTEM_ERROR;
    }
    result = verbs_devices_find(&n, text);
    if (result == NCCL_SUCCESS && n == 0) {
        net_warn(NET_NAME ": DSCOMM_NET=verbs: %s", text);
        return NCCL_SYSTEM_ERROR;
    }
    return result;
}

nccl_result_t net_verbs_count(int *n_out)
{
    char text[DSC_VERBS_TEXT_BYTES];

    return verbs_devices_find(n_out, text);
}

static nccl_result_t verbs_devices(int *n)
{
    *n = verbs_n_devices();
    return NCCL_SUCCESS;
}

static nccl_result_t verbs_get_properties(int dev, struct nccl_props_v12 *props)
{
    const struct verbs_device *const device = verbs_device(dev);

    if (device == NULL) {
        net_warn(NET_NAME ": there is no device %d, only %d", dev, verbs_n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    net_device_props(&device->base, dev, props);
    return NCCL_SUCCESS;
}

/* ---- connections ---- */

static const struct net_device *kind_device(int dev)
{
    const struct verbs_device *const device = verbs_device(dev);

    return device != NULL ? &device->base : NULL;
}

static int kind_n_socks(const struct dsc_env *env)
{
    (void)env;
    return 1;
}

static const struct net_kind kind = {
    .name = "verbs",
    .id = 1,
    .version = VERBS_WIRE_VERSION,
    .device = kind_device,
    .n_devices = verbs_n_devices,
    .n_socks = kind_n_socks,
    .open_comm = verbs_open_comm,
    .settle = verbs_settle,
    .close = verbs_close,
};

static nccl_result_t verbs_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    return net_listen(&kind, ctx, dev, handle, listen_comm);
}

static nccl_result_t verbs_connect(void *ctx, int dev, void *handle, void **send_comm,
                                   struct nccl_device_handle **device)
{
    (void)device;
    return net_connect(&kind, ctx, dev, handle, send_comm);
}

/* ---- memory ---- */

static nccl_result_t register_memory(struct verbs_comm *comm, void *data, size_t bytes, int type,
                                     int fd, uint64_t offset, void **mr)
{
    const bool is_gpu = type == NCCL_PTR_CUDA;
    struct verbs_mr *made;

    *mr = NULL;
    if ((type != NCCL_PTR_HOST && !is_gpu) ||
        (comm->device->base.ptr_support & (fd >= 0 ? NCCL_PTR_DMABUF : type)) == 0) {
        net_warn(NET_NAME ": %s cannot use memory of type %d%s", comm->device->base.name, type,
                 fd >= 0 ? " by its dma-buf" : "");
        return NCCL_INVALID_ARGUMENT;
    }
    if (is_gpu && !comm->sends && !verbs_open_flush(comm)) {
        net_warn(NET_NAME ": %s gives no queue pair for flushing", comm->device->base.name);
        return NCCL_SYSTEM_ERROR;
    }
    made = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*made));
    if (made != NULL)
        made->region = verbs_region_take(comm->device, data, bytes, is_gpu, fd, offset);
    if (made == NULL || made->region == NULL) {
        dsc_free(made);
        return NCCL_SYSTEM_ERROR;
    }
    *mr = made;
    return NCCL_SUCCESS;
}

static nccl_result_t verbs_reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
    return register_memory(comm, data, bytes, type, -1, 0, mr);
}

static nccl_result_t verbs_reg_mr_dma_buf(void *comm, void *data, size_t bytes, int type,
                                          uint64_t offset, int fd, void **mr)
{
    return register_memory(comm, data, bytes, type, fd, offset, mr);
}

/* Memory that requests still use is taken away at an abort: nothing may be written there after. */
static nccl_result_t verbs_dereg_mr(void *comm, void *mr)
{
    struct verbs_comm *const c = comm;
    struct verbs_mr *const region = mr;

    if (region == NULL)
        return NCCL_SUCCESS;
    if (atomic_load(&region->in_flight) > 0)
        verbs_stop(c);
    verbs_region_give(c->device, region->region);
    dsc_free(region);
    return NCCL_SUCCESS;
}

/* ---- requests ---- */

static bool is_inside(const struct verbs_mr *mr, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;

    return mr != NULL && at >= mr->region->begin && bytes <= mr->region->end - mr->region->begin &&
           at - mr->region->begin <= mr->region->end - mr->region->begin - bytes;
}

static nccl_result_t check_memory(const struct verbs_mr *mr, const void *data, size_t bytes)
{
    if (bytes > VERBS_BYTES_MAX) {
        net_warn(NET_NAME ": a message of %zu bytes, at most %zu", bytes, VERBS_BYTES_MAX);
        return NCCL_INVALID_USAGE;
    }
    if (is_inside(mr, data, bytes))
        return NCCL_SUCCESS;
    net_warn(NET_NAME ": %zu bytes at %p are not registered", bytes, data);
    return NCCL_INVALID_USAGE;
}

/* The next message's request, or NULL: there are too many in flight. */
static struct verbs_request *begin_request(struct verbs_comm *comm, struct verbs_mr *mr, void *data,
                                           size_t bytes)
{
    struct verbs_request *const request = verbs_request_of(comm, comm->next_seq);

    if (request->used)
        return NULL;
    *request = (struct verbs_request){
        .comm = comm, .mr = mr, .data = data, .bytes = bytes, .frame = -1, .used = true
    };
    atomic_fetch_add(&mr->in_flight, 1);
    comm->next_seq++;
    return request;
}

static nccl_result_t verbs_isend(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                                 void *profiler_handle, void **request)
{
    struct verbs_comm *const comm = send_comm;
    struct verbs_mr *const region = mr;
    struct verbs_request *begun;
    nccl_result_t result;

    (void)tag, (void)profiler_handle;
    *request = NULL;
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    result = check_memory(region, data, bytes);
    if (result != NCCL_SUCCESS)
        return result;
    begun = begin_request(comm, region, data, bytes);
    if (begun != NULL)
        begun->is_lines = !region->region->is_gpu && bytes < VERBS_BYTES_MAX &&
                          net_lines_kind(data, bytes) != NET_LINES_NONE;
    *request = begun;
    return verbs_send_posts(comm); /* test() polls; here that would make the message wait */
}

static nccl_result_t verbs_irecv(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                                 void **mrs, void **profiler_handles, void **request)
{
    struct verbs_comm *const comm = recv_comm;
    const bool polled = *request == NCCL_OPTIONAL_COMPLETION;
    struct verbs_request *begun;
    nccl_result_t result;

    (void)tags, (void)profiler_handles;
    *request = NULL;
    if (n != 1) {
        net_warn(NET_NAME ": a receive of %d buffers, allowed: 1 (maxRecvs)", n);
        return NCCL_INVALID_USAGE;
    }
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    result = check_memory(mrs[0], data[0], bytes[0]);
    if (result != NCCL_SUCCESS)
        return result;
    begun = begin_request(comm, mrs[0], data[0], bytes[0]);
    if (begun == NULL)
        return NCCL_SUCCESS;
    begun->is_lines = polled;
    *request = begun;
    return verbs_recv_offers(comm);
}

/* Host memory is coherent: what test() has reported is there. */
static nccl_result_t verbs_iflush(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                                  void **request)
{
    struct verbs_comm *const comm = recv_comm;
    struct verbs_mr *const mr = mrs[n - 1];
    struct ibv_send_wr *bad,
        read = { .opcode = IBV_WR_RDMA_READ, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
    struct ibv_sge piece = { .length = 1 };
    struct verbs_request *flush = NULL;

    *request = NULL;
    if (!mr->region->is_gpu || bytes[n - 1] == 0)
        return NCCL_SUCCESS;
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    for (int i = 0; i < NCCL_REQUESTS_MAX && flush == NULL; i++)
        flush = comm->flushes[i].used ? NULL : &comm->flushes[i];
    if (flush == NULL)
        return verbs_fail(comm, NCCL_INTERNAL_ERROR, "more than %d flushes", NCCL_REQUESTS_MAX);
    piece.addr = (uint64_t)(uintptr_t)(comm->memory + VERBS_FLUSHED_AT);
    piece.lkey = comm->memory_mr->lkey;
    read.sg_list = &piece;
    read.wr_id = VERBS_ID_FLUSH + (uint64_t)(flush - comm->flushes);
    read.wr.rdma.remote_addr = (uint64_t)(uintptr_t)data[n - 1];
    read.wr.rdma.rkey = mr->region->mr->rkey;
    if (ibv_post_send(comm->flush_qp, &read, &bad) != 0)
        return verbs_fail(comm, NCCL_SYSTEM_ERROR, "a flush cannot be posted");
    *flush = (struct verbs_request){ .comm = comm, .mr = mr, .used = true, .is_flush = true };
    atomic_fetch_add(&mr->in_flight, 1);
    *request = flush;
    return NCCL_SUCCESS;
}

static nccl_result_t progress(struct verbs_comm *comm)
{
    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    return comm->sends ? verbs_send_progress(comm) : verbs_recv_progress(comm);
}

static nccl_result_t verbs_test(void *request, int *done, int *bytes)
{
    struct verbs_request *const r = request;

    *done = 0;
    if (!r->done) {
        const nccl_result_t result = progress(r->comm);

        if (!r->done)
            return result;
    }
    if (bytes != NULL && !r->is_flush)
        bytes[0] = (int)dsc_min_size(r->bytes, INT32_MAX);
    *done = 1;
    r->used = false;
    atomic_fetch_sub(&r->mr->in_flight, 1);
    return NCCL_SUCCESS;
}

static nccl_result_t verbs_finalize(void *ctx)
{
    (void)ctx;
    net_connect_abandon_all();
    return NCCL_SUCCESS;
}

const struct nccl_net_v12 net_verbs = {
    .name = "verbs",
    .init = verbs_init,
    .devices = verbs_devices,
    .get_properties = verbs_get_properties,
    .listen = verbs_listen,
    .connect = verbs_connect,
    .accept = net_accept,
    .reg_mr = verbs_reg_mr,
    .reg_mr_dma_buf = verbs_reg_mr_dma_buf,
    .dereg_mr = verbs_dereg_mr,
    .isend = verbs_isend,
    .irecv = verbs_irecv,
    .iflush = verbs_iflush,
    .test = verbs_test,
    .close_send = verbs_close,
    .close_recv = verbs_close,
    .close_listen = net_close_listen,
    .finalize = verbs_finalize,
};

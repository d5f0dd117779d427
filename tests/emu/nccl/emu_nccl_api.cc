// SPDX-License-Identifier: Apache-2.0
// Point-to-point operations, collectives and memory as NCCL's API names them, with its checks.
#include "emu/emu_api.h"
#include "emu/nccl/emu_nccl.h"

static const struct {
    size_t bytes;
    const char *name;
} types[ncclNumTypes] = {
    { 1, "int8" },    { 1, "uint8" },    { 4, "int32" },      { 4, "uint32" },
    { 8, "int64" },   { 8, "uint64" },   { 2, "float16" },    { 4, "float32" },
    { 8, "float64" }, { 2, "bfloat16" }, { 1, "float8e4m3" }, { 1, "float8e5m2" },
};

size_t type_bytes(ncclDataType_t type)
{
    return type >= 0 && type < ncclNumTypes ? types[type].bytes : 0;
}

const char *type_name(ncclDataType_t type)
{
    return type >= 0 && type < ncclNumTypes ? types[type].name : "(unknown type)";
}

const char *kind_name(Kind kind)
{
    static const char *const names[] = { "send",           "recv",       "all-gather",
                                         "reduce-scatter", "all-reduce", "broadcast" };

    return names[static_cast<uint32_t>(kind)];
}

// ---- checks ----
// Elements on each side of an operation of count.
static size_t n_sent(const Task &t, size_t n_ranks)
{
    return t.kind == Kind::REDUCE_SCATTER ? t.count * n_ranks : t.count;
}

static size_t n_received(const Task &t, size_t n_ranks)
{
    return t.kind == Kind::ALL_GATHER ? t.count * n_ranks : t.count;
}

static ncclResult_t check_buffer(Comm *c, const Task &t, const void *p, size_t elems,
                                 const char *side)
{
    const size_t bytes = elems * type_bytes(t.type);

    if (bytes == 0 || emu_is_reachable(p, bytes))
        return ncclSuccess;
    return c->refuse(ncclInvalidArgument,
                     "%s: %s buffer %p is no %zu bytes that the device can reach",
                     kind_name(t.kind), side, p, bytes);
}

static ncclResult_t check_task(Comm *c, const Task &t, cudaStream_t stream)
{
    const size_t n = static_cast<size_t>(c->n_ranks);
    int device = 0;

    if (type_bytes(t.type) == 0)
        return c->refuse(ncclInvalidArgument, "%s: type %d; 0 to %d are allowed", kind_name(t.kind),
                         static_cast<int>(t.type), ncclNumTypes - 1);
    if (t.op < ncclSum || t.op > ncclAvg)
        return c->refuse(ncclInvalidArgument, "%s: operation %d; 0 to 4 are allowed",
                         kind_name(t.kind), static_cast<int>(t.op));
    if (t.peer < 0 || t.peer >= c->n_ranks)
        return c->refuse(ncclInvalidArgument, "%s: rank %d; 0 to %d are allowed", kind_name(t.kind),
                         t.peer, c->n_ranks - 1);
    if (t.count > SIZE_MAX / n / 8)
        return c->refuse(ncclInvalidArgument, "%s: count %zu", kind_name(t.kind), t.count);
    if (cudaStreamGetDevice(stream, &device) != cudaSuccess || device != c->device)
        return c->refuse(ncclInvalidArgument,
                         "%s: a stream of device %d, the communicator is on %d", kind_name(t.kind),
                         device, c->device);
    ncclResult_t e = ncclSuccess;
    if (t.kind != Kind::RECV && (t.kind != Kind::BROADCAST || t.peer == c->rank))
        e = check_buffer(c, t, t.send, n_sent(t, n), "send");
    if (e == ncclSuccess && t.kind != Kind::SEND)
        e = check_buffer(c, t, t.recv, n_received(t, n), "receive");
    return e;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const Task &t)
{
    int device = 0;

    if (!comm)
        return group_fail(refuse(ncclInvalidArgument, "%s: comm is NULL", kind_name(t.kind)));
    Comm *c = comm->c.get();
    if (c->state == ncclInProgress)
        return group_fail(
            c->refuse(ncclInvalidUsage, "%s before the init is done", kind_name(t.kind)));
    ncclResult_t e = c->check_alive();
    if (e != ncclSuccess)
        return group_fail(e);
    cudaGetDevice(&device);
    cudaSetDevice(c->device); // whose legacy stream a null stream is
    e = check_task(c, t, stream);
    cudaSetDevice(device);
    return e == ncclSuccess ? group_add(comm->c, stream, t) : group_fail(e);
}

// ---- operations ----
NCCL_API ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t s)
{
    return add(comm, s, { Kind::SEND, p, nullptr, n, type, ncclSum, peer });
}

NCCL_API ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t s)
{
    return add(comm, s, { Kind::RECV, nullptr, p, n, type, ncclSum, peer });
}

NCCL_API ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t type,
                                    ncclComm_t comm, cudaStream_t s)
{
    return add(comm, s, { Kind::ALL_GATHER, send, recv, n, type, ncclSum, 0 });
}

NCCL_API ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n, ncclDataType_t type,
                                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t s)
{
    return add(comm, s, { Kind::REDUCE_SCATTER, send, recv, n, type, op, 0 });
}

NCCL_API ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t s)
{
    return add(comm, s, { Kind::ALL_REDUCE, send, recv, n, type, op, 0 });
}

NCCL_API ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n, ncclDataType_t type,
                                    int root, ncclComm_t comm, cudaStream_t s)
{
    return add(comm, s, { Kind::BROADCAST, send, recv, n, type, ncclSum, root });
}

// ---- memory ----
NCCL_API ncclResult_t ncclMemAlloc(void **p, size_t n)
{
    if (!p)
        return refuse(ncclInvalidArgument, "ncclMemAlloc: NULL");
    const cudaError_t e = cudaMalloc(p, n);
    return e == cudaSuccess
               ? ncclSuccess
               : refuse(ncclUnhandledCudaError, "ncclMemAlloc: %s", cudaGetErrorName(e));
}

NCCL_API ncclResult_t ncclMemFree(void *p)
{
    const cudaError_t e = cudaFree(p);

    return e == cudaSuccess
               ? ncclSuccess
               : refuse(ncclUnhandledCudaError, "ncclMemFree: %s", cudaGetErrorName(e));
}

NCCL_API ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t n, void **handle)
{
    if (!comm || !handle)
        return refuse(ncclInvalidArgument, "ncclCommRegister: NULL");
    if (!emu_is_reachable(p, n))
        return comm->c->refuse(ncclInvalidArgument, "register: %p is no %zu bytes of the device", p,
                               n);
    *handle = new size_t(n);
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    if (!comm)
        return refuse(ncclInvalidArgument, "ncclCommDeregister: NULL");
    delete static_cast<size_t *>(handle);
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return refuse(ncclInvalidArgument, "ncclGetVersion: NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors in device memory, with a communicator over NCCL. Each has a twin in host memory, where
 * data are made and checked; copies between them are outside of all times. With -G one call is
 * captured, and a timed iteration is so many launches of the graph on the same data; in place the
 * input is put back between them, which the device's clock leaves out.
 */
#include "perf.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "dscomm/nccl.h"

/* NCCL is found at run time, as libdscomm_cuda finds it. */
struct nccl {
    ncclResult_t (*get_unique_id)(ncclUniqueId *id_out);
    ncclResult_t (*comm_init_rank)(ncclComm_t *comm_out, int n_ranks, ncclUniqueId id, int rank);
    ncclResult_t (*comm_destroy)(ncclComm_t comm);
    const char *(*get_last_error)(ncclComm_t comm);
};

struct state {
    struct nccl nccl;
    ncclComm_t handle;
    int device;
    char name[32];
    cudaStream_t stream;
    uint8_t *send_mem, *recv_mem, *input_mem; /* input: of calls in place that are repeated */
    cudaGraphExec_t graph;
    cudaEvent_t from, to;
};

static dscomm_status_t failed(const struct perf_rank *pr, const char *what, const char *why)
{
    (void)fprintf(stderr, "%s: rank %d: %s: %s\n", pr->args->program, pr->rank, what, why);
    return DSCOMM_ERR_SYSTEM;
}

#define TRY_CUDA(pr, expr)                                      \
    do {                                                        \
        const cudaError_t e_ = (expr);                          \
        if (e_ != cudaSuccess)                                  \
            return failed((pr), #expr, cudaGetErrorString(e_)); \
    } while (0)

/* ---- start ---- */

/* Which of this machine's ranks it is, from its launcher if there is one. */
static int local_rank(const struct perf_rank *pr)
{
    static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "MPI_LOCALRANKID", "SLURM_LOCALID" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *const text = getenv(names[i]);
        char *end = NULL;
        const long value = text != NULL ? strtol(text, &end, 10) : -1;

        if (text != NULL && end != text && *end == '\0' && value >= 0 && value < 65536)
            return (int)value;
    }
    return pr->rank;
}

static dscomm_status_t find_nccl(const struct perf_rank *pr, struct nccl *nccl)
{
    void *const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);

    if (library == NULL)
        return failed(pr, "NCCL", dlerror());
    /* a function pointer is stored through void *, as dlsym() wants it */
    *(void **)&nccl->get_unique_id = dlsym(library, "ncclGetUniqueId");
    *(void **)&nccl->comm_init_rank = dlsym(library, "ncclCommInitRank");
    *(void **)&nccl->comm_destroy = dlsym(library, "ncclCommDestroy");
    *(void **)&nccl->get_last_error = dlsym(library, "ncclGetLastError");
    if (nccl->get_unique_id == NULL || nccl->comm_init_rank == NULL || nccl->comm_destroy == NULL ||
        nccl->get_last_error == NULL)
        return failed(pr, "NCCL", "libnccl.so.2 lacks a function");
    return DSCOMM_OK;
}

static dscomm_status_t find_device(struct perf_rank *pr, struct state *s)
{
    struct cudaDeviceProp properties;
    int n_devices = 0;

    PERF_TRY(find_nccl(pr, &s->nccl));
    TRY_CUDA(pr, cudaGetDeviceCount(&n_devices));
    if (n_devices == 0)
        return failed(pr, "--device cuda", "there is no device");
    s->device = local_rank(pr) % n_devices; /* NCCL judges more ranks than devices */
    TRY_CUDA(pr, cudaSetDevice(s->device));
    TRY_CUDA(pr, cudaGetDeviceProperties(&properties, s->device));
    (void)snprintf(s->name, sizeof(s->name), "%.31s", properties.name);
    TRY_CUDA(pr, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    TRY_CUDA(pr, cudaEventCreate(&s->from));
    TRY_CUDA(pr, cudaEventCreate(&s->to));
    TRY_CUDA(pr, cudaMalloc((void **)&s->send_mem, perf_buffer_bytes(pr->args)));
    TRY_CUDA(pr, cudaMalloc((void **)&s->recv_mem, perf_buffer_bytes(pr->args)));
    if (pr->args->n_replays > 0)
        TRY_CUDA(pr, cudaMalloc((void **)&s->input_mem, perf_buffer_bytes(pr->args)));
    return DSCOMM_OK;
}

static dscomm_status_t connect_ranks(struct perf_rank *pr, struct state *s,
                                     const dscomm_comm_config_t *config)
{
    dscomm_comm_config_t mine = *config;
    ncclUniqueId id;

    memset(&id, 0, sizeof(id));
    if (pr->rank == 0 && s->nccl.get_unique_id(&id) != ncclSuccess)
        return failed(pr, "ncclGetUniqueId", s->nccl.get_last_error(NULL));
    PERF_TRY(perf_share_bytes(pr, &id, sizeof(id)));
    if (s->nccl.comm_init_rank(&s->handle, pr->n_ranks, id, pr->rank) != ncclSuccess)
        return failed(pr, "ncclCommInitRank", s->nccl.get_last_error(NULL));
    mine.transport = NULL; /* and n_threads: of the control communicator alone */
    mine.n_threads = 0;
    return dscomm_comm_create_nccl(s->handle, &mine, &pr->comm);
}

static dscomm_status_t open_cuda(struct perf_rank *pr, const dscomm_comm_config_t *config)
{
    struct state *const s = calloc(1, sizeof(*s));
    uint64_t n_failed;

    if (s == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    pr->where_state = s;
    const dscomm_status_t st = find_device(pr, s);
    PERF_TRY(perf_sum_u64(pr, st < 0, &n_failed)); /* nobody waits for a rank that has no device */
    PERF_TRY(st);
    if (n_failed > 0)
        return failed(pr, "--device cuda", "other ranks could not start");
    pr->stream = dscomm_cuda_stream(s->stream);
    return connect_ranks(pr, s, config);
}

static void close_cuda(struct perf_rank *pr)
{
    struct state *const s = pr->where_state;

    if (s == NULL)
        return;
    const bool was_aborted = pr->comm != NULL && dscomm_comm_async_error(pr->comm, NULL) < 0;
    dscomm_comm_destroy(pr->comm);
    if (s->handle != NULL && pr->comm != NULL && !was_aborted)
        (void)s->nccl.comm_destroy(s->handle);
    (void)cudaFree(s->send_mem);
    (void)cudaFree(s->recv_mem);
    (void)cudaFree(s->input_mem);
    if (s->from != NULL)
        (void)cudaEventDestroy(s->from);
    if (s->to != NULL)
        (void)cudaEventDestroy(s->to);
    if (s->stream != NULL)
        (void)cudaStreamDestroy(s->stream);
    free(s);
    pr->where_state = NULL;
    pr->comm = NULL;
}

static dscomm_status_t create_feedback(size_t count, dscomm_feedback_t **fb_out)
{
    return dscomm_feedback_create_cuda(count, NULL, fb_out);
}

/* ---- vectors ---- */

/* The twin of a place in a host vector. */
static uint8_t *twin(const struct perf_rank *pr, const uint8_t *host)
{
    const struct state *const s = pr->where_state;
    const uint8_t *const recv_mem = pr->recv_mem;

    if (host >= recv_mem && host < recv_mem + perf_buffer_bytes(pr->args))
        return s->recv_mem + (host - recv_mem);
    return s->send_mem + (host - (const uint8_t *)pr->send_mem);
}

static size_t send_bytes(const struct perf_rank *pr, const struct perf_row *row)
{
    return perf_send_count(pr, row) * perf_dtype_bytes(row->dtype);
}

static dscomm_status_t put(const struct perf_rank *pr, const struct perf_row *row, bool in_place)
{
    const struct state *const s = pr->where_state;
    uint8_t *send, *recv;

    perf_place(pr, row, in_place, &send, &recv);
    TRY_CUDA(pr, cudaMemcpyAsync(twin(pr, send), send, send_bytes(pr, row), cudaMemcpyHostToDevice,
                                 s->stream));
    if (s->input_mem != NULL)
        TRY_CUDA(pr, cudaMemcpyAsync(s->input_mem, twin(pr, send), send_bytes(pr, row),
                                     cudaMemcpyDeviceToDevice, s->stream));
    TRY_CUDA(pr, cudaStreamSynchronize(s->stream));
    return DSCOMM_OK;
}

static dscomm_status_t get(const struct perf_rank *pr, const struct perf_row *row, bool in_place)
{
    const struct state *const s = pr->where_state;
    const size_t bytes = perf_recv_count(pr, row) * perf_dtype_bytes(row->dtype);
    uint8_t *send, *recv;

    perf_place(pr, row, in_place, &send, &recv);
    TRY_CUDA(pr, cudaMemcpyAsync(recv, twin(pr, recv), bytes, cudaMemcpyDeviceToHost, s->stream));
    TRY_CUDA(pr, cudaStreamSynchronize(s->stream));
    return DSCOMM_OK;
}

/* ---- calls ---- */

static dscomm_status_t enqueue(const struct perf_rank *pr, const struct perf_row *row,
                               bool in_place)
{
    uint8_t *send, *recv;

    perf_place(pr, row, in_place, &send, &recv);
    return pr->coll->call(pr, row, twin(pr, send), twin(pr, recv));
}

/* Waits until it is over: what has failed meanwhile is the communicator's to say. */
static dscomm_status_t finish(const struct perf_rank *pr)
{
    const struct state *const s = pr->where_state;
    const char *text = NULL;

    TRY_CUDA(pr, cudaStreamSynchronize(s->stream));
    const dscomm_status_t st = dscomm_comm_async_error(pr->comm, &text);
    return st < 0 ? (failed(pr, "call", text), st) : DSCOMM_OK;
}

/* Captures one call. It is made once before, as a capture needs its plan. */
static dscomm_status_t begin(struct perf_rank *pr, const struct perf_row *row, bool in_place)
{
    struct state *const s = pr->where_state;
    cudaGraph_t graph = NULL;

    if (pr->args->n_replays == 0)
        return DSCOMM_OK;
    TRY_CUDA(pr, cudaMemsetAsync(s->send_mem, 0, perf_buffer_bytes(pr->args), s->stream));
    TRY_CUDA(pr, cudaMemsetAsync(s->recv_mem, 0, perf_buffer_bytes(pr->args), s->stream));
    PERF_TRY(enqueue(pr, row, in_place));
    PERF_TRY(finish(pr));
    if (row->feedback != NULL)
        PERF_TRY(dscomm_feedback_reset(row->feedback));
    TRY_CUDA(pr, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed));
    const dscomm_status_t st = enqueue(pr, row, in_place);
    const cudaError_t error = cudaStreamEndCapture(s->stream, &graph);
    PERF_TRY(st);
    TRY_CUDA(pr, error);
    const cudaError_t made = cudaGraphInstantiate(&s->graph, graph, 0);
    (void)cudaGraphDestroy(graph);
    TRY_CUDA(pr, made);
    TRY_CUDA(pr, cudaGraphUpload(s->graph, s->stream));
    return finish(pr);
}

static void end(struct perf_rank *pr)
{
    struct state *const s = pr->where_state;

    if (s->graph != NULL)
        (void)cudaGraphExecDestroy(s->graph);
    s->graph = NULL;
}

/* All launches at once, or with the input put back before each. */
static dscomm_status_t replay(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                              double *us_out)
{
    const struct state *const s = pr->where_state;
    const int n_times = in_place ? pr->args->n_replays : 1;
    const int n_launches = pr->args->n_replays / n_times;
    uint8_t *send, *recv;
    float ms;

    perf_place(pr, row, in_place, &send, &recv);
    *us_out = 0.0;
    for (int i = 0; i < n_times; i++) {
        if (i > 0)
            TRY_CUDA(pr, cudaMemcpyAsync(twin(pr, send), s->input_mem, send_bytes(pr, row),
                                         cudaMemcpyDeviceToDevice, s->stream));
        TRY_CUDA(pr, cudaEventRecord(s->from, s->stream));
        for (int k = 0; k < n_launches; k++)
            TRY_CUDA(pr, cudaGraphLaunch(s->graph, s->stream));
        TRY_CUDA(pr, cudaEventRecord(s->to, s->stream));
        PERF_TRY(finish(pr));
        TRY_CUDA(pr, cudaEventElapsedTime(&ms, s->from, s->to));
        *us_out += (double)ms * 1e3 / pr->args->n_replays;
    }
    return DSCOMM_OK;
}

static dscomm_status_t call(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                            double *us_out)
{
    const struct state *const s = pr->where_state;

    if (s->graph != NULL)
        return replay(pr, row, in_place, us_out);
    const uint64_t start_ns = perf_now_ns();
    PERF_TRY(enqueue(pr, row, in_place));
    PERF_TRY(finish(pr));
    *us_out = (double)(perf_now_ns() - start_ns) * 1e-3;
    return DSCOMM_OK;
}

/* ---- report ---- */

static void describe(const struct perf_rank *pr, char *text, size_t text_bytes)
{
    const struct state *const s = pr->where_state;

    (void)snprintf(text, text_bytes, " device %d %s", s->device, s->name);
}

static const char *caveat(const struct perf_rank *pr)
{
    const struct state *const s = pr->where_state;

    return strcmp(s->name, "cudaemu") == 0
               ? "backend cudaemu, an emulator on the CPU: times mean nothing"
               : NULL;
}

static const struct perf_place_ops ops = {
    .open = open_cuda,
    .close = close_cuda,
    .feedback_create = create_feedback,
    .begin = begin,
    .end = end,
    .put = put,
    .call = call,
    .get = get,
    .describe = describe,
    .caveat = caveat,
};
const struct perf_place_ops *const perf_on_cuda = &ops;

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that the kernel finds in memory follows from a plan: the pieces and their owners are
 * the plan's, chunks are not, since bits of formats without segments do not hang on them.
 */
#include "cuda/peer_two_shot.h"

#include <string.h>

#include "cuda/cuda_error.h"

/* Handles name whole pages of this size; what is exported fills its own. */
#define EXPORT_ALIGN ((size_t)2 << 20)
/* Places of elements in messages are 32-bit byte offsets. */
#define MAX_PIECE ((size_t)1 << 29)

/* What a plan says. */
struct facts {
    size_t start[DSC_TWO_SHOT_RANKS], n[DSC_TWO_SHOT_RANKS]; /* pieces, by owner */
    size_t most;                                             /* elements of a piece */
    int up, down;                                            /* exponents */
};

/* Sizes and places, equal on all ranks. */
struct layout {
    uint32_t n_tiles, max_tiles, tile;
    size_t flag_bytes, slot, notes_at, arena_bytes;
};

static void add_span(struct facts *f, int owner, const struct dsc_op *op)
{
    const size_t end = op->start + op->n;
    const size_t old_end = f->start[owner] + f->n[owner];
    const size_t start = f->n[owner] == 0 ? op->start : dsc_min_size(f->start[owner], op->start);

    f->n[owner] = dsc_max_size(f->n[owner] == 0 ? end : old_end, end) - start;
    f->start[owner] = start;
    f->most = dsc_max_size(f->most, f->n[owner]);
}

static struct facts facts_of(const struct dscomm_plan *plan)
{
    struct facts f = { .most = 0 };

    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct dsc_op *const op = &plan->ops[i];

        if (op->kind == DSC_OP_SEND) {
            add_span(&f, plan->peers[plan->sends[op->first_send].conn], op);
            f.up = op->exponent;
        } else if (op->kind == DSC_OP_FINAL) {
            add_span(&f, plan->params.rank, op);
            f.down = op->exponent;
            f.up = op->n_recvs > 0 ? plan->recvs[op->first_recv].exponent : 0;
        } else {
            f.down = op->exponent;
        }
    }
    return f;
}

static struct layout layout_of(const struct dscomm_plan *plan, const struct facts *f)
{
    const size_t n_ranks = (size_t)plan->params.n_ranks;
    struct layout l = { .tile = dsc_gpu_tile_elems(DSC_GPU_FINAL, plan->params.codecs[0],
                                                   plan->params.dtype) };

    for (size_t q = 0; q < n_ranks; q++)
        l.n_tiles += (uint32_t)dsc_ceil_div(f->n[q], l.tile);
    l.max_tiles = (uint32_t)dsc_ceil_div(f->most, l.tile);
    l.flag_bytes = dsc_round_up((l.n_tiles + n_ranks * l.max_tiles) * sizeof(uint32_t), 256);
    l.slot = dsc_round_up(dsc_codec_message_bytes(plan->codecs[0], f->most), 256);
    l.notes_at = l.flag_bytes + (2 * n_ranks + 2) * l.slot;
    l.arena_bytes = l.notes_at + dsc_round_up(sizeof(struct dsc_two_shot_notes), 256);
    return l;
}

static size_t in_at(const struct layout *l, int n_ranks, uint32_t parity, int sender)
{
    return l->flag_bytes + (parity * (size_t)n_ranks + (size_t)sender) * l->slot;
}

static size_t out_at(const struct layout *l, int n_ranks, uint32_t parity)
{
    return l->flag_bytes + (2 * (size_t)n_ranks + parity) * l->slot;
}

dscomm_status_t dsc_gpu_two_shot_supports(const struct dscomm_plan *plan)
{
    const struct dsc_plan_params *const p = &plan->params;

    if (p->collective != DSC_ALLREDUCE || plan->n_ops == 0 || p->algorithm != DSC_ALG_TWO_SHOT ||
        p->n_tiers != 1)
        return dsc_refuse("%s, %s, %d tiers: must be a flat two-shot "
                          "allreduce",
                          dsc_collective_traits(p->collective)->name,
                          dsc_algorithm_name(p->algorithm), p->n_tiers);
    if (p->n_ranks > DSC_TWO_SHOT_RANKS)
        return dsc_refuse("%d ranks, must be at most %d", p->n_ranks, DSC_TWO_SHOT_RANKS);
    DSC_TRY(dsc_gpu_supports(p->codecs[0]));
    if (dsc_two_shot_function(p->codecs[0], p->dtype) == NULL)
        return dsc_refuse("codec %s works by segments, must be one that works by blocks",
                          p->codecs[0]->spec);
    if (facts_of(plan).most > MAX_PIECE)
        return dsc_refuse("%zu elements for %d ranks, must be at most %zu "
                          "for each",
                          p->count, p->n_ranks, MAX_PIECE);
    return DSCOMM_OK;
}

/* ---- tables ---- */

/* Of one local rank: [2][n_ranks] operations, then [2][n_ranks] messages. */
struct tables {
    struct dsc_gpu_op ops[2][DSC_TWO_SHOT_RANKS];
    struct dsc_gpu_recv recvs[2][DSC_TWO_SHOT_RANKS];
};

static void fill_ops(struct dsc_gpu_op *ops, const struct facts *f, const struct layout *l,
                     int n_ranks, int rank, uint32_t parity)
{
    const uint32_t first = parity * DSC_TWO_SHOT_RANKS;

    for (int q = 0; q < n_ranks; q++) {
        const bool is_own = q == rank;
        const uint32_t n_peers = (uint32_t)n_ranks - 1;

        ops[q] = (struct dsc_gpu_op){
            .start = f->start[q],
            .send_at = f->start[q],
            .recv_at = f->start[q],
            .out_at = is_own ? out_at(l, n_ranks, parity) : in_at(l, n_ranks, parity, rank),
            .own_partial = DSC_GPU_NONE,
            .out_partial = DSC_GPU_NONE,
            .n = (uint32_t)f->n[q],
            .facts = { .exponent = is_own ? f->down : f->up },
            .own_at = (uint32_t)rank,
            .first_recv = is_own ? first : first + n_peers,
            .n_recvs = is_own ? n_peers : 1,
            .flags = DSC_GPU_OP_RESTORES,
        };
    }
}

/* What peers send, by rank; then what an owner sends. */
static void fill_recvs(struct dsc_gpu_recv *recvs, const struct facts *f, const struct layout *l,
                       int n_ranks, int rank, uint32_t parity)
{
    int at = 0;

    for (int q = 0; q < n_ranks; q++)
        if (q != rank)
            recvs[at++] = (struct dsc_gpu_recv){ .at = in_at(l, n_ranks, parity, q),
                                                 .facts = { .exponent = f->up } };
    recvs[at] =
        (struct dsc_gpu_recv){ .at = out_at(l, n_ranks, parity), .facts = { .exponent = f->down } };
}

/* Neighbouring tiles have different owners, and so go over different links. */
static void fill_tiles(struct dsc_gpu_tile *tiles, const struct facts *f, const struct layout *l,
                       int n_ranks)
{
    uint32_t at = 0;

    for (uint32_t t = 0; t < l->max_tiles; t++)
        for (int q = 0; q < n_ranks; q++)
            if ((size_t)t * l->tile < f->n[q])
                tiles[at++] = (struct dsc_gpu_tile){ (uint32_t)q, t * l->tile };
}

static void fill_tables(const struct dsc_gpu_two_shot *ts, const struct facts *f,
                        const struct layout *l)
{
    struct tables *const of_rank = ts->host_tables;

    for (int i = 0; i < ts->n_local; i++)
        for (uint32_t parity = 0; parity < 2; parity++) {
            fill_ops(of_rank[i].ops[parity], f, l, ts->n_ranks, ts->local[i], parity);
            fill_recvs(of_rank[i].recvs[parity], f, l, ts->n_ranks, ts->local[i], parity);
        }
    fill_tiles((struct dsc_gpu_tile *)(void *)&of_rank[ts->n_local], f, l, ts->n_ranks);
}

/* Device memory: control, then the tables. */
static dscomm_status_t upload(struct dsc_gpu_two_shot *ts, const struct facts *f,
                              const struct layout *l, cudaStream_t stream)
{
    const size_t of_ranks = (size_t)ts->n_local * sizeof(struct tables);
    const size_t bytes = of_ranks + l->n_tiles * sizeof(struct dsc_gpu_tile);
    struct tables *of_rank;

    ts->host_tables = dsc_calloc(DSC_MEM_EXEC, 1, bytes);
    if (ts->host_tables == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "tables of %u tiles", l->n_tiles);
    fill_tables(ts, f, l);
    CUDA_TRY(cudaMalloc(&ts->tables, 256 + bytes));
    CUDA_TRY(cudaMemsetAsync(ts->tables, 0, 256, stream));
    of_rank = (struct tables *)(void *)((uint8_t *)ts->tables + 256);
    CUDA_TRY(cudaMemcpyAsync(of_rank, ts->host_tables, bytes, cudaMemcpyHostToDevice, stream));
    ts->args.control = ts->tables;
    for (int i = 0; i < ts->n_local; i++) {
        ts->args.ranks[i].work.ops = of_rank[i].ops[0];
        ts->args.ranks[i].work.recvs = of_rank[i].recvs[0];
        ts->args.ranks[i].work.tiles = (const struct dsc_gpu_tile *)(void *)&of_rank[ts->n_local];
    }
    return DSCOMM_OK;
}

/* ---- making one ---- */

/* What is counted is what the plan's messages have, padding included, however a call runs. */
static void fill_works(struct dsc_gpu_two_shot *ts, const struct dscomm_plan *const *plans,
                       const struct layout *l)
{
    for (int i = 0; i < ts->n_local; i++) {
        const struct dsc_plan_params *const params = &plans[i]->params;
        struct dsc_gpu_work *const work = &ts->args.ranks[i].work;

        work->n_tiles = l->n_tiles;
        work->flags = DSC_GPU_WORK_FIRST | DSC_GPU_WORK_LAST |
                      (params->codecs[0]->by_dtype ? DSC_GPU_WORK_ALL_NONE : 0);
        for (uint32_t m = 0; m < plans[i]->n_sends; m++)
            work->tx_bytes += plans[i]->sends[m].bytes;
        for (uint32_t m = 0; m < plans[i]->n_recvs; m++)
            work->rx_bytes += plans[i]->recvs[m].bytes;
        ts->args.ranks[i].format = dsc_gpu_format_of(params->codecs[0], params->dtype);
    }
}

/* Blocks of a rank that the device holds at a time, with those of the other local ranks. */
static dscomm_status_t find_blocks(struct dsc_gpu_two_shot *ts, uint32_t n_tiles)
{
    int device, n_multiprocessors, per_multiprocessor, most;

    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, ts->function,
                                                           DSC_TWO_SHOT_THREADS, 0));
    most = n_multiprocessors * per_multiprocessor / ts->n_local;
    if (most < 1)
        return dsc_refuse("device %d has no room for %d blocks at a time", device, ts->n_local);
    ts->n_blocks = (uint32_t)dsc_min_size((size_t)most, n_tiles);
    return DSCOMM_OK;
}

static dscomm_status_t make_arenas(struct dsc_gpu_two_shot *ts, const struct layout *l,
                                   cudaStream_t stream)
{
    ts->arena_bytes =
        ts->n_local == ts->n_ranks ? l->arena_bytes : dsc_round_up(l->arena_bytes, EXPORT_ALIGN);
    for (int i = 0; i < ts->n_local; i++) {
        if (cudaMalloc((void **)&ts->own[i], ts->arena_bytes) != cudaSuccess) {
            (void)cudaGetLastError();
            return dsc_refuse("no %zu bytes of device memory for peers", ts->arena_bytes);
        }
        CUDA_TRY(cudaMemsetAsync(ts->own[i], 0, l->flag_bytes, stream));
        CUDA_TRY(cudaMemsetAsync(ts->own[i] + l->notes_at, 0, sizeof(struct dsc_two_shot_notes),
                                 stream));
    }
    return DSCOMM_OK;
}

static dscomm_status_t fill(struct dsc_gpu_two_shot *ts, const struct dscomm_plan *const *plans,
                            cudaStream_t stream)
{
    const struct dscomm_plan *const plan = plans[0];
    const struct facts f = facts_of(plan);
    const struct layout l = layout_of(plan, &f);

    ts->function = dsc_two_shot_function(plan->params.codecs[0], plan->params.dtype);
    ts->args.n_ranks = (uint32_t)ts->n_ranks;
    ts->args.n_local = (uint32_t)ts->n_local;
    ts->args.max_tiles = l.max_tiles;
    ts->args.notes_at = l.notes_at;
    DSC_TRY(find_blocks(ts, l.n_tiles));
    DSC_TRY(make_arenas(ts, &l, stream));
    DSC_TRY(upload(ts, &f, &l, stream));
    fill_works(ts, plans, &l);
    return DSCOMM_OK;
}

dscomm_status_t dsc_gpu_two_shot_create(const struct dscomm_plan *const *plans, int n_local,
                                        uint64_t timeout_ns, cudaStream_t stream,
                                        struct dsc_gpu_two_shot **out)
{
    struct dsc_gpu_two_shot *ts;
    dscomm_status_t st;

    for (int i = 0; i < n_local; i++)
        DSC_TRY(dsc_gpu_two_shot_supports(plans[i]));
    ts = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*ts));
    if (ts == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "two-shot kernel");
    ts->n_ranks = plans[0]->params.n_ranks;
    ts->n_local = n_local;
    ts->args.timeout_ns = timeout_ns;
    for (int i = 0; i < n_local; i++)
        ts->local[i] = plans[i]->params.rank;
    st = fill(ts, plans, stream);
    if (st < 0) {
        dsc_gpu_two_shot_destroy(ts);
        return st;
    }
    *out = ts;
    return DSCOMM_OK;
}

void dsc_gpu_two_shot_destroy(struct dsc_gpu_two_shot *ts)
{
    if (ts == NULL)
        return;
    dsc_gpu_two_shot_disconnect(ts);
    for (int i = 0; i < ts->n_local; i++)
        cudaFree(ts->own[i]);
    cudaFree(ts->tables);
    dsc_free(ts->host_tables);
    dsc_free(ts);
}

/* ---- running ---- */

static void set_calls(struct dsc_gpu_two_shot *ts, const struct dsc_gpu_call *calls)
{
    for (int i = 0; i < ts->n_local; i++)
        ts->args.ranks[i].call = calls[i];
}

cudaError_t dsc_gpu_two_shot_run(struct dsc_gpu_two_shot *ts, const struct dsc_gpu_call *calls,
                                 cudaStream_t stream)
{
    void *args[] = { &ts->args };

    set_calls(ts, calls);
    return cudaLaunchKernel(ts->function, (dim3){ ts->n_blocks * (uint32_t)ts->n_local, 1, 1 },
                            (dim3){ DSC_TWO_SHOT_THREADS, 1, 1 }, args, 0, stream);
}

struct cudaKernelNodeParams dsc_gpu_two_shot_node_params(struct dsc_gpu_two_shot *ts,
                                                         const struct dsc_gpu_call *calls,
                                                         void **args_out)
{
    struct cudaKernelNodeParams params = { 0 };

    set_calls(ts, calls);
    *args_out = &ts->args;
    params.func = (void *)(uintptr_t)ts->function;
    params.gridDim = (dim3){ ts->n_blocks * (uint32_t)ts->n_local, 1, 1 };
    params.blockDim = (dim3){ DSC_TWO_SHOT_THREADS, 1, 1 };
    params.kernelParams = args_out;
    return params;
}

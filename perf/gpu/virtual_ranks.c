/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks of one allreduce on one device: the schedules that the executor runs over NCCL,
 * with copies between the ranks' staging memory in the place of NCCL's groups. Each rank computes
 * on a stream of its own; one more stream carries all copies. A group is enqueued when all of its
 * ranks have come to it, so its copies wait for both sides.
 */
#include "gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "cuda/schedule.h"
#include "plan/plan.h"

struct rank {
    struct dscomm_plan *plan;
    struct dsc_schedule schedule;
    void *tables[3];
    uint8_t *messages;
    float *partial;
    struct dsc_gpu_call call;
    struct dsc_gpu_prepared *launches; /* [n_nodes] */
    cudaEvent_t *events;               /* [n_nodes], of nodes that are waited for */
    cudaEvent_t join;
    cudaStream_t stream;
    uint32_t at; /* node, while steps are listed */
};

struct copy {
    void *to;
    const void *from;
    uint32_t bytes;
};

/* A kernel of a rank, or a rank's entry to a group, its copies or its exit from it. */
struct step {
    enum { KERNEL, ENTER, COPY, LEAVE } kind;
    int rank;
    uint32_t node;
    struct copy copy;
};

struct gpu_ranks {
    struct gpu_ranks_params params;
    struct rank *ranks;
    struct step *steps;
    size_t n_steps, max_steps;
    cudaStream_t link;
    cudaEvent_t fork, link_join;
};

static void *must_have(void *memory)
{
    if (memory == NULL)
        gpu_die("out of memory");
    return memory;
}

/* ---- a rank ---- */

static size_t elem_bytes(const struct gpu_ranks *all)
{
    return dsc_dtype_bytes(all->params.dtype);
}

static void build_schedule(const struct gpu_ranks *all, struct rank *r, int rank)
{
    const struct dsc_plan_params params = {
        .collective = DSC_ALLREDUCE,
        .n_ranks = all->params.n_ranks,
        .rank = rank,
        .count = all->params.count,
        .dtype = all->params.dtype,
        .op = DSCOMM_SUM,
        .feedback = all->params.feedback,
        .algorithm = all->params.is_one_shot ? DSC_ALG_ONE_SHOT : DSC_ALG_TWO_SHOT,
        .chunk_elems = all->params.chunk_elems,
        .n_tiers = 1,
        .codecs = { all->params.codec },
    };

    if (dsc_plan_build(&params, &r->plan) < 0 || dsc_schedule_build(r->plan, &r->schedule) < 0)
        gpu_die("no plan: %s", dscomm_last_error());
}

static void *upload(const void *table, size_t bytes)
{
    void *const memory = gpu_alloc(bytes);

    gpu_put(memory, table, bytes);
    return memory;
}

static void prepare_launches(const struct gpu_ranks *all, struct rank *r)
{
    const struct dsc_schedule *const s = &r->schedule;

    r->tables[0] = upload(s->ops, s->n_ops * sizeof(*s->ops));
    r->tables[1] = upload(s->recvs, s->n_recvs * sizeof(*s->recvs));
    r->tables[2] = upload(s->tiles, s->n_tiles * sizeof(*s->tiles));
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        struct dsc_gpu_work work = {
            .ops = r->tables[0],
            .recvs = r->tables[1],
            .tiles = (const struct dsc_gpu_tile *)r->tables[2] + s->nodes[i].first,
            .messages = r->messages,
            .partial = r->partial,
            .n_tiles = s->nodes[i].n,
            .flags = i != s->last_kernel           ? 0
                     : all->params.codec->by_dtype ? DSC_GPU_WORK_LAST | DSC_GPU_WORK_ALL_NONE
                                                   : DSC_GPU_WORK_LAST,
        };

        if (s->nodes[i].is_waited)
            GPU_DO(cudaEventCreateWithFlags(&r->events[i], cudaEventDisableTiming));
        if (!s->nodes[i].is_group)
            r->launches[i] = dsc_gpu_prepare(s->nodes[i].stage, s->nodes[i].codec, &work, &r->call);
    }
}

static void open_rank(const struct gpu_ranks *all, struct rank *r, int rank)
{
    const size_t bytes = all->params.count * elem_bytes(all);
    const size_t residual = all->params.feedback ? all->params.count * sizeof(float) : 0;

    build_schedule(all, r, rank);
    r->launches = must_have(calloc(r->schedule.n_nodes, sizeof(*r->launches)));
    r->events = must_have(calloc(r->schedule.n_nodes, sizeof(cudaEvent_t)));
    r->messages = gpu_alloc(r->schedule.messages_bytes);
    r->partial = gpu_alloc(r->plan->partial_elems * sizeof(float));
    r->call = (struct dsc_gpu_call){
        .send = gpu_alloc(bytes),
        .recv = gpu_alloc(bytes),
        .residual = { gpu_alloc(residual), gpu_alloc(residual) },
        .feedback = all->params.feedback ? gpu_alloc(sizeof(struct dsc_gpu_feedback)) : NULL,
        .state = gpu_alloc(sizeof(struct dsc_gpu_state)),
        .beta = 1.0f,
        .rank = (uint32_t)rank,
        .n_ranks = (uint32_t)all->params.n_ranks,
        .dtype = all->params.dtype,
        .op = DSCOMM_SUM,
    };
    GPU_DO(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    GPU_DO(cudaEventCreateWithFlags(&r->join, cudaEventDisableTiming));
    prepare_launches(all, r);
}

static void close_rank(struct rank *r)
{
    const void *const memory[] = { r->tables[0],     r->tables[1],        r->tables[2],
                                   r->messages,      r->partial,          r->call.send,
                                   r->call.recv,     r->call.residual[0], r->call.residual[1],
                                   r->call.feedback, r->call.state };

    for (size_t i = 0; i < DSC_ARRAY_LEN(memory); i++)
        GPU_DO(cudaFree((void *)memory[i]));
    for (uint32_t i = 0; i < r->schedule.n_nodes; i++)
        if (r->events[i] != NULL)
            GPU_DO(cudaEventDestroy(r->events[i]));
    GPU_DO(cudaEventDestroy(r->join));
    GPU_DO(cudaStreamDestroy(r->stream));
    free(r->launches);
    free(r->events);
    dsc_schedule_fini(&r->schedule);
    dsc_plan_destroy(r->plan);
}

/* ---- one order for all ranks ---- */

static struct step *add_step(struct gpu_ranks *all, int kind, int rank, uint32_t node)
{
    if (all->n_steps == all->max_steps) {
        all->max_steps = 2 * all->max_steps + 64;
        all->steps = must_have(realloc(all->steps, all->max_steps * sizeof(*all->steps)));
    }
    all->steps[all->n_steps] = (struct step){ .rank = rank, .node = node };
    all->steps[all->n_steps].kind = kind;
    return &all->steps[all->n_steps++];
}

/* The group that a rank has come to; NULL: it is done. */
static const struct dsc_node *group_of(const struct rank *r)
{
    return r->at < r->schedule.n_nodes ? &r->schedule.nodes[r->at] : NULL;
}

static bool is_same(const struct dsc_node *a, const struct dsc_node *b)
{
    return a != NULL && b != NULL && a->position == b->position && a->wire_stage == b->wire_stage;
}

/* Whether all that the ranks at this group send to and receive from has come to it, too. */
static bool is_complete(const struct gpu_ranks *all, const struct dsc_node *group)
{
    for (int i = 0; i < all->params.n_ranks; i++) {
        const struct rank *const r = &all->ranks[i];
        const struct dsc_node *const mine = group_of(r);

        for (uint32_t k = 0; is_same(mine, group) && k < mine->n; k++)
            if (!is_same(group_of(&all->ranks[r->schedule.transfers[mine->first + k].peer]), group))
                return false;
    }
    return true;
}

/* What `from` sends to `to` as the index-th of the group. */
static const struct dsc_transfer *find_send(const struct rank *from, int to, uint32_t index)
{
    const struct dsc_node *const group = group_of(from);

    for (uint32_t k = group->first; k < group->first + group->n; k++) {
        const struct dsc_transfer *const t = &from->schedule.transfers[k];

        if (t->is_send && t->peer == to && index-- == 0)
            return t;
    }
    return NULL;
}

static void add_copies(struct gpu_ranks *all, int rank)
{
    struct rank *const r = &all->ranks[rank];
    const struct dsc_node *const group = group_of(r);

    for (uint32_t k = group->first; k < group->first + group->n; k++) {
        const struct dsc_transfer *const t = &r->schedule.transfers[k], *sent;
        uint32_t index = 0;

        if (t->is_send)
            continue;
        for (uint32_t j = group->first; j < k; j++)
            index += !r->schedule.transfers[j].is_send && r->schedule.transfers[j].peer == t->peer;
        sent = find_send(&all->ranks[t->peer], rank, index);
        if (sent == NULL || sent->bytes != t->bytes)
            gpu_die("rank %d receives %u bytes that rank %d does not send", rank, t->bytes,
                    t->peer);
        add_step(all, COPY, rank, r->at)->copy =
            (struct copy){ r->messages + t->at, all->ranks[t->peer].messages + sent->at, t->bytes };
    }
}

static void add_group(struct gpu_ranks *all, const struct dsc_node *first)
{
    const struct dsc_node group = *first;

    for (int i = 0; i < all->params.n_ranks; i++)
        if (is_same(group_of(&all->ranks[i]), &group))
            add_step(all, ENTER, i, all->ranks[i].at);
    for (int i = 0; i < all->params.n_ranks; i++)
        if (is_same(group_of(&all->ranks[i]), &group))
            add_copies(all, i);
    for (int i = 0; i < all->params.n_ranks; i++)
        if (is_same(group_of(&all->ranks[i]), &group))
            add_step(all, LEAVE, i, all->ranks[i].at++);
}

static void list_steps(struct gpu_ranks *all)
{
    const struct dsc_node *next = NULL;

    do {
        bool is_left = false;

        next = NULL;
        for (int i = 0; i < all->params.n_ranks; i++) {
            struct rank *const r = &all->ranks[i];

            for (; r->at < r->schedule.n_nodes && !r->schedule.nodes[r->at].is_group; r->at++)
                add_step(all, KERNEL, i, r->at);
        }
        for (int i = 0; i < all->params.n_ranks && next == NULL; i++) {
            const struct dsc_node *const group = group_of(&all->ranks[i]);

            is_left = is_left || group != NULL;
            if (group != NULL && is_complete(all, group))
                next = group;
        }
        if (next != NULL)
            add_group(all, next);
        else if (is_left)
            gpu_die("groups of the ranks do not meet");
    } while (next != NULL);
}

/* ---- calls ---- */

struct gpu_ranks *gpu_ranks_create(const struct gpu_ranks_params *params)
{
    struct gpu_ranks *const all = must_have(calloc(1, sizeof(*all)));

    all->params = *params;
    all->ranks = must_have(calloc((size_t)params->n_ranks, sizeof(*all->ranks)));
    for (int i = 0; i < params->n_ranks; i++)
        open_rank(all, &all->ranks[i], i);
    GPU_DO(cudaStreamCreateWithFlags(&all->link, cudaStreamNonBlocking));
    GPU_DO(cudaEventCreateWithFlags(&all->fork, cudaEventDisableTiming));
    GPU_DO(cudaEventCreateWithFlags(&all->link_join, cudaEventDisableTiming));
    list_steps(all);
    return all;
}

void gpu_ranks_destroy(struct gpu_ranks *all)
{
    GPU_DO(cudaDeviceSynchronize());
    for (int i = 0; i < all->params.n_ranks; i++)
        close_rank(&all->ranks[i]);
    GPU_DO(cudaEventDestroy(all->fork));
    GPU_DO(cudaEventDestroy(all->link_join));
    GPU_DO(cudaStreamDestroy(all->link));
    free(all->ranks);
    free(all->steps);
    free(all);
}

void gpu_ranks_put(struct gpu_ranks *all, const float *values)
{
    const size_t n = all->params.count, bytes = n * elem_bytes(all);
    void *const narrow = must_have(malloc(bytes));

    for (int i = 0; i < all->params.n_ranks; i++) {
        dsc_dtype_store(all->params.dtype, narrow, values + (size_t)i * n, n);
        gpu_put((void *)all->ranks[i].call.send, narrow, bytes);
    }
    free(narrow);
}

static void run_step(const struct gpu_ranks *all, const struct step *step)
{
    const struct rank *const r = &all->ranks[step->rank];
    const struct dsc_node *const node = &r->schedule.nodes[step->node];
    const cudaStream_t stream = node->is_group ? all->link : r->stream;

    if ((step->kind == KERNEL || step->kind == ENTER) && node->waits != DSC_NO_NODE)
        GPU_DO(cudaStreamWaitEvent(stream, r->events[node->waits], 0));
    if (step->kind == KERNEL)
        GPU_DO(dsc_gpu_launch(&r->launches[step->node], stream));
    if (step->kind == COPY)
        GPU_DO(cudaMemcpyAsync(step->copy.to, step->copy.from, step->copy.bytes,
                               cudaMemcpyDeviceToDevice, stream));
    if ((step->kind == KERNEL || step->kind == LEAVE) && node->is_waited)
        GPU_DO(cudaEventRecord(r->events[step->node], stream));
}

void gpu_ranks_enqueue(void *user, cudaStream_t stream)
{
    const struct gpu_ranks *const all = user;

    GPU_DO(cudaEventRecord(all->fork, stream));
    GPU_DO(cudaStreamWaitEvent(all->link, all->fork, 0));
    for (int i = 0; i < all->params.n_ranks; i++)
        GPU_DO(cudaStreamWaitEvent(all->ranks[i].stream, all->fork, 0));
    for (size_t i = 0; i < all->n_steps; i++)
        run_step(all, &all->steps[i]);
    GPU_DO(cudaEventRecord(all->link_join, all->link));
    GPU_DO(cudaStreamWaitEvent(stream, all->link_join, 0));
    for (int i = 0; i < all->params.n_ranks; i++) {
        GPU_DO(cudaEventRecord(all->ranks[i].join, all->ranks[i].stream));
        GPU_DO(cudaStreamWaitEvent(stream, all->ranks[i].join, 0));
    }
}

/* ---- results ---- */

static uint32_t hash_of(uint32_t hash, void *host, const void *device, size_t bytes)
{
    gpu_get(host, device, bytes);
    return dsc_crc32c(hash, host, bytes);
}

uint32_t gpu_ranks_hash(const struct gpu_ranks *all)
{
    const size_t wide = all->params.count * sizeof(float);
    void *const host = must_have(malloc(wide));
    uint32_t hash = 0, first = 0;

    for (int i = 0; i < all->params.n_ranks; i++) {
        const struct rank *const r = &all->ranks[i];
        struct dsc_gpu_feedback state = { 0 };

        const uint32_t output = hash_of(0, host, r->call.recv, all->params.count * elem_bytes(all));

        if (i == 0)
            first = output;
        else if (output != first)
            gpu_die("rank %d has other bits than rank 0", i);
        hash = dsc_crc32c(hash, &output, sizeof(output));
        if (!all->params.feedback)
            continue;
        gpu_get(&state, r->call.feedback, sizeof(state));
        hash = hash_of(hash, host, r->call.residual[state.parity], wide);
    }
    free(host);
    return hash;
}

int gpu_ranks_n_kernels(const struct gpu_ranks *all)
{
    int n = 0;

    for (int i = 0; i < all->params.n_ranks; i++)
        n += (int)all->ranks[i].schedule.n_kernels;
    return n;
}

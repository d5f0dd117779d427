/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls as one kernel over peer memory (peer_two_shot.h) instead of kernels and NCCL. Whether a
 * plan is made that way follows from settings that were compared, from what ranks have told each
 * other when the communicator was made, and from whether all of them succeed: so it is the same on
 * all ranks.
 *
 * A dropped plan's memory is freed once every peer has written into it that it has left; no rank
 * waits for another but in dscomm_comm_destroy(), and there not for long.
 */
#include "cuda/cuda.h"

#include <string.h>
#include <time.h>

#include "transport/transport.h"

/* Until other ranks destroy their communicators, too. */
#define LEAVE_WAIT_NS 10000000000u
#define TELL_WAIT_NS 1000000000u

_Static_assert(sizeof(struct dsc_two_shot_card) <= DSC_AGREE_BYTES, "a card is a record");

/* ---- what is possible ---- */

/* Of a rank; from a peer, and only compared. */
struct facts {
    uint64_t host, process, fabric;
    char bus[16]; /* of the GPU */
};

static bool is_auto(const struct dsc_env *env)
{
    return strcmp(env->cuda_direct, "auto") == 0;
}

static dscomm_status_t find_facts(struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                  struct facts *out)
{
    struct dsc_peer_info self;

    memset(out, 0, sizeof(*out));
    DSC_TRY(dsc_peer_info_self(env, &self));
    CUDA_TRY(cudaDeviceGetPCIBusId(out->bus, sizeof(out->bus), cc->device));
    out->host = dsc_hash_text(self.host_id);
    out->process = self.process_id;
    out->fabric = is_auto(env) ? dsc_cuda_facts(cc, env)->fabric : 0;
    return DSCOMM_OK;
}

/* By whom this rank's kernels are to be reached: all must be on other GPUs of its host. */
static dscomm_status_t check_peer(const struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                  const struct facts *own, const struct facts *peer, int rank)
{
    int device, can = 1;

    if (peer->host != own->host)
        return dsc_refuse("rank %d is on another host", rank);
    if (memcmp(peer->bus, own->bus, sizeof(own->bus)) == 0)
        return dsc_refuse("rank %d is on the same GPU", rank);
    if (is_auto(env) && (own->fabric == 0 || peer->fabric != own->fabric))
        return dsc_refuse("the GPU of rank %d is in no NVLink domain with this one", rank);
    /* CUDA_VISIBLE_DEVICES may hide it; then opening its memory will tell */
    if (memchr(peer->bus, '\0', sizeof(peer->bus)) == NULL ||
        cudaDeviceGetByPCIBusId(&device, peer->bus) != cudaSuccess) {
        (void)cudaGetLastError();
        return DSCOMM_OK;
    }
    CUDA_TRY(cudaDeviceCanAccessPeer(&can, cc->device, device));
    return can != 0 ? DSCOMM_OK : dsc_refuse("no peer access to the GPU of rank %d", rank);
}

static dscomm_status_t check_peers(const struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                   const struct facts *own)
{
    for (int r = 0; r < cc->base.n_ranks; r++) {
        struct facts peer;

        memcpy(&peer, cc->agree + (size_t)(r + 1) * sizeof(peer), sizeof(peer));
        if (r != cc->base.rank)
            DSC_TRY(check_peer(cc, env, own, &peer, r));
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_direct_init(struct dsc_cuda_comm *cc, const struct dsc_env *env)
{
    struct facts own;
    dscomm_status_t st;

    if (!cc->direct.is_wanted)
        return DSCOMM_OK;
    st = find_facts(cc, env, &own);
    memcpy(cc->agree, &own, sizeof(own));
    DSC_TRY(dsc_cuda_gather(cc, sizeof(own)));
    if (st == DSCOMM_OK)
        st = check_peers(cc, env, &own);
    DSC_TRY(dsc_cuda_all_can(cc, st, &cc->direct.is_possible));
    if (!cc->direct.is_possible)
        dsc_log_info(CUDA, "no calls as one kernel: %s", dscomm_last_error());
    cc->direct.host = own.host;
    cc->direct.process = own.process;
    cc->direct.max_bytes = is_auto(env) ? (size_t)env->cuda_direct_bytes : SIZE_MAX;
    return DSCOMM_OK;
}

/* ---- making one ---- */

/* What there is before peers come in. */
static dscomm_status_t make_own(struct dsc_cuda_run *run, const struct dscomm_plan *plan,
                                struct dsc_gpu_two_shot **ts_out,
                                struct dsc_two_shot_card *card_out)
{
    struct dsc_cuda_comm *const cc = run->comm;
    const uint64_t timeout_ns = (uint64_t)cc->base.config.timeout_ms * 1000000u;

    run->schedule.nodes = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*run->schedule.nodes));
    run->nodes = dsc_calloc(DSC_MEM_EXEC, 1, sizeof(*run->nodes));
    if (run->schedule.nodes == NULL || run->nodes == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "schedule of a kernel");
    DSC_TRY(dsc_gpu_two_shot_create(&plan, 1, timeout_ns, cc->own, ts_out));
    DSC_TRY(dsc_cuda_wait_own(cc, "copying a plan's tables"));
    return dsc_gpu_two_shot_card(*ts_out, 0, cc->direct.host, cc->direct.process, card_out);
}

static dscomm_status_t connect_all(struct dsc_cuda_comm *cc, struct dsc_gpu_two_shot *ts,
                                   const struct dsc_two_shot_card *own, bool *all_out)
{
    struct dsc_two_shot_card cards[DSC_TWO_SHOT_RANKS];

    memcpy(cc->agree, own, sizeof(*own));
    DSC_TRY(dsc_cuda_gather(cc, sizeof(*own)));
    memcpy(cards, cc->agree + sizeof(*own), (size_t)cc->base.n_ranks * sizeof(*own));
    return dsc_cuda_all_can(cc, dsc_gpu_two_shot_connect(ts, cards), all_out);
}

/* Nobody uses what some have connected to: they let go of it before it is freed. */
static dscomm_status_t withdraw(struct dsc_cuda_run *run, const struct dscomm_plan *plan,
                                struct dsc_gpu_two_shot *ts)
{
    dscomm_status_t st;

    dsc_log_info(CUDA, "%zu elements with codec %s over NCCL, not as one kernel: %s",
                 plan->params.count, plan->params.codecs[0]->spec, dscomm_last_error());
    if (ts != NULL)
        dsc_gpu_two_shot_disconnect(ts);
    st = dsc_cuda_gather(run->comm, 1);
    if (st == DSCOMM_OK)
        dsc_gpu_two_shot_destroy(ts);
    else if (ts != NULL)
        dsc_gpu_two_shot_abandon(ts);
    dsc_schedule_fini(&run->schedule);
    dsc_free(run->nodes);
    run->nodes = NULL;
    return st;
}

/* The watchdog may look at the run from now on. */
static void publish(struct dsc_cuda_run *run, const struct dscomm_plan *plan,
                    struct dsc_gpu_two_shot *ts)
{
    ts->args.ranks[0].work.step = (uint64_t)run->id << 24;
    run->all_none = plan->params.codecs[0]->by_dtype;
    run->schedule.nodes[0] = (struct dsc_node){ .waits = DSC_NO_NODE };
    pthread_mutex_lock(&run->comm->runs_lock);
    run->schedule.n_nodes = run->schedule.n_kernels = 1;
    run->direct = ts;
    pthread_mutex_unlock(&run->comm->runs_lock);
    dsc_log_info(CUDA, "%zu elements with codec %s as one kernel of %u blocks", plan->params.count,
                 plan->params.codecs[0]->spec, ts->n_blocks);
}

dscomm_status_t dsc_direct_prepare(struct dsc_cuda_run *run, const struct dscomm_plan *plan)
{
    struct dsc_cuda_comm *const cc = run->comm;
    struct dsc_gpu_two_shot *ts = NULL;
    struct dsc_two_shot_card own;
    bool all = false;
    dscomm_status_t st;

    if (!cc->direct.is_possible || plan->params.count > cc->direct.max_bytes / sizeof(float))
        return DSCOMM_OK;
    if (dsc_gpu_two_shot_supports(plan) < 0) {
        dsc_log_info(CUDA, "%zu elements over NCCL, not as one kernel: %s", plan->params.count,
                     dscomm_last_error());
        return DSCOMM_OK;
    }
    memset(&own, 0, sizeof(own));
    st = dsc_cuda_all_can(cc, make_own(run, plan, &ts, &own), &all);
    if (st == DSCOMM_OK && all)
        st = connect_all(cc, ts, &own, &all);
    if (st == DSCOMM_OK && !all)
        return withdraw(run, plan, ts);
    if (st == DSCOMM_OK)
        publish(run, plan, ts);
    else if (ts != NULL)
        dsc_gpu_two_shot_abandon(ts);
    return st;
}

/* ---- giving up ---- */

static void sleep_a_little(void)
{
    const struct timespec pause = { 0, 1000000 };

    nanosleep(&pause, NULL);
}

void dsc_direct_tell(struct dsc_cuda_comm *cc)
{
    const uint64_t until = dsc_now_ns() + TELL_WAIT_NS;
    bool any = false;

    for (struct dsc_cuda_run *run = cc->runs; run != NULL; run = run->next)
        if (run->direct != NULL) {
            dsc_gpu_two_shot_tell(run->direct, cc->tell);
            any = true;
        }
    while (any && cudaStreamQuery(cc->tell) == cudaErrorNotReady && dsc_now_ns() < until)
        sleep_a_little();
}

/* ---- leaving ---- */

/* Peers may write into its arena for ever. */
static void abandon(struct dsc_cuda_run *run)
{
    dsc_gpu_two_shot_abandon(run->direct);
    run->direct = NULL;
    dsc_cuda_destroy_run(run);
}

void dsc_direct_leave(struct dsc_cuda_run *run)
{
    struct dsc_cuda_comm *const cc = run->comm;

    if (atomic_load(&cc->base.failed) < 0 || dsc_gpu_two_shot_leave(run->direct, cc->own) < 0) {
        abandon(run);
        return;
    }
    run->next = cc->direct.leaving;
    cc->direct.leaving = run;
}

enum { STAYS, LEFT, LOST };

/* Of a run that has left: whether all peers have, or will not since one has given up. */
static int state_of(const struct dsc_cuda_run *run)
{
    struct dsc_two_shot_notes notes;

    if (dsc_gpu_two_shot_read_notes(run->direct, 0, run->comm->own, &notes) < 0 || notes.told != 0)
        return LOST;
    for (int r = 0; r < run->comm->base.n_ranks; r++)
        if (notes.left[r] == 0)
            return STAYS;
    return LEFT;
}

void dsc_direct_sweep(struct dsc_cuda_comm *cc)
{
    struct dsc_cuda_run **at = &cc->direct.leaving;

    while (*at != NULL) {
        struct dsc_cuda_run *const run = *at;
        const int state = state_of(run);

        if (state == STAYS) {
            at = &run->next;
            continue;
        }
        *at = run->next;
        if (state == LOST)
            abandon(run);
        else
            dsc_cuda_destroy_run(run);
    }
}

void dsc_direct_close(struct dsc_cuda_comm *cc)
{
    const uint64_t until = dsc_now_ns() + LEAVE_WAIT_NS;
    struct dsc_cuda_run *run;

    for (dsc_direct_sweep(cc); cc->direct.leaving != NULL; dsc_direct_sweep(cc)) {
        if (atomic_load(&cc->base.failed) < 0 || dsc_now_ns() > until)
            break;
        sleep_a_little();
    }
    if (cc->direct.leaving != NULL)
        dsc_log_warn(CUDA, "peers still use memory of this rank: it stays until the process ends");
    while ((run = cc->direct.leaving) != NULL) {
        cc->direct.leaving = run->next;
        abandon(run);
    }
}

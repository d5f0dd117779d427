/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: whether and how a message is packed, and its way to the inner net, in order. */
#include <string.h>

#include "net_lines.h"
#include "net_wrap.h"
#include "transport/bytes.h"

/* Bytes of messages: what sockets may hold back does not count, then what is measured. */
#define TRIAL_WARM ((uint64_t)8 << 20)
#define TRIAL_BYTES ((uint64_t)24 << 20)
#define WINNER_BYTES ((uint64_t)1 << 30)
#define WORTH 1.05 /* packing takes CPU time: it must give at least so much */
#define PLANES_AGAIN 64

static void pack(struct net_job *job)
{
    struct wrap_request *const r = (struct wrap_request *)(void *)job;

    r->packed = net_pack(r->comm->frames[r->frame].bytes, r->data, r->bytes, r->codec);
}

/* ---- whether it pays ---- */

static void next_phase(struct wrap_trial *trial)
{
    const uint64_t ns = trial->warm_ns != 0 ? dsc_now_ns() - trial->warm_ns : 0;

    if (trial->phase < 2 && ns > 0)
        trial->rates[trial->phase] = (double)(trial->bytes - TRIAL_WARM) / (double)ns;
    trial->phase = (trial->phase + 1) % 3;
    trial->packs =
        trial->phase == 1 || (trial->phase == 2 && trial->rates[1] > WORTH * trial->rates[0]);
    trial->bytes = 0;
    trial->warm_ns = 0;
}

static bool trial_says_pack(struct wrap_trial *trial, size_t bytes)
{
    if (trial->bytes >= (trial->phase == 2 ? WINNER_BYTES : TRIAL_BYTES))
        next_phase(trial);
    if (trial->warm_ns == 0 && trial->bytes >= TRIAL_WARM)
        trial->warm_ns = dsc_now_ns();
    trial->bytes += bytes;
    return trial->packs;
}

static bool may_pack(struct wrap_comm *comm, size_t bytes)
{
    const struct dsc_env *env;

    if (!comm->has_workers || dsc_env_get(&env) < 0)
        return false;
    return strcmp(env->net_compress, "auto") != 0 || trial_says_pack(&comm->trial, bytes);
}

static enum net_codec choose_planes(struct wrap_comm *comm, const void *data, size_t bytes)
{
    if (bytes < WRAP_PLANES_MIN)
        return NET_CODEC_RAW;
    if (comm->planes_left-- <= 0) {
        comm->planes = net_pack_choose(data, bytes);
        comm->planes_left = PLANES_AGAIN;
    }
    return comm->planes;
}

static enum net_codec choose(struct wrap_comm *comm, const void *data, size_t bytes)
{
    enum net_lines lines;

    if (bytes <= WRAP_INLINE_MAX || !may_pack(comm, bytes))
        return NET_CODEC_RAW;
    lines = net_lines_kind(data, bytes);
    if (lines != NET_LINES_NONE)
        return lines == NET_LINES_LL ? NET_CODEC_LL : NET_CODEC_LL128;
    return choose_planes(comm, data, bytes);
}

void wrap_send_begin(struct wrap_comm *comm, struct wrap_request *r)
{
    r->codec = choose(comm, r->data, r->bytes);
    r->frame = r->codec != NET_CODEC_RAW ? wrap_frame_take(comm, net_pack_room(r->bytes)) : -1;
    r->state = WRAP_READY;
    if (r->frame < 0) {
        r->codec = NET_CODEC_RAW;
        return;
    }
    r->state = WRAP_PACKING;
    wrap_job_start(r, pack);
}

/* The job is done: was it worth it? */
static void packed(struct wrap_comm *comm, struct wrap_request *r)
{
    r->state = WRAP_READY;
    if (r->packed != 0)
        return;
    wrap_frame_give(comm, r);
    r->codec = NET_CODEC_RAW;
    comm->planes = NET_CODEC_RAW;
}

/* ---- to the inner net ---- */

static nccl_result_t announce(struct wrap_comm *comm, struct wrap_request *r, uint64_t seq)
{
    uint8_t *const a = wrap_announcement_of(comm, seq);
    const bool is_inline = r->bytes <= WRAP_INLINE_MAX;
    const size_t bytes = WRAP_HEAD_BYTES + (is_inline ? r->bytes : 0);
    nccl_result_t result;

    if (r->codec == NET_CODEC_RAW)
        r->packed = r->bytes;
    dsc_put_u64(a, r->bytes);
    dsc_put_u64(a + 8, r->packed);
    dsc_put_u32(a + 16, (uint32_t)seq);
    dsc_put_u32(a + 20, (uint32_t)r->codec);
    if (is_inline && r->bytes > 0)
        memcpy(a + WRAP_HEAD_BYTES, r->data, r->bytes);
    result = wrap_inner()->isend(comm->inner, a, bytes, r->tag, comm->announcements_mr, NULL,
                                 &r->announcement);
    if (result == NCCL_SUCCESS && r->announcement != NULL)
        r->state = is_inline ? WRAP_POSTED : WRAP_ANNOUNCED;
    return result;
}

static nccl_result_t send_payload(struct wrap_comm *comm, struct wrap_request *r)
{
    const struct wrap_frame *const frame = r->frame >= 0 ? &comm->frames[r->frame] : NULL;
    const nccl_result_t result =
        wrap_inner()->isend(comm->inner, frame != NULL ? frame->bytes : r->data, r->packed, r->tag,
                            frame != NULL ? frame->mr : r->mr, NULL, &r->payload);

    if (result == NCCL_SUCCESS && r->payload != NULL)
        r->state = WRAP_POSTED;
    return result;
}

/* In order; stops at the first that must wait. */
nccl_result_t wrap_send_progress(struct wrap_comm *comm)
{
    nccl_result_t result = NCCL_SUCCESS;

    while (result == NCCL_SUCCESS && comm->announced_seq < comm->next_seq) {
        struct wrap_request *const r = wrap_request_of(comm, comm->announced_seq);

        if (r->state == WRAP_PACKING) {
            if (!atomic_load_explicit(&r->job.is_done, memory_order_acquire))
                return NCCL_SUCCESS;
            packed(comm, r);
        }
        if (r->state == WRAP_READY)
            result = announce(comm, r, comm->announced_seq);
        if (result == NCCL_SUCCESS && r->state == WRAP_ANNOUNCED)
            result = send_payload(comm, r);
        if (r->state != WRAP_POSTED)
            return result;
        comm->announced_seq++;
    }
    return result;
}

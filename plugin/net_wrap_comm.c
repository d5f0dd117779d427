/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of the wrapping net: its frames, its jobs, from its making to its end. */
#include <string.h>

#include "net_wrap.h"

static void frame_free(struct wrap_comm *comm, struct wrap_frame *frame)
{
    if (frame->bytes != NULL)
        (void)wrap_inner()->dereg_mr(comm->inner, frame->mr);
    dsc_free(frame->bytes);
    *frame = (struct wrap_frame){ 0 };
}

/* Grows until the longest message has come; then nothing is allocated any more. */
static bool frame_reserve(struct wrap_comm *comm, struct wrap_frame *frame, size_t room)
{
    if (frame->room >= room)
        return true;
    frame_free(comm, frame);
    frame->bytes = dsc_calloc(DSC_MEM_TRANSPORT, 1, room);
    if (frame->bytes == NULL)
        return false;
    if (wrap_inner()->reg_mr(comm->inner, frame->bytes, room, NCCL_PTR_HOST, &frame->mr) !=
        NCCL_SUCCESS) {
        dsc_free(frame->bytes);
        frame->bytes = NULL;
        return false;
    }
    frame->room = room;
    return true;
}

int wrap_frame_take(struct wrap_comm *comm, size_t room)
{
    for (int i = 0; i < WRAP_FRAMES; i++) {
        if (comm->frames[i].used)
            continue;
        if (!frame_reserve(comm, &comm->frames[i], room))
            return -1;
        comm->frames[i].used = true;
        return i;
    }
    return -1;
}

void wrap_frame_give(struct wrap_comm *comm, struct wrap_request *request)
{
    if (request->frame >= 0)
        comm->frames[request->frame].used = false;
    request->frame = -1;
}

void wrap_job_start(struct wrap_request *request, void (*run)(struct net_job *job))
{
    const bool is_lines = request->codec == NET_CODEC_LL || request->codec == NET_CODEC_LL128;

    request->job.run = run;
    if (!is_lines || request->bytes > WRAP_AT_ONCE_MAX) {
        net_workers_submit(&request->job);
        return;
    }
    run(&request->job);
    atomic_store_explicit(&request->job.is_done, true, memory_order_release);
}

nccl_result_t wrap_comm_make(void *inner_comm, bool sends, void **comm_out)
{
    struct wrap_comm *const comm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*comm));
    const struct dsc_env *env;
    nccl_result_t result = NCCL_SYSTEM_ERROR;

    if (comm != NULL && dsc_env_get(&env) >= 0) {
        comm->inner = inner_comm;
        comm->sends = sends;
        /* A receiver unpacks whatever the sender's setting is. */
        comm->has_workers = (!sends || strcmp(env->net_compress, "off") != 0) &&
                            net_workers_acquire((int)env->net_threads);
        if (sends || comm->has_workers)
            result =
                wrap_inner()->reg_mr(inner_comm, comm->announcements, sizeof(comm->announcements),
                                     NCCL_PTR_HOST, &comm->announcements_mr);
    }
    if (result == NCCL_SUCCESS) {
        *comm_out = comm;
        return result;
    }
    if (comm != NULL && comm->has_workers)
        net_workers_release();
    dsc_free(comm);
    (void)(sends ? wrap_inner()->close_send : wrap_inner()->close_recv)(inner_comm);
    return result;
}

/* Jobs are short, and they read and write the caller's memory: none outlives this. */
static void wait_for_jobs(struct wrap_comm *comm)
{
    for (int i = 0; i < NCCL_REQUESTS_MAX; i++) {
        struct wrap_request *const r = &comm->requests[i];

        while (r->used && (r->state == WRAP_PACKING || r->state == WRAP_UNPACKING) &&
               !atomic_load_explicit(&r->job.is_done, memory_order_acquire))
            dsc_cpu_relax();
    }
}

nccl_result_t wrap_close(void *comm)
{
    struct wrap_comm *const c = comm;

    wait_for_jobs(c);
    wrap_meter_write(c);
    for (int i = 0; i < WRAP_FRAMES; i++)
        frame_free(c, &c->frames[i]);
    (void)wrap_inner()->dereg_mr(c->inner, c->announcements_mr);
    (void)(c->sends ? wrap_inner()->close_send : wrap_inner()->close_recv)(c->inner);
    if (c->has_workers)
        net_workers_release();
    dsc_free(c);
    return NCCL_SUCCESS;
}

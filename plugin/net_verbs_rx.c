/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: a credit per receive, in order; what came in a frame is published from there. */
#include <string.h>

#include "net_lines.h"
#include "net_verbs.h"
#include "transport/bytes.h"

/* ---- frames ---- */

static void frame_free(struct verbs_comm *comm, struct verbs_frame *frame)
{
    if (frame->region != NULL)
        verbs_region_give(comm->device, frame->region);
    dsc_free(frame->bytes);
    *frame = (struct verbs_frame){ 0 };
}

void verbs_frames_free(struct verbs_comm *comm)
{
    for (int i = 0; i < VERBS_FRAMES; i++)
        frame_free(comm, &comm->frames[i]);
}

/* Grows until the longest message has come; then nothing is allocated any more. */
static nccl_result_t frame_reserve(struct verbs_comm *comm, struct verbs_frame *frame, size_t room)
{
    if (frame->room >= room)
        return NCCL_SUCCESS;
    frame_free(comm, frame);
    frame->bytes = dsc_calloc(DSC_MEM_TRANSPORT, 1, room);
    if (frame->bytes != NULL)
        frame->region = verbs_region_take(comm->device, frame->bytes, room, false, -1, 0);
    if (frame->region == NULL) {
        frame_free(comm, frame);
        return verbs_fail(comm, NCCL_SYSTEM_ERROR, "no memory for %zu bytes of lines", room);
    }
    frame->room = room;
    return NCCL_SUCCESS;
}

/* *waits: all are in use. */
static nccl_result_t frame_take(struct verbs_comm *comm, struct verbs_request *r, bool is_asked,
                                size_t room, bool *waits)
{
    const int last = VERBS_FRAMES - 1;
    int i = is_asked ? last : 0;

    *waits = false;
    while (i < last && comm->frames[i].used)
        i++;
    *waits = is_asked ? comm->frames[last].used : i == last;
    if (*waits)
        return NCCL_SUCCESS;
    if (frame_reserve(comm, &comm->frames[i], room) != NCCL_SUCCESS)
        return comm->failed;
    comm->frames[i].used = true;
    r->frame = i;
    return NCCL_SUCCESS;
}

/* ---- the inbox ---- */

static uint8_t *place_of(const struct verbs_comm *comm, uint32_t number)
{
    return comm->memory + VERBS_PAGE_BYTES + number % VERBS_PLACES * VERBS_SHORT_MAX;
}

static nccl_result_t too_long(struct verbs_comm *comm, size_t bytes, size_t room)
{
    return verbs_fail(comm, NCCL_INVALID_USAGE,
                      "it sent message %llu of %zu bytes, but only %zu bytes are to be received",
                      (unsigned long long)comm->come_seq, bytes, room);
}

/* What waits in the inbox goes to the receives that there are. */
static nccl_result_t empty_inbox(struct verbs_comm *comm)
{
    while (comm->n_read != comm->n_put && comm->come_seq < comm->next_seq) {
        struct verbs_request *const r = verbs_request_of(comm, comm->come_seq);
        const size_t bytes = comm->inbox_bytes[comm->n_read % VERBS_PLACES];

        if (bytes > r->bytes)
            return too_long(comm, bytes, r->bytes);
        if (r->frame >= 0)
            comm->frames[r->frame].used = false;
        r->frame = -1;
        net_lines_publish(r->data, place_of(comm, comm->n_read), bytes);
        r->bytes = bytes;
        r->done = true;
        comm->n_read++;
        comm->come_seq++;
        if (comm->at_seq < comm->come_seq)
            comm->at_seq = comm->come_seq; /* it needs no credit any more */
    }
    return NCCL_SUCCESS;
}

static nccl_result_t take_short(struct verbs_comm *comm, size_t bytes)
{
    if (bytes > VERBS_SHORT_MAX || comm->n_put - comm->n_read >= VERBS_PLACES)
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "a short message of %zu bytes makes no sense",
                          bytes);
    comm->inbox_bytes[comm->n_put++ % VERBS_PLACES] = (uint16_t)bytes;
    comm->n_short++;
    return empty_inbox(comm);
}

/* ---- credits ---- */

static nccl_result_t post_credit(struct verbs_comm *comm, const struct verbs_request *r,
                                 uint64_t seq)
{
    const struct verbs_frame *const frame = r->frame >= 0 ? &comm->frames[r->frame] : NULL;
    const struct verbs_region *const region = frame != NULL ? frame->region : r->mr->region;
    const bool is_ordered = frame != NULL || region->is_gpu;
    /* a credit and the answer to one who asks may both be on their way */
    uint8_t *const credit =
        comm->memory +
        (seq % NCCL_REQUESTS_MAX * 2 + (r->frame == VERBS_FRAMES - 1 ? 1 : 0)) * VERBS_CREDIT_BYTES;
    struct ibv_send_wr request = {
        .wr_id = VERBS_ID_OTHER,
        .opcode = IBV_WR_SEND,
        .send_flags = VERBS_CREDIT_BYTES <= comm->max_inline ? IBV_SEND_INLINE : 0,
    };

    memset(credit, 0, VERBS_CREDIT_BYTES);
    dsc_put_u32(credit, (uint32_t)seq);
    dsc_put_u32(credit + 4, is_ordered ? VERBS_CREDIT_ORDERED : 0);
    dsc_put_u64(credit + 8, (uint64_t)(uintptr_t)(frame != NULL ? frame->bytes : r->data));
    dsc_put_u64(credit + 16, frame != NULL ? dsc_min_size(frame->room, r->bytes) : r->bytes);
    dsc_put_u32(credit + 24, region->mr->rkey);
    dsc_put_u32(credit + 28, comm->n_read);
    comm->n_told = comm->n_read;
    return verbs_post(comm, &request, credit, VERBS_CREDIT_BYTES, comm->memory_mr);
}

/* Places of the inbox are free, and there was no credit to tell it. */
static nccl_result_t tell_read(struct verbs_comm *comm)
{
    uint8_t *const note = comm->memory + VERBS_NOTE_AT;
    struct ibv_send_wr request = {
        .wr_id = VERBS_ID_OTHER,
        .opcode = IBV_WR_SEND,
        .send_flags = VERBS_CREDIT_BYTES <= comm->max_inline ? IBV_SEND_INLINE : 0,
    };

    memset(note, 0, VERBS_CREDIT_BYTES);
    dsc_put_u32(note + 4, VERBS_CREDIT_NONE);
    dsc_put_u32(note + 28, comm->n_read);
    comm->n_told = comm->n_read;
    return verbs_post(comm, &request, note, VERBS_CREDIT_BYTES, comm->memory_mr);
}

/* The oldest receive without a credit. */
static nccl_result_t post_next(struct verbs_comm *comm, bool *waits)
{
    struct verbs_request *const r = verbs_request_of(comm, comm->at_seq);
    const bool expects_lines =
        (r->is_lines || atomic_load_explicit(&r->mr->gets_lines, memory_order_relaxed)) &&
        r->bytes > 0 && r->bytes <= VERBS_FRAME_UNASKED_MAX && !r->mr->region->is_gpu;
    nccl_result_t result = NCCL_SUCCESS;

    *waits = false;
    if (expects_lines)
        result = frame_take(comm, r, false, r->bytes, waits);
    if (result == NCCL_SUCCESS && !*waits)
        result = post_credit(comm, r, comm->at_seq);
    comm->at_seq += result == NCCL_SUCCESS && !*waits;
    return result;
}

/* ---- messages ---- */

/* The oldest message is of lines, and its credit is not for these. */
static nccl_result_t answer(struct verbs_comm *comm, struct verbs_request *r, size_t bytes)
{
    nccl_result_t result = NCCL_SUCCESS;
    bool waits = r->frame >= 0;

    if (!waits)
        result = frame_take(comm, r, true, bytes, &waits);
    if (result == NCCL_SUCCESS && waits)
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "the peer asks twice for a frame");
    return result == NCCL_SUCCESS ? post_credit(comm, r, comm->come_seq) : result;
}

static void publish(struct verbs_comm *comm, struct verbs_request *r, size_t bytes)
{
    struct verbs_frame *const frame = &comm->frames[r->frame];
    const bool were_lines = net_lines_kind(frame->bytes, bytes) != NET_LINES_NONE;

    net_lines_publish(r->data, frame->bytes, bytes);
    frame->used = false;
    r->frame = -1;
    atomic_store_explicit(&r->mr->gets_lines, were_lines, memory_order_relaxed);
}

/* The oldest receive's, all of it is where its credit said. */
static nccl_result_t take_message(struct verbs_comm *comm, size_t bytes, bool asks)
{
    struct verbs_request *const r = verbs_request_of(comm, comm->come_seq);

    if (comm->come_seq >= comm->at_seq || comm->n_read != comm->n_put)
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "message %llu came that nobody receives",
                          (unsigned long long)comm->come_seq);
    if (bytes > r->bytes || (r->frame >= 0 && bytes > comm->frames[r->frame].room))
        return too_long(comm, bytes, r->bytes);
    if (asks)
        return answer(comm, r, bytes);
    if (r->frame >= 0)
        publish(comm, r, bytes);
    r->bytes = bytes;
    r->done = true;
    comm->n_short = 0;
    comm->come_seq++;
    return NCCL_SUCCESS;
}

nccl_result_t verbs_take_arrival(struct verbs_comm *comm, uint32_t immediate)
{
    const uint32_t kind = immediate & VERBS_KINDS;

    if (immediate == VERBS_ASKS_CREDIT) {
        comm->n_short = 0;
        return NCCL_SUCCESS;
    }
    if (kind == VERBS_SHORT)
        return take_short(comm, immediate & ~VERBS_KINDS);
    if (kind == VERBS_ASKS_FRAME)
        return take_message(comm, immediate & ~VERBS_KINDS, true);
    return take_message(comm, immediate, false);
}

static nccl_result_t offer(struct verbs_comm *comm, bool *waits)
{
    const bool is_told = comm->n_read - comm->n_told < VERBS_PLACES * 3 / 4;
    const bool offers = comm->at_seq < comm->next_seq && comm->n_short < VERBS_SHORTS_IN_A_ROW;
    bool may;
    nccl_result_t result;

    *waits = true;
    if (is_told && !offers)
        return NCCL_SUCCESS;
    result = verbs_may_post(comm, &may);
    if (result != NCCL_SUCCESS || !may)
        return result;
    if (offers)
        return post_next(comm, waits);
    return tell_read(comm);
}

nccl_result_t verbs_recv_offers(struct verbs_comm *comm)
{
    nccl_result_t result = empty_inbox(comm);
    bool waits = false;

    while (result == NCCL_SUCCESS && !waits)
        result = offer(comm, &waits);
    return result;
}

nccl_result_t verbs_recv_progress(struct verbs_comm *comm)
{
    nccl_result_t result = verbs_poll(comm);

    if (result == NCCL_SUCCESS)
        result = verbs_recv_offers(comm);
    if (result == NCCL_SUCCESS && comm->peer_left && comm->come_seq < comm->next_seq)
        result = verbs_fail(comm, NCCL_REMOTE_ERROR,
                            "it has closed the connection before it sent message %llu",
                            (unsigned long long)comm->come_seq);
    return result;
}

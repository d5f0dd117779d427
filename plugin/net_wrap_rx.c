/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: announcements one after another, payloads to the caller or to a frame, then unpacked.
 */
#include "net_lines.h"
#include "net_wrap.h"
#include "transport/bytes.h"

static void unpack(struct net_job *job)
{
    struct wrap_request *const r = (struct wrap_request *)(void *)job;

    r->wrong = net_unpack(r->data, r->bytes, r->comm->frames[r->frame].bytes, r->packed, r->codec);
}

static nccl_result_t inner_recv(struct wrap_comm *comm, void *data, size_t bytes, void *mr, int tag,
                                void *mark, void **request)
{
    void *profiler = NULL;

    *request = mark;
    return wrap_inner()->irecv(comm->inner, 1, &data, &bytes, &tag, &mr, &profiler, request);
}

static nccl_result_t inner_test(void **request, int *bytes)
{
    int done = 0, sizes[64] = { 0 };
    const nccl_result_t result = wrap_inner()->test(*request, &done, sizes);

    if (done) {
        *request = NULL;
        *bytes = sizes[0];
    }
    return result;
}

static nccl_result_t take_announcement(struct wrap_comm *comm, struct wrap_request *r, int came)
{
    const uint8_t *const a = wrap_announcement_of(comm, comm->announced_seq);
    const uint64_t bytes = came >= WRAP_HEAD_BYTES ? dsc_get_u64(a) : 0;
    const uint64_t packed = came >= WRAP_HEAD_BYTES ? dsc_get_u64(a + 8) : 0;
    const bool is_inline = bytes <= WRAP_INLINE_MAX;

    if (came < WRAP_HEAD_BYTES || dsc_get_u32(a + 16) != (uint32_t)comm->announced_seq ||
        dsc_get_u32(a + 20) >= NET_CODECS || packed > net_pack_room(bytes) ||
        (size_t)came != WRAP_HEAD_BYTES + (is_inline ? bytes : 0))
        return wrap_fail(comm, NCCL_REMOTE_ERROR,
                         "an announcement makes no sense; is "
                         "DSCOMM_NET_COMPRESS or DSCOMM_NET_INNER set on "
                         "one side only?");
    if (bytes > r->bytes)
        return wrap_fail(comm, NCCL_INVALID_USAGE,
                         "a message of %llu bytes came, but only %zu bytes are to be received",
                         (unsigned long long)bytes, r->bytes);
    r->bytes = bytes;
    r->packed = packed;
    r->codec = (enum net_codec)dsc_get_u32(a + 20);
    if (is_inline ? r->codec != NET_CODEC_RAW || packed != bytes
                  : r->codec == NET_CODEC_RAW && packed != bytes)
        return wrap_fail(comm, NCCL_REMOTE_ERROR, "an announcement contradicts itself");
    r->state = is_inline ? WRAP_DONE : WRAP_ANNOUNCED;
    if (is_inline)
        net_lines_publish(r->data, a + WRAP_HEAD_BYTES, bytes);
    return NCCL_SUCCESS;
}

static nccl_result_t receive_announcement(struct wrap_comm *comm, struct wrap_request *r)
{
    nccl_result_t result = NCCL_SUCCESS;
    int came = -1;

    if (r->announcement == NULL)
        result = inner_recv(comm, wrap_announcement_of(comm, comm->announced_seq),
                            WRAP_HEAD_BYTES + WRAP_INLINE_MAX, comm->announcements_mr, r->tag, NULL,
                            &r->announcement);
    if (result == NCCL_SUCCESS && r->announcement != NULL)
        result = inner_test(&r->announcement, &came);
    return result == NCCL_SUCCESS && came >= 0 ? take_announcement(comm, r, came) : result;
}

/* The next inner message is the payload: its receive comes before that of an announcement. */
static nccl_result_t post_payload(struct wrap_comm *comm, struct wrap_request *r)
{
    nccl_result_t result;

    if (r->codec != NET_CODEC_RAW && r->frame < 0)
        r->frame = wrap_frame_take(comm, r->packed);
    if (r->codec != NET_CODEC_RAW && r->frame < 0)
        return NCCL_SUCCESS;
    result = r->frame >= 0
                 ? inner_recv(comm, comm->frames[r->frame].bytes, r->packed,
                              comm->frames[r->frame].mr, r->tag, NULL, &r->payload)
                 : inner_recv(comm, r->data, r->bytes, r->mr, r->tag, r->mark, &r->payload);
    if (result == NCCL_SUCCESS && r->payload != NULL)
        r->state = WRAP_POSTED;
    return result;
}

/* Payloads that are on their way, or with a worker. */
static nccl_result_t move_payload(struct wrap_comm *comm, struct wrap_request *r)
{
    int came = -1;

    if (r->state == WRAP_POSTED) {
        const nccl_result_t result = inner_test(&r->payload, &came);

        if (result != NCCL_SUCCESS || came < 0)
            return result;
        if ((size_t)came != dsc_min_size(r->packed, INT32_MAX))
            return wrap_fail(comm, NCCL_REMOTE_ERROR, "%d bytes came, %zu were announced", came,
                             r->packed);
        r->state = r->codec != NET_CODEC_RAW ? WRAP_UNPACKING : WRAP_DONE;
        if (r->state == WRAP_UNPACKING)
            wrap_job_start(r, unpack);
    }
    if (r->state == WRAP_UNPACKING && atomic_load_explicit(&r->job.is_done, memory_order_acquire)) {
        wrap_frame_give(comm, r);
        if (r->wrong != NULL)
            return wrap_fail(comm, NCCL_REMOTE_ERROR, "the packed bytes are damaged: %s", r->wrong);
        r->state = WRAP_DONE;
    }
    return NCCL_SUCCESS;
}

nccl_result_t wrap_recv_progress(struct wrap_comm *comm)
{
    const uint64_t oldest =
        comm->next_seq > NCCL_REQUESTS_MAX ? comm->next_seq - NCCL_REQUESTS_MAX : 0;
    nccl_result_t result = NCCL_SUCCESS;

    for (uint64_t seq = oldest; seq < comm->announced_seq && result == NCCL_SUCCESS; seq++)
        if (wrap_request_of(comm, seq)->used)
            result = move_payload(comm, wrap_request_of(comm, seq));
    while (result == NCCL_SUCCESS && comm->announced_seq < comm->next_seq) {
        struct wrap_request *const r = wrap_request_of(comm, comm->announced_seq);

        if (r->state == WRAP_READY)
            result = receive_announcement(comm, r);
        if (result == NCCL_SUCCESS && r->state == WRAP_ANNOUNCED)
            result = post_payload(comm, r);
        if (r->state != WRAP_POSTED && r->state != WRAP_DONE)
            return result;
        comm->announced_seq++;
    }
    return result;
}

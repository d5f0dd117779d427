/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: a message's bytes go straight to the caller's memory; the same call takes the
 * beginning of what follows into the socket's buffer, so that a header costs no call of its own and
 * a small message costs one in all. Lines go through the buffer and are published in order.
 */
#include "net_tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "net_lines.h"
#include "net_tcp_rx.h"
#include "transport/bytes.h"

/* Makes room behind what the buffer holds. */
static void compact(struct tcp_sock *sock)
{
    if (sock->begin == sock->end)
        sock->begin = sock->end = 0;
    if (sock->begin == 0)
        return;
    memmove(sock->buf, sock->buf + sock->begin, sock->end - sock->begin);
    sock->end -= sock->begin;
    sock->begin = 0;
}

/* Reads to dst (may be empty) and then to the buffer, of which at most `ahead` bytes. */
static nccl_result_t read_socket(struct tcp_comm *comm, struct tcp_sock *sock, uint8_t *dst,
                                 size_t bytes, size_t ahead, size_t *moved_out)
{
    struct iovec iov[2];
    struct msghdr msg = { .msg_iov = bytes > 0 ? iov : iov + 1, .msg_iovlen = bytes > 0 ? 2 : 1 };
    ssize_t moved;

    compact(sock);
    iov[0] = (struct iovec){ dst, bytes };
    iov[1] = (struct iovec){ sock->buf + sock->end, dsc_min_size(ahead, RX_BUF_BYTES - sock->end) };
    *moved_out = 0;
    moved = recvmsg(sock->fd, &msg, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return NCCL_SUCCESS;
    if (moved <= 0)
        return tcp_fail_socket(comm, moved, errno);
    if ((size_t)moved > bytes)
        sock->end += (size_t)moved - bytes;
    *moved_out = (size_t)moved;
    return NCCL_SUCCESS;
}

static nccl_result_t take_header(struct tcp_comm *comm, struct tcp_sock *sock,
                                 struct tcp_request *request)
{
    const uint8_t *const header = sock->buf + sock->begin;
    const uint64_t bytes = dsc_get_u64(header);
    const uint32_t seq = dsc_get_u32(header + 8);
    const uint32_t flags = header[12];
    const int stripes = header[13];

    if (seq != (uint32_t)sock->at.seq || (flags & ~TCP_FLAG_LINES) != 0 || stripes < 1 ||
        stripes > comm->n_socks)
        return tcp_fail(comm, NCCL_REMOTE_ERROR, "sent a header that makes no sense");
    if (bytes > request->bytes)
        return tcp_fail(comm, NCCL_INVALID_USAGE,
                        "sent message %llu of %llu bytes, but only %zu bytes are to be received",
                        (unsigned long long)sock->at.seq, (unsigned long long)bytes,
                        request->bytes);
    sock->begin += TCP_HEADER_BYTES;
    sock->at.done = TCP_HEADER_BYTES;
    request->bytes = bytes;
    request->left = bytes;
    request->stripes = stripes;
    request->started = true;
    request->ordered = request->ordered || (flags & TCP_FLAG_LINES) != 0;
    return NCCL_SUCCESS;
}

/* From the buffer; lines whole, but for a message's end. Returns how many bytes. */
static size_t take_buffered(struct tcp_sock *sock, const struct tcp_request *request, size_t offset,
                            size_t left)
{
    size_t n = dsc_min_size(left, sock->end - sock->begin);

    if (request->ordered) {
        if (n < left)
            n -= n % NET_LL128_BYTES;
        net_lines_publish(request->data + offset, sock->buf + sock->begin, n);
    } else if (n > 0) {
        memcpy(request->data + offset, sock->buf + sock->begin, n);
    }
    sock->begin += n;
    return n;
}

/* Moves once. *moved: bytes that reached the message. *waits: the socket has no more. */
static nccl_result_t receive_part(struct tcp_comm *comm, struct tcp_sock *sock,
                                  struct tcp_request *request, const struct tcp_part *part,
                                  bool *waits)
{
    const size_t body_done = sock->at.done - part->header;
    const size_t left = part->bytes - body_done;
    const size_t buffered = take_buffered(sock, request, part->offset + body_done, left);
    const size_t to_memory = request->ordered ? 0 : left - buffered;
    const size_t ahead = request->ordered ? RX_BUF_BYTES : RX_AHEAD_BYTES;
    size_t n = 0;

    *waits = false;
    if (buffered < left) {
        const nccl_result_t result = read_socket(
            comm, sock, request->data + part->offset + body_done + buffered, to_memory, ahead, &n);

        if (result != NCCL_SUCCESS)
            return result;
        *waits = n == 0;
        n = dsc_min_size(n, to_memory);
    }
    sock->at.done += buffered + n;
    request->left -= buffered + n;
    return NCCL_SUCCESS;
}

/* The header of the message that this socket is at. *waits: it has not come. */
static nccl_result_t receive_header(struct tcp_comm *comm, struct tcp_sock *sock,
                                    struct tcp_request *request, bool *waits)
{
    size_t n;

    *waits = false;
    if (sock->end - sock->begin < TCP_HEADER_BYTES) {
        const nccl_result_t result = read_socket(comm, sock, NULL, 0, RX_AHEAD_BYTES, &n);

        if (result != NCCL_SUCCESS)
            return result;
        if (sock->end - sock->begin < TCP_HEADER_BYTES) {
            *waits = true;
            return NCCL_SUCCESS;
        }
    }
    return take_header(comm, sock, request);
}

/* All that the socket has, of messages that are wanted. */
static nccl_result_t receive_socket(struct tcp_comm *comm, int index, bool *moved)
{
    struct tcp_sock *const sock = &comm->socks[index];
    bool waits = false;

    while (!waits && sock->at.seq < comm->next_seq) {
        struct tcp_request *const request = tcp_request_of(comm, sock->at.seq);
        const bool has_header = sock->at.seq % (uint64_t)comm->n_socks == (uint64_t)index;
        nccl_result_t result = NCCL_SUCCESS;

        if (!request->started && !has_header)
            return NCCL_SUCCESS; /* how much is for this socket is not known yet */
        if (!request->started) {
            result = receive_header(comm, sock, request, &waits);
            *moved = *moved || !waits;
        } else {
            const struct tcp_part part = tcp_part_of(comm, index, sock->at.seq, request);

            if (sock->at.done < part.header + part.bytes)
                result = receive_part(comm, sock, request, &part, &waits);
            if (sock->at.done == part.header + part.bytes)
                sock->at = (struct tcp_cursor){ .seq = sock->at.seq + 1 };
        }
        if (result != NCCL_SUCCESS)
            return result;
    }
    return NCCL_SUCCESS;
}

nccl_result_t tcp_recv_progress(struct tcp_comm *comm)
{
    bool headers = true;

    /* A header on one socket lets others go on. */
    while (headers) {
        headers = false;
        for (int i = 0; i < comm->n_socks; i++) {
            const nccl_result_t result = receive_socket(comm, i, &headers);

            if (result != NCCL_SUCCESS)
                return result;
        }
        headers = headers && comm->n_socks > 1;
    }
    return NCCL_SUCCESS;
}

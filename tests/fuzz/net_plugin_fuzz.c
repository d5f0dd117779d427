/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes at the net plugin for NCCL: from strangers at its listener, from peers that have
 * the key, behind a listener that it connects to, in handles and in packed messages. What must
 * hold: nothing crashes or waits without end, no byte outside a receive is written, no descriptor
 * is left, and a peer that comes meanwhile gets every byte.
 *
 *     byte 0: target, 1: FLAG_*, 2: bytes per send, 3: numbers of sockets and receives, the
 *     first room; or the codec
 *     4-: the bytes
 */
#include "fuzz/fuzz_input.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_codec.h"
#include "net_meet.h"
#include "net_tcp.h"
#include "net_wrap.h"
#include "transport/bytes.h"

enum {
    FLAG_CLOSE = 1,  /* the other end closes; else it only shuts its side */
    FLAG_SEAL = 2,   /* sequence numbers, sizes, magic: what is looked at first is right */
    FLAG_TALK = 4,   /* a right message comes first */
    FLAG_POLLED = 8, /* receives: somebody polls their memory */
};

#define PAIR_S 20.0 /* for what must happen */
#define STEPS 60    /* of both ends, for what may not */
#define SOCKS 4
#define RECEIVES 8
#define ROOM_MAX 70000

static char said[512]; /* the last warning */

#define REQUIRE(cond)                                                                           \
    do {                                                                                        \
        if (!(cond)) {                                                                          \
            (void)fprintf(stderr, "net_plugin_fuzz: line %d: %s: %s\n", __LINE__, #cond, said); \
            abort();                                                                            \
        }                                                                                       \
    } while (0)

static void keep_line(int level, unsigned long subsystems, const char *file, int line,
                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void keep_line(int level, unsigned long subsystems, const char *file, int line,
                      const char *fmt, ...)
{
    va_list args;

    (void)level, (void)subsystems, (void)file, (void)line;
    va_start(args, fmt);
    (void)vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
}

static bool is_over(uint64_t begin_ns)
{
    return dsc_now_ns() - begin_ns > (uint64_t)(PAIR_S * 1e9);
}

/* ---- the plugin's listener ---- */

struct listening {
    const struct nccl_net_v12 *net;
    uint8_t handle[NCCL_HANDLE_BYTES];
    void *comm;
    union dsc_addr addr;
};

static void listen_open(struct listening *l, const struct nccl_net_v12 *net)
{
    *l = (struct listening){ .net = net };
    REQUIRE(net->listen(NULL, 0, l->handle, &l->comm) == NCCL_SUCCESS);
    REQUIRE(dsc_addr_decode(l->handle + NET_HANDLE_ADDR_AT, &l->addr));
}

static int connect_to(const union dsc_addr *addr)
{
    int fd;

    REQUIRE(dsc_socket_create(addr->any.sa_family, &fd) == DSCOMM_OK);
    REQUIRE(connect(fd, &addr->any, dsc_addr_len(addr)) == 0 || errno == EINPROGRESS);
    return fd;
}

static void send_some(int fd, const uint8_t *data, size_t n)
{
    if (n > 0)
        (void)!send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* All bytes, piece by piece, to the sockets by turns, from number `first` on. */
static void speak(const struct input *in, const int *fds, int n_fds, size_t first)
{
    const size_t piece = (size_t)in->piece + 1;

    for (size_t at = 0, k = first; at < in->size; at += piece, k++)
        send_some(fds[k % (size_t)n_fds], in->data + at, dsc_min_size(piece, in->size - at));
}

static void hang_up(const struct input *in, int *fds, int n_fds)
{
    for (int i = 0; i < n_fds; i++) {
        if ((in->flags & FLAG_CLOSE) == 0) {
            (void)shutdown(fds[i], SHUT_WR);
            continue;
        }
        close(fds[i]);
        fds[i] = -1;
    }
}

static void close_all(const int *fds, int n_fds)
{
    for (int i = 0; i < n_fds; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

/* ---- strangers, while a right pair meets ---- */

static void pass_message(const struct nccl_net_v12 *net, void *send, void *recv)
{
    uint8_t out[1000], in[1000] = { 0 };
    void *in_data = in, *sent = NULL, *received = NULL, *send_mr, *recv_mr;
    size_t in_bytes = sizeof(in);
    int tag = 0, sent_done = 0, received_done = 0, bytes = 0;
    const uint64_t begin = dsc_now_ns();

    randombytes_buf(out, sizeof(out));
    REQUIRE(net->reg_mr(send, out, sizeof(out), NCCL_PTR_HOST, &send_mr) == NCCL_SUCCESS);
    REQUIRE(net->reg_mr(recv, in, sizeof(in), NCCL_PTR_HOST, &recv_mr) == NCCL_SUCCESS);
    REQUIRE(net->irecv(recv, 1, &in_data, &in_bytes, &tag, &recv_mr, NULL, &received) ==
            NCCL_SUCCESS);
    REQUIRE(net->isend(send, out, sizeof(out), 0, send_mr, NULL, &sent) == NCCL_SUCCESS);
    while (!sent_done || !received_done) {
        REQUIRE(sent_done || net->test(sent, &sent_done, NULL) == NCCL_SUCCESS);
        REQUIRE(received_done || net->test(received, &received_done, &bytes) == NCCL_SUCCESS);
        REQUIRE(!is_over(begin));
    }
    REQUIRE(bytes == sizeof(out) && memcmp(out, in, sizeof(out)) == 0);
    (void)net->dereg_mr(send, send_mr);
    (void)net->dereg_mr(recv, recv_mr);
}

static void run_stranger(const struct input *in)
{
    const struct nccl_net_v12 *const net = (in->flags & FLAG_SEAL) != 0 ? &net_wrap : &net_tcp;
    const int n = 1 + in->number % SOCKS;
    struct nccl_device_handle *device = NULL;
    void *send = NULL, *recv = NULL;
    struct listening l;
    int fds[SOCKS];
    const uint64_t begin = dsc_now_ns();

    listen_open(&l, net);
    for (int i = 0; i < n; i++)
        fds[i] = connect_to(&l.addr);
    speak(in, fds, n, 0);
    if ((in->flags & FLAG_TALK) != 0)
        hang_up(in, fds, n);
    while (send == NULL || recv == NULL) {
        REQUIRE(send != NULL || net->connect(NULL, 0, l.handle, &send, &device) == NCCL_SUCCESS);
        REQUIRE(recv != NULL || net->accept(l.comm, &recv, &device) == NCCL_SUCCESS);
        REQUIRE(!is_over(begin));
    }
    pass_message(net, send, recv);
    (void)net->close_send(send);
    (void)net->close_recv(recv);
    (void)net->close_listen(l.comm);
    close_all(fds, n);
}

/* ---- peers that have the key ---- */

struct insider {
    int n;
    int fds[SOCKS];
    struct dsc_handshake *hs[SOCKS];
};

static void insider_open(struct insider *s, const struct listening *l,
                         const struct dsc_hello *hello, int n)
{
    *s = (struct insider){ .n = n };
    for (int i = 0; i < n; i++) {
        s->fds[i] = connect_to(&l->addr);
        REQUIRE(dsc_handshake_create(s->fds[i], false, l->handle + NET_HANDLE_KEY_AT, &hello[i],
                                     dsc_deadline_ns((int)PAIR_S * 1000), &s->hs[i]) == DSCOMM_OK);
    }
}

/* Both ends by turns. */
static nccl_result_t insider_meet(struct insider *s, const struct listening *l, void **recv)
{
    struct nccl_device_handle *device = NULL;
    nccl_result_t result = NCCL_SUCCESS;

    for (int step = 0; step < STEPS && result == NCCL_SUCCESS && *recv == NULL; step++) {
        for (int i = 0; i < s->n; i++)
            (void)dsc_handshake_step(s->hs[i]);
        result = l->net->accept(l->comm, recv, &device);
    }
    return result;
}

/* The handshakes end; the sockets stay. */
static void insider_take(struct insider *s)
{
    for (int i = 0; i < s->n; i++) {
        const uint64_t begin = dsc_now_ns();

        while (dsc_handshake_step(s->hs[i]) == DSCOMM_IN_PROGRESS)
            REQUIRE(!is_over(begin));
        s->fds[i] = dsc_handshake_take_fd(s->hs[i]);
        dsc_handshake_destroy(s->hs[i]);
    }
}

/* A hello with bytes of the input in place of what is right; accept() is called on and on. */
static void run_hello(const struct input *in)
{
    const int n = 1 + in->number % SOCKS;
    struct dsc_hello hellos[SOCKS];
    struct listening l;
    struct insider s;
    void *recv = NULL;

    listen_open(&l, &net_tcp);
    for (int i = 0; i < n; i++) {
        const size_t size = dsc_min_size(in->size, sizeof(hellos[i]));
        const size_t from = dsc_min_size((size_t)in->piece % sizeof(hellos[i]), size);

        hellos[i] = net_own_hello(&net_tcp_kind, 77, i, n);
        memcpy((uint8_t *)&hellos[i] + from, in->data + from, size - from);
        hellos[i].transport[sizeof(hellos[i].transport) - 1] = '\0';
        hellos[i].detail[sizeof(hellos[i].detail) - 1] = '\0';
    }
    insider_open(&s, &l, hellos, n);
    for (int round = 0; round < 3; round++) {
        (void)insider_meet(&s, &l, &recv);
        if (recv != NULL)
            (void)net_tcp.close_recv(recv);
        recv = NULL;
    }
    for (int i = 0; i < n; i++)
        dsc_handshake_destroy(s.hs[i]);
    (void)net_tcp.close_listen(l.comm);
}

/* ---- what they send ---- */

static const size_t rooms[] = { 0, 1, 15, 16, 127, 128, 129, 1000, 4096, 65537, ROOM_MAX };

struct receives {
    const struct nccl_net_v12 *net;
    void *comm;
    int n;
    uint8_t *data[RECEIVES]; /* exactly as long as its room */
    size_t room[RECEIVES];
    void *mr[RECEIVES], *request[RECEIVES];
};

static void receives_open(struct receives *r, const struct input *in,
                          const struct nccl_net_v12 *net, void *comm)
{
    *r = (struct receives){ .net = net, .comm = comm, .n = 1 + in->number / SOCKS % RECEIVES };
    for (int i = 0; i < r->n; i++) {
        const size_t pick = (size_t)in->number / (SOCKS * RECEIVES) + (size_t)i * 3;
        void *data, *profiler = NULL;
        int tag = 0;

        r->room[i] = rooms[(pick + 4) % DSC_ARRAY_LEN(rooms)];
        data = r->data[i] = malloc(r->room[i] + (r->room[i] == 0));
        REQUIRE(data != NULL);
        REQUIRE(net->reg_mr(comm, data, r->room[i], NCCL_PTR_HOST, &r->mr[i]) == NCCL_SUCCESS);
        r->request[i] = (in->flags & FLAG_POLLED) != 0 ? NCCL_OPTIONAL_COMPLETION : NULL;
        REQUIRE(net->irecv(comm, 1, &data, &r->room[i], &tag, &r->mr[i], &profiler,
                           &r->request[i]) == NCCL_SUCCESS);
    }
}

/* Nothing more comes, so each is done, or fails. */
static void receives_end(struct receives *r)
{
    const uint64_t begin = dsc_now_ns();

    for (int i = 0; i < r->n; i++) {
        nccl_result_t result = NCCL_SUCCESS;
        int done = 0, bytes = 0;

        while (r->request[i] != NULL && !done && result == NCCL_SUCCESS) {
            result = r->net->test(r->request[i], &done, &bytes);
            REQUIRE(!is_over(begin));
        }
        REQUIRE(!done || (bytes >= 0 && (size_t)bytes <= r->room[i]));
    }
}

static void receives_close(struct receives *r)
{
    for (int i = 0; i < r->n; i++)
        (void)r->net->dereg_mr(r->comm, r->mr[i]);
    (void)r->net->close_recv(r->comm);
    for (int i = 0; i < r->n; i++)
        free(r->data[i]);
}

/* A connection of n sockets, of which the other end is raw. */
static void *insider_connect(struct insider *s, const struct listening *l, int n)
{
    struct dsc_hello hellos[SOCKS];
    const uint64_t begin = dsc_now_ns();
    void *recv = NULL;

    for (int i = 0; i < n; i++)
        hellos[i] = net_own_hello(&net_tcp_kind, 77, i, n);
    insider_open(s, l, hellos, n);
    while (recv == NULL) {
        REQUIRE(insider_meet(s, l, &recv) == NCCL_SUCCESS);
        REQUIRE(!is_over(begin));
    }
    insider_take(s);
    return recv;
}

/* A right message of the sockets, by the plugin's own sender. */
static void talk(struct tcp_comm *sender, const uint8_t *data, size_t bytes)
{
    const uint64_t begin = dsc_now_ns();
    void *request = NULL;
    int done = 0;

    REQUIRE(net_tcp.isend(sender, (void *)(uintptr_t)data, bytes, 0, NULL, NULL, &request) ==
            NCCL_SUCCESS);
    while (request != NULL && !done && !is_over(begin)) {
        if (net_tcp.test(request, &done, NULL) != NCCL_SUCCESS)
            return; /* the receiver has had enough */
    }
}

/* Headers whose sequence numbers are right, the rest of them arbitrary. */
static void seal_headers(const struct input *in, uint8_t *bytes)
{
    const size_t piece = (size_t)in->piece + 1;
    uint32_t seq = (in->flags & FLAG_TALK) != 0;

    for (size_t at = 0; at + TCP_HEADER_BYTES <= in->size; at += piece, seq++) {
        dsc_put_u64(bytes + at, dsc_get_u64(bytes + at) % (ROOM_MAX + ROOM_MAX / 4));
        dsc_put_u32(bytes + at + 8, seq);
        bytes[at + 12] &= TCP_FLAG_LINES;
        bytes[at + 13] = (uint8_t)(1 + bytes[at + 13] % SOCKS);
    }
}

static void run_data(const struct input *in)
{
    uint8_t *const bytes = malloc(in->size + 1);
    struct input changed = *in;
    struct listening l;
    struct insider s;
    struct receives r;
    void *recv;

    REQUIRE(bytes != NULL);
    memcpy(bytes, in->data, in->size);
    changed.data = bytes;
    if ((in->flags & FLAG_SEAL) != 0)
        seal_headers(in, bytes);
    listen_open(&l, &net_tcp);
    recv = insider_connect(&s, &l, 1 + in->number % SOCKS);
    receives_open(&r, in, &net_tcp, recv);
    if ((in->flags & FLAG_TALK) != 0) {
        struct tcp_comm *const sender = tcp_open_comm(0, true, s.fds, s.n);

        REQUIRE(sender != NULL);
        talk(sender, bytes, dsc_min_size(in->size, r.room[0]));
        dsc_free(sender); /* the sockets stay */
    }
    speak(&changed, s.fds, s.n, (in->flags & FLAG_TALK) != 0);
    hang_up(in, s.fds, s.n);
    receives_end(&r);
    receives_close(&r);
    close_all(s.fds, s.n);
    (void)net_tcp.close_listen(l.comm);
    free(bytes);
}

/* ---- announcements and packed messages, in right messages of the sockets ---- */

enum form { FORM_ANY, FORM_INLINE, FORM_RAW, FORM_FULL, FORMS };

/* One that fits the piece of n bytes behind it. */
static enum form seal_announcement(uint8_t *a, uint32_t seq, size_t n, size_t room)
{
    const enum form form = (enum form)(a[21] % FORMS);
    const bool is_raw = form == FORM_INLINE || form == FORM_RAW;

    dsc_put_u64(a, is_raw ? n : form == FORM_FULL ? room : dsc_get_u64(a) % (room + room / 4 + 2));
    dsc_put_u64(a + 8, n);
    dsc_put_u32(a + 16, seq);
    dsc_put_u32(a + 20, is_raw ? 0 : a[20] % (NET_CODECS + 1));
    return form;
}

static void send_pieces(const struct input *in, struct tcp_comm *sender, uint8_t *bytes,
                        const struct receives *r)
{
    const size_t head = WRAP_HEAD_BYTES, body = 16 + (size_t)in->piece * 32;
    uint32_t seq = 0;

    for (size_t at = 0; at + head <= in->size && sender->failed == NCCL_SUCCESS; seq++) {
        const size_t n = dsc_min_size(body, in->size - at - head);
        enum form form = FORM_ANY;

        if ((in->flags & FLAG_SEAL) != 0)
            form = seal_announcement(bytes + at, seq, n, r->room[(int)seq % r->n]);
        if (form == FORM_INLINE) {
            talk(sender, bytes + at, head + n);
        } else {
            talk(sender, bytes + at, head);
            talk(sender, bytes + at + head, n);
        }
        at += head + n;
    }
}

static void run_packed(const struct input *in)
{
    uint8_t *const bytes = malloc(in->size + 1);
    struct tcp_comm *sender;
    struct listening l;
    struct insider s;
    struct receives r;
    void *recv;

    REQUIRE(bytes != NULL);
    memcpy(bytes, in->data, in->size);
    listen_open(&l, &net_wrap);
    recv = insider_connect(&s, &l, 1 + in->number % SOCKS);
    receives_open(&r, in, &net_wrap, recv);
    sender = tcp_open_comm(0, true, s.fds, s.n);
    REQUIRE(sender != NULL);
    send_pieces(in, sender, bytes, &r);
    dsc_free(sender);
    hang_up(in, s.fds, s.n);
    receives_end(&r);
    receives_close(&r);
    close_all(s.fds, s.n);
    (void)net_wrap.close_listen(l.comm);
    free(bytes);
}

static void run_unpack(const struct input *in)
{
    const size_t room = (size_t)in->piece * 257 + in->flags;
    uint8_t *const dst = malloc(room + (room == 0)), *const src = malloc(in->size + 1);

    REQUIRE(dst != NULL && src != NULL);
    memcpy(src, in->data, in->size);
    (void)net_unpack(dst, room, src, in->size, (enum net_codec)(in->number % NET_CODECS));
    free(dst);
    free(src);
}

/* ---- behind a listener that the plugin connects to ---- */

/* What comes of an acceptor that has the key or not. */
static void answer(const struct input *in, int fd, const uint8_t *key, struct dsc_handshake **hs)
{
    if ((in->flags & FLAG_SEAL) == 0) {
        speak(in, &fd, 1, 0);
        if ((in->flags & FLAG_TALK) != 0)
            (void)shutdown(fd, SHUT_WR);
        return;
    }
    REQUIRE(dsc_handshake_create(fd, true, key, NULL, dsc_deadline_ns((int)PAIR_S * 1000), hs) ==
            DSCOMM_OK);
}

static void reply(const struct input *in, struct dsc_handshake *hs)
{
    struct dsc_hello hello = net_own_hello(&net_tcp_kind, 77, 0, 1);
    const size_t size = dsc_min_size(in->size, sizeof(hello));
    const size_t from = dsc_min_size((size_t)in->piece % sizeof(hello), size);

    if (hs == NULL || dsc_handshake_step(hs) != DSCOMM_IN_PROGRESS ||
        !dsc_handshake_wants_reply(hs))
        return;
    memcpy((uint8_t *)&hello + from, in->data + from, size - from);
    hello.transport[sizeof(hello.transport) - 1] = '\0';
    hello.detail[sizeof(hello.detail) - 1] = '\0';
    dsc_handshake_reply(hs, &hello);
    (void)dsc_handshake_step(hs);
}

/* Of a listener of this program. */
static int make_handle(uint8_t handle[NCCL_HANDLE_BYTES])
{
    union dsc_addr addr = { .v4 = { .sin_family = AF_INET } };
    int fd;

    addr.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(dsc_netif_listen(&addr, &fd) == DSCOMM_OK);
    memset(handle, 0, NCCL_HANDLE_BYTES);
    dsc_put_u64(handle, NET_HANDLE_MAGIC);
    dsc_put_u32(handle + NET_HANDLE_VERSION_AT, TCP_WIRE_VERSION);
    dsc_addr_encode(&addr, handle + NET_HANDLE_ADDR_AT);
    return fd;
}

static void run_acceptor(const struct input *in)
{
    uint8_t handle[NCCL_HANDLE_BYTES];
    const int listen_fd = make_handle(handle);
    struct nccl_device_handle *device = NULL;
    struct dsc_handshake *hs = NULL;
    nccl_result_t result = NCCL_SUCCESS;
    void *send = NULL;
    int fd = -1;

    for (int step = 0; step < STEPS && result == NCCL_SUCCESS && send == NULL; step++) {
        result = net_tcp.connect(NULL, 0, handle, &send, &device);
        if (fd < 0) {
            fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd >= 0)
                answer(in, fd, handle + NET_HANDLE_KEY_AT, &hs);
        }
        reply(in, hs);
    }
    if (send != NULL)
        (void)net_tcp.close_send(send);
    net_connect_abandon_all();
    if (hs != NULL)
        dsc_handshake_destroy(hs); /* with its socket */
    else if (fd >= 0)
        close(fd);
    close(listen_fd);
}

/* A handle of arbitrary bytes, but for where it leads: nowhere else. */
static void run_handle(const struct input *in)
{
    uint8_t handle[NCCL_HANDLE_BYTES], right[NCCL_HANDLE_BYTES];
    const int listen_fd = make_handle(right);
    struct nccl_device_handle *device = NULL;
    nccl_result_t result = NCCL_SUCCESS;
    void *send = NULL;

    memset(handle, 0, sizeof(handle));
    memcpy(handle, in->data, dsc_min_size(in->size, sizeof(handle)));
    if ((in->flags & FLAG_SEAL) != 0)
        memcpy(handle, right, NET_HANDLE_ADDR_AT);
    memcpy(handle + NET_HANDLE_ADDR_AT, right + NET_HANDLE_ADDR_AT,
           NET_HANDLE_KEY_AT - NET_HANDLE_ADDR_AT);
    for (int i = 0; i < 3 && result == NCCL_SUCCESS; i++)
        result = net_tcp.connect(NULL, 0, handle, &send, &device);
    REQUIRE(send == NULL);
    net_connect_abandon_all();
    close(listen_fd);
}

/* ---- targets; files of the corpus hold their numbers ---- */

static void (*const targets[])(const struct input *) = {
    run_stranger, run_hello, run_data, run_packed, run_unpack, run_acceptor, run_handle,
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    void *ctx = NULL;

    (void)argc, (void)argv;
    REQUIRE(setenv("DSCOMM_SOCKET_IFNAME", "lo", 1) == 0);
    REQUIRE(setenv("DSCOMM_NET_COMPRESS", "on", 1) == 0);
    REQUIRE(setenv("DSCOMM_TIMEOUT_MS", "20000", 1) == 0);
    net_log_set(keep_line);
    REQUIRE(net_wrap.init(&ctx, 1, NULL, keep_line, NULL) == NCCL_SUCCESS);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < FUZZ_HEAD_BYTES)
        return 0;

    const struct input in = read_input(data, size, DSC_ARRAY_LEN(targets));
    const int n_descriptors = count_descriptors();

    REQUIRE(n_descriptors > 0);
    targets[in.target](&in);
    REQUIRE(count_descriptors() == n_descriptors);
    return 0;
}

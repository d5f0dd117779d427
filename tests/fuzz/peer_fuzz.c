/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes from the other end of a socket: of a stranger, and of a peer that has proved the
 * key and then sends nonsense. What must hold: nothing crashes, nothing waits longer than its
 * deadline, no descriptor is left, and two ranks that meet in spite of a stranger get every byte.
 *
 *     byte 0: target, 1: FLAG_*, 2: bytes per send, 3: number of strangers or of the data link
 *     4-: the bytes that are sent
 */
#include "fuzz/fuzz_input.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/bootstrap_internal.h"
#include "transport/handshake.h"
#include "transport/header.h"

enum {
    FLAG_CLOSE = 1,      /* strangers leave before the ranks come, insiders after their bytes */
    FLAG_SEAL = 2,       /* insiders: the first header gets a magic, a size and a checksum */
    FLAG_TRANSPORT = 12, /* of the pair that meets: two bits */
};

#define SLOT_BYTES 4096
#define N_SLOTS 4
#define N_MESSAGES 9
#define PAIR_MS 20000  /* for what must succeed */
#define INSIDER_MS 100 /* for what may fail */
#define STRANGERS_MAX 4
#define RANKS 2
#define TIMEOUT_AT (DSC_FRAME_BYTES + 12) /* of a record */

#define REQUIRE(cond)                                                              \
    do {                                                                           \
        if (!(cond)) {                                                             \
            (void)fprintf(stderr, "peer_fuzz: line %d: %s: %s\n", __LINE__, #cond, \
                          dscomm_last_error());                                    \
            abort();                                                               \
        }                                                                          \
    } while (0)

static const uint8_t secret[DSC_SECRET_BYTES] = { 1, 2, 3 };

/* ---- bytes without a socket ---- */

static void run_header(const struct input *in)
{
    uint8_t wire[DSC_HEADER_BYTES] = { 0 }, again[DSC_HEADER_BYTES];
    struct dsc_header h;

    memcpy(wire, in->data, dsc_min_size(in->size, sizeof(wire)));
    dsc_header_decode(wire, &h);
    dsc_header_encode(&h, again);
    REQUIRE(memcmp(wire, again, sizeof(wire)) == 0);
    if (dsc_header_check(&h, SLOT_BYTES) != NULL)
        return;
    REQUIRE(h.magic == DSC_HEADER_MAGIC && h.version == DSC_HEADER_VERSION);
    REQUIRE(h.payload_bytes <= SLOT_BYTES);
    REQUIRE(h.kind == DSC_MSG_DATA || h.payload_bytes <= DSC_ERROR_TEXT_MAX);
    if (in->size >= sizeof(wire) && in->size - sizeof(wire) >= h.payload_bytes)
        REQUIRE(dsc_header_crc(&h, in->data + sizeof(wire)) != 0);
}

/* A copy of exactly n bytes, zeros when short: what is beyond belongs to the sanitizer. */
static void *part_of(const struct input *in, size_t n)
{
    void *const copy = calloc(1, n > 0 ? n : 1);

    REQUIRE(copy != NULL);
    memcpy(copy, in->data, dsc_min_size(in->size, n));
    return copy;
}

static void check_record(const struct input *in)
{
    uint8_t wire[DSC_FRAME_BYTES + DSC_RECORD_MAX];
    struct dsc_record record = { 0 }, again = { 0 };

    if (dsc_record_decode(in->data, in->size, &record) != NULL ||
        record.version != dsc_bootstrap_version())
        return;

    const size_t n = dsc_record_encode(&record, wire);

    REQUIRE(n <= sizeof(wire));
    REQUIRE(dsc_record_decode(wire + DSC_FRAME_BYTES, n - DSC_FRAME_BYTES, &again) == NULL);
    REQUIRE(again.rank == record.rank && strcmp(again.settings, record.settings) == 0);
}

static void run_record(const struct input *in)
{
    uint8_t *const answer_wire = part_of(in, DSC_ANSWER_PREFIX_BYTES);
    uint8_t *const info_wire = part_of(in, DSC_PEER_WIRE_BYTES);
    dscomm_unique_id_t *const id = part_of(in, sizeof(*id));
    struct dsc_peer_info info;
    struct dsc_answer answer;
    struct dsc_rendezvous rv;
    union dsc_addr addr;
    char text[DSC_ADDR_TEXT_BYTES];

    check_record(in);
    (void)dsc_answer_decode(answer_wire, &answer);
    if (dsc_peer_info_decode(info_wire, &info)) {
        REQUIRE(memchr(info.host_id, 0, sizeof(info.host_id)) != NULL);
        memcpy(&addr, info.addr, sizeof(info.addr));
        (void)dsc_addr_text(&addr, text);
    }
    (void)dsc_unique_id_decode(id, &rv);
    free(answer_wire);
    free(info_wire);
    free(id);
}

/* ---- strangers ---- */

struct strangers {
    const struct input *in;
    int fds[STRANGERS_MAX];
    int n;
    size_t sent;
};

static void loopback_addr(union dsc_addr *addr)
{
    *addr = (union dsc_addr){ 0 };
    addr->v4.sin_family = AF_INET;
    addr->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

/* Non-blocking, connected or about to be. */
static int connect_to(const union dsc_addr *addr)
{
    int fd;

    REQUIRE(dsc_socket_create(addr->any.sa_family, &fd) == DSCOMM_OK);
    REQUIRE(connect(fd, &addr->any, dsc_addr_len(addr)) == 0 || errno == EINPROGRESS);
    return fd;
}

static void strangers_open(struct strangers *s, const struct input *in, const union dsc_addr *addrs,
                           int n_addrs)
{
    *s = (struct strangers){ .in = in, .n = 1 + in->number % STRANGERS_MAX };
    for (int i = 0; i < s->n; i++)
        s->fds[i] = connect_to(&addrs[i % n_addrs]);
}

/* All of them send the next bytes, as far as they get rid of them. */
static void strangers_send(struct strangers *s, size_t n)
{
    n = dsc_min_size(n, s->in->size - s->sent);
    for (int i = 0; i < s->n && n > 0; i++) {
        struct pollfd pfd = { .fd = s->fds[i], .events = POLLOUT };

        (void)poll(&pfd, 1, 10);
        (void)!send(s->fds[i], s->in->data + s->sent, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    s->sent += n;
}

static void strangers_close(struct strangers *s)
{
    for (int i = 0; i < s->n; i++)
        close(s->fds[i]);
    s->n = 0;
}

static void strangers_begin(struct strangers *s)
{
    const bool in_pieces = s->in->piece > 0;

    strangers_send(s, in_pieces ? s->in->piece : s->in->size);
    if ((s->in->flags & FLAG_CLOSE) != 0)
        strangers_close(s);
}

/* What is left, while the ranks are meeting. */
static void strangers_go_on(struct strangers *s)
{
    for (int i = 0; i < 20 && s->sent < s->in->size; i++)
        strangers_send(s, s->in->piece);
}

/* ---- insiders: the key is proved ---- */

/* The socket, or -1 when the other end refused. */
static int prove(const union dsc_addr *addr, const uint8_t key[32], const struct dsc_hello *hello)
{
    const int fd = connect_to(addr);
    const uint64_t deadline_ns = dsc_deadline_ns(INSIDER_MS);
    struct dsc_handshake *hs;
    dscomm_status_t st;

    REQUIRE(dsc_handshake_create(fd, false, key, hello, deadline_ns, &hs) == DSCOMM_OK);
    while ((st = dsc_handshake_step(hs)) == DSCOMM_IN_PROGRESS) {
        struct pollfd pfd = { .fd = fd, .events = dsc_handshake_events(hs) };

        (void)poll(&pfd, 1, 5);
    }
    if (st == DSCOMM_OK)
        (void)dsc_handshake_take_fd(hs);
    dsc_handshake_destroy(hs);
    return st == DSCOMM_OK ? fd : -1;
}

/* Makes the first header one that is believed, over as much payload as there is. */
static void seal(uint8_t *bytes, size_t n)
{
    struct dsc_header h;

    if (n < DSC_HEADER_BYTES)
        return;
    dsc_header_decode(bytes, &h);
    h.magic = DSC_HEADER_MAGIC;
    h.version = DSC_HEADER_VERSION;
    h.kind = h.kind % 2 == 0 ? DSC_MSG_ERROR : DSC_MSG_DATA;
    h.payload_bytes = (uint32_t)dsc_min_size(
        n - DSC_HEADER_BYTES, h.kind == DSC_MSG_ERROR ? DSC_ERROR_TEXT_MAX : SLOT_BYTES);
    h.crc = dsc_header_crc(&h, bytes + DSC_HEADER_BYTES);
    dsc_header_encode(&h, bytes);
}

static void insider_send(int fd, const struct input *in)
{
    uint8_t *const bytes = part_of(in, in->size);
    const size_t step = in->piece > 0 ? (size_t)in->piece * 16 : in->size;

    if ((in->flags & FLAG_SEAL) != 0)
        seal(bytes, in->size);
    for (size_t at = 0; at < in->size; at += step) {
        struct pollfd pfd = { .fd = fd, .events = POLLOUT };

        (void)poll(&pfd, 1, 5);
        (void)!send(fd, bytes + at, dsc_min_size(step, in->size - at), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    free(bytes);
}

/* ---- the rendezvous ---- */

struct joiner {
    pthread_t thread;
    const dscomm_unique_id_t *id;
    int rank, timeout_ms;
    dscomm_status_t status;
};

static void *join_main(void *arg)
{
    struct joiner *const j = arg;
    const struct dsc_bootstrap_params params = { RANKS, j->rank, j->timeout_ms, "fuzz=1",
                                                 DSC_RDMA_NO };
    struct dsc_bootstrap boot;

    j->status = dsc_bootstrap_join(j->id, &params, &boot);
    if (j->status == DSCOMM_OK)
        dsc_bootstrap_fini(&boot);
    return NULL;
}

/* The service at an address of its own and two ranks that come to it; whether both met. */
struct meeting {
    struct dsc_rendezvous rv;
    dscomm_unique_id_t id;
    uint8_t key[DSC_SECRET_BYTES];
    struct joiner ranks[RANKS];
};

static void meeting_open(struct meeting *m, int timeout_ms)
{
    loopback_addr(&m->rv.addr);
    memcpy(m->rv.secret, secret, sizeof(secret));
    REQUIRE(dsc_bootstrap_key(secret, m->key) == DSCOMM_OK);
    REQUIRE(dsc_root_start(&m->rv.addr, m->key, timeout_ms) == DSCOMM_OK);
    dsc_unique_id_encode(&m->rv, &m->id);
    for (int r = 0; r < RANKS; r++)
        m->ranks[r] = (struct joiner){ .id = &m->id, .rank = r, .timeout_ms = timeout_ms };
}

static void meeting_start(struct meeting *m)
{
    for (int r = 0; r < RANKS; r++)
        REQUIRE(pthread_create(&m->ranks[r].thread, NULL, join_main, &m->ranks[r]) == 0);
}

static bool meeting_wait(struct meeting *m)
{
    bool met = true;

    for (int r = 0; r < RANKS; r++) {
        pthread_join(m->ranks[r].thread, NULL);
        met &= m->ranks[r].status == DSCOMM_OK;
    }
    dsc_root_reap();
    return met;
}

static void run_root_stranger(const struct input *in)
{
    struct strangers strangers;
    struct meeting m;

    meeting_open(&m, PAIR_MS);
    strangers_open(&strangers, in, &m.rv.addr, 1);
    strangers_begin(&strangers);
    meeting_start(&m);
    strangers_go_on(&strangers);
    REQUIRE(meeting_wait(&m));
    strangers_close(&strangers);
}

/*
 * A record may be right, so the ranks may fail, meet, or find one too many. The time that it asks
 * for is cut, since the service tells errors to ranks that come late for as long as that.
 */
static void run_root_insider(const struct input *whole)
{
    const struct dsc_hello hello = { .purpose = DSC_LINK_RENDEZVOUS };
    uint8_t *const bytes = part_of(whole, whole->size);
    struct input cut = *whole;
    const struct input *const in = &cut;
    struct meeting m;

    cut.data = bytes;
    if (cut.size >= TIMEOUT_AT + 4)
        memset(bytes + TIMEOUT_AT + 1, 0, 3);

    meeting_open(&m, INSIDER_MS);

    const int fd = prove(&m.rv.addr, m.key, &hello);

    if (fd >= 0)
        insider_send(fd, in);
    if (fd >= 0 && (in->flags & FLAG_CLOSE) != 0)
        close(fd);
    meeting_start(&m);
    (void)meeting_wait(&m);
    if (fd >= 0 && (in->flags & FLAG_CLOSE) == 0)
        close(fd);
    free(bytes);
}

/* ---- endpoints ---- */

struct world {
    struct dsc_peer_info peers[RANKS];
    union dsc_addr addrs[RANKS];
    int listen_fds[RANKS];
    struct dsc_net_params params;
    bool is_trusted; /* content is checked and the exchange must succeed */
};

struct side {
    pthread_t thread;
    struct world *world;
    int rank;
    dscomm_status_t status;
};

static const uint8_t peer_key[32] = { 9, 8, 7 };
#define JOB 0x1234567812345678u

static void world_open(struct world *w, const char *transport, bool is_trusted)
{
    *w = (struct world){
        .params = { .transport = transport,
                    .slot_bytes = SLOT_BYTES,
                    .n_slots = N_SLOTS,
                    .n_socks = 1,
                    .crc = true,
                    .timeout_ms = is_trusted ? PAIR_MS : INSIDER_MS },
        .is_trusted = is_trusted,
    };
    for (int r = 0; r < RANKS; r++) {
        struct dsc_peer_info *const info = &w->peers[r];

        loopback_addr(&w->addrs[r]);
        REQUIRE(dsc_netif_listen(&w->addrs[r], &w->listen_fds[r]) == DSCOMM_OK);
        (void)snprintf(info->host_id, sizeof(info->host_id), "host");
        memcpy(info->addr, w->addrs[r].bytes, sizeof(info->addr));
        info->process_id = 1;
        info->pid = (uint32_t)getpid();
        info->n_cpus = 2;
    }
}

static bool send_next(struct dsc_conn *conn, int rank)
{
    uint8_t *const slot =
        conn->tx_next < N_MESSAGES ? conn->ops->tx_slot(conn, conn->tx_next) : NULL;
    const struct dsc_header header = { .sequence = 1, .payload_bytes = SLOT_BYTES };

    if (slot == NULL)
        return false;
    memset(slot, rank * 100 + (int)conn->tx_next, SLOT_BYTES);
    conn->ops->tx_post(conn, conn->tx_next++, &header);
    return true;
}

static bool receive_next(struct dsc_conn *conn, bool is_trusted)
{
    const uint8_t *payload = NULL;
    const struct dsc_header *const header =
        conn->rx_next < N_MESSAGES ? conn->ops->rx_msg(conn, conn->rx_next, &payload) : NULL;

    if (header == NULL)
        return false;
    REQUIRE(header->payload_bytes <= SLOT_BYTES);

    const uint8_t want = (uint8_t)(conn->peer * 100 + (int)conn->rx_next);
    bool is_right = header->payload_bytes == SLOT_BYTES;

    for (uint32_t i = 0; i < header->payload_bytes; i++)
        is_right &= payload[i] == want;
    REQUIRE(is_right || !is_trusted);
    conn->ops->rx_release(conn, conn->rx_next++);
    return true;
}

static dscomm_status_t exchange(const struct world *w, struct dsc_net *net, int rank)
{
    const uint64_t deadline_ns = dsc_deadline_ns(w->params.timeout_ms);
    const int peer = 1 - rank;

    DSC_TRY(dsc_net_connect(net, &peer, 1));

    struct dsc_conn *const conn = dsc_net_conn(net, peer);

    conn->ops->rx_expect(conn, N_MESSAGES);
    while (conn->tx_next < N_MESSAGES || conn->rx_next < N_MESSAGES) {
        bool moved = false;

        DSC_TRY(dsc_net_progress(net));
        while (send_next(conn, rank))
            moved = true;
        while (receive_next(conn, w->is_trusted))
            moved = true;
        if (dsc_now_ns() >= deadline_ns)
            return DSCOMM_ERR_TIMEOUT;
        if (!moved)
            dsc_net_wait(net, 5000000);
    }
    return DSCOMM_OK;
}

static void *side_main(void *arg)
{
    struct side *const side = arg;
    struct world *const w = side->world;
    struct dsc_bootstrap boot = {
        .n_ranks = RANKS,
        .rank = side->rank,
        .listen_fd = w->listen_fds[side->rank],
        .job = JOB,
        .peers = w->peers,
    };
    struct dsc_net *net;

    memcpy(boot.key, peer_key, sizeof(peer_key));
    REQUIRE(dsc_net_create(&boot, &w->params, &net) == DSCOMM_OK);
    side->status = exchange(w, net, side->rank);
    if (side->status < 0)
        dsc_net_fail(net, side->status, "fuzz");
    dsc_net_destroy(net);
    return NULL;
}

static void side_start(struct side *side, struct world *w, int rank)
{
    *side = (struct side){ .world = w, .rank = rank };
    REQUIRE(pthread_create(&side->thread, NULL, side_main, side) == 0);
}

static void run_net_stranger(const struct input *in)
{
    static const char *const transports[] = { "tcp", "shm", "loopback", "auto" };
    struct strangers strangers;
    struct side sides[RANKS];
    struct world w;

    world_open(&w, transports[(in->flags & FLAG_TRANSPORT) / 4], true);
    strangers_open(&strangers, in, w.addrs, RANKS);
    strangers_begin(&strangers);
    for (int r = 0; r < RANKS; r++)
        side_start(&sides[r], &w, r);
    strangers_go_on(&strangers);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(sides[r].thread, NULL);
        REQUIRE(sides[r].status == DSCOMM_OK);
    }
    strangers_close(&strangers);
}

static struct dsc_hello peer_hello(uint32_t index)
{
    struct dsc_hello hello = {
        .purpose = DSC_LINK_PEER,
        .rank = 1,
        .n_ranks = RANKS,
        .index = index,
        .job = JOB,
        .slot_bytes = SLOT_BYTES,
        .n_slots = N_SLOTS,
        .n_socks = 1,
    };

    (void)snprintf(hello.transport, sizeof(hello.transport), "tcp");
    return hello;
}

/* Rank 0 is real; this is rank 1, which has the key and every right to speak. */
static void run_against_rank_0(const struct input *in,
                               void (*act)(const struct input *, const struct world *, int[2]))
{
    int fds[2] = { -1, -1 };
    struct side side;
    struct world w;

    world_open(&w, (in->flags & FLAG_TRANSPORT) == FLAG_TRANSPORT ? "auto" : "tcp", false);
    side_start(&side, &w, 0);
    act(in, &w, fds);
    for (int i = 0; i < 2 && (in->flags & FLAG_CLOSE) != 0; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
    pthread_join(side.thread, NULL);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    close(w.listen_fds[1]);
}

/* A right connection, then the bytes on its control link (0) or data link (1). */
static void speak(const struct input *in, const struct world *w, int fds[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct dsc_hello hello = peer_hello(i);

        fds[i] = prove(&w->addrs[0], peer_key, &hello);
        if (fds[i] < 0)
            return;
    }
    insider_send(fds[in->number % 2], in);
}

/* A hello with bytes of the input in the place of what is right, from flag to flag. */
static void introduce(const struct input *in, const struct world *w, int fds[2])
{
    struct dsc_hello hello = peer_hello(in->number % 2);
    const size_t n = dsc_min_size(in->size, sizeof(hello));
    const size_t from = dsc_min_size(in->piece, n);

    memcpy((uint8_t *)&hello + from, in->data + from, n - from);
    hello.transport[sizeof(hello.transport) - 1] = '\0';
    hello.detail[sizeof(hello.detail) - 1] = '\0';
    fds[0] = prove(&w->addrs[0], peer_key, &hello);
}

static void run_net_insider(const struct input *in)
{
    run_against_rank_0(in, speak);
}

static void run_net_hello(const struct input *in)
{
    run_against_rank_0(in, introduce);
}

/* ---- targets; files of the corpus hold their numbers ---- */

static void (*const targets[])(const struct input *) = {
    run_header,       run_record,      run_root_stranger, run_root_insider,
    run_net_stranger, run_net_insider, run_net_hello,
};

/* What a service that has given up still holds goes with its thread, a moment later. */
static bool is_back_at(int n_descriptors)
{
    for (int i = 0; i < 5000; i++) {
        if (count_descriptors() <= n_descriptors)
            return true;
        (void)poll(NULL, 0, 1);
    }
    return false;
}

static void ignore_log(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    /* Every message is made, none is shown. */
    dscomm_set_log(ignore_log, NULL);
    return setenv("DSCOMM_LOG_LEVEL", "debug", 1) | setenv("DSCOMM_SOCKET_IFNAME", "lo", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < FUZZ_HEAD_BYTES)
        return 0;

    const struct input in = read_input(data, size, DSC_ARRAY_LEN(targets));
    const int n_descriptors = count_descriptors();

    REQUIRE(n_descriptors > 0);
    targets[in.target](&in);
    REQUIRE(is_back_at(n_descriptors));
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two plugins find each other. The listener's handle, which NCCL carries to the connector, is
 *
 *     | magic u64 | version u32 | 0 u32 | address [24] | key [32] | connecting u64 | not ours ... |
 *
 * All sockets of a connection prove the key (transport/handshake.h), mixed with DSCOMM_SECRET, and
 * say what their side can do before a message is sent. NCCL calls connect() with one buffer until
 * it has a connection; between calls the buffer holds the number of what was begun, nothing else:
 * NCCL may free it at any time and never says so.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_tcp.h"
#include "net_tcp_rx.h"
#include "transport/bytes.h"

#define HANDLE_MAGIC 0x64736e65742d7463u
#define ACCEPTING_MAX 64
/* A socket that says nothing is a stranger's. */
#define STRANGER_MS 30000u

enum {
    HANDLE_VERSION_AT = 8,
    HANDLE_ADDR_AT = 16,
    HANDLE_KEY_AT = 40,
    HANDLE_CONNECTING_AT = 72,
    HANDLE_USED = 80,
    KEY_BYTES = 32,
};
_Static_assert(HANDLE_USED <= NCCL_HANDLE_BYTES, "a handle fits NCCL's");

static const char transport_name[] = "nccl net tcp";

struct tcp_listener {
    int fd;
    int traffic_class;
    uint8_t key[KEY_BYTES];
    uint64_t deadline_ns; /* of the connection that is waited for; 0: no accept() since the last */
    char text[DSC_ADDR_TEXT_BYTES];
    struct dsc_handshake *accepting[ACCEPTING_MAX]; /* NULL: free */
    bool proved[ACCEPTING_MAX];
};

struct tcp_connecting {
    struct tcp_connecting *next;
    uint64_t id;
    uint64_t deadline_ns;
    bool in_use; /* a thread is in connect() with it */
    int n_socks;
    int traffic_class;
    char text[DSC_ADDR_TEXT_BYTES];
    struct dsc_handshake *socks[TCP_SOCKS_MAX];
};

static pthread_mutex_t connecting_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tcp_connecting *connecting; /* all that were begun, under the lock */

/* ---- connections ---- */

static void set_options(int fd, uint64_t timeout_ms, int traffic_class)
{
    const int one = 1, idle_s = 30, interval_s = 10;
    const unsigned user_ms = (unsigned)dsc_min_u64(timeout_ms, 3600000);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
    if (traffic_class != NCCL_UNDEFINED) {
        setsockopt(fd, IPPROTO_IP, IP_TOS, &traffic_class, sizeof(traffic_class));
        setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &traffic_class, sizeof(traffic_class));
    }
}

struct tcp_comm *tcp_comm_create(bool sends, const int *fds, int n_socks)
{
    struct tcp_comm *const comm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*comm));

    if (comm == NULL)
        return NULL;
    comm->sends = sends;
    for (int i = 0; i < n_socks && !sends; i++) {
        comm->socks[i].buf = dsc_calloc(DSC_MEM_TRANSPORT, 1, RX_BUF_BYTES);
        if (comm->socks[i].buf == NULL) {
            tcp_comm_destroy(comm);
            return NULL;
        }
    }
    comm->n_socks = n_socks;
    for (int i = 0; i < n_socks; i++)
        comm->socks[i].fd = fds[i];
    dsc_addr_of_peer(fds[0], comm->peer);
    return comm;
}

void tcp_comm_destroy(struct tcp_comm *comm)
{
    if (comm == NULL)
        return;
    for (int i = 0; i < comm->n_socks; i++)
        close(comm->socks[i].fd);
    for (int i = 0; i < TCP_SOCKS_MAX; i++)
        dsc_free(comm->socks[i].buf);
    dsc_free(comm);
}

/* Takes the descriptors of handshakes that are done and destroys these. */
static struct tcp_comm *make_comm(bool sends, struct dsc_handshake **socks, int n,
                                  int traffic_class, uint64_t timeout_ms)
{
    int fds[TCP_SOCKS_MAX] = { 0 };
    struct tcp_comm *comm;

    for (int i = 0; i < n; i++) {
        fds[i] = dsc_handshake_take_fd(socks[i]);
        set_options(fds[i], timeout_ms, traffic_class);
        dsc_handshake_destroy(socks[i]);
        socks[i] = NULL;
    }
    comm = tcp_comm_create(sends, fds, n);
    for (int i = 0; i < n && comm == NULL; i++)
        close(fds[i]);
    return comm;
}

/* ---- what a side says of itself ---- */

static bool tcp_is_wrapped(void)
{
    const struct dsc_env *env;

    return dsc_env_get(&env) >= 0 && env->net_inner[0] == '\0' && net_is_wrapped(env);
}

static struct dsc_hello own_hello(uint64_t id, int index, int n_socks)
{
    struct dsc_hello hello = { .purpose = DSC_LINK_NET,
                               .rank = -1,
                               .index = (uint32_t)index,
                               .n_socks = (uint32_t)n_socks,
                               .job = id,
                               .slot_bytes = tcp_is_wrapped(),
                               .n_slots = TCP_WIRE_VERSION };

    memcpy(hello.transport, transport_name, sizeof(transport_name));
    snprintf(hello.detail, sizeof(hello.detail), "%s", net_tuner_text());
    return hello;
}

/* The peer has the key, so it is another plugin. */
static nccl_result_t check_hello(const struct dsc_hello *peer, const char *text)
{
    if (peer->purpose != DSC_LINK_NET || strcmp(peer->transport, transport_name) != 0) {
        net_warn("DSComm: %s is \"%s\", not \"%s\"", text, peer->transport, transport_name);
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_slots != TCP_WIRE_VERSION) {
        net_warn("DSComm: %s speaks version %u of the net's protocol, this side %u: install the "
                 "same release on all hosts",
                 text, peer->n_slots, TCP_WIRE_VERSION);
        return NCCL_INVALID_USAGE;
    }
    if (peer->slot_bytes != tcp_is_wrapped()) {
        net_warn("DSComm: %s %s messages, this side %s: set DSCOMM_NET_COMPRESS (off or not) and "
                 "DSCOMM_NET_METER alike on all hosts",
                 text, peer->slot_bytes ? "announces" : "does not announce",
                 tcp_is_wrapped() ? "does" : "does not");
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_socks < 1 || peer->n_socks > TCP_SOCKS_MAX || peer->index >= peer->n_socks) {
        net_warn("DSComm: %s says it is socket %u of %u, allowed: 1 to %d sockets", text,
                 peer->index, peer->n_socks, TCP_SOCKS_MAX);
        return NCCL_REMOTE_ERROR;
    }
    net_tuner_compare(peer->detail, text);
    return NCCL_SUCCESS;
}

/* DSCOMM_SECRET never travels. */
static void mix_secret(const uint8_t in[KEY_BYTES], const char *secret, uint8_t key[KEY_BYTES])
{
    memcpy(key, in, KEY_BYTES);
    if (secret[0] != '\0')
        crypto_generichash(key, KEY_BYTES, (const uint8_t *)secret, strlen(secret), in, KEY_BYTES);
}

/* ---- listening ---- */

static void put_handle(uint8_t *handle, const union dsc_addr *addr, const uint8_t key[KEY_BYTES])
{
    memset(handle, 0, NCCL_HANDLE_BYTES);
    dsc_put_u64(handle, HANDLE_MAGIC);
    dsc_put_u32(handle + HANDLE_VERSION_AT, TCP_WIRE_VERSION);
    dsc_addr_encode(addr, handle + HANDLE_ADDR_AT);
    memcpy(handle + HANDLE_KEY_AT, key, KEY_BYTES);
}

nccl_result_t tcp_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    const struct net_ctx *const context = ctx;
    const struct net_device *const device = tcp_device(dev);
    uint8_t key[KEY_BYTES];
    union dsc_addr addr;
    struct tcp_listener *listener;
    const struct dsc_env *env;

    *listen_comm = NULL;
    if (device == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, tcp_n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    listener = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*listener));
    if (listener == NULL)
        return NCCL_SYSTEM_ERROR;
    addr = device->netif.addr;
    if (dsc_netif_listen(&addr, &listener->fd) < 0) {
        dsc_free(listener);
        return NCCL_SYSTEM_ERROR;
    }
    listener->traffic_class = context != NULL ? context->traffic_class : NCCL_UNDEFINED;
    dsc_addr_text(&addr, listener->text);
    randombytes_buf(key, sizeof(key));
    put_handle(handle, &addr, key);
    mix_secret(key, env->secret, listener->key);
    *listen_comm = listener;
    return NCCL_SUCCESS;
}

nccl_result_t tcp_close_listen(void *listen_comm)
{
    struct tcp_listener *const listener = listen_comm;

    if (listener == NULL)
        return NCCL_SUCCESS;
    for (int i = 0; i < ACCEPTING_MAX; i++)
        dsc_handshake_destroy(listener->accepting[i]);
    close(listener->fd);
    sodium_memzero(listener->key, sizeof(listener->key));
    dsc_free(listener);
    return NCCL_SUCCESS;
}

/* ---- accepting ---- */

static int free_place(const struct tcp_listener *listener)
{
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        if (listener->accepting[i] == NULL)
            return i;
    }
    return -1;
}

static void forget(struct tcp_listener *listener, int i)
{
    dsc_handshake_destroy(listener->accepting[i]);
    listener->accepting[i] = NULL;
    listener->proved[i] = false;
}

static void accept_new(struct tcp_listener *listener, uint64_t timeout_ms)
{
    const int ms = (int)dsc_min_u64(timeout_ms, STRANGER_MS);

    for (int place = free_place(listener); place >= 0; place = free_place(listener)) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        const int one = 1;

        if (fd < 0)
            return; /* none, or one that is gone again; a lack of descriptors ends in the deadline
                     */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (dsc_handshake_create(fd, true, listener->key, NULL, dsc_deadline_ns(ms),
                                 &listener->accepting[place]) < 0) {
            close(fd);
            return;
        }
    }
}

/* One socket's handshake. */
static nccl_result_t accept_step(struct tcp_listener *listener, int i)
{
    struct dsc_handshake *const hs = listener->accepting[i];
    dscomm_status_t st = dsc_handshake_step(hs);
    nccl_result_t result = NCCL_SUCCESS;

    if (st == DSCOMM_IN_PROGRESS && dsc_handshake_wants_reply(hs)) {
        const struct dsc_hello *const peer = dsc_handshake_peer(hs);
        const struct dsc_hello mine =
            own_hello(peer->job, (int)(peer->index & 0xff), (int)(peer->n_socks & 0xff));

        result = check_hello(peer, "a peer that connected");
        dsc_handshake_reply(hs, &mine);
        st = dsc_handshake_step(hs);
    }
    if (st < 0) {
        net_warn("DSComm: at %s: %s", listener->text, dsc_handshake_error(hs));
        forget(listener, i);
    }
    listener->proved[i] = st == DSCOMM_OK;
    return result;
}

/* All sockets of the connection that socket i belongs to, if they are there. */
static bool collect(const struct tcp_listener *listener, int i, int places[TCP_SOCKS_MAX])
{
    const struct dsc_hello *const first = dsc_handshake_peer(listener->accepting[i]);
    uint32_t found = 0;

    for (int k = 0; k < ACCEPTING_MAX; k++) {
        const struct dsc_hello *peer;

        if (!listener->proved[k])
            continue;
        peer = dsc_handshake_peer(listener->accepting[k]);
        if (peer->job != first->job || peer->n_socks != first->n_socks)
            continue;
        places[peer->index] = k;
        found |= 1u << peer->index;
    }
    return found == (1u << first->n_socks) - 1;
}

static nccl_result_t accept_collected(struct tcp_listener *listener,
                                      const int places[TCP_SOCKS_MAX], uint64_t timeout_ms,
                                      void **recv_comm)
{
    const int n = (int)dsc_handshake_peer(listener->accepting[places[0]])->n_socks;
    struct dsc_handshake *socks[TCP_SOCKS_MAX];

    for (int i = 0; i < n; i++) {
        socks[i] = listener->accepting[places[i]];
        listener->accepting[places[i]] = NULL;
        listener->proved[places[i]] = false;
    }
    listener->deadline_ns = 0;
    *recv_comm = make_comm(false, socks, n, listener->traffic_class, timeout_ms);
    return *recv_comm != NULL ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

nccl_result_t tcp_accept(void *listen_comm, void **recv_comm, struct nccl_device_handle **device)
{
    struct tcp_listener *const listener = listen_comm;
    int places[TCP_SOCKS_MAX];
    const struct dsc_env *env;

    (void)device;
    *recv_comm = NULL;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (listener->deadline_ns == 0)
        listener->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    accept_new(listener, env->timeout_ms);
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        if (listener->accepting[i] != NULL && !listener->proved[i]) {
            const nccl_result_t result = accept_step(listener, i);

            if (result != NCCL_SUCCESS)
                return result;
        }
        if (listener->proved[i] && collect(listener, i, places))
            return accept_collected(listener, places, env->timeout_ms, recv_comm);
    }
    if (dsc_now_ns() < listener->deadline_ns)
        return NCCL_SUCCESS;
    net_warn("DSComm: nobody connected to %s in %llu ms; does every host run this plugin?",
             listener->text, (unsigned long long)env->timeout_ms);
    return NCCL_REMOTE_ERROR;
}

/* ---- connecting ---- */

static void connecting_free(struct tcp_connecting *c)
{
    for (int i = 0; i < TCP_SOCKS_MAX; i++)
        dsc_handshake_destroy(c->socks[i]);
    dsc_free(c);
}

/* Unlinks entries that match; the caller holds the lock. */
static void drop_where(uint64_t id, bool expired, bool all)
{
    const uint64_t now = dsc_now_ns();

    for (struct tcp_connecting **at = &connecting; *at != NULL;) {
        struct tcp_connecting *const c = *at;

        if (!(all || c->id == id || (expired && !c->in_use && now > c->deadline_ns))) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        connecting_free(c);
    }
}

void tcp_connect_abandon_all(void)
{
    pthread_mutex_lock(&connecting_lock);
    drop_where(0, false, true);
    pthread_mutex_unlock(&connecting_lock);
}

static struct tcp_connecting *find_connecting(uint64_t id)
{
    struct tcp_connecting *c;

    pthread_mutex_lock(&connecting_lock);
    for (c = connecting; c != NULL && c->id != id; c = c->next)
        continue;
    if (c != NULL)
        c->in_use = true;
    pthread_mutex_unlock(&connecting_lock);
    return c;
}

static void let_go(struct tcp_connecting *c, bool drop)
{
    pthread_mutex_lock(&connecting_lock);
    c->in_use = false;
    if (drop)
        drop_where(c->id, false, false);
    pthread_mutex_unlock(&connecting_lock);
}

static dscomm_status_t begin_socket(struct tcp_connecting *c, int index, const union dsc_addr *addr,
                                    const struct net_device *device, const uint8_t key[KEY_BYTES])
{
    const struct dsc_hello hello = own_hello(c->id, index, c->n_socks);
    const int one = 1;
    dscomm_status_t st;
    int fd;

    DSC_TRY(dsc_socket_create(addr->any.sa_family, &fd));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    /* By the card that NCCL has chosen, where there are several. */
    if (tcp_n_devices() > 1 && device->netif.addr.any.sa_family == addr->any.sa_family)
        (void)bind(fd, &device->netif.addr.any, dsc_addr_len(&device->netif.addr));
    if (connect(fd, &addr->any, dsc_addr_len(addr)) != 0 && errno != EINPROGRESS) {
        st = dsc_fail_errno(DSCOMM_ERR_PEER_LOST, "cannot connect to %s", c->text);
        close(fd);
        return st;
    }
    st = dsc_handshake_create(fd, false, key, &hello, c->deadline_ns, &c->socks[index]);
    if (st < 0)
        close(fd);
    return st;
}

static nccl_result_t begin_connecting(const struct net_ctx *ctx, int dev, const uint8_t *handle,
                                      const struct dsc_env *env, struct tcp_connecting **c_out)
{
    struct tcp_connecting *const c = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*c));
    uint8_t key[KEY_BYTES];
    union dsc_addr addr;
    dscomm_status_t st = DSCOMM_OK;

    if (c == NULL)
        return NCCL_SYSTEM_ERROR;
    if (!dsc_addr_decode(handle + HANDLE_ADDR_AT, &addr)) {
        dsc_free(c);
        net_warn("DSComm: a handle has no address");
        return NCCL_INVALID_ARGUMENT;
    }
    dsc_addr_text(&addr, c->text);
    mix_secret(handle + HANDLE_KEY_AT, env->secret, key);
    c->n_socks = (int)env->socket_nsocks;
    c->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    c->traffic_class = ctx != NULL ? ctx->traffic_class : NCCL_UNDEFINED;
    c->in_use = true;
    randombytes_buf(&c->id, sizeof(c->id));
    c->id |= 1; /* 0: none */
    for (int i = 0; i < c->n_socks && st >= 0; i++)
        st = begin_socket(c, i, &addr, tcp_device(dev), key);
    sodium_memzero(key, sizeof(key));
    if (st < 0) {
        connecting_free(c);
        return net_result(st);
    }
    pthread_mutex_lock(&connecting_lock);
    drop_where(0, true, false);
    c->next = connecting;
    connecting = c;
    pthread_mutex_unlock(&connecting_lock);
    *c_out = c;
    return NCCL_SUCCESS;
}

/* *done: all sockets have proved themselves. */
static nccl_result_t connect_step(struct tcp_connecting *c, bool *done)
{
    *done = true;
    for (int i = 0; i < c->n_socks; i++) {
        const dscomm_status_t st = dsc_handshake_step(c->socks[i]);
        nccl_result_t result;

        if (st < 0) {
            net_warn("DSComm: connecting to %s: %s%s", c->text, dsc_handshake_error(c->socks[i]),
                     st == DSCOMM_ERR_TIMEOUT ? "; does that host run this plugin too?" : "");
            return net_result(st);
        }
        *done = *done && st == DSCOMM_OK;
        if (st != DSCOMM_OK)
            continue;
        result = check_hello(dsc_handshake_peer(c->socks[i]), c->text);
        if (result != NCCL_SUCCESS)
            return result;
    }
    return NCCL_SUCCESS;
}

static nccl_result_t check_connect(int dev, const uint8_t *handle)
{
    if (tcp_device(dev) == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, tcp_n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    if (dsc_get_u64(handle) != HANDLE_MAGIC) {
        net_warn("DSComm: a handle is not of this plugin: does the peer use another network?");
        return NCCL_INVALID_USAGE;
    }
    if (dsc_get_u32(handle + HANDLE_VERSION_AT) != TCP_WIRE_VERSION) {
        net_warn("DSComm: the peer speaks version %u of the net's protocol, this side %u: install "
                 "the same release on all hosts",
                 dsc_get_u32(handle + HANDLE_VERSION_AT), TCP_WIRE_VERSION);
        return NCCL_INVALID_USAGE;
    }
    return NCCL_SUCCESS;
}

nccl_result_t tcp_connect(void *ctx, int dev, void *handle, void **send_comm,
                          struct nccl_device_handle **device)
{
    uint8_t *const bytes = handle;
    const nccl_result_t checked = check_connect(dev, bytes);
    nccl_result_t result = NCCL_SUCCESS;
    struct tcp_connecting *c = NULL;
    const struct dsc_env *env;
    bool done = false;

    (void)device;
    *send_comm = NULL;
    if (checked != NCCL_SUCCESS)
        return checked;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (dsc_get_u64(bytes + HANDLE_CONNECTING_AT) == 0)
        result = begin_connecting(ctx, dev, bytes, env, &c);
    else
        c = find_connecting(dsc_get_u64(bytes + HANDLE_CONNECTING_AT));
    if (result != NCCL_SUCCESS)
        return result;
    if (c == NULL) {
        net_warn("DSComm: a connection was given up: no answer in %llu ms",
                 (unsigned long long)env->timeout_ms);
        return NCCL_REMOTE_ERROR;
    }
    result = connect_step(c, &done);
    if (result == NCCL_SUCCESS && done) {
        *send_comm = make_comm(true, c->socks, c->n_socks, c->traffic_class, env->timeout_ms);
        result = *send_comm != NULL ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
    }
    done = done || result != NCCL_SUCCESS;
    dsc_put_u64(bytes + HANDLE_CONNECTING_AT, done ? 0 : c->id);
    let_go(c, done);
    return result;
}

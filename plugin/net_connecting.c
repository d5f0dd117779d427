/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting. NCCL calls connect() with one buffer until it has a connection; between calls the
 * buffer holds the number of what was begun, nothing else: NCCL may free it at any time and never
 * says so.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_meet.h"
#include "transport/bytes.h"

struct connecting {
    struct connecting *next;
    const struct net_kind *kind;
    int dev;
    uint64_t id;
    uint64_t deadline_ns;
    bool in_use; /* a thread is in connect() with it */
    int n_socks;
    int traffic_class;
    char text[DSC_ADDR_TEXT_BYTES];
    struct dsc_handshake *socks[NET_SOCKS_MAX];
    void *comm; /* proved, not settled */
};

static pthread_mutex_t connecting_lock = PTHREAD_MUTEX_INITIALIZER;
static struct connecting *begun; /* all that were begun, under the lock */

static void connecting_free(struct connecting *c)
{
    for (int i = 0; i < NET_SOCKS_MAX; i++)
        dsc_handshake_destroy(c->socks[i]);
    if (c->comm != NULL)
        (void)c->kind->close(c->comm);
    dsc_free(c);
}

/* Unlinks entries that match; the caller holds the lock. */
static void drop_where(uint64_t id, bool expired, bool all)
{
    const uint64_t now = dsc_now_ns();

    for (struct connecting **at = &begun; *at != NULL;) {
        struct connecting *const c = *at;

        if (!(all || c->id == id || (expired && !c->in_use && now > c->deadline_ns))) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        connecting_free(c);
    }
}

void net_connect_abandon_all(void)
{
    pthread_mutex_lock(&connecting_lock);
    drop_where(0, false, true);
    pthread_mutex_unlock(&connecting_lock);
}

static struct connecting *find_connecting(uint64_t id)
{
    struct connecting *c;

    pthread_mutex_lock(&connecting_lock);
    for (c = begun; c != NULL && c->id != id; c = c->next)
        continue;
    if (c != NULL)
        c->in_use = true;
    pthread_mutex_unlock(&connecting_lock);
    return c;
}

static void let_go(struct connecting *c, bool drop)
{
    pthread_mutex_lock(&connecting_lock);
    c->in_use = false;
    if (drop)
        drop_where(c->id, false, false);
    pthread_mutex_unlock(&connecting_lock);
}

static dscomm_status_t begin_socket(struct connecting *c, int index, const union dsc_addr *addr,
                                    const struct net_device *device,
                                    const uint8_t key[NET_KEY_BYTES])
{
    const struct dsc_hello hello = net_own_hello(c->kind, c->id, index, c->n_socks);
    const int one = 1;
    dscomm_status_t st;
    int fd;

    DSC_TRY(dsc_socket_create(addr->any.sa_family, &fd));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    /* By the card that NCCL has chosen, where there are several. */
    if (c->kind->n_devices() > 1 && device->addr.any.sa_family == addr->any.sa_family)
        (void)bind(fd, &device->addr.any, dsc_addr_len(&device->addr));
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

static nccl_result_t begin_connecting(const struct net_kind *kind, const struct net_ctx *ctx,
                                      int dev, const uint8_t *handle, const struct dsc_env *env,
                                      struct connecting **c_out)
{
    struct connecting *const c = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*c));
    uint8_t key[NET_KEY_BYTES];
    union dsc_addr addr;
    dscomm_status_t st = DSCOMM_OK;

    if (c == NULL)
        return NCCL_SYSTEM_ERROR;
    if (!dsc_addr_decode(handle + NET_HANDLE_ADDR_AT, &addr)) {
        dsc_free(c);
        net_warn("DSComm: a handle has no address");
        return NCCL_INVALID_ARGUMENT;
    }
    dsc_addr_text(&addr, c->text);
    net_mix_secret(handle + NET_HANDLE_KEY_AT, env->secret, key);
    c->kind = kind;
    c->dev = dev;
    c->n_socks = kind->n_socks(env);
    c->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    c->traffic_class = ctx != NULL ? ctx->traffic_class : NCCL_UNDEFINED;
    c->in_use = true;
    randombytes_buf(&c->id, sizeof(c->id));
    c->id |= 1; /* 0: none */
    for (int i = 0; i < c->n_socks && st >= 0; i++)
        st = begin_socket(c, i, &addr, kind->device(dev), key);
    sodium_memzero(key, sizeof(key));
    if (st < 0) {
        connecting_free(c);
        return net_result(st);
    }
    pthread_mutex_lock(&connecting_lock);
    drop_where(0, true, false);
    c->next = begun;
    begun = c;
    pthread_mutex_unlock(&connecting_lock);
    *c_out = c;
    return NCCL_SUCCESS;
}

/* *done: all sockets have proved themselves. */
static nccl_result_t connect_step(struct connecting *c, bool *done)
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
        result = net_check_hello(c->kind, dsc_handshake_peer(c->socks[i]), c->text);
        if (result != NCCL_SUCCESS)
            return result;
    }
    return NCCL_SUCCESS;
}

static nccl_result_t check_connect(const struct net_kind *kind, int dev, const uint8_t *handle)
{
    if (kind->device(dev) == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, kind->n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    if (dsc_get_u64(handle) != NET_HANDLE_MAGIC) {
        net_warn("DSComm: a handle is not of this plugin: does the peer use another network?");
        return NCCL_INVALID_USAGE;
    }
    if (dsc_get_u32(handle + NET_HANDLE_KIND_AT) != kind->id) {
        net_warn("DSComm: the peer uses another network than %s, which is this side's: set "
                 "DSCOMM_NET alike on all hosts",
                 kind->name);
        return NCCL_INVALID_USAGE;
    }
    if (dsc_get_u32(handle + NET_HANDLE_VERSION_AT) != kind->version) {
        net_warn("DSComm: the peer speaks version %u of the net's protocol, this side %u: install "
                 "the same release on all hosts",
                 dsc_get_u32(handle + NET_HANDLE_VERSION_AT), kind->version);
        return NCCL_INVALID_USAGE;
    }
    return NCCL_SUCCESS;
}

nccl_result_t net_connect(const struct net_kind *kind, void *ctx, int dev, void *handle,
                          void **send_comm)
{
    uint8_t *const bytes = handle;
    const nccl_result_t checked = check_connect(kind, dev, bytes);
    nccl_result_t result = NCCL_SUCCESS;
    struct connecting *c = NULL;
    const struct dsc_env *env;
    bool done = false;

    *send_comm = NULL;
    if (checked != NCCL_SUCCESS)
        return checked;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (dsc_get_u64(bytes + NET_HANDLE_CONNECTING_AT) == 0)
        result = begin_connecting(kind, ctx, dev, bytes, env, &c);
    else
        c = find_connecting(dsc_get_u64(bytes + NET_HANDLE_CONNECTING_AT));
    if (result != NCCL_SUCCESS)
        return result;
    if (c == NULL) {
        net_warn("DSComm: a connection was given up: no answer in %llu ms",
                 (unsigned long long)env->timeout_ms);
        return NCCL_REMOTE_ERROR;
    }
    if (c->comm == NULL)
        result = connect_step(c, &done);
    if (result == NCCL_SUCCESS && done) {
        c->comm = net_open_comm(kind, c->dev, true, c->socks, c->n_socks, c->traffic_class,
                                env->timeout_ms);
        result = c->comm != NULL ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
    }
    if (result == NCCL_SUCCESS && c->comm != NULL)
        result = net_settle(kind, &c->comm, send_comm);
    done = *send_comm != NULL || result != NCCL_SUCCESS;
    dsc_put_u64(bytes + NET_HANDLE_CONNECTING_AT, done ? 0 : c->id);
    let_go(c, done);
    return result;
}

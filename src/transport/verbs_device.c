/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing and opening an RDMA port: the first active one of the devices that DSCOMM_IB_HCA allows,
 * in the library's order. A named device that does not exist is an error, and so is an MTU above
 * what the port has: packets would be dropped without a word.
 */
#include "transport/verbs_device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "topo/topo.h"

#define DEVICES "/sys/class/infiniband"
#define GIDS_MAX 256
#define GIDS_EMPTY_MAX 16 /* so many unused entries in a row are taken for the end of the table */

/* What was seen on the way, for the text of an error. */
struct search {
    const struct dsc_verbs *verbs;
    const struct dsc_env *env;
    bool found; /* a port; else: */
    bool named; /* a port that the user allows, or all are */
    char devices[DSC_VERBS_TEXT_BYTES / 2];
    char ports[DSC_VERBS_TEXT_BYTES / 2]; /* why each of those is of no use */
};

static void note(char text[DSC_VERBS_TEXT_BYTES / 2], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void note(char text[DSC_VERBS_TEXT_BYTES / 2], const char *fmt, ...)
{
    const size_t used = strlen(text);
    const size_t comma = used > 0 && used + 2 < DSC_VERBS_TEXT_BYTES / 2 ? 2 : 0;
    va_list args;

    memcpy(text + used, ", ", comma);
    va_start(args, fmt);
    vsnprintf(text + used + comma, DSC_VERBS_TEXT_BYTES / 2 - used - comma, fmt, args);
    va_end(args);
}

/* ---- DSCOMM_IB_HCA ---- */

/* One item of the list: "mlx5" (how a name begins), with exact a name, both maybe with ":PORT". */
static bool item_fits(const char *item, size_t n, bool exact, const char *name, int port)
{
    const char *const colon = memchr(item, ':', n);
    const size_t n_name = colon != NULL ? (size_t)(colon - item) : n;

    if (strncmp(item, name, n_name) != 0 || (exact && name[n_name] != '\0'))
        return false;
    return colon == NULL || port == 0 || atoi(colon + 1) == port;
}

/* port 0: any of the device. */
static bool is_allowed(const char *spec, const char *name, int port)
{
    const bool excludes = *spec == '^', exact = *spec == '=';
    bool fits = false;

    if (*spec == '\0')
        return true;
    spec += excludes || exact;
    for (const char *item = spec; *item != '\0';) {
        const size_t n = strcspn(item, ",");

        fits = fits || (n > 0 && item_fits(item, n, exact, name, port));
        item += n + (item[n] == ',');
    }
    return excludes ? !(fits && port > 0) : fits;
}

/* ---- a port ---- */

static dscomm_status_t choose_mtu(const struct search *search, const struct ibv_port_attr *attr,
                                  struct dsc_verbs_port *port)
{
    const int wanted = atoi(search->env->ib_mtu); /* 0: auto */

    port->mtu = attr->active_mtu;
    if (wanted == 0)
        return DSCOMM_OK;
    if (wanted > 128 << attr->active_mtu)
        return dsc_fail(DSCOMM_ERR_ENV,
                        "DSCOMM_IB_MTU=%d, %s port %u has an active MTU of %d: at most that",
                        wanted, port->name, port->number, 128 << attr->active_mtu);
    port->mtu = IBV_MTU_256;
    while (128 << port->mtu < wanted)
        port->mtu = (enum ibv_mtu)(port->mtu + 1);
    return DSCOMM_OK;
}

static enum dsc_gid_type gid_type(const struct dsc_verbs_port *port, int index)
{
    char path[160], text[32] = "";
    const int n = snprintf(path, sizeof(path), DEVICES "/%s/ports/%u/gid_attrs/types/%d",
                           port->name, port->number, index);
    const int fd = n < (int)sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        (void)!read(fd, text, sizeof(text) - 1); /* EINVAL for an entry without a use */
        close(fd);
    }
    return strncmp(text, "RoCE v2", 7) == 0 ? DSC_GID_ROCE_V2 : DSC_GID_IB_ROCE_V1;
}

static dscomm_status_t choose_gid(const struct search *search, int n_gids,
                                  struct dsc_verbs_port *port)
{
    static const uint8_t zero[16];
    struct dsc_gid table[GIDS_MAX] = { 0 };
    const uint64_t index = search->env->ib_gid_index;
    const int n = n_gids < GIDS_MAX ? n_gids : GIDS_MAX;
    const int wanted = index == 65535 ? DSC_GID_AUTO : (int)index;

    for (int i = 0, empty = 0; i < n && (empty < GIDS_EMPTY_MAX || i <= wanted); i++) {
        union ibv_gid gid;

        if (search->verbs->query_gid(port->context, port->number, i, &gid) != 0 ||
            memcmp(gid.raw, zero, sizeof(zero)) == 0) {
            empty++;
            continue;
        }
        empty = 0;
        memcpy(table[i].bytes, gid.raw, sizeof(table[i].bytes));
        table[i].type = gid_type(port, i);
    }
    DSC_TRY(dsc_gid_choose(table, n, port->is_infiniband, wanted, &port->gid_index));
    memcpy(port->gid.raw, table[port->gid_index].bytes, sizeof(port->gid.raw));
    return DSCOMM_OK;
}

static bool query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr)
{
    struct verbs_context *const vctx = verbs_get_ctx_op(context, query_port);

    memset(attr, 0, sizeof(*attr));
    return vctx != NULL && vctx->query_port(context, number, attr, sizeof(*attr)) == 0;
}

static const char *state_text(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN:
        return "down";
    case IBV_PORT_INIT:
        return "not yet configured";
    case IBV_PORT_ARMED:
        return "armed";
    case IBV_PORT_ACTIVE:
        return "active";
    default:
        return "in no known state";
    }
}

/* Ports count from 1; the first that cannot be asked about is one too many. */
static dscomm_status_t search_ports(struct search *search, struct dsc_verbs_port *port)
{
    struct ibv_port_attr attr;

    for (uint8_t number = 1; query_port(port->context, number, &attr); number++) {
        if (!is_allowed(search->env->ib_hca, port->name, number))
            continue;
        search->named = true;
        if (attr.state != IBV_PORT_ACTIVE) {
            note(search->ports, "%s:%u is %s", port->name, number, state_text(attr.state));
            continue;
        }
        port->number = number;
        port->lid = attr.lid;
        port->is_infiniband = attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
        DSC_TRY(choose_mtu(search, &attr, port));
        DSC_TRY(choose_gid(search, attr.gid_tbl_len, port));
        search->found = true;
        return DSCOMM_OK;
    }
    return DSCOMM_OK;
}

static dscomm_status_t search_devices(struct search *search, struct ibv_device **list,
                                      struct dsc_verbs_port *port)
{
    for (int i = 0; list[i] != NULL; i++) {
        snprintf(port->name, sizeof(port->name), "%s", search->verbs->get_device_name(list[i]));
        note(search->devices, "%s", port->name);
        if (!is_allowed(search->env->ib_hca, port->name, 0))
            continue;
        port->context = search->verbs->open_device(list[i]);
        if (port->context == NULL) {
            search->named = true;
            note(search->ports, "%s cannot be opened: %s", port->name, strerror(errno));
            continue;
        }
        const dscomm_status_t st = search_ports(search, port);

        if (st >= 0 && search->found)
            return DSCOMM_OK;
        search->verbs->close_device(port->context);
        port->context = NULL;
        DSC_TRY(st);
    }
    return DSCOMM_OK;
}

/* DSCOMM_OK without a context: none, for the reason in text. Errors are those of settings. */
static dscomm_status_t open_port(const struct dsc_verbs **verbs_out, struct dsc_verbs_port *port,
                                 char text[DSC_VERBS_TEXT_BYTES])
{
    struct search search = { 0 };
    const char *why;

    memset(port, 0, sizeof(*port));
    DSC_TRY(dsc_env_get(&search.env));
    if (access(DEVICES, F_OK) != 0) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "this host has no RDMA device");
        return DSCOMM_OK;
    }
    search.verbs = dsc_verbs_get(&why);
    if (search.verbs == NULL) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s was not found", why);
        return DSCOMM_OK;
    }
    struct ibv_device **const list = search.verbs->get_device_list(NULL);

    if (list == NULL || list[0] == NULL)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "this host has no RDMA device with a driver here");
    const dscomm_status_t st = list != NULL ? search_devices(&search, list, port) : DSCOMM_OK;

    if (list != NULL)
        search.verbs->free_device_list(list);
    DSC_TRY(st);
    if (!search.found && search.named)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "no RDMA port is active: %s", search.ports);
    if (!search.named && *search.env->ib_hca != '\0')
        return dsc_fail(
            DSCOMM_ERR_ENV, "DSCOMM_IB_HCA=%s fits no port of the RDMA devices here: %s",
            search.env->ib_hca, search.devices[0] != '\0' ? search.devices : "there are none");
    *verbs_out = search.verbs;
    return DSCOMM_OK;
}

/* Equal where ports reach each other: RoCE's by IP, InfiniBand's within a subnet. */
static uint64_t key_of(const struct dsc_verbs_port *port)
{
    char text[32];

    if (!port->is_infiniband)
        return 1;
    snprintf(text, sizeof(text), "infiniband %016" PRIx64,
             (uint64_t)port->gid.global.subnet_prefix);
    return dsc_hash_text(text) | 2;
}

dscomm_status_t dsc_verbs_probe(enum dsc_rdma_wish wish, uint64_t *key_out)
{
    char text[DSC_VERBS_TEXT_BYTES] = "";
    const struct dsc_verbs *verbs = NULL;
    struct dsc_verbs_port port;

    *key_out = 0;
    if (wish == DSC_RDMA_NO)
        return DSCOMM_OK;
    DSC_TRY(open_port(&verbs, &port, text));
    if (port.context == NULL && wish == DSC_RDMA_MUST)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED, "transport verbs: %s", text);
    if (port.context == NULL) {
        dsc_log_debug(NET, "no RDMA: %s", text);
        return DSCOMM_OK;
    }
    *key_out = key_of(&port);
    verbs->close_device(port.context);
    return DSCOMM_OK;
}

/* ---- for an endpoint ---- */

/* A port that comes back is used again: what was lost meanwhile has been repeated, or is an error.
 */
static void take_event(struct dsc_verbs_device *device, const struct ibv_async_event *event)
{
    struct dsc_verbs_port *const port = &device->port;
    const bool of_port =
        event->event_type == IBV_EVENT_PORT_ERR || event->event_type == IBV_EVENT_PORT_ACTIVE;

    if (of_port && event->element.port_num != port->number)
        return;
    if (of_port)
        port->is_down = event->event_type == IBV_EVENT_PORT_ERR;
    if (event->event_type == IBV_EVENT_DEVICE_FATAL)
        dsc_net_set_error(device->net, DSCOMM_ERR_SYSTEM, device->net->rank,
                          "RDMA device %s failed: %s", port->name,
                          device->verbs->event_type_str(event->event_type));
    else if (of_port)
        dsc_log_warn(NET, "%s port %u: %s", port->name, port->number,
                     device->verbs->event_type_str(event->event_type));
}

static void on_async(struct dsc_source *source, uint32_t events)
{
    struct dsc_verbs_device *const device =
        (struct dsc_verbs_device *)((char *)source - offsetof(struct dsc_verbs_device, events));
    struct ibv_async_event event;

    (void)events;
    while (device->verbs->get_async_event(device->port.context, &event) == 0) {
        take_event(device, &event);
        device->verbs->ack_async_event(&event);
    }
}

static const char *open_events(struct dsc_net *net, struct dsc_verbs_device *device)
{
    struct ibv_context *const context = device->port.context;

    dsc_held_add(&device->command_held, &context->cmd_fd);
    (void)fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    const int fd = fcntl(context->async_fd, F_DUPFD_CLOEXEC, 0); /* its own is closed with it */

    dsc_held_add(&device->async_held, &context->async_fd);
    device->events.on_event = on_async;
    if (fd < 0)
        return strerror(errno);
    return dsc_source_open(net, &device->events, fd, EPOLLIN) < 0 ? "epoll" : NULL;
}

const char *dsc_verbs_device_open(struct dsc_net *net, char text[DSC_VERBS_TEXT_BYTES])
{
    if (net->verbs != NULL)
        return NULL;
    struct dsc_verbs_device *const device = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*device));

    if (device == NULL)
        return "no memory for an RDMA device";
    device->net = net;
    device->events.fd = -1;
    if (open_port(&device->verbs, &device->port, text) < 0)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s", dscomm_last_error());
    if (device->port.context == NULL) {
        dsc_free(device);
        return text;
    }
    device->pd = device->verbs->alloc_pd(device->port.context);
    const char *const why = device->pd == NULL ? strerror(errno) : open_events(net, device);

    if (why != NULL) {
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s: %s", device->port.name, why);
        dsc_verbs_device_close(device);
        return text;
    }
    net->verbs = device;
    dsc_log_info(NET, "RDMA over %s port %u, GID index %d, MTU %d", device->port.name,
                 device->port.number, device->port.gid_index, 128 << device->port.mtu);
    return NULL;
}

void dsc_verbs_device_close(struct dsc_verbs_device *device)
{
    if (device == NULL)
        return;
    dsc_source_close(device->net, &device->events);
    dsc_held_forget(&device->command_held); /* the library closes them itself */
    dsc_held_forget(&device->async_held);
    if (device->pd != NULL)
        device->verbs->dealloc_pd(device->pd);
    device->verbs->close_device(device->port.context);
    dsc_free(device);
}

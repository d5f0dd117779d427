/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing and opening RDMA ports: the active ones of the devices that DSCOMM_IB_HCA allows, in the
 * library's order. A named device that does not exist is an error, and so is an MTU above what the
 * port has: packets would be dropped without a word.
 */
#include "transport/verbs_port.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/topo.h"

#define DEVICES "/sys/class/infiniband"
#define GIDS_MAX 256
#define GIDS_EMPTY_MAX 16 /* so many unused entries in a row are taken for the end of the table */

/* What was seen on the way, for the text of an error. */
struct search {
    const struct dsc_verbs *verbs;
    const struct dsc_env *env;
    struct dsc_verbs_port *ports; /* found */
    size_t max, n;
    bool named; /* a port that the user allows, or all are */
    char devices[DSC_VERBS_TEXT_BYTES / 2];
    char refused[DSC_VERBS_TEXT_BYTES / 2]; /* ports that are of no use, and why */
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

/* Mbit/s of data; 0: a speed that is not known here. */
static int speed_of(const struct ibv_port_attr *attr)
{
    static const int lanes[] = { 1, 4, 8, 12, 2 }; /* by bit of active_width */
    static const int rates[] = { 2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000 };
    const unsigned width = attr->active_width, speed = attr->active_speed;

    if (width == 0 || speed == 0)
        return 0;
    const unsigned w = (unsigned)__builtin_ctz(width), s = (unsigned)__builtin_ctz(speed);

    return w < DSC_ARRAY_LEN(lanes) && s < DSC_ARRAY_LEN(rates) ? lanes[w] * rates[s] : 0;
}

static dscomm_status_t describe_port(const struct search *search, const struct ibv_port_attr *attr,
                                     struct dsc_verbs_port *port)
{
    port->lid = attr->lid;
    port->is_infiniband = attr->link_layer == IBV_LINK_LAYER_INFINIBAND;
    port->max_message = attr->max_msg_sz;
    port->speed = speed_of(attr);
    DSC_TRY(choose_mtu(search, attr, port));
    return choose_gid(search, attr->gid_tbl_len, port);
}

/*
 * Port `number` of a device: taken into the list, or noted why not. *is_last: there is none with
 * this number, or the device is of no use.
 */
static dscomm_status_t try_port(struct search *search, struct ibv_device *device, uint8_t number,
                                bool *is_last)
{
    struct dsc_verbs_port *const port = &search->ports[search->n];
    struct ibv_port_attr attr;
    dscomm_status_t st = DSCOMM_OK;
    bool taken = false;

    memset(port, 0, sizeof(*port));
    snprintf(port->name, sizeof(port->name), "%s", search->verbs->get_device_name(device));
    port->number = number;
    port->context = search->verbs->open_device(device);
    *is_last = port->context == NULL || !query_port(port->context, number, &attr);
    if (port->context == NULL) {
        search->named = true;
        note(search->refused, "%s cannot be opened: %s", port->name, strerror(errno));
        return DSCOMM_OK;
    }
    if (!*is_last && is_allowed(search->env->ib_hca, port->name, number)) {
        search->named = true;
        if (attr.state == IBV_PORT_ACTIVE) {
            st = describe_port(search, &attr, port);
            taken = st >= 0;
        } else {
            note(search->refused, "%s:%u is %s", port->name, number, state_text(attr.state));
        }
    }
    search->n += taken;
    if (!taken) {
        search->verbs->close_device(port->context);
        port->context = NULL;
    }
    return st;
}

/* Ports count from 1; the first that cannot be asked about is one too many. */
static dscomm_status_t search_devices(struct search *search, struct ibv_device **list)
{
    for (int i = 0; list[i] != NULL && search->n < search->max; i++) {
        const char *const name = search->verbs->get_device_name(list[i]);
        bool is_last = !is_allowed(search->env->ib_hca, name, 0);

        note(search->devices, "%s", name);
        for (uint8_t number = 1; !is_last && search->n < search->max; number++)
            DSC_TRY(try_port(search, list[i], number, &is_last));
    }
    return DSCOMM_OK;
}

static dscomm_status_t search_all(struct search *search, char text[DSC_VERBS_TEXT_BYTES])
{
    struct ibv_device **const list = search->verbs->get_device_list(NULL);

    if (list == NULL || list[0] == NULL)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "this host has no RDMA device with a driver here");
    const dscomm_status_t st = list != NULL ? search_devices(search, list) : DSCOMM_OK;

    if (list != NULL)
        search->verbs->free_device_list(list);
    DSC_TRY(st);
    if (search->n == 0 && search->named)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "no RDMA port is active: %s", search->refused);
    if (!search->named && *search->env->ib_hca != '\0')
        return dsc_fail(
            DSCOMM_ERR_ENV, "DSCOMM_IB_HCA=%s fits no port of the RDMA devices here: %s",
            search->env->ib_hca, search->devices[0] != '\0' ? search->devices : "there are none");
    return DSCOMM_OK;
}

dscomm_status_t dsc_verbs_ports_open(struct dsc_verbs_port *ports, size_t max, size_t *n_out,
                                     const struct dsc_verbs **verbs_out,
                                     char text[DSC_VERBS_TEXT_BYTES])
{
    struct search search = { .ports = ports, .max = max };
    const char *why;

    *n_out = 0;
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
    const dscomm_status_t st = search_all(&search, text);

    for (size_t i = 0; i < search.n && st < 0; i++)
        search.verbs->close_device(ports[i].context);
    DSC_TRY(st);
    *verbs_out = search.verbs;
    *n_out = search.n;
    return DSCOMM_OK;
}

struct ibv_context *dsc_verbs_port_reopen(const struct dsc_verbs *verbs,
                                          const struct dsc_verbs_port *port)
{
    struct ibv_device **const list = verbs->get_device_list(NULL);
    struct ibv_context *context = NULL;

    for (int i = 0; list != NULL && list[i] != NULL && context == NULL; i++)
        if (strcmp(verbs->get_device_name(list[i]), port->name) == 0)
            context = verbs->open_device(list[i]);
    if (list != NULL)
        verbs->free_device_list(list);
    return context;
}

bool dsc_verbs_port_is_up(const struct dsc_verbs_port *port)
{
    struct ibv_port_attr attr;

    return query_port(port->context, port->number, &attr) && attr.state == IBV_PORT_ACTIVE;
}

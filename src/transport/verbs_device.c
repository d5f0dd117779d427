/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA port of an endpoint: the first active one that DSCOMM_IB_HCA allows. */
#include "transport/verbs_device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

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
    size_t n;

    *key_out = 0;
    if (wish == DSC_RDMA_NO)
        return DSCOMM_OK;
    DSC_TRY(dsc_verbs_ports_open(&port, 1, &n, &verbs, text));
    if (n == 0 && wish == DSC_RDMA_MUST)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED, "transport verbs: %s", text);
    if (n == 0) {
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
    size_t n = 0;

    device->net = net;
    device->events.fd = -1;
    if (dsc_verbs_ports_open(&device->port, 1, &n, &device->verbs, text) < 0)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s", dscomm_last_error());
    if (n == 0) {
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

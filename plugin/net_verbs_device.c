/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA ports as NCCL's devices. A device is open while it has connections. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_verbs.h"

#define ASK_NS 10000000u
#define SPEED_UNKNOWN 10000 /* what NCCL assumes too */
#define COMMS_MAX 65536

/* Written by the first init() of the process, before anything else; only locks change later. */
static struct verbs_device devices[NET_DEVICES_MAX];
static int n_devices;

/* "0011:2233:4455:6677" of the device; 0: it has none. */
static uint64_t read_guid(const char *name)
{
    char path[160], text[32] = "";
    uint64_t guid = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/sys/class/infiniband/%.63s/node_guid", name);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    fclose(file);
    for (const char *p = text; *p != '\0'; p++)
        if (*p != ':' && *p != '\n')
            guid = guid << 4 | (uint64_t)strtoul((char[]){ *p, '\0' }, NULL, 16);
    return guid;
}

/*
 * What the device can do with memory of GPUs. A dma-buf that is none is a bad descriptor to a
 * device that knows dma-bufs, and an unsupported operation to others.
 */
static int gpu_support(const struct dsc_verbs *verbs, struct ibv_context *context)
{
    struct ibv_pd *const pd = verbs->alloc_pd(context);
    int support = 0;

    if (pd == NULL)
        return 0;
    if (verbs->reg_dmabuf_mr != NULL && access("/dev/nvidiactl", F_OK) == 0) {
        struct ibv_mr *const mr = verbs->reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0);

        if (mr != NULL)
            verbs->dereg_mr(mr);
        else if (errno == EBADF)
            support = NCCL_PTR_CUDA | NCCL_PTR_DMABUF;
    }
    verbs->dealloc_pd(pd);
    if (access("/sys/module/nvidia_peermem/version", F_OK) == 0)
        support |= NCCL_PTR_CUDA;
    return support;
}

static void describe(struct verbs_device *device, const union dsc_addr *addr)
{
    const struct dsc_verbs_port *const port = &device->port;
    struct ibv_device_attr attr = { 0 };

    (void)device->verbs->query_device(port->context, &attr);
    device->base = (struct net_device){
        .addr = *addr,
        .guid = read_guid(port->name),
        .port = port->number,
        .speed = port->speed > 0 ? port->speed : SPEED_UNKNOWN,
        .max_comms = attr.max_qp > 0 ? attr.max_qp : COMMS_MAX,
        .ptr_support = NCCL_PTR_HOST | gpu_support(device->verbs, port->context),
        .max_bytes = VERBS_BYTES_MAX,
    };
    snprintf(device->base.name, sizeof(device->base.name), "%.40s:%u", port->name, port->number);
    net_device_pci_path("infiniband", port->name, device->base.pci_path,
                        sizeof(device->base.pci_path));
    if (device->base.guid == 0)
        device->base.guid = dsc_hash_text(port->name) | 1;
}

nccl_result_t verbs_devices_find(int *n_out, char text[DSC_VERBS_TEXT_BYTES])
{
    struct dsc_verbs_port ports[NET_DEVICES_MAX];
    const struct dsc_verbs *verbs = NULL;
    const struct dsc_env *env;
    union dsc_addr addr;
    size_t n = 0;
    dscomm_status_t st;

    *n_out = n_devices;
    if (n_devices > 0)
        return NCCL_SUCCESS;
    st = dsc_verbs_ports_open(ports, NET_DEVICES_MAX, &n, &verbs, text);
    if (st >= 0 && n > 0)
        st = dsc_env_get(&env);
    if (st >= 0 && n > 0)
        st = dsc_netif_choose(env->socket_ifname, &addr);
    for (size_t i = 0; i < n; i++) {
        struct verbs_device *const device = &devices[i];

        device->verbs = verbs;
        device->port = ports[i];
        pthread_mutex_init(&device->lock, NULL);
        if (st >= 0)
            describe(device, &addr);
        verbs->close_device(device->port.context);
        device->port.context = NULL;
    }
    if (st < 0)
        return net_result(st);
    *n_out = n_devices = (int)n;
    return NCCL_SUCCESS;
}

struct verbs_device *verbs_device(int dev)
{
    return dev >= 0 && dev < n_devices ? &devices[dev] : NULL;
}

int verbs_n_devices(void)
{
    return n_devices;
}

bool verbs_device_acquire(struct verbs_device *device)
{
    bool good = true;

    pthread_mutex_lock(&device->lock);
    if (device->users == 0) {
        device->port.context = dsc_verbs_port_reopen(device->verbs, &device->port);
        if (device->port.context != NULL)
            device->pd = device->verbs->alloc_pd(device->port.context);
        good = device->pd != NULL;
        if (!good) {
            net_warn(NET_NAME ": RDMA device %s cannot be opened: %s", device->port.name,
                     strerror(errno));
            if (device->port.context != NULL)
                device->verbs->close_device(device->port.context);
            device->port.context = NULL;
        }
    }
    device->users += good;
    pthread_mutex_unlock(&device->lock);
    return good;
}

void verbs_device_release(struct verbs_device *device)
{
    pthread_mutex_lock(&device->lock);
    if (--device->users == 0) {
        verbs_regions_drop(device);
        device->verbs->dealloc_pd(device->pd);
        device->verbs->close_device(device->port.context);
        device->pd = NULL;
        device->port.context = NULL;
        atomic_store(&device->asked_ns, 0);
    }
    pthread_mutex_unlock(&device->lock);
}

bool verbs_device_is_down(struct verbs_device *device, uint64_t now_ns)
{
    uint64_t asked_ns = atomic_load_explicit(&device->asked_ns, memory_order_relaxed);

    if (now_ns - asked_ns >= ASK_NS &&
        atomic_compare_exchange_strong(&device->asked_ns, &asked_ns, now_ns))
        atomic_store(&device->is_down, !dsc_verbs_port_is_up(&device->port));
    return atomic_load(&device->is_down);
}

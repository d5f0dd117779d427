/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. Which RDMA port this process uses, and the device opened for an
 * endpoint. All ranks choose for themselves: what peers must know is in their hellos.
 */
#ifndef DSC_VERBS_DEVICE_H
#define DSC_VERBS_DEVICE_H

#include "transport/verbs_pair.h"
#include "transport/verbs_table.h"

/* One port, opened. */
struct dsc_verbs_port {
    struct ibv_context *context;
    char name[IBV_SYSFS_NAME_MAX];
    uint8_t number;
    bool is_infiniband; /* else RoCE */
    bool is_down;       /* an event said so after it was opened */
    uint16_t lid;
    enum ibv_mtu mtu; /* of the path, DSCOMM_IB_MTU or what is active */
    int gid_index;
    union ibv_gid gid;
};

/* What an endpoint keeps of its device. */
struct dsc_verbs_device {
    const struct dsc_verbs *verbs;
    struct dsc_verbs_port port;
    struct ibv_pd *pd;
    struct dsc_net *net;
    struct dsc_source events; /* asynchronous ones: the port's state, the device's end */
    struct dsc_held command_held, async_held;
};

/* Opens the endpoint's device, once. NULL, or why not; text is its memory. */
const char *dsc_verbs_device_open(struct dsc_net *net, char text[DSC_VERBS_TEXT_BYTES]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. The RDMA device opened for an endpoint.
 */
#ifndef DSC_VERBS_DEVICE_H
#define DSC_VERBS_DEVICE_H

#include "transport/verbs_pair.h"
#include "transport/verbs_port.h"

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

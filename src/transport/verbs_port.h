/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport and plugin/. Which RDMA ports this process may use, opened. All ranks
 * choose for themselves: what peers must know is in their hellos.
 */
#ifndef DSC_VERBS_PORT_H
#define DSC_VERBS_PORT_H

#include "transport/transport.h"
#include "transport/verbs_table.h"

/* One port, opened: a context of its own. */
struct dsc_verbs_port {
    struct ibv_context *context;
    char name[IBV_SYSFS_NAME_MAX];
    uint8_t number;
    bool is_infiniband; /* else RoCE */
    bool is_down;       /* an event said so after it was opened */
    uint16_t lid;
    enum ibv_mtu mtu;     /* of the path, DSCOMM_IB_MTU or what is active */
    uint32_t max_message; /* bytes */
    int speed;            /* Mbit/s; 0: not known */
    int gid_index;
    union ibv_gid gid;
};

/*
 * The first `max` active ports that DSCOMM_IB_HCA allows. *n_out is 0 for the reason in text.
 * Errors are those of settings; then nothing is open.
 */
dscomm_status_t dsc_verbs_ports_open(struct dsc_verbs_port *ports, size_t max, size_t *n_out,
                                     const struct dsc_verbs **verbs_out,
                                     char text[DSC_VERBS_TEXT_BYTES]);
/* Another context of a port's device; NULL: it is gone, or cannot be opened (errno). */
struct ibv_context *dsc_verbs_port_reopen(const struct dsc_verbs *verbs,
                                          const struct dsc_verbs_port *port);
bool dsc_verbs_port_is_up(const struct dsc_verbs_port *port);

#endif

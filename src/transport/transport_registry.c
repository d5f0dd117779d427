/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of transports, best first. */
#include "transport/transport.h"

#include <string.h>

static const struct dsc_transport_ops *const transports[] = {
    &dsc_transport_loopback, &dsc_transport_shm,      &dsc_transport_verbs,
    &dsc_transport_tcp,      &dsc_transport_nccl_net,
};

const struct dsc_transport_ops *const *dsc_transports(size_t *n_out)
{
    *n_out = DSC_ARRAY_LEN(transports);
    return transports;
}

void dsc_transport_copy_post_from(struct dsc_conn *conn, uint64_t index,
                                  const struct dsc_header *header, const uint8_t *payload)
{
    uint8_t *const slot = conn->ops->tx_slot(conn, index);

    DSC_ASSERT(slot != NULL);
    if (header->payload_bytes > 0)
        memcpy(slot, payload, header->payload_bytes);
    conn->ops->tx_post(conn, index, header);
}

void dsc_transport_no_settle(struct dsc_conn *conn)
{
    (void)conn; /* nothing is left in the caller's memory */
}

bool dsc_transport_no_arm(struct dsc_conn *conn)
{
    (void)conn;
    return true;
}

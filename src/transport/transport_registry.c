/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of transports, best first. */
#include "transport/transport.h"

static const struct dsc_transport_ops *const transports[] = {
    &dsc_transport_loopback,
    &dsc_transport_shm,
    &dsc_transport_tcp,
};

const struct dsc_transport_ops *const *dsc_transports(size_t *n_out)
{
    *n_out = DSC_ARRAY_LEN(transports);
    return transports;
}

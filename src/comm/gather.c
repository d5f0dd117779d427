/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other besides calls: some bytes of each, to all. */
#include "comm/comm.h"

/* Bytes travel as float32, exactly, by an all-gather without codec. */
dscomm_status_t dsc_comm_gather(struct dscomm_comm *comm, const void *own, size_t n, uint8_t *all)
{
    const size_t n_all = n * (size_t)comm->n_ranks;
    float *const values = dsc_calloc(DSC_MEM_COMM, n_all, sizeof(*values));
    float *const mine = values + (size_t)comm->rank * n;
    const struct dsc_shape shape =
        dsc_shape_make(DSC_ALL_GATHER, n, DSCOMM_FLOAT32, DSCOMM_SUM, NULL, false);
    struct dsc_call call = { .send = mine, .recv = values };
    struct dsc_plan_entry *entry;
    dscomm_status_t st;

    if (values == NULL)
        return dsc_comm_fail(
            comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "%zu bytes of %d ranks", n, comm->n_ranks),
            -1);
    for (size_t i = 0; i < n; i++)
        mine[i] = (float)((const uint8_t *)own)[i];
    st = dsc_comm_plan(comm, &shape, &entry);
    if (st == DSCOMM_OK)
        st = dsc_comm_execute(comm, entry, &call);
    for (size_t i = 0; st == DSCOMM_OK && i < n_all; i++)
        all[i] = (uint8_t)values[i];
    dsc_free(values);
    return st;
}

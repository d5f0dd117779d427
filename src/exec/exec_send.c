/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending an operation's message: from where it was made to every slot of it, or straight from the
 * caller's input.
 */
#include "exec/exec_internal.h"

#include <string.h>

void dsc_send_post(struct dsc_exec_run *run, uint32_t send, uint32_t bytes, const uint8_t *payload)
{
    const struct dsc_plan_msg *m = &run->plan->sends[send];
    const uint64_t index = run->tx_base[m->conn] + m->index;
    struct dsc_conn *conn = run->conns[m->conn];
    const struct dsc_header header = { .magic = DSC_HEADER_MAGIC,
                                       .version = DSC_HEADER_VERSION,
                                       .kind = DSC_MSG_DATA,
                                       .sequence = run->sequence,
                                       .descriptor = run->plan->hash,
                                       .chunk = m->chunk,
                                       .stage = m->stage,
                                       .payload_bytes = bytes,
                                       .note = run->outcome.note };

    if (payload != NULL)
        conn->ops->tx_post_from(conn, index, &header, payload);
    else
        conn->ops->tx_post(conn, index, &header);
    run->posted[send] = 1;
    run->outcome.payload_tx_bytes += bytes;
}

static void post(struct dsc_exec_run *run, uint32_t op_index, uint32_t send)
{
    dsc_send_post(run, send, run->used[op_index], NULL);
}

bool dsc_send_copies(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];
    bool all = true;

    for (uint32_t i = op->first_send; i < op->first_send + op->n_sends; i++) {
        uint8_t *slot;

        if (run->posted[i])
            continue;
        slot = dsc_send_slot(run, i);
        if (slot == NULL) {
            all = false;
            continue;
        }
        if (slot != run->bytes[op_index] && run->used[op_index] > 0)
            memcpy(slot, run->bytes[op_index], run->used[op_index]);
        post(run, op_index, i);
    }
    return all;
}

void dsc_send_from_first_slot(struct dsc_exec_run *run, uint32_t op_index)
{
    const struct dsc_op *op = &run->plan->ops[op_index];

    for (uint32_t i = op->first_send + 1; i < op->first_send + op->n_sends; i++) {
        if (run->used[op_index] > 0)
            memcpy(dsc_send_slot(run, i), run->bytes[op_index], run->used[op_index]);
        post(run, op_index, i);
    }
    post(run, op_index, op->first_send);
}

const uint8_t *dsc_send_in_input(const struct dsc_exec_run *run, const struct dsc_op *op)
{
    const struct dscomm_plan *plan = run->plan;

    if (op->kind != DSC_OP_SEND || op->own_partial != DSC_NO_BUFFER || op->n_sends != 1 ||
        plan->params.dtype != DSCOMM_FLOAT32 || !plan->params.codecs[op->tier]->by_dtype ||
        plan->codecs[op->tier]->variable || !run->compute.idle[op->tier] ||
        op->msg_bytes != op->n * sizeof(float))
        return NULL;
    if (!run->conns[plan->sends[op->first_send].conn]->ops->reads_once ||
        (plan->params.collective == DSC_ALL_TO_ALL &&
         run->compute.call->send == run->compute.call->recv))
        return NULL;
    const float *const input =
        (const float *)run->compute.call->send + (op->start - plan->send_base);

    return run->compute.k->count_nonfinite(input, 1.0f, op->n) == 0 ? (const uint8_t *)input : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a call when it has ended: for the caller who asks, and as the note that the rank
 * tells in the next allreduce.
 */
#include "comm/comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MILLION 1e6

_Static_assert(sizeof(dscomm_call_stats_t) % sizeof(uint64_t) == 0, "it is copied in words");

/* ---- the note ---- */

/* sqrt(a/b) in millionths; b is 0 if nothing was seen. */
static uint64_t ratio_ppm(double a_sq, double b_sq)
{
    const double ppm = b_sq > 0 ? sqrt(a_sq / b_sq) * MILLION : 0;

    return ppm < 1e15 ? (uint64_t)ppm : UINT64_C(1000000000000000);
}

static uint32_t note_of(const struct dscomm_plan *plan, const struct dsc_exec_outcome *o)
{
    const uint64_t bytes = plan->params.count * dsc_dtype_bytes(plan->params.dtype);
    const struct dsc_note note = {
        .error_ppm = ratio_ppm(o->sample.error_sq, o->sample.encoded_sq),
        .residual_ppm =
            o->sample.input_sq > 0 ? ratio_ppm(o->sample.error_sq, o->sample.input_sq) : 0,
        .ns_per_kib = bytes > 0 ? o->ns * 1024 / bytes : 0,
        .wait_ppm =
            o->ns > 0 ? (uint32_t)dsc_min_u64(o->wait_ns * 1000 / (o->ns / 1000 + 1), 1000000) : 0,
        .overflow = o->sample.n_nonfinite > 0,
    };

    return dsc_note_pack(&note);
}

uint32_t dsc_notes_own(const struct dscomm_comm *comm, const struct dsc_plan_params *params)
{
    if (params->collective != DSC_ALLREDUCE)
        return 0;
    if (comm->note_fn != NULL)
        return comm->note_fn(comm->test_user, comm->allreduces, comm->own_note);
    return comm->own_note;
}

/* ---- for the caller ---- */

/*
 * Who reads a new word sees, by release and acquire, the odd version that was written before it.
 */
void dsc_notes_publish(struct dscomm_comm *comm, const dscomm_call_stats_t *stats)
{
    struct dsc_last_call *const last = &comm->last_call;
    const uint32_t version = atomic_load_explicit(&last->version, memory_order_relaxed);
    uint64_t words[DSC_CALL_WORDS];

    memcpy(words, stats, sizeof(words));
    atomic_store_explicit(&last->version, version + 1, memory_order_relaxed);
    for (size_t i = 0; i < DSC_CALL_WORDS; i++)
        atomic_store_explicit(&last->words[i], words[i], memory_order_release);
    atomic_store_explicit(&last->version, version + 2, memory_order_release);
}

/* False: there was no call. */
static bool read_published(const struct dsc_last_call *last, dscomm_call_stats_t *stats_out)
{
    uint64_t words[DSC_CALL_WORDS];
    uint32_t before, after;

    do {
        before = atomic_load_explicit(&last->version, memory_order_acquire);
        for (size_t i = 0; i < DSC_CALL_WORDS; i++)
            words[i] = atomic_load_explicit(&last->words[i], memory_order_acquire);
        after = atomic_load_explicit(&last->version, memory_order_relaxed);
    } while (before != after || before % 2 != 0);
    if (before != 0)
        memcpy(stats_out, words, sizeof(words));
    return before != 0;
}

static void keep(struct dscomm_comm *comm, const struct dscomm_plan *plan,
                 const struct dsc_exec_outcome *o)
{
    const struct dsc_sample *const s = &o->sample;
    const double n_outputs = (double)dsc_plan_recv_elems(&plan->params);
    dscomm_call_stats_t stats = {
        .struct_bytes = sizeof(stats),
        .calls = atomic_load_explicit(&comm->calls, memory_order_relaxed) + 1,
        .call_ns = o->ns,
        .wait_ns = o->wait_ns,
        .payload_tx_bytes = o->payload_tx_bytes,
        .nonfinite_elems = s->n_nonfinite,
        .relative_error = s->encoded_sq > 0 ? sqrt(s->error_sq / s->encoded_sq) : 0,
        .residual_ratio = s->input_sq > 0 ? sqrt(s->error_sq / s->input_sq) : 0,
        .sampled_outputs = s->n_outputs,
        .note = o->note,
    };

    if (s->n_outputs > 0) {
        stats.output_sum_of_squares = s->output_sq * (n_outputs / (double)s->n_outputs);
        stats.output_zero_share = (double)s->n_zeros / (double)s->n_outputs;
    }
    snprintf(stats.codec, sizeof(stats.codec), "%s",
             plan->params.codecs[plan->params.n_tiers - 1]->spec);
    dsc_notes_publish(comm, &stats);
}

void dsc_notes_finish(struct dscomm_comm *comm, const struct dscomm_plan *plan,
                      const struct dsc_exec_outcome *outcome)
{
    keep(comm, plan, outcome);
    if (plan->params.collective != DSC_ALLREDUCE)
        return;
    comm->own_note = note_of(plan, outcome);
    comm->allreduces++;
    dsc_auto_finish(comm, outcome->note);
}

dscomm_status_t dscomm_comm_last_call(const dscomm_comm_t *comm, dscomm_call_stats_t *stats_out)
{
    if (comm == NULL || stats_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", comm == NULL ? "comm" : "stats_out");
    if (stats_out->struct_bytes != sizeof(*stats_out))
        return dsc_fail(DSCOMM_ERR_INVALID, "call stats struct_bytes %zu, must be %zu",
                        stats_out->struct_bytes, sizeof(*stats_out));
    if (!read_published(&comm->last_call, stats_out))
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "no call was made yet");
    return DSCOMM_OK;
}

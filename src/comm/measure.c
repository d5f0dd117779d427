/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring a communicator's links, its codecs and what a call costs besides. Machines are noisy,
 * so everything is a median of several short rounds; time is bounded, so rounds end early on slow
 * links, on all ranks alike.
 */
#include "comm/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DESCRIPTOR "measure"

uint64_t dsc_thread_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t dsc_median(uint64_t *values, size_t n)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), dsc_compare_u64);
    return values[n / 2];
}

uint64_t dsc_quartile(uint64_t *values, size_t n)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), dsc_compare_u64);
    return values[n / 4];
}

/* ---- what ranks tell each other ---- */

dscomm_status_t dsc_meter_agree(struct dsc_meter *m, uint64_t value, struct dsc_agreed *agreed_out)
{
    const size_t n = (size_t)m->comm->n_ranks;
    uint64_t *const all = dsc_calloc(DSC_MEM_COMM, n, sizeof(*all));
    dscomm_status_t st;

    if (all == NULL)
        return dsc_comm_fail(m->comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "a number per rank"),
                             -1);
    st = dsc_comm_gather(m->comm, &value, sizeof(value), (uint8_t *)all);
    *agreed_out = (struct dsc_agreed){ 0 };
    for (size_t r = 0; st == DSCOMM_OK && r < n; r++) {
        if (all[r] > agreed_out->most)
            agreed_out->most = all[r];
        if (all[r] != 0 && (agreed_out->least == 0 || all[r] < agreed_out->least))
            agreed_out->least = all[r];
        agreed_out->mean += all[r];
    }
    agreed_out->mean /= n;
    dsc_free(all);
    return st;
}

static dscomm_status_t merge_all(struct dscomm_comm *comm, const uint8_t *wires,
                                 struct dsc_rates *rates)
{
    struct dsc_rates *const other = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*other));
    dscomm_status_t st = DSCOMM_OK;

    if (other == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "rates");
    for (int r = 0; st == DSCOMM_OK && r < comm->n_ranks; r++) {
        st = dsc_rates_wire_get(wires + (size_t)r * DSC_RATES_WIRE_BYTES, r, other);
        if (st == DSCOMM_OK && r == 0)
            *rates = *other;
        else if (st == DSCOMM_OK)
            st = dsc_rates_merge(rates, other);
    }
    dsc_free(other);
    return st;
}

dscomm_status_t dsc_comm_merge_rates(struct dscomm_comm *comm, struct dsc_rates *rates)
{
    uint8_t own[DSC_RATES_WIRE_BYTES];
    uint8_t *const all = dsc_calloc(DSC_MEM_COMM, (size_t)comm->n_ranks, sizeof(own));
    dscomm_status_t st;

    if (all == NULL)
        return dsc_comm_fail(comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "rates of all ranks"), -1);
    dsc_rates_wire_put(rates, own);
    st = comm->backend->gather(comm, own, sizeof(own), all);
    if (st == DSCOMM_OK) {
        st = merge_all(comm, all, rates);
        if (st < 0)
            st = dsc_comm_fail(comm, NULL, st, -1);
    }
    dsc_free(all);
    return st;
}

/* ---- all of it ---- */

static dscomm_status_t measure(struct dsc_meter *m, const struct dsc_measure *what)
{
    if (m->comm->n_ranks > 1) {
        DSC_TRY(dsc_meter_links(m, m->budget_ns * 2 / 5));
        DSC_TRY(dsc_meter_calls(m));
    }
    DSC_TRY(dsc_meter_codecs(m, what, m->budget_ns * 3 / 10));
    return dsc_comm_merge_rates(m->comm, m->rates);
}

void dsc_rates_begin(const struct dscomm_comm *comm, struct dsc_rates *rates_out)
{
    *rates_out = (struct dsc_rates){ .version = DSC_RATES_VERSION,
                                     .overlap = 1,
                                     .cpus_per_host = (uint32_t)comm->cpus_per_host,
                                     .ranks_per_host = (uint32_t)comm->ranks_per_host,
                                     .n_tiers = (uint32_t)comm->tiers.n_tiers };
    for (int t = 0; t < comm->tiers.n_tiers; t++)
        rates_out->tiers[t].kind = (uint32_t)comm->tiers.kinds[t];
}

dscomm_status_t dsc_comm_measure(struct dscomm_comm *comm, const struct dsc_measure *what,
                                 int budget_ms, struct dsc_rates *rates_out)
{
    const uint64_t start = dsc_now_ns();
    struct dsc_rates *const rates = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*rates));
    struct dsc_meter m = { .comm = comm,
                           .rates = rates,
                           .budget_ns = (uint64_t)budget_ms * 1000000u,
                           .n_rounds = budget_ms < 1000 ? 3 : DSC_ROUNDS_MAX,
                           .hash = dsc_hash_text(DESCRIPTOR) };
    dscomm_status_t st;

    if (rates == NULL)
        return dsc_comm_fail(comm, NULL, dsc_fail(DSCOMM_ERR_NO_MEMORY, "rates"), -1);
    dsc_rates_begin(comm, rates);
    rates->cache_bytes = dsc_cpu_cache_bytes() * rates->cpus_per_host;
    rates->header_bytes = DSC_HEADER_BYTES;
    st = measure(&m, what);
    if (st == DSCOMM_OK) {
        *rates_out = *rates;
        dsc_log_info(TUNE, "measured %u tiers and %u codecs in %.0f ms", rates->n_tiers,
                     rates->n_speeds, (double)(dsc_now_ns() - start) / 1e6);
    }
    dsc_free(rates);
    return st;
}

/* Most wanted first, should time or room end: those without feedback, of float32. */
size_t dsc_measure_all(struct dsc_measure_codec codecs[DSC_SPEEDS_MAX])
{
    static const dscomm_dtype_t dtypes[] = { DSCOMM_FLOAT32, DSCOMM_BFLOAT16 };
    size_t n_specs, n = 0;
    const char *const *const specs = dsc_tuner_specs(&n_specs);

    for (size_t k = 0; k < 2 * DSC_ARRAY_LEN(dtypes); k++)
        for (size_t s = 0; s <= n_specs && n < DSC_SPEEDS_MAX; s++)
            codecs[n++] = (struct dsc_measure_codec){ dscomm_codec(s < n_specs ? specs[s] : "fp32"),
                                                      dtypes[k / 2], k % 2 != 0 };
    return n;
}

/* ---- whose rates these are ---- */

dscomm_status_t dsc_comm_fingerprint(const struct dscomm_comm *comm,
                                     struct dsc_fingerprint *machine_out)
{
    char text[DSC_FINGERPRINT_VALUE_BYTES] = "";

    DSC_TRY(dsc_fingerprint_host(machine_out));
    for (int t = 0; t < comm->tiers.n_tiers; t++) {
        const size_t used = strlen(text);

        snprintf(text + used, sizeof(text) - used, "%s%s", t == 0 ? "" : "/",
                 dsc_tier_kind_name((uint32_t)comm->tiers.kinds[t]));
    }
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_TIERS, text);
    snprintf(text, sizeof(text), "%d", comm->ranks_per_host);
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_RANKS_PER_HOST, text);
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_TRANSPORT, comm->transport);
    snprintf(text, sizeof(text), "%d", comm->config.n_threads);
    dsc_fingerprint_set(machine_out, DSC_FINGERPRINT_THREADS, text);
    if (comm->backend->describe != NULL)
        comm->backend->describe(comm, machine_out);
    return DSCOMM_OK;
}

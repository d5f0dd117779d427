/* SPDX-License-Identifier: Apache-2.0 */
#include "rates_table.h"

#include <stdio.h>

static void print_tier(uint32_t t, const struct dsc_tier_rates *tier)
{
    if (tier->bytes_per_s == 0) {
        printf("  %4u  %-8s  not measured\n", t, dsc_tier_kind_name(tier->kind));
        return;
    }
    printf("  %4u  %-8s  %12.2f  %12.3f  %14.3f  %12u  %13.3f\n", t, dsc_tier_kind_name(tier->kind),
           (double)tier->latency_ns * 1e-3, (double)tier->bytes_per_s_alone * 1e-9,
           (double)tier->bytes_per_s * 1e-9, tier->message_ns, (double)tier->byte_fs * 1e-6);
}

static void print_speed(const struct dsc_codec_speed *s)
{
    printf("  %-24s  %5s  %8s  %8.3f  %8.3f  %8.3f  %8.3f  %8.3f  %8.3f  %8.3f\n", s->spec,
           dsc_dtype_name((dscomm_dtype_t)s->dtype), s->feedback != 0 ? "on" : "off",
           (double)s->send_fs * 1e-6, (double)s->add_fs * 1e-6, (double)s->own_fs * 1e-6,
           (double)s->decode_fs * 1e-6, (double)s->far_send_fs * 1e-6, (double)s->far_own_fs * 1e-6,
           (double)s->far_decode_fs * 1e-6);
}

void rates_table_print(const struct dsc_rates *rates)
{
    printf("# %4s  %-8s  %12s  %12s  %14s  %12s  %13s\n", "tier", "kind", "latency", "alone",
           "all at once", "CPU/message", "CPU/byte");
    printf("# %4s  %-8s  %12s  %12s  %14s  %12s  %13s\n", "", "", "(us)", "(GB/s)", "(GB/s/rank)",
           "(ns)", "(ns)");
    for (uint32_t t = 0; t < rates->n_tiers; t++)
        print_tier(t, &rates->tiers[t]);
    printf("#\n# %-24s  %5s  %8s  %8s  %8s  %8s  %8s  %8s  %8s  %8s\n", "codec, ns per element",
           "type", "feedback", "send", "add", "own", "decode", "far send", "far own", "far dec.");
    for (uint32_t s = 0; s < rates->n_speeds; s++)
        print_speed(&rates->speeds[s]);
    printf("#\n# ranks per host %u, CPUs per host %u, a call %.2f us, a stage %.2f us, an "
           "operation %.2f us\n",
           rates->ranks_per_host, rates->cpus_per_host, (double)rates->call_ns * 1e-3,
           (double)rates->stage_ns * 1e-3, (double)rates->op_ns * 1e-3);
    if (rates->cache_bytes != 0)
        printf("# vectors of all ranks of a host are far beyond %.1f MiB of cache\n",
               (double)rates->cache_bytes / (1 << 20));
}

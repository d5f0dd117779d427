/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/tuner. How long a load takes with given codecs; docs/tuner.md has the formulas. */
#ifndef DSC_TUNER_COST_H
#define DSC_TUNER_COST_H

#include "tuner/load.h"

/* What a plan's tiers send, looked up once per candidate. */
struct dsc_cost_codec {
    const struct dsc_codec *codec; /* resolved */
    struct dsc_codec_speed speed;
};

struct dsc_cost {
    uint64_t total_ns, wire_ns[DSC_MAX_TIERS], tx_bytes[DSC_MAX_TIERS];
    uint64_t codec_ns, cpu_ns, latency_ns;
    uint64_t messages;
};

/*
 * far_ppm: share of a call's data that no cache holds. False: messages cross a tier that was not
 * measured; its number.
 */
bool dsc_cost_of(const struct dsc_load *load, const struct dsc_cost_codec *codecs,
                 const struct dsc_question *question, const struct dsc_rates *rates,
                 uint64_t far_ppm, struct dsc_cost *cost_out, int *tier_out);

/* A cost of which a share is that of data in memory; far_fs 0: not known. */
uint32_t dsc_mix_fs(uint32_t near_fs, uint32_t far_fs, uint64_t far_ppm);

/* a * b / c rounded down, the most there is where it does not fit. c > 0. */
uint64_t dsc_mul_div(uint64_t a, uint64_t b, uint64_t c);

#endif

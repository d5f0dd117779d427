/* SPDX-License-Identifier: Apache-2.0 */
/* Machines for tests of the tuner. */
#ifndef DSC_TUNER_SUPPORT_H
#define DSC_TUNER_SUPPORT_H

#include "support/internal_begin.h"
#include "tuner/tuner.h"
#include "tuner/cost.h"
#include "support/internal_end.h"

#include <cstdio>
#include <string>
#include <vector>

namespace tuner_test {

/* Bytes of device memory per element that a codec's stages move. */
struct Moved {
    const char *spec;
    double send, add, own, decode;
};

/*
 * A GPU whose kernels run at the speed of its memory, 4.3 TB/s. bf16 gradients g, bf16 residual e,
 * codes q: send reads g and e, writes e and q; the owner reads each message's codes, and its own
 * g and e, and writes e, codes and output; decode reads codes and writes the output. Top-k reads g
 * and e once for each of four digits of the radix selection and once to compact.
 */
inline const std::vector<Moved> &frozen_kernels()
{
    static const std::vector<Moved> kernels = {
        { "none", 2 + 2, 2, 2 + 2 + 2, 2 + 2 },
        { "fp32", 2 + 4, 4, 2 + 4 + 2, 4 + 2 },
        { "bf16", 2 + 2 + 2 + 2, 2, 2 + 2 + 2 + 2 + 2, 2 + 2 },
        { "fp16", 2 + 2 + 2 + 2, 2, 2 + 2 + 2 + 2 + 2, 2 + 2 },
        { "int8", 2 + 2 + 2 + 1.02, 1.02, 2 + 2 + 2 + 1.02 + 2, 1.02 + 2 },
        { "fp8", 2 + 2 + 2 + 1.02, 1.02, 2 + 2 + 2 + 1.02 + 2, 1.02 + 2 },
        { "mxfp8", 2 + 2 + 2 + 1.03, 1.03, 2 + 2 + 2 + 1.03 + 2, 1.03 + 2 },
        { "int4:signed", 2 + 2 + 2 + 0.53, 0.53, 2 + 2 + 2 + 0.53 + 2, 0.53 + 2 },
        { "mxfp4", 2 + 2 + 2 + 0.53, 0.53, 2 + 2 + 2 + 0.53 + 2, 0.53 + 2 },
        { "nvfp4", 2 + 2 + 2 + 0.56, 0.56, 2 + 2 + 2 + 0.56 + 2, 0.56 + 2 },
        { "topk:0.01", 5 * 4 + 2, 0.08, 5 * 4 + 2 + 2, 0.04 + 2 },
        { "topk:0.01,fp8", 5 * 4 + 2, 0.06, 5 * 4 + 2 + 2, 0.03 + 2 },
    };
    return kernels;
}

inline void add_speed(struct dsc_rates *rates, const Moved &m, double bytes_per_s,
                      dscomm_dtype_t dtype)
{
    struct dsc_codec_speed *const speed = &rates->speeds[rates->n_speeds++];
    const auto fs = [&](double bytes) { return uint32_t(bytes * 1e15 / bytes_per_s + 0.5); };

    snprintf(speed->spec, sizeof(speed->spec), "%s", m.spec);
    speed->dtype = uint8_t(dtype);
    speed->feedback = 1;
    speed->send_fs = fs(m.send);
    speed->add_fs = fs(m.add);
    speed->own_fs = fs(m.own);
    speed->decode_fs = fs(m.decode);
}

struct Link {
    enum dsc_tier_kind kind;
    double gb_per_s;
    uint32_t latency_ns;
};

/* The frozen device behind the given links, overlap off. */
inline struct dsc_rates frozen_device(const std::vector<Link> &links, double memory_gbps = 4300)
{
    struct dsc_rates rates = {};

    rates.version = DSC_RATES_VERSION;
    for (const Link &link : links) {
        struct dsc_tier_rates *const tier = &rates.tiers[rates.n_tiers++];

        tier->kind = link.kind;
        tier->latency_ns = link.latency_ns;
        tier->bytes_per_s = tier->bytes_per_s_alone = uint64_t(link.gb_per_s * 1e9);
    }
    for (const Moved &m : frozen_kernels())
        add_speed(&rates, m, memory_gbps * 1e9, DSCOMM_BFLOAT16);
    rates.cpus_per_host = 64;
    rates.ranks_per_host = 8;
    rates.call_ns = 5000;
    rates.op_ns = 0;
    return rates;
}

/* n_hosts of n_local ranks; one host is one tier. */
inline std::vector<int> host_groups(int n_hosts, int n_local)
{
    std::vector<int> groups;

    for (int r = 0; r < n_hosts * n_local; r++)
        groups.push_back(r / n_local * n_local);
    for (int r = 0; r < n_hosts * n_local; r++)
        groups.push_back(0);
    return groups;
}

inline struct dsc_question question_of(int n_ranks, const std::vector<int> &groups, size_t count,
                                       const char *budget)
{
    struct dsc_question q = {};

    q.n_ranks = n_ranks;
    q.n_tiers = groups.empty() ? 1 : int(groups.size()) / n_ranks;
    q.groups = groups.empty() ? nullptr : groups.data();
    q.count = count;
    q.dtype = DSCOMM_BFLOAT16;
    q.op = DSCOMM_SUM;
    q.feedback = true;
    if (!dsc_budget_parse(budget, &q.budget))
        abort();
    return q;
}

inline struct dsc_decision choose(const struct dsc_question &q, const struct dsc_rates &rates)
{
    struct dsc_decision d = {};

    if (dsc_tuner_choose(&q, &rates, &d) < 0)
        abort();
    return d;
}

/* Of the slowest tier. */
inline std::string spec_of(const struct dsc_option &option)
{
    return option.choice.n_tiers > 0 ? option.choice.codecs[option.choice.n_tiers - 1]->spec : "";
}

inline std::string chosen(const struct dsc_question &q, const struct dsc_rates &rates)
{
    return spec_of(choose(q, rates).option);
}

inline std::vector<struct dsc_option> options_of(const struct dsc_question &q,
                                                 const struct dsc_rates &rates)
{
    std::vector<struct dsc_option> options(DSC_OPTIONS_MAX);
    size_t n = 0;

    if (dsc_tuner_options(&q, &rates, options.data(), &n) < 0)
        abort();
    options.resize(n);
    return options;
}

/* One tier, one CPU for each rank, codecs of round figures. */
inline struct dsc_rates plain_rates(uint64_t bytes_per_s)
{
    struct dsc_rates rates = {};

    rates.version = DSC_RATES_VERSION;
    rates.n_tiers = 1;
    rates.tiers[0] = { DSC_TIER_TCP, 0, 1000, bytes_per_s, bytes_per_s, 0 };
    for (const char *const spec : { "none", "fp32", "int8" }) {
        struct dsc_codec_speed *const speed = &rates.speeds[rates.n_speeds++];
        snprintf(speed->spec, sizeof(speed->spec), "%s", spec);
        speed->send_fs = 100000;
        speed->add_fs = 200000;
        speed->own_fs = 400000;
        speed->decode_fs = 800000;
    }
    rates.cpus_per_host = rates.ranks_per_host = 1;
    return rates;
}

inline struct dsc_question plain_question(int n_ranks, size_t count)
{
    struct dsc_question q = question_of(n_ranks, {}, count, "balanced");

    q.dtype = DSCOMM_FLOAT32;
    return q;
}

/* The cheapest of its kind. */
inline struct dsc_option find(const std::vector<struct dsc_option> &options,
                              const std::string &spec, enum dsc_algorithm algorithm, int n_tiers)
{
    for (const struct dsc_option &o : options)
        if (spec_of(o) == spec && o.choice.algorithm == algorithm && o.choice.n_tiers == n_tiers)
            return o;
    fprintf(stderr, "no %s\n", spec.c_str());
    abort();
}

} /* namespace tuner_test */

#endif

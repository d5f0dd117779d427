/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a decision about a call is made from, and the decision. All of it is a pure function of
 * integers that are equal on all ranks, so that all ranks decide alike without talking.
 *
 *   rates.h rates.c rates_fields.c         what was measured: check, merge, bytes
 *   profile.h profile*.c fingerprint*.c    the same in a file, and which machine it is of
 *   machine.h machine.c declared.c         machines to ask about: of a profile or a topology
 *   load.h load.c                          what a plan asks of links and CPUs
 *   cost.h cost.c                          how long that takes
 *   options.c option_price.c               the candidates; each with its cost, and if it may be taken
 *   choose.c                               the one to take, and why
 *   guard.h guard.c                        what calls say later: bans and drift, by epochs
 *   explain.c explain_json.c               the whole table for people and for programs
 */
#ifndef DSC_TUNER_H
#define DSC_TUNER_H

#include "dscomm/tuner.h"
#include "plan/plan.h"
#include "tuner/guard.h"
#include "tuner/machine.h"
#include "tuner/profile.h"
#include "tuner/rates.h"

#define DSC_MILLION UINT64_C(1000000)

/* ---- candidates ---- */

/*
 * The specs that are candidates for the slowest tier, preferred first: docs/tuner.md. The speeds of
 * these and of fp32, which inner tiers send, are what there is to measure.
 */
const char *const *dsc_tuner_specs(size_t *n_out);

/* The bit of dsc_question.banned that stands for a codec; 0: it is no candidate. */
uint64_t dsc_tuner_bit(const struct dsc_codec *codec);

/* ---- the question ---- */

struct dsc_question {
    int n_ranks;
    int n_tiers;       /* of the machine, those of the rates */
    const int *groups; /* as in struct dsc_plan_params, numbers from 0 to n_ranks - 1; NULL: flat */
    int ranks_per_host; /* that share CPUs; 0: as the rates were measured */
    size_t count;
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    bool feedback;
    struct dsc_budget budget;
    bool in_memory; /* all ranks exchange through the memory of one host: there is no link to spare
                     */
    /* The only candidate, whatever the budget; NULL: those of dsc_tuner_specs(). */
    const struct dsc_codec *codec;
    size_t message_bytes;              /* the most that a connection carries at once; 0: any */
    size_t chunk_elems;                /* the only one, of whole units of each codec; 0: several */
    uint64_t banned;                   /* bits of codecs, see dsc_tuner_bit() */
    uint64_t absent;                   /* likewise: not there, where the calls run */
    uint32_t scale_ppm[DSC_MAX_TIERS]; /* wire times are so many millionths; 0: as measured */
};

/*
 * What caches do not hold of what calls on a host touch, in millionths: vectors in and out, and
 * with feedback residuals in and out. So much of an operation goes at the speed of memory. None up
 * to half of the cache, which holds messages and other things too; all from the whole cache on,
 * since by the end of a call the last vectors have driven out the first.
 */
uint64_t dsc_question_far_ppm(const struct dsc_question *question, const struct dsc_rates *rates,
                              bool feedback);

/* ---- the answer ---- */

#define DSC_OPTIONS_MAX 256
#define DSC_UNKNOWN_NS UINT64_MAX
#define DSC_REASON_BYTES 96

/* A candidate. Times and bytes are those of the slowest rank. */
struct dsc_option {
    struct dsc_choice choice;
    uint64_t total_ns;                /* DSC_UNKNOWN_NS: something was not measured */
    uint64_t wire_ns[DSC_MAX_TIERS];  /* per tier of the machine */
    uint64_t tx_bytes[DSC_MAX_TIERS]; /* likewise, sent per call */
    uint64_t codec_ns;                /* encode, decode, sum */
    uint64_t cpu_ns;                  /* that, messages, bytes moved, operations */
    uint64_t latency_ns;
    uint32_t messages;  /* sent and received */
    uint32_t error_ppm; /* nominal, of one encode: the largest of all tiers */
    uint32_t rank;      /* order of preference: smaller first */
    bool is_admitted;
    char reason[DSC_REASON_BYTES]; /* why it is not */
};

/*
 * All candidates, cheapest first; n_out: how many.
 *
 * DSCOMM_ERR_INVALID    the question does not fit the rates: names the field and both values
 * DSCOMM_ERR_NO_MEMORY
 */
dscomm_status_t dsc_tuner_options(const struct dsc_question *question,
                                  const struct dsc_rates *rates,
                                  struct dsc_option options[DSC_OPTIONS_MAX], size_t *n_out);

struct dsc_decision {
    struct dsc_option option;
    /* Another codec or algorithm costs no more: preference chose, not cost. */
    bool is_preference;
    char reason[320];
};

/* Costs closer than this count as equal, and the order of preference decides. */
#define DSC_NEAR_PPM 20000

/* The one to take of a table; nothing admitted with a known cost: all zero, and why. */
void dsc_tuner_pick(const struct dsc_question *question, const struct dsc_rates *rates,
                    const struct dsc_option *options, size_t n, struct dsc_decision *decision_out);

/* Both steps. */
dscomm_status_t dsc_tuner_choose(const struct dsc_question *question, const struct dsc_rates *rates,
                                 struct dsc_decision *decision_out);

/* ---- the table ---- */

struct dsc_explain {
    const struct dsc_question *question;
    const struct dsc_rates *rates;
    const char *source;  /* where the rates are from, in words */
    const char *missing; /* what is not known of the machine, "": nothing */
};

/* DSCOMM_ERR_INVALID: names the field, its value, and what is allowed. */
dscomm_status_t dsc_query_check(const dscomm_tuner_query_t *query, dscomm_explain_format_t format,
                                struct dsc_budget *budget_out);

/* As dscomm_tuner_explain(), of any question. */
dscomm_status_t dsc_explain_print(const struct dsc_explain *explain, dscomm_explain_format_t format,
                                  FILE *out);

#endif

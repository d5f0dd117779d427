/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine to ask about without being on it: rates, and which rank is where. Of a profile, or of a
 * topology file by what it declares.
 */
#ifndef DSC_TUNER_MACHINE_H
#define DSC_TUNER_MACHINE_H

#include "dscomm/tuner.h"
#include "tuner/rates.h"

#define DSC_MACHINE_RANKS_MAX 65535 /* of a plan */
#define DSC_MACHINE_TEXT_BYTES 1024

struct dscomm_tuner {
    struct dsc_rates rates;
    struct dsc_tiers tiers;
    int nodes, local;
    size_t message_bytes;                 /* as a question has it */
    bool is_measured;                     /* else declared */
    bool in_memory;                       /* as a question has it */
    char source[DSC_MACHINE_TEXT_BYTES];  /* "profile a.json, measured", with what is assumed */
    char missing[DSC_MACHINE_TEXT_BYTES]; /* "": nothing; else which tiers' rates, and why */
};

struct dsc_question;

/* All ranks of the machine, a sum without feedback, budget exact. */
struct dsc_question dsc_machine_question(const struct dscomm_tuner *machine, size_t count,
                                         dscomm_dtype_t dtype);

/* By this value of DSCOMM_TRANSPORT: do processes of one host exchange through its memory? */
bool dsc_uses_memory(const char *transport);

/* Members of the rank's group in a tier, the rank itself included. */
int dsc_machine_group_size(const struct dscomm_tuner *machine, int tier, int rank);

/* declared.c: the rates of a topology's GPUs and NICs, local ranks of one node. */
dscomm_status_t dsc_machine_declare(struct dscomm_tuner *machine, const dscomm_topo_t *topo,
                                    const dscomm_tuner_config_t *config);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduces with a choice of algorithm, chunk, tiers and codec per tier, on any communicator.
 */
#ifndef DSC_TEST_CHOOSE_H
#define DSC_TEST_CHOOSE_H

#include <map>
#include <string>
#include <vector>

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

/* groups as plans take them, with any numbers, as the text that makes them a communicator's. */
inline std::string tiers_text_of(int n_tiers, int n_ranks, const int *groups)
{
    std::vector<int> copy;
    dsc_tiers tiers = {};

    for (int t = 0; t < n_tiers; t++) {
        std::map<int, int> numbers; /* by their lowest ranks */

        for (int r = 0; r < n_ranks; r++)
            copy.push_back(
                numbers.emplace(groups[t * n_ranks + r], (int)numbers.size()).first->second);
    }

    tiers.n_tiers = n_tiers;
    tiers.n_ranks = n_ranks;
    tiers.groups = copy.data();

    std::string text(dsc_tiers_text(&tiers, nullptr, 0) + 1, '\0');

    dsc_tiers_text(&tiers, &text[0], text.size());
    text.pop_back();
    return text;
}

/* A two-shot over all tiers of the communicator, with these codecs, fastest tier first. */
inline dsc_choice tiered_choice(const std::vector<const dscomm_codec_t *> &codecs)
{
    dsc_choice choice = {};

    choice.algorithm = DSC_ALG_TWO_SHOT;
    choice.n_tiers = (int)codecs.size();
    for (size_t t = 0; t < codecs.size(); t++)
        choice.codecs[t] = codecs[t];
    return choice;
}

inline dscomm_status_t chosen_allreduce(dscomm_comm_t *comm, const dsc_choice &choice,
                                        const void *send, void *recv, size_t count,
                                        dscomm_dtype_t dtype, dscomm_op_t op,
                                        const dscomm_codec_t *codec, dscomm_feedback_t *feedback,
                                        dscomm_stream_t *stream = nullptr)
{
    dsc_call_args args = {};

    args.send = send;
    args.recv = recv;
    args.shape.collective = DSC_ALLREDUCE;
    args.shape.count = count;
    args.shape.dtype = dtype;
    args.shape.op = op;
    args.shape.codec = codec;
    args.shape.feedback = feedback != nullptr;
    args.shape.choice = choice;
    args.feedback = feedback;
    return comm->backend->issue(comm, stream, &args);
}

#endif

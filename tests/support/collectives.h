/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective as a row, so that one test body serves all: how long its vectors are, how it is
 * called, and what it does to exact values.
 */
#ifndef DSC_TEST_COLLECTIVES_H
#define DSC_TEST_COLLECTIVES_H

#include <cstddef>
#include <vector>

#include "dscomm/dscomm.h"

struct CollectiveArgs {
    const void *send;
    void *recv;
    size_t count;
    int dtype, op; /* also what is in no enum */
    const dscomm_codec_t *codec;
    dscomm_feedback_t *feedback;
    dscomm_comm_t *comm;
    dscomm_stream_t *stream;
    int root = 0;
};

struct Collective {
    const char *name;
    bool sends_shares, recvs_shares; /* the vector holds `count` elements for each rank */
    bool reduces;                    /* takes an operation */
    bool takes_feedback;
    bool is_of_sums; /* takes codecs that leave values out */
    dscomm_status_t (*call)(const CollectiveArgs &a);

    size_t send_count(size_t count, int n_ranks) const
    {
        return sends_shares ? count * (size_t)n_ranks : count;
    }
    size_t recv_count(size_t count, int n_ranks) const
    {
        return recvs_shares ? count * (size_t)n_ranks : count;
    }
    /* Elements from the beginning of `send` to that of `recv` of an in-place call. */
    ptrdiff_t in_place_offset(size_t count, int rank) const
    {
        const ptrdiff_t share = (ptrdiff_t)count * rank;

        return (recvs_shares ? 0 : share) - (sends_shares ? 0 : share);
    }
    /* values: [rank] what each passes in; what `rank` gets if nothing is rounded. Sums, root 0. */
    std::vector<float> expect(const std::vector<std::vector<float>> &values, size_t count,
                              int rank) const;
};

inline std::vector<float> Collective::expect(const std::vector<std::vector<float>> &values,
                                             size_t count, int rank) const
{
    const size_t first = sends_shares ? count * (size_t)rank : 0;
    std::vector<float> out;

    if (!reduces) { /* from each rank, or from the root, one part */
        for (size_t r = 0; r < (recvs_shares ? values.size() : 1); r++)
            out.insert(out.end(), values[r].begin() + (ptrdiff_t)first,
                       values[r].begin() + (ptrdiff_t)(first + count));
        return out;
    }
    out.assign(recv_count(count, (int)values.size()), 0.0f);
    for (const auto &v : values)
        for (size_t i = 0; i < out.size(); i++)
            out[i] += v[first + i];
    return out;
}

inline std::vector<Collective> all_collectives()
{
    return {
        { "allreduce", false, false, true, true, true,
          [](const CollectiveArgs &a) {
              return dscomm_allreduce_compressed(a.send, a.recv, a.count, (dscomm_dtype_t)a.dtype,
                                                 (dscomm_op_t)a.op, a.codec, a.feedback, a.comm,
                                                 a.stream);
          } },
        { "reduce_scatter", true, false, true, true, true,
          [](const CollectiveArgs &a) {
              return dscomm_reduce_scatter_compressed(a.send, a.recv, a.count,
                                                      (dscomm_dtype_t)a.dtype, (dscomm_op_t)a.op,
                                                      a.codec, a.feedback, a.comm, a.stream);
          } },
        { "all_gather", false, true, false, true, true,
          [](const CollectiveArgs &a) {
              return dscomm_all_gather_compressed(a.send, a.recv, a.count, (dscomm_dtype_t)a.dtype,
                                                  a.codec, a.feedback, a.comm, a.stream);
          } },
        { "broadcast", false, false, false, false, false,
          [](const CollectiveArgs &a) {
              return dscomm_broadcast(a.send, a.recv, a.count, (dscomm_dtype_t)a.dtype, a.root,
                                      a.codec, a.comm, a.stream);
          } },
        { "all_to_all", true, true, false, true, false,
          [](const CollectiveArgs &a) {
              return dscomm_all_to_all_compressed(a.send, a.recv, a.count, (dscomm_dtype_t)a.dtype,
                                                  a.codec, a.feedback, a.comm, a.stream);
          } },
    };
}

#endif

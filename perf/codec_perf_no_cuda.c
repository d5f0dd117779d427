/* SPDX-License-Identifier: Apache-2.0 */
#include "codec_perf.h"

#include <stdio.h>

int codec_perf_cuda(const char *codec, size_t bytes, int rounds)
{
    (void)codec, (void)bytes, (void)rounds;
    (void)fprintf(stderr, "codec_perf: --device 'cuda': built without CUDA (no nvcc or nccl.h was "
                          "found), allowed: host\n");
    return 2;
}

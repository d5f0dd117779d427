/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded between all_reduce_perf and the library: damages large results, so that a test can see
 * each of the program's checks fail. CORRUPT selects how:
 *   differ  rank 1 alone gets one element with another last bit
 *   sum     every rank gets one element that is off by a thousandth
 *   code    every rank gets one element that is off by one int8 code: within any error bound
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "dscomm/dscomm.h"

typedef dscomm_status_t allreduce_fn(const void *send, void *recv, size_t count,
                                     dscomm_dtype_t dtype, dscomm_op_t op,
                                     const dscomm_codec_t *codec, dscomm_feedback_t *feedback,
                                     dscomm_comm_t *comm, dscomm_stream_t *stream);

/* Below it are the program's own exchanges, which must stay whole. */
#define MIN_COUNT 4096

static void damage(float *recv, size_t count, const char *how, int rank)
{
    float *const victim = recv + count / 2;
    uint32_t bits;

    if (strcmp(how, "differ") == 0 && rank == 1) {
        memcpy(&bits, victim, sizeof(bits));
        bits ^= 1;
        memcpy(victim, &bits, sizeof(bits));
    } else if (strcmp(how, "sum") == 0) {
        *victim = *victim * 1.001f + 1e-6f;
    } else if (strcmp(how, "code") == 0) {
        *victim += recv[0] / 127.0f;
    }
}

dscomm_status_t dscomm_allreduce_compressed(const void *send, void *recv, size_t count,
                                            dscomm_dtype_t dtype, dscomm_op_t op,
                                            const dscomm_codec_t *codec,
                                            dscomm_feedback_t *feedback, dscomm_comm_t *comm,
                                            dscomm_stream_t *stream)
{
    const char *const how = getenv("CORRUPT");
    allreduce_fn *real;

    /* The detour that POSIX suggests: ISO C has no conversion from void * to a function. */
    *(void **)&real = dlsym(RTLD_NEXT, "dscomm_allreduce_compressed");
    const dscomm_status_t st = real(send, recv, count, dtype, op, codec, feedback, comm, stream);
    if (st == DSCOMM_OK && count >= MIN_COUNT && dtype == DSCOMM_FLOAT32 && how != NULL)
        damage(recv, count, how, dscomm_comm_rank(comm));
    return st;
}

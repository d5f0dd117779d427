/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/cuda: parts of a measurement.
 *   cuda_measure.c          the whole, links, launches        cuda_measure_codecs.c   kernels
 */
#ifndef DSC_CUDA_MEASURE_H
#define DSC_CUDA_MEASURE_H

#include "cuda/cuda.h"

/* Times work that is enqueued on the communicator's own stream. */
struct dsc_cuda_timer {
    struct dsc_cuda_comm *cc;
    cudaEvent_t events[4];
};

dscomm_status_t dsc_timer_start(struct dsc_cuda_timer *timer);
/* Waits for what was enqueued since the start: nanoseconds. */
dscomm_status_t dsc_timer_stop(struct dsc_cuda_timer *timer, uint64_t *ns_out);

/* What codecs are measured with: vectors, messages, tables on the device. */
struct dsc_codec_bench;

dscomm_status_t dsc_codec_bench_open(struct dsc_cuda_timer *timer, struct dsc_codec_bench **out);
void dsc_codec_bench_close(struct dsc_codec_bench *bench); /* NULL allowed */
/* A launch whose elements cost nothing. */
const struct dsc_gpu_prepared *dsc_codec_bench_small(struct dsc_codec_bench *bench);
/* Speeds on this device. Codecs for which no time is left are left out. */
dscomm_status_t dsc_codec_bench_run(struct dsc_codec_bench *bench, const struct dsc_measure *what,
                                    uint64_t budget_ns, struct dsc_rates *rates);

#endif

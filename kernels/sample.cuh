/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call's numbers look like, for its note (docs/tuner.md): error of what was encoded, in the
 * samples that hosts look at too (src/exec/sample.c), and time. No bit of a call depends on it; the
 * order of these sums is any.
 */
#ifndef DSC_KERNELS_SAMPLE_CUH
#define DSC_KERNELS_SAMPLE_CUH

#include "kernels/lanes.cuh"

/* A warp's lanes, 256 elements, of every so many of a message. */
constexpr uint32_t kSampleStride = 32768;

DSC_DEVICE bool is_sampled(const dsc_gpu_args &args, uint32_t at)
{
    return args.call.notes != nullptr && at % kSampleStride == 0 && threadIdx.x < 32 &&
           args.format.kind != DSC_GPU_KIND_FP32 && (args.format.flags & DSC_GPU_FORMAT_NONE) == 0;
}

DSC_DEVICE double sum_of_warp(double v)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        v += __shfl_xor_sync(kAllLanes, v, lanes);
    return v;
}

/* All lanes of a warp. v: the input; of no interest, where has_input is false. */
DSC_DEVICE void add_sample(dsc_gpu_notes *notes, const float x[kPerLane], const float d[kPerLane],
                           const float v[kPerLane], bool has_input, uint32_t n)
{
    double error = 0, encoded = 0, input = 0;

#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++) {
        const double lost = i < n ? static_cast<double>(x[i]) - static_cast<double>(d[i]) : 0.0;
        const double whole = i < n ? static_cast<double>(x[i]) : 0.0;
        const double given = has_input && i < n ? static_cast<double>(v[i]) : 0.0;

        error += lost * lost;
        encoded += whole * whole;
        input += given * given;
    }
    error = sum_of_warp(error);
    encoded = sum_of_warp(encoded);
    input = sum_of_warp(input);
    /* not finite is news, but no error of the codec */
    if (threadIdx.x != 0 || !(error + encoded + input < 1e300))
        return;
    atomicAdd(&notes->error_sq, error);
    atomicAdd(&notes->encoded_sq, encoded);
    atomicAdd(&notes->input_sq, input);
}

/* sqrt(a / b) in millionths, at most 2^32 - 1; 0 if there is no b. */
DSC_DEVICE uint32_t ratio_ppm(double a, double b)
{
    const float ratio = b > 0 ? static_cast<float>(a / b) : 0.0f;
    const float ppm = __fsqrt_rn(ratio) * 1e6f;

    return ppm < 4.2e9f ? static_cast<uint32_t>(ppm) : UINT32_MAX;
}

/* Takes a sum and leaves 0 for the next call. */
DSC_DEVICE double take_sum(double *sum)
{
    const double v = atomicAdd(sum, 0.0); /* where atomics of other blocks have left it */

    *sum = 0;
    return v;
}

/* One thread, when the call has ended. */
DSC_DEVICE void note_call(const dsc_gpu_args &args, uint64_t n_nonfinite)
{
    dsc_gpu_notes *const notes = args.call.notes;

    if (notes == nullptr)
        return;
    const double error = take_sum(&notes->error_sq), encoded = take_sum(&notes->encoded_sq);
    const double input = take_sum(&notes->input_sq);
    dsc_gpu_noted *const noted = &notes->calls[notes->n_calls % DSC_GPU_NOTED_CALLS];

    noted->ns = DSC_GLOBAL_TIMER_NS() - notes->began_ns;
    noted->error_ppm = ratio_ppm(error, encoded);
    noted->residual_ppm = ratio_ppm(error, input);
    noted->has_overflow = n_nonfinite > 0;
    notes->n_calls++;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The residual's two vectors (or the one), as the device's own parity says, and the rules of what
 * is kept: x - D by a sender, x - A*o by an owner, and what was there before the call wherever
 * A*o is not finite. With momentum there are two vectors more, of u, which is reduced in place of
 * the input.
 */
#ifndef DSC_KERNELS_RESIDUAL_CUH
#define DSC_KERNELS_RESIDUAL_CUH

#include "kernels/lanes.cuh"

struct Residual {
    const dsc_gpu_call &call;
    const void *in;
    void *out;
    bool is_there, is_idle; /* idle: neither read nor written by encoders */
    bool is_bf16, is_one;   /* one vector for both */
    bool is_odd;
    bool keeps_old;         /* a sender's r stays where its own D is not finite */

    __device__ Residual(const dsc_gpu_args &args, const dsc_gpu_op &op) : call(args.call)
    {
        const dsc_gpu_feedback *const fb = call.feedback;
        const bool is_none = (args.format.flags & DSC_GPU_FORMAT_NONE) != 0;

        is_odd = fb != nullptr && fb->parity != 0;
        in = is_odd ? call.residual[1] : call.residual[0];
        out = is_odd ? call.residual[0] : call.residual[1];
        is_there = fb != nullptr;
        is_idle = fb == nullptr || (is_none && fb->known_zero != 0 && !has_momentum());
        is_bf16 = call.residual_type == DSCOMM_RESIDUAL_BF16;
        is_one = in == out;
        keeps_old = is_one || (op.flags & DSC_GPU_OP_KEEPS_OLD) != 0;
    }

    /* ---- momentum ---- */

    __device__ bool has_momentum() const
    {
        return call.velocity[0] != nullptr;
    }
    __device__ const float *velocity_in() const
    {
        return is_odd ? call.velocity[1] : call.velocity[0];
    }
    __device__ float *velocity_out() const
    {
        return is_odd ? call.velocity[0] : call.velocity[1];
    }

    /* v = u' = m*u + v, which may be done again. */
    __device__ void add_momentum(float v[kPerLane], uint64_t at, uint32_t n) const
    {
        float u[kPerLane];

        load_f32(u, velocity_in() + at, n);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            v[i] = add_product(v[i], call.momentum, u[i]);
        store_f32(velocity_out() + at, v, n);
    }

    /* ---- the residual ---- */

    __device__ void load_from(float r[kPerLane], const void *vector, uint64_t at, uint32_t n) const
    {
        load_values(r, vector, is_bf16 ? DSCOMM_BFLOAT16 : DSCOMM_FLOAT32, at, n);
    }

    __device__ void load(float r[kPerLane], uint64_t at, uint32_t n) const
    {
        load_from(r, in, at, n);
    }

    __device__ void store_bits(const float r[kPerLane], uint64_t at, uint32_t n) const
    {
        if (!is_bf16) {
            store_f32(static_cast<float *>(out) + at, r, n);
            return;
        }
        uint16_t h[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            h[i] = bf16_from_f32(r[i]);
        store_u16(static_cast<uint16_t *>(out) + at, h, n);
    }

    /* Whether r is finite as stored. */
    __device__ bool keeps(float r) const
    {
        return is_finite(is_bf16 ? bf16_to_f32(bf16_from_f32(r)) : r);
    }

    /* Where r is not finite as stored, `old` stays. */
    __device__ void store(const float r[kPerLane], const float old[kPerLane], uint64_t at,
                          uint32_t n) const
    {
        float kept[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            kept[i] = keeps(r[i]) ? r[i] : old[i];
        store_bits(kept, at, n);
    }

    /* A sender's: with two vectors float32 may be not finite until the restore. */
    __device__ void store_sent(const float x[kPerLane], const float d[kPerLane],
                               const float old[kPerLane], uint64_t at, uint32_t n) const
    {
        float kept[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            kept[i] = keeps_old && !is_finite(d[i]) ? old[i] : __fsub_rn(x[i], d[i]);
        if (is_bf16)
            store(kept, old, at, n);
        else
            store_bits(kept, at, n);
    }

    /* An owner's. */
    __device__ void store_owned(const float x[kPerLane], const float o[kPerLane], float ranks,
                                const float old[kPerLane], uint64_t at, uint32_t n) const
    {
        float kept[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++) {
            const float delivered = __fmul_rn(ranks, o[i]);

            kept[i] = is_finite(delivered) ? __fsub_rn(x[i], delivered) : old[i];
            if (has_momentum() && i < n && !is_finite(delivered))
                velocity_out()[at + i] = velocity_in()[at + i];
        }
        store(kept, old, at, n);
    }

    /* r of element i of those from `at` on is as it was before the call. */
    __device__ void restore_residual(uint64_t at, uint32_t i) const
    {
        if (!is_there || is_one)
            return;
        if (is_bf16)
            static_cast<uint16_t *>(out)[at + i] = static_cast<const uint16_t *>(in)[at + i];
        else
            static_cast<float *>(out)[at + i] = static_cast<const float *>(in)[at + i];
    }

    /* r and u. */
    __device__ void restore(uint64_t at, uint32_t i) const
    {
        restore_residual(at, i);
        if (has_momentum())
            velocity_out()[at + i] = velocity_in()[at + i];
    }
};

#endif

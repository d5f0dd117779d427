// SPDX-License-Identifier: Apache-2.0
// Reductions in the order of ranks: deterministic, and in general not the bits of NCCL, which
// orders otherwise. Floats narrower than 32 bits are summed in fp32 and rounded once.
#include "emu/nccl/emu_nccl.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <string.h>

// How a type is read for arithmetic and written back.
template <class T> struct Plain {
    using Wide = T;
    static T load(T v)
    {
        return v;
    }
    static T store(T v)
    {
        return v;
    }
};
struct Half {
    using Wide = float;
    static float load(__half v)
    {
        return __half2float(v);
    }
    static __half store(float v)
    {
        return __float2half_rn(v);
    }
};
struct Bfloat16 {
    using Wide = float;
    static float load(__nv_bfloat16 v)
    {
        return __bfloat162float(v);
    }
    static __nv_bfloat16 store(float v)
    {
        return __float2bfloat16_rn(v);
    }
};
template <class T> struct Fp8 {
    using Wide = float;
    static float load(T v)
    {
        return static_cast<float>(v);
    }
    static T store(float v)
    {
        return T(v);
    }
};

template <class W> static W combine(W a, W b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return static_cast<W>(a * b);
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default: // sum, average
        return static_cast<W>(a + b);
    }
}

template <class T, class Form>
static void reduce_as(void *out, const std::vector<const void *> &in, size_t count, ncclRedOp_t op)
{
    using W = typename Form::Wide;

    for (size_t i = 0; i < count; i++) {
        W sum = Form::load(static_cast<const T *>(in[0])[i]);

        for (size_t r = 1; r < in.size(); r++)
            sum = combine<W>(sum, Form::load(static_cast<const T *>(in[r])[i]), op);
        if (op == ncclAvg)
            sum = static_cast<W>(sum / static_cast<W>(in.size()));
        static_cast<T *>(out)[i] = Form::store(sum);
    }
}

void reduce(void *out, const std::vector<const void *> &in, size_t count, ncclDataType_t type,
            ncclRedOp_t op)
{
    switch (type) {
    case ncclInt8:
        return reduce_as<int8_t, Plain<int8_t>>(out, in, count, op);
    case ncclUint8:
        return reduce_as<uint8_t, Plain<uint8_t>>(out, in, count, op);
    case ncclInt32:
        return reduce_as<int32_t, Plain<int32_t>>(out, in, count, op);
    case ncclUint32:
        return reduce_as<uint32_t, Plain<uint32_t>>(out, in, count, op);
    case ncclInt64:
        return reduce_as<int64_t, Plain<int64_t>>(out, in, count, op);
    case ncclUint64:
        return reduce_as<uint64_t, Plain<uint64_t>>(out, in, count, op);
    case ncclFloat16:
        return reduce_as<__half, Half>(out, in, count, op);
    case ncclFloat32:
        return reduce_as<float, Plain<float>>(out, in, count, op);
    case ncclFloat64:
        return reduce_as<double, Plain<double>>(out, in, count, op);
    case ncclBfloat16:
        return reduce_as<__nv_bfloat16, Bfloat16>(out, in, count, op);
    case ncclFloat8e4m3:
        return reduce_as<__nv_fp8_e4m3, Fp8<__nv_fp8_e4m3>>(out, in, count, op);
    default:
        return reduce_as<__nv_fp8_e5m2, Fp8<__nv_fp8_e5m2>>(out, in, count, op);
    }
}

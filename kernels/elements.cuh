/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of block formats and their values, element by element. Spelled for a device: no
 * conversions between integers and floats, which run at a quarter of the rate of additions, but
 * sums with a number so large that its low bits count what was added.
 *
 *   code(t)    of a scaled value, nearest even, saturating; bits above kBits are anything
 *   value(c)   exact, of the low kBits of c
 */
#ifndef DSC_KERNELS_ELEMENTS_CUH
#define DSC_KERNELS_ELEMENTS_CUH

#include "kernels/numbers.cuh"

/* ---- integers: 2^23 counts ones; 1.5 * 2^23 negative ones as well ---- */

constexpr float kOnes = 0x1.8p23f;

template <int bits> DSC_DEVICE float integer_value(uint32_t code)
{
    constexpr uint32_t half = 1u << (bits - 1), mask = 2 * half - 1;

    return float_of(((code & mask) ^ half) | 0x4b000000u) - (0x1p23f + static_cast<float>(half));
}

DSC_DEVICE uint32_t integer_code(float t, float least, float largest)
{
    return bits_of(__fadd_rn(fminf(fmaxf(t, least), largest), kOnes));
}

struct Int8 {
    static constexpr int kBits = 8;
    static constexpr float kLargest = 127.0f;
    static constexpr bool kHasNan = false;

    static __device__ uint32_t code(float t)
    {
        return integer_code(t, -127.0f, 127.0f);
    }

    static __device__ float value(uint32_t code)
    {
        return integer_value<8>(code);
    }
};

/* Bytes that count 64ths. */
struct Int64ths {
    static constexpr int kBits = 8;
    static constexpr float kLargest = 127.0f / 64.0f;
    static constexpr bool kHasNan = false;

    static __device__ uint32_t code(float t)
    {
        return Int8::code(__fmul_rn(t, 64.0f));
    }

    static __device__ float value(uint32_t code)
    {
        return __fmul_rn(Int8::value(code), 0x1p-6f);
    }
};

struct Int4 {
    static constexpr int kBits = 4;
    static constexpr float kLargest = 7.0f;
    static constexpr bool kHasNan = false;

    static __device__ uint32_t code(float t)
    {
        return integer_code(t, -7.0f, 7.0f);
    }

    static __device__ float value(uint32_t code)
    {
        return integer_value<4>(code);
    }
};

/* ---- small floats ---- */

/*
 * Next to 2^(e + 23 - mbits) a float32 has the steps of the format at exponent e, so the low bits
 * of a sum with it count them. Below the smallest normal number steps stay what they are there.
 */
template <int bits, int mbits, int bias> struct Minifloat {
    static constexpr int kBits = bits;
    static constexpr uint32_t kLowest = static_cast<uint32_t>(127 - bias + 1) << 23;
    static constexpr uint32_t kMagnitude = (1u << (bits - 1)) - 1;

    static __device__ uint32_t code_below(float t, float largest)
    {
        const uint32_t magnitude = min(bits_of(t) & kAbs, bits_of(largest));
        const uint32_t e = max(magnitude & kInf, kLowest);
        const uint32_t magic = e + (static_cast<uint32_t>(23 - mbits) << 23);
        const uint32_t steps = bits_of(__fadd_rn(float_of(magnitude), float_of(magic))) - magic;

        return (((e - kLowest) >> (23 - mbits)) + steps) | (bits_of(t) >> 31 << (bits - 1));
    }

    /* Of codes that are numbers: their bits, at the place that float32 has them, times a power. */
    static __device__ float number(uint32_t code)
    {
        const float size = __fmul_rn(float_of((code & kMagnitude) << (23 - mbits)),
                                     float_of(static_cast<uint32_t>(254 - bias) << 23));

        return float_of(bits_of(size) | (code << (32 - bits) & kSign));
    }
};

struct E4m3 : Minifloat<8, 3, 7> {
    static constexpr float kLargest = 448.0f;
    static constexpr bool kHasNan = true;

    static __device__ uint32_t code(float t)
    {
        return code_below(t, kLargest);
    }

    static __device__ float value(uint32_t code)
    {
        return (code & kMagnitude) == 0x7f ? float_of(kNan) : number(code);
    }
};

struct E5m2 : Minifloat<8, 2, 15> {
    static constexpr float kLargest = 57344.0f;
    static constexpr bool kHasNan = true;

    static __device__ uint32_t code(float t)
    {
        return code_below(t, kLargest);
    }

    static __device__ float value(uint32_t code)
    {
        const uint32_t magnitude = code & kMagnitude;
        const float infinite = float_of((code << 24 & kSign) | kInf);

        return magnitude > 0x7c ? float_of(kNan) : magnitude == 0x7c ? infinite : number(code);
    }
};

struct E2m1 : Minifloat<4, 1, 1> {
    static constexpr float kLargest = 6.0f;
    static constexpr bool kHasNan = false;

    static __device__ uint32_t code(float t)
    {
        return code_below(t, kLargest);
    }

    static __device__ float value(uint32_t code)
    {
        return number(code);
    }
};

/* ---- a lane's 8 codes: one or two 32-bit words, the first element lowest ---- */

template <int bits> struct Codes {
    static constexpr uint32_t kWords = bits / 4, kMask = (1u << bits) - 1;
    static constexpr uint32_t kPerWord = 8 / kWords;

    uint32_t word[kWords];

    __device__ uint32_t get(uint32_t i) const
    {
        return word[i / kPerWord] >> bits * (i % kPerWord);
    }

    /* Words start at zero. */
    __device__ void put(uint32_t i, uint32_t code)
    {
        word[i / kPerWord] |= (code & kMask) << bits * (i % kPerWord);
    }

    __device__ void load(const uint8_t *p)
    {
        if constexpr (kWords == 2) {
            const uint2 v = *reinterpret_cast<const uint2 *>(p);

            word[0] = v.x, word[1] = v.y;
        } else {
            word[0] = *reinterpret_cast<const uint32_t *>(p);
        }
    }

    __device__ void store(uint8_t *p) const
    {
        if constexpr (kWords == 2)
            *reinterpret_cast<uint2 *>(p) = make_uint2(word[0], word[1]);
        else
            *reinterpret_cast<uint32_t *>(p) = word[0];
    }
};

#endif

// SPDX-License-Identifier: Apache-2.0
// Kernels give the bits of a scalar reference: the device language of the emulator is what it says.
#include "emu/selftest/selftest.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <string.h>
#include <algorithm>
#include <random>

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static std::vector<float> some_floats(size_t n)
{
    std::mt19937 rng(1);
    std::vector<float> v(n);

    for (float &x : v)
        x = static_cast<float>(static_cast<int>(rng() % 20001) - 10000) / 777.0f;
    return v;
}

TEST(Kernels, QuantiseWithErrorFeedback)
{
    const size_t n = 10007, block = 256, n_blocks = (n + block - 1) / block;
    const std::vector<float> x = some_floats(n);
    Device<float> dx(x), dr(std::vector<float>(n, 0.25f)), scale(n_blocks);
    Device<int8_t> q(n);
    std::vector<float> want_r(n);
    std::vector<int8_t> want_q(n);

    for (size_t begin = 0; begin < n; begin += block) {
        const size_t end = std::min(n, begin + block);
        float m = 0.0f;

        for (size_t i = begin; i < end; i++)
            m = fmaxf(m, fabsf(x[i] + 0.25f));
        const float s = m > 0.0f ? m / 127.0f : 1.0f;
        for (size_t i = begin; i < end; i++) {
            const float e = x[i] + 0.25f;
            const int v = std::max(-127, std::min(127, static_cast<int>(lrintf(e / s))));

            want_q[i] = static_cast<int8_t>(v);
            want_r[i] = fmaf(-static_cast<float>(v), s, e);
        }
    }
    launch_quant(dx.p, dr.p, q.p, scale.p, static_cast<int>(n), nullptr);
    EXPECT_EQ(want_q, q.get());
    EXPECT_EQ(want_r, dr.get());
}

template <class T, class F> static void check_cast(Cast type, F to)
{
    const size_t n = 5003;
    const std::vector<float> x = some_floats(n);
    Device<float> dx(x);
    Device<T> y(n);
    Device<unsigned> negatives(std::vector<unsigned>{ 0 });
    const auto n_negative = std::count_if(x.begin(), x.end(), [](float v) { return v < 0.0f; });

    launch_cast(type, dx.p, y.p, static_cast<int>(n), negatives.p, nullptr);
    EXPECT_EQ(static_cast<unsigned>(n_negative), negatives.get()[0]);
    const std::vector<T> got = y.get();
    for (size_t i = 0; i < n; i++) {
        const T want = to(x[i]);
        ASSERT_EQ(0, memcmp(&want, &got[i], sizeof(T))) << "element " << i;
    }
}

TEST(Kernels, Casts)
{
    check_cast<__half>(Cast::HALF, [](float v) { return __float2half_rn(v); });
    check_cast<__nv_bfloat16>(Cast::BFLOAT16, [](float v) { return __float2bfloat16_rn(v); });
    check_cast<__nv_fp8_e4m3>(Cast::E4M3, [](float v) { return __nv_fp8_e4m3(v); });
}

static uint32_t reversed(uint32_t v)
{
    uint32_t r = 0;

    for (int i = 0; i < 32; i++)
        r = r << 1 | (v >> i & 1);
    return r;
}

static int32_t to_int(float x, float rounded)
{
    if (x != x)
        return 0;
    if (rounded >= 2147483648.0f)
        return INT32_MAX;
    return rounded < -2147483648.0f ? INT32_MIN : static_cast<int32_t>(rounded);
}

// What scalar_ops() must give, said a second time.
static std::vector<uint32_t> expected_scalars(uint32_t a, uint32_t b)
{
    const float x = float_of(a), y = float_of(b);
    const uint64_t ba = static_cast<uint64_t>(b) << 32 | a;
    const uint8_t byte[8] = { uint8_t(a), uint8_t(a >> 8), uint8_t(a >> 16), uint8_t(a >> 24),
                              uint8_t(b), uint8_t(b >> 8), uint8_t(b >> 16), uint8_t(b >> 24) };
    int first = 0, leading = 0, leading_b = 0;

    for (int i = 31; i >= 0; i--)
        first = a >> i & 1 ? i + 1 : first;
    while (leading < 32 && !(a << leading >> 31))
        leading++;
    while (leading_b < 64 && !(static_cast<uint64_t>(b) >> (63 - leading_b) & 1))
        leading_b++;
    int ones = 0, ones_b = 0;
    for (int i = 0; i < 32; i++) {
        ones += static_cast<int>(a >> i & 1);
        ones_b += static_cast<int>(b >> i & 1);
    }
    const float near = rintf(x);
    const uint32_t as_uint = !(x > 0.0f)             ? 0
                             : near >= 4294967296.0f ? UINT32_MAX
                                                     : static_cast<uint32_t>(near);
    return {
        static_cast<uint32_t>(ones),
        static_cast<uint32_t>(leading),
        static_cast<uint32_t>(first),
        reversed(a),
        static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32),
        static_cast<uint32_t>(byte[5] | byte[1] << 8 | byte[7] << 16) |
            static_cast<uint32_t>(byte[3]) << 24,
        static_cast<uint32_t>(ba << (b & 31) >> 32),
        static_cast<uint32_t>(ba >> (a & 31)),
        static_cast<uint32_t>(to_int(x, near)),
        static_cast<uint32_t>(to_int(x, truncf(x))),
        as_uint,
        bits_of(static_cast<float>(static_cast<int32_t>(a))),
        bits_of(static_cast<float>(a)),
        bits_of(near),
        static_cast<uint32_t>(ones + ones_b + leading_b),
        bits_of(x * y),
        bits_of(x + y),
        bits_of(x - y),
        bits_of(x / y),
        bits_of(fmaf(x, y, x)),
        bits_of(1.0f / x),
        std::min(a, b),
        static_cast<uint32_t>(std::max(static_cast<int32_t>(a), static_cast<int32_t>(b))),
        reversed(b),
    };
}

TEST(Kernels, ScalarIntrinsics)
{
    const std::vector<uint32_t> special = { 0u,          1u,          0x80000000u, 0x3f800000u,
                                            0x4f000000u, 0xcf000000u, 0x4f800000u, 0x7f800000u,
                                            0xff800000u, 0x3f000000u, 0x40200000u, 0xffffffu,
                                            0x00000001u, 0x4effffffu };
    std::mt19937 rng(2);
    std::vector<uint32_t> in;

    for (uint32_t a : special) {
        for (uint32_t b : special)
            in.insert(in.end(), { a, b });
    }
    for (int i = 0; i < 2000; i++)
        in.push_back(static_cast<uint32_t>(rng()));
    const size_t n = in.size() / 2, n_ops = 24;
    Device<uint32_t> din(in), out(n * n_ops);
    launch_scalar_ops(din.p, out.p, static_cast<int>(n), nullptr);
    const std::vector<uint32_t> got = out.get();
    for (size_t i = 0; i < n; i++) {
        const std::vector<uint32_t> want = expected_scalars(in[2 * i], in[2 * i + 1]);
        for (size_t k = 0; k < n_ops; k++) {
            const uint32_t w = want[k], g = got[i * n_ops + k];
            const bool is_float = k == 13 || (k >= 15 && k <= 20);
            if (is_float && isnan(float_of(w)) && isnan(float_of(g)))
                continue; // which NaN is the machine's choice
            ASSERT_EQ(w, g) << "operation " << k << " of " << in[2 * i] << ", " << in[2 * i + 1];
        }
    }
}

TEST(Kernels, WarpOperations)
{
    const size_t n_ops = 12;
    std::vector<uint32_t> in;
    uint32_t ballot = 0, sum = 0, greatest = 0, n_odd = 0;

    for (uint32_t i = 0; i < 32; i++)
        in.push_back(i * 2654435761u >> 5);
    for (uint32_t i = 0; i < 32; i++) {
        ballot |= (in[i] & 1) << i;
        n_odd += in[i] & 1;
        sum += in[i];
        greatest = std::max(greatest, in[i]);
    }
    Device<uint32_t> din(in), out(32 * n_ops);
    launch_warp_ops(din.p, out.p, nullptr);
    const std::vector<uint32_t> got = out.get();
    for (uint32_t i = 0; i < 32; i++) {
        const std::vector<uint32_t> want = { in[5],
                                             in[i ^ 9],
                                             in[i + 3 < 32 ? i + 3 : i],
                                             in[i >= 3 ? i - 3 : i],
                                             ballot,
                                             1,
                                             0,
                                             greatest,
                                             sum,
                                             in[(i & ~7u) | 3],
                                             n_odd,
                                             1 };
        EXPECT_EQ(want,
                  std::vector<uint32_t>(got.begin() + i * n_ops, got.begin() + (i + 1) * n_ops))
            << "lane " << i;
    }
}

TEST(Kernels, Atomics)
{
    const uint32_t n = 3 * 96;
    Device<uint32_t> words(std::vector<uint32_t>{ 0, 0, UINT32_MAX, 0, 0, 0 });
    Device<unsigned long long> wide(std::vector<unsigned long long>{ 0 });

    launch_atomic_ops(words.p, wide.p, 3, 96, nullptr);
    EXPECT_EQ((std::vector<uint32_t>{ n * (n - 1) / 2, n - 1, 0, UINT32_MAX, 0, n }), words.get());
    EXPECT_EQ(static_cast<unsigned long long>(n) << 33, wide.get()[0]);
}

TEST(Kernels, DeviceVariables)
{
    Device<int> d(std::vector<int>(64, 0));
    int back = 0;

    CUDA_OK(set_step(7));
    CUDA_OK(get_step(&back));
    EXPECT_EQ(7, back);
    launch_add_step(d.p, 64, nullptr);
    const std::vector<int> got = d.get();
    EXPECT_EQ(7 + 3, got[0]);
    EXPECT_EQ(7 + 4, got[62]);
}

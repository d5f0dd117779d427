// SPDX-License-Identifier: Apache-2.0
// Intrinsics on one value. Modules are built with -ffp-contract=off, so g++ fuses nothing on its
// own. Included by cuda_emu.h.
#ifndef DSC_EMU_SCALAR_H
#define DSC_EMU_SCALAR_H

// ---- floats, rounded to nearest even ----
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __saturatef(float f)
{
    return f > 0.0f ? (f < 1.0f ? f : 1.0f) : 0.0f; // NaN becomes 0, as on a device
}

// ---- conversions saturate, and NaN becomes 0 ----
static inline int __float2int_rn(float f)
{
    if (f != f)
        return 0;
    if (f >= 2147483648.0f)
        return INT32_MAX;
    return f < -2147483648.0f ? INT32_MIN : static_cast<int>(lrintf(f));
}
static inline int __float2int_rz(float f)
{
    return __float2int_rn(f != f ? 0.0f : truncf(f));
}
static inline int __float2int_rd(float f)
{
    return __float2int_rn(f != f ? 0.0f : floorf(f));
}
static inline int __float2int_ru(float f)
{
    return __float2int_rn(f != f ? 0.0f : ceilf(f));
}
static inline unsigned __float2uint_rn(float f)
{
    if (!(f > 0.0f))
        return 0;
    return f >= 4294967296.0f ? UINT32_MAX : static_cast<unsigned>(llrintf(f));
}
static inline unsigned __float2uint_rz(float f)
{
    return __float2uint_rn(f != f ? 0.0f : truncf(f));
}
static inline float __int2float_rn(int i)
{
    return static_cast<float>(i);
}
static inline float __uint2float_rn(unsigned u)
{
    return static_cast<float>(u);
}

// ---- bits ----
static inline unsigned __float_as_uint(float f)
{
    return static_cast<unsigned>(emu_bits(f));
}
static inline int __float_as_int(float f)
{
    return static_cast<int>(__float_as_uint(f));
}
static inline float __uint_as_float(unsigned u)
{
    return emu_value<float>(u);
}
static inline float __int_as_float(int i)
{
    return __uint_as_float(static_cast<unsigned>(i));
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
static inline unsigned long long __brevll(unsigned long long v)
{
    unsigned long long r = 0;

    for (int i = 0; i < 64; i++)
        r |= (v >> i & 1) << (63 - i);
    return r;
}
static inline unsigned __brev(unsigned v)
{
    return static_cast<unsigned>(__brevll(v) >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t v = static_cast<uint64_t>(high) << 32 | low;

    return static_cast<unsigned>(v << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t v = static_cast<uint64_t>(high) << 32 | low;

    return static_cast<unsigned>(v >> (shift & 31));
}
// Four bytes of the eight in y:x, each named by a nibble of s of which three bits count.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t v = static_cast<uint64_t>(y) << 32 | x;
    unsigned r = 0;

    for (int i = 0; i < 4; i++)
        r |= static_cast<unsigned>(v >> (8 * (s >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}

// ---- cache hints: the emulator has no caches; addresses must be aligned as on a device ----
template <class T> static inline const T *emu_aligned(const T *p)
{
    if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0)
        emu_trap(emu_cur, "misaligned address");
    return p;
}
#define EMU_LOAD(name)                                  \
    template <class T> static inline T name(const T *p) \
    {                                                   \
        return *emu_aligned(p);                         \
    }
#define EMU_STORE(name)                                                       \
    template <class T> static inline void name(T *p, std::common_type_t<T> v) \
    {                                                                         \
        *const_cast<T *>(emu_aligned(p)) = v;                                 \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldcv)
EMU_LOAD(__ldlu)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwb)
EMU_STORE(__stwt)

// ---- min and max take mixed types, as nvcc's overloads do ----
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
template <class A, class B,
          class = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>>>
static inline std::common_type_t<A, B> max(A a, B b)
{
    using C = std::common_type_t<A, B>;

    return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class A, class B,
          class = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>>>
static inline std::common_type_t<A, B> min(A a, B b)
{
    using C = std::common_type_t<A, B>;

    return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}

#endif

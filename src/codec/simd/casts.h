/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused steps of casts in the words of a vec_*.h. Comes after elements.h. A step takes what
 * varies between callers as constants: whether the old residual stays where D is not finite, and
 * whether stores go past the caches.
 */
#include "codec/bits.h"

enum cast { F32, F16, BF16 };

/* How the wire value of x is made and what it decodes to. */
struct exponents {
    vf down, up;
};

DSC_INLINE vf send_f32(void *q, size_t i, vf x)
{
    const vf d = vf_canonical(x);

    vf_store((float *)q + i, d);
    return d;
}

DSC_INLINE vf send_f16(void *q, size_t i, vf x, struct exponents e)
{
    return vf_mul(vf_round_f16((uint16_t *)q + i, vf_canonical(vf_mul(x, e.down))), e.up);
}

/* The sum of one vector, and what is kept of it once D is known. */
DSC_INLINE vf fed_back(const float *v, const float *r, vf beta)
{
    return vf_add(vf_load(v), vf_mul(beta, vf_load(r)));
}

DSC_INLINE void keep_residual(float *r_out, vf x, vf d, const float *r, bool keep, bool stream)
{
    vf left = vf_sub(x, d);

    if (keep)
        left = vf_if_finite(d, left, vf_load(r));
    if (stream)
        vf_stream(r_out, left);
    else
        vf_store(r_out, left);
}

/* Two vectors a step, which is what storing 16-bit values takes. Returns the elements done. */
DSC_INLINE size_t cast_steps(enum cast cast, void *q, float *r_out, const float *v, const float *r,
                             float beta, int exponent, size_t n, bool keep, bool stream)
{
    const struct exponents e = { vf_set1(power_of_two(-exponent)),
                                 vf_set1(power_of_two(exponent)) };
    const vf decay = vf_set1(beta);
    size_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const size_t j = i + LANES;
        const vf x0 = fed_back(v + i, r + i, decay), x1 = fed_back(v + j, r + j, decay);
        vf d0, d1;

        if (cast == F32) {
            d0 = send_f32(q, i, x0), d1 = send_f32(q, j, x1);
        } else if (cast == F16) {
            d0 = send_f16(q, i, x0, e), d1 = send_f16(q, j, x1, e);
        } else {
            const vi b0 = bf16_bits(x0), b1 = bf16_bits(x1);

            vi_store_u16((uint16_t *)q + i, b0, b1);
            d0 = vi_float(vi_shift_left(b0, 16)), d1 = vi_float(vi_shift_left(b1, 16));
        }
        keep_residual(r_out + i, x0, d0, r + i, keep, stream);
        keep_residual(r_out + j, x1, d1, r + j, keep, stream);
    }
    if (stream)
        vec_stream_end();
    return i;
}

DSC_INLINE bool may_stream(const float *r_out, unsigned flags)
{
    return (flags & DSC_STREAM) != 0 && (uintptr_t)r_out % STREAM_ALIGN == 0;
}

#define CAST_ENCODE_FEEDBACK(type, cast, wire)                                                \
    void LEVEL(type##_encode_feedback)(void *q, float *r_out, const float *v, const float *r, \
                                       float beta, unsigned flags, int exponent, size_t n)    \
    {                                                                                         \
        size_t i;                                                                             \
                                                                                              \
        if ((flags & DSC_KEEP_OLD) != 0)                                                      \
            i = cast_steps(cast, q, r_out, v, r, beta, exponent, n, true, false);             \
        else if (may_stream(r_out, flags))                                                    \
            i = cast_steps(cast, q, r_out, v, r, beta, exponent, n, false, true);             \
        else                                                                                  \
            i = cast_steps(cast, q, r_out, v, r, beta, exponent, n, false, false);            \
        dsc_##type##_encode_feedback_c((wire *)q + i, r_out + i, v + i, r + i, beta, flags,   \
                                       exponent, n - i);                                      \
    }

CAST_ENCODE_FEEDBACK(f32, F32, float)
CAST_ENCODE_FEEDBACK(f16, F16, uint16_t)
CAST_ENCODE_FEEDBACK(bf16, BF16, uint16_t)

void LEVEL(f32_decode_add)(float *acc, const void *q, int exponent, size_t n)
{
    (void)exponent;
    LEVEL(add)(acc, q, n);
}

void LEVEL(f16_decode_add)(float *acc, const void *q, int exponent, size_t n)
{
    const uint16_t *const in = q;
    const vf up = vf_set1(power_of_two(exponent));
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(acc + i, vf_add(vf_load(acc + i), vf_mul(vf_load_f16(in + i), up)));
    dsc_f16_decode_add_c(acc + i, in + i, exponent, n - i);
}

void LEVEL(bf16_decode_add)(float *acc, const void *q, int exponent, size_t n)
{
    const uint16_t *const in = q;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(acc + i, vf_add(vf_load(acc + i), bf16_value(vi_load_u16(in + i))));
    dsc_bf16_decode_add_c(acc + i, in + i, exponent, n - i);
}

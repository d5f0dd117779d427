/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sender's step for codecs that have no primitive for all of it: sum, encoding, difference, over
 * tiles that stay in the first cache level.
 */
#include "codec/bits.h"
#include "codec/codec.h"

/* Where D is not finite it is a matter of flags what is kept. */
static void keep(float *r_out, const float *x, const float *d, const float *r, unsigned flags,
                 size_t n)
{
    const bool keep_old = (flags & DSC_KEEP_OLD) != 0;

    if (dsc_kernels_get()->count_nonfinite(d, 1.0f, n) == 0) {
        dsc_kernels_get()->residual(r_out, x, d, 1.0f, n); /* 1 * D is D */
        return;
    }
    for (size_t i = 0; i < n; i++)
        r_out[i] =
            is_nan(d[i]) && !keep_old ? float_of(F32_NAN) : residual_of(x[i], d[i], r[i], keep_old);
}

void dsc_codec_encode_feedback_steps(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                     size_t first, size_t n, const float *v, const float *r,
                                     float beta, float *r_out, unsigned flags)
{
    float x[DSC_TILE_ELEMS], d[DSC_TILE_ELEMS];

    for (size_t i = 0; i < n; i += DSC_TILE_ELEMS) {
        const size_t len = dsc_min_size(DSC_TILE_ELEMS, n - i);

        dsc_kernels_get()->axpy(x, v + i, r + i, beta, len);
        codec->ops->encode(codec, msg, first + i, len, x, d);
        keep(r_out + i, x, d, r + i, flags, len);
    }
}

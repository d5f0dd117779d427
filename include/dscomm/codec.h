/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs: how gradient elements look on the wire. A codec is named by a text, its spec:
 *   none        the caller's data type, values as they are (fp16 data: scaled by a power of two)
 *   fp32        unrounded float32 partial sums
 *   fp16 bf16   16-bit casts
 *   int8        8-bit integers with one float32 scale per block; int8:block=N
 *   int4        4-bit integers with one bfloat16 scale per block; int4:block=N, int4:signed
 *   fp8         8-bit floats, E4M3, with one float32 scale per 256; fp8:e5m2 for E5M2
 *   mxfp8       OCP MX: 8-bit floats, E4M3, a power of two as scale per 32; mxfp8:e5m2 for E5M2
 *   mxfp4       4-bit floats, E2M1, likewise
 *   mxint8      8-bit integers, likewise
 *   nvfp4       4-bit floats, E2M1; an 8-bit float as scale per 16, one float32 scale per 65536
 *   lossless    what "none" sends, packed: the same bits in fewer bytes, how many depends on them
 *   topk:RATIO  of each 65536 elements the largest in size, a share above 0 and at most 1
 *   topk:k=N    or N of them, N from 1 to 65536; for sums and averages alone
 *               values are fp16, or int8 or fp8: topk:0.001,int8
 * and ,sr after int8, int4 and their options: stochastic rounding, right on average, for calls
 * without a feedback object; dscomm_encode() alone draws the same numbers each time,
 * and with ,hadamard after int8, int4 or fp8 and their options: values are rotated in groups of 32
 * before, which helps where one element in a hundred is ten times the others.
 * and ,entropy after int8 and its block size: its messages packed, likewise.
 * N is one of 16 32 64 128 256: elements of a block, by default 256 for int8 and 64 for int4.
 * Scales of mx... are rounded down, as the MX specification says, and the largest elements of a
 * block may saturate; with ,ceil behind any of these specs they are rounded up.
 *
 * The byte layout is normative in docs/wire_format.md. Usable without a communicator.
 */
#ifndef DSCOMM_CODEC_H
#define DSCOMM_CODEC_H

#include <stddef.h>

#include "dscomm/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_codec dscomm_codec_t;

/**
 * Codec of a spec text. Equal specs give the same pointer; codecs live as long as the process.
 *
 * @param spec      Borrowed for the call, for example "int8:block=128".
 * @param codec_out Borrowed for ever; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID  the spec is not understood; dscomm_last_error() lists what is allowed
 *         DSCOMM_ERR_LIMIT    more than 256 different specs of top-k in one process
 *
 * Threads: any.
 */
DSCOMM_API dscomm_status_t dscomm_codec_parse(const char *spec, const dscomm_codec_t **codec_out);

/**
 * Short form of dscomm_codec_parse(): NULL on error.
 * Threads: any.
 */
DSCOMM_API const dscomm_codec_t *dscomm_codec(const char *spec);

/**
 * Canonical spec text of a codec, for example "int8:block=128"; defaults are left out.
 * Threads: any.
 */
DSCOMM_API const char *dscomm_codec_spec(const dscomm_codec_t *codec);

/**
 * Size in bytes of a message of n elements, a multiple of 16: exact, or for "lossless" and
 * ",entropy" the most it can be. For "none" and "lossless" that of float32; "auto" has no messages:
 * SIZE_MAX - 15. Threads: any.
 */
DSCOMM_API size_t dscomm_codec_bound(const dscomm_codec_t *codec, size_t n);

/**
 * Encode n float32 values into one message.
 *
 * @param codec       Not NULL; "none" and "lossless" take fp32 here.
 * @param dst         [dst_bytes] bytes, 16-byte aligned, must not overlap src.
 * @param dst_bytes   At least dscomm_codec_bound(codec, n).
 * @param src         [n] float32, 4-byte aligned, on the host.
 * @param n           Elements, any.
 * @param written_out Bytes used in dst: dscomm_codec_bound(), or fewer for "lossless" and
 * ",entropy"; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID  NULL or misaligned argument, or dst too small
 *
 * Numerics: bit-exact on every instruction set. A block holding NaN or Inf decodes to NaN.
 * Threads:  reentrant.
 */
DSCOMM_API dscomm_status_t dscomm_encode(const dscomm_codec_t *codec, void *dst, size_t dst_bytes,
                                         const float *src, size_t n, size_t *written_out);

/**
 * Decode one message of n elements into float32.
 *
 * @param codec     Not NULL; "none" and "lossless" take fp32 here.
 * @param dst       [n] float32, 4-byte aligned, on the host.
 * @param n         Elements, any.
 * @param src       [src_bytes] bytes of an untrusted message, 16-byte aligned.
 * @param src_bytes What dscomm_encode() wrote: dscomm_codec_bound(codec, n), but for "lossless" and
 *                  ",entropy".
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID  NULL or misaligned argument
 *         DSCOMM_ERR_CORRUPT  src_bytes is not the size of a message of n elements, or the message
 * is packed and not as it should be; dst then holds NaN in such segments
 *
 * Numerics: a scale whose exponent bits are all set makes its block NaN (0x7fc00000).
 * Threads:  reentrant.
 */
DSCOMM_API dscomm_status_t dscomm_decode(const dscomm_codec_t *codec, float *dst, size_t n,
                                         const void *src, size_t src_bytes);

#ifdef __cplusplus
}
#endif
#endif

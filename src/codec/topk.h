/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/codec: what topk.c does and topk_spec.c makes codecs of.
 */
#ifndef DSC_TOPK_H
#define DSC_TOPK_H

#include "codec/codec.h"

extern const struct dsc_codec_ops dsc_topk_ops;

/* Elements that are kept of a segment of n. */
size_t dsc_topk_kept(const struct dsc_codec *codec, size_t n);

#endif

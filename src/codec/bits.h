/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/codec: bit patterns of float32 that the block formats are defined by.
 */
#ifndef DSC_BITS_H
#define DSC_BITS_H

#define F32_INF 0x7f800000u
#define F32_TINY 0x0d800000u /* 2^-100: below it a block's scale could be subnormal */

#define BLOCK_MAX 256 /* elements of the largest block */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to huffman*.c: canonical prefix codes of bytes, at most 11 bits each.
 */
#ifndef DSC_HUFFMAN_CODE_H
#define DSC_HUFFMAN_CODE_H

#include <stddef.h>
#include <stdint.h>

#define DSC_SYMBOLS 256
#define DSC_CODE_BITS_MAX 11
#define DSC_CODE_SPACE (1 << DSC_CODE_BITS_MAX)

#define DSC_PLANE_STREAMS 4
/* Stream j has the symbols from j * this, the last stream what is left. */
#define DSC_STREAM_SYMBOLS(n) (((n) + DSC_PLANE_STREAMS - 1) / DSC_PLANE_STREAMS)
/* Lengths of the streams but the last, behind the code. */
#define DSC_STREAM_SIZE_BYTES ((DSC_PLANE_STREAMS - 1) * sizeof(uint16_t))

/*
 * Lengths of a code that is complete and, within the limit, good; 0 for symbols that do not occur.
 * Two symbols occur at least, together at most 65535 times.
 */
void dsc_code_lengths(uint8_t lengths[DSC_SYMBOLS], const uint32_t counts[DSC_SYMBOLS]);

#endif

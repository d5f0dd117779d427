/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lossless coding of one plane: up to 8192 bytes of one kind, such as the exponents of a segment of
 * gradients. Where their code saves nothing the bytes are sent as they are. A code belongs to its
 * plane alone, so planes are decoded in any order; and its bits go into four streams, which a
 * decoder walks at the same time.
 *
 * docs/wire_format.md is normative for both directions.
 */
#ifndef DSC_HUFFMAN_H
#define DSC_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

#define DSC_PLANE_MAX 8192

enum dsc_plane_method {
    DSC_PLANE_RAW,      /* n bytes */
    DSC_PLANE_CONSTANT, /* one byte, which all are */
    DSC_PLANE_HUFFMAN,
    DSC_PLANE_METHODS
};

/*
 * Returns the bytes used. dst: [n] bytes, of which those behind the used ones may be overwritten.
 * n is from 1 to DSC_PLANE_MAX.
 */
size_t dsc_plane_pack(uint8_t *dst, enum dsc_plane_method *method_out, const uint8_t *plane,
                      size_t n);

/*
 * src: [bytes] of a peer. Returns NULL, or what is wrong with them, in words; then plane holds
 * rubbish.
 */
const char *dsc_plane_unpack(uint8_t *plane, size_t n, enum dsc_plane_method method,
                             const uint8_t *src, size_t bytes);

#endif

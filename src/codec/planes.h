/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of 4, 2 or 1 bytes as planes: byte p of each, least significant first, of floats turned
 * left by one bit, so that the exponent is in one byte (its highest bits for fp16) and the sign
 * comes last. And the zeros among them, which gradients may have many of: they are taken out, and a
 * mask with one bit per element, the lowest of a byte first, tells where they were.
 */
#ifndef DSC_PLANES_H
#define DSC_PLANES_H

#include <stddef.h>
#include <stdint.h>

/*
 * Moves the elements whose bits are not all 0 to the front, in order, and returns how many there
 * are. Where zeros are few, or elements are bytes, all stay. mask: [ceil(n/8)]
 */
size_t dsc_drop_zeros(uint8_t *mask, void *elems, size_t width, size_t n);
/* The other way, for any mask. kept: dsc_mask_count() of it. */
void dsc_restore_zeros(void *elems, size_t width, size_t n, const uint8_t *mask, size_t kept);
/* Bits that are set of the first n. */
size_t dsc_mask_count(const uint8_t *mask, size_t n);

/* planes: [width][DSC_PLANE_MAX], or as many lists. */
void dsc_split_planes(uint8_t *planes, const void *elems, size_t width, size_t n);
void dsc_join_planes(void *elems, size_t width, const uint8_t *const *planes, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. The 32-byte header in front of every payload: to and from wire bytes,
 * its checksum, and the checks that every transport makes before it believes a size.
 */
#ifndef DSC_HEADER_H
#define DSC_HEADER_H

#include "transport/transport.h"

/* Little endian; `wire` has any alignment. Decode checks nothing: see dsc_header_check(). */
void dsc_header_encode(const struct dsc_header *h, uint8_t wire[DSC_HEADER_BYTES]);
void dsc_header_decode(const uint8_t wire[DSC_HEADER_BYTES], struct dsc_header *h_out);

/*
 * Checksum to send in h->crc: over the header with that field 0, then h->payload_bytes of payload.
 * Never 0, since 0 in the field means "not checked": a computed 0 is sent as 0xffffffff.
 */
uint32_t dsc_header_crc(const struct dsc_header *h, const void *payload);

/*
 * NULL, or why the header must be refused: magic, version, kind, or more payload than payload_max
 * (an error message: than DSC_ERROR_TEXT_MAX as well). The CRC is not looked at.
 */
const char *dsc_header_check(const struct dsc_header *h, size_t payload_max);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What messages of NCCL shrink to, always without loss.
 *
 *     LL      | flag u32 | data32 data32 ... |
 *     LL128   | flag u64 | 120 bytes of each line |
 *     planes  | s0 | s1 | ... |  segment 0 | segment 1 | ... | rest of bytes |
 *               uint32: bytes of a segment
 *     segment | h | h0 | h1 .. | mask | plane 0 | plane 1 | ... |
 *               uint32: method + 4 * bytes, of the mask of zeros and of each plane
 *
 * Planes are those of codec/planes.h: elements of 1, 2 or 4 bytes, whatever they are to the caller,
 * 8192 to a segment. Bytes of a peer are checked where they are read.
 */
#ifndef DSC_NET_CODEC_H
#define DSC_NET_CODEC_H

#include <stddef.h>
#include <stdint.h>

enum net_codec {
    NET_CODEC_RAW,
    NET_CODEC_LL,
    NET_CODEC_LL128,
    NET_CODEC_BYTES, /* planes */
    NET_CODEC_HALVES,
    NET_CODEC_WORDS,
    NET_CODECS
};

/* What dst must have room for. */
size_t net_pack_room(size_t bytes);
/*
 * Returns the bytes used, or 0: it saves less than a thirty-second part. LL and LL128 are for what
 * net_lines_kind() has found.
 */
size_t net_pack(uint8_t *dst, const void *src, size_t bytes, enum net_codec codec);
/* The planes that serve a sample of the data best; RAW: none. */
enum net_codec net_pack_choose(const void *src, size_t bytes);
/* Lines are published in order. Returns NULL, or what is wrong with the peer's bytes. */
const char *net_unpack(void *dst, size_t bytes, const uint8_t *src, size_t packed_bytes,
                       enum net_codec codec);

#endif

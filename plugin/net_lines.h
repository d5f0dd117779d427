/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines: what NCCL's protocols LL and LL128 send. A GPU polls the flags in the receive buffer while
 * a message arrives and takes the data beside a flag that is right, so data must never be visible
 * after its flag, which no recv() into that buffer promises.
 *
 *     LL     16 bytes: data32 flag32 data32 flag32
 *     LL128  128 bytes: 15 words of 64 bits, then the flag
 *
 * All flags of a message are equal and not 0: NCCL has looked at each before it sends. So the
 * content tells, whatever the buffer is; other data that happens to look so is copied once more,
 * nothing else.
 */
#ifndef DSC_NET_LINES_H
#define DSC_NET_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_LL_BYTES 16
#define NET_LL128_BYTES 128
#define NET_LL128_WORDS (NET_LL128_BYTES / 8)

enum net_lines { NET_LINES_NONE, NET_LINES_LL, NET_LINES_LL128 };

/* Looks at all flags, or, where they are none, at the first few. */
enum net_lines net_lines_kind(const void *data, size_t bytes);

/*
 * Copies so that whoever polls 64-bit words of dst, 8-byte aligned, sees each whole, and the last
 * one of every 128 bytes from dst on after those before it. bytes may end within a line at the end
 * of a message alone.
 */
void net_lines_publish(void *dst, const void *src, size_t bytes);

#endif

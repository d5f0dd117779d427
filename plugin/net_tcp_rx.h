/* SPDX-License-Identifier: Apache-2.0 */
/* Private to plugin/net_tcp*.c: the buffer of a receiving socket. */
#ifndef DSC_NET_TCP_RX_H
#define DSC_NET_TCP_RX_H

#define RX_BUF_BYTES ((size_t)64 << 10)
/* What is read into it beside a message that goes to the caller's memory. */
#define RX_AHEAD_BYTES ((size_t)4 << 10)

#endif

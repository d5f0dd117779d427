/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire header, field by field, so that its bytes are the same on any host.
 */
#include "transport/header.h"

#include "transport/bytes.h"

void dsc_header_encode(const struct dsc_header *h, uint8_t wire[DSC_HEADER_BYTES])
{
    dsc_put_u16(wire, h->magic);
    wire[2] = h->version;
    wire[3] = h->kind;
    dsc_put_u32(wire + 4, h->sequence);
    dsc_put_u64(wire + 8, h->descriptor);
    dsc_put_u16(wire + 16, h->chunk);
    dsc_put_u16(wire + 18, h->stage);
    dsc_put_u32(wire + 20, h->payload_bytes);
    dsc_put_u32(wire + 24, h->note);
    dsc_put_u32(wire + 28, h->crc);
}

void dsc_header_decode(const uint8_t wire[DSC_HEADER_BYTES], struct dsc_header *h_out)
{
    h_out->magic = dsc_get_u16(wire);
    h_out->version = wire[2];
    h_out->kind = wire[3];
    h_out->sequence = dsc_get_u32(wire + 4);
    h_out->descriptor = dsc_get_u64(wire + 8);
    h_out->chunk = dsc_get_u16(wire + 16);
    h_out->stage = dsc_get_u16(wire + 18);
    h_out->payload_bytes = dsc_get_u32(wire + 20);
    h_out->note = dsc_get_u32(wire + 24);
    h_out->crc = dsc_get_u32(wire + 28);
}

uint32_t dsc_header_crc(const struct dsc_header *h, const void *payload)
{
    struct dsc_header zeroed = *h;
    uint8_t wire[DSC_HEADER_BYTES];

    zeroed.crc = 0;
    dsc_header_encode(&zeroed, wire);
    const uint32_t crc = dsc_crc32c(dsc_crc32c(0, wire, sizeof(wire)), payload, h->payload_bytes);

    return crc != 0 ? crc : UINT32_MAX;
}

const char *dsc_header_check(const struct dsc_header *h, size_t payload_max)
{
    if (h->magic != DSC_HEADER_MAGIC)
        return "bad magic";
    if (h->version != DSC_HEADER_VERSION)
        return "unknown header version";
    if (h->kind != DSC_MSG_DATA && h->kind != DSC_MSG_ERROR)
        return "unknown message kind";
    if (h->payload_bytes > payload_max)
        return "more payload than a slot holds";
    if (h->kind == DSC_MSG_ERROR && h->payload_bytes > DSC_ERROR_TEXT_MAX)
        return "error text too long";
    return NULL;
}

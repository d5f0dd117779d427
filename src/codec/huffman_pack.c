/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a plane. Its code lies before its streams:
 *
 *     | first | last | lengths of first, first + 1, ..., last | b0 b1 b2 | stream 0 | .. | stream 3
 * | symbol, byte   4 bits each, the even one low            uint16: bytes of a stream
 *
 * Bits fill a byte from the top; the last byte of a stream ends with zeros.
 */
#include <stdbool.h>
#include <string.h>

#include "codec/huffman.h"
#include "codec/huffman_code.h"

/* Of so many bytes of a plane a few are looked at first: most planes of mantissas end there. */
#define SAMPLE_EVERY 512
#define SAMPLE_RUN 64
/* What a code must save, and by how much a stream may write past its end. */
#define MARGIN_BYTES 16
#define GROUP 5 /* symbols whose codes fit in 64 bits with 7 bits from before */

_Static_assert(GROUP *DSC_CODE_BITS_MAX + 7 <= 63, "a group fits a word");

/* Equal bytes in a row would wait for each other in one table. */
static void count_bytes(uint32_t *counts, const uint8_t *plane, size_t n)
{
    uint32_t part[4][DSC_SYMBOLS];
    size_t i = 0;

    memset(part, 0, sizeof(part));
    for (; i + 8 <= n; i += 8) {
        uint64_t w;

        memcpy(&w, plane + i, sizeof(w));
        for (int k = 0; k < 8; k++)
            part[k % 4][w >> 8 * k & 0xff]++;
    }
    for (; i < n; i++)
        part[0][plane[i]]++;
    for (int s = 0; s < DSC_SYMBOLS; s++)
        counts[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

/*
 * True if a sample has no more pairs of equal bytes than 1.5 times those of random ones: then the
 * entropy is likely above 7.4 bits of 8.
 */
static bool looks_random(const uint8_t *plane, size_t n)
{
    uint32_t counts[DSC_SYMBOLS] = { 0 };
    uint64_t n_seen = 0, n_pairs = 0;

    for (size_t at = 0; at < n; at += SAMPLE_EVERY) {
        const size_t len = n - at < SAMPLE_RUN ? n - at : SAMPLE_RUN;

        for (size_t i = 0; i < len; i++)
            counts[plane[at + i]]++;
        n_seen += len;
    }
    for (int s = 0; s < DSC_SYMBOLS; s++)
        n_pairs += (uint64_t)counts[s] * counts[s];
    return 2 * DSC_SYMBOLS * n_pairs <= 3 * n_seen * n_seen;
}

struct code {
    uint8_t lengths[DSC_SYMBOLS];
    uint16_t codes[DSC_SYMBOLS]; /* in the low bits */
    int first, last;             /* symbols that occur */
};

static size_t code_bytes(const struct code *c)
{
    return 2 + (size_t)(c->last - c->first + 2) / 2;
}

/* Shorter codes first, of one length the smaller symbols; each is the one before plus one. */
static void number_codes(struct code *c)
{
    unsigned n_of[DSC_CODE_BITS_MAX + 1] = { 0 }, next[DSC_CODE_BITS_MAX + 1] = { 0 };

    for (int s = c->first; s <= c->last; s++)
        n_of[c->lengths[s]]++;
    for (unsigned len = 2; len <= DSC_CODE_BITS_MAX; len++)
        next[len] = (next[len - 1] + n_of[len - 1]) << 1;
    for (int s = c->first; s <= c->last; s++)
        c->codes[s] = (uint16_t)next[c->lengths[s]]++; /* of symbols without one unused */
}

/* At most so many bytes: each stream is rounded up. */
static size_t coded_bytes_max(const struct code *c, const uint32_t *counts)
{
    size_t n_bits = 0;

    for (int s = c->first; s <= c->last; s++)
        n_bits += (size_t)counts[s] * c->lengths[s];
    return code_bytes(c) + DSC_STREAM_SIZE_BYTES + n_bits / 8 + DSC_PLANE_STREAMS;
}

static uint8_t *write_code(uint8_t *dst, const struct code *c)
{
    *dst++ = (uint8_t)c->first;
    *dst++ = (uint8_t)c->last;
    for (int s = c->first; s <= c->last; s += 2)
        *dst++ = (uint8_t)(c->lengths[s] | (s < c->last ? c->lengths[s + 1] << 4 : 0));
    return dst;
}

static void store_bits(uint8_t *dst, uint64_t bits)
{
    bits = __builtin_bswap64(bits);
    memcpy(dst, &bits, sizeof(bits));
}

/* Writes up to 8 bytes past the end that it returns. */
static uint8_t *write_stream(uint8_t *dst, const struct code *c, const uint8_t *src, size_t n)
{
    uint64_t acc = 0; /* its low n_bits are not yet written */
    unsigned n_bits = 0;
    size_t i = 0;

    while (i < n) {
        const size_t end = n - i < GROUP ? n : i + GROUP;

        for (; i < end; i++) {
            acc = acc << c->lengths[src[i]] | c->codes[src[i]];
            n_bits += c->lengths[src[i]];
        }
        store_bits(dst, acc << (64 - n_bits));
        dst += n_bits / 8;
        n_bits %= 8;
    }
    return dst + (n_bits > 0);
}

static size_t write_plane(uint8_t *dst, const struct code *c, const uint8_t *plane, size_t n)
{
    const size_t per_stream = DSC_STREAM_SYMBOLS(n);
    uint8_t *const sizes = write_code(dst, c);
    uint8_t *at = sizes + DSC_STREAM_SIZE_BYTES;

    for (size_t j = 0; j < DSC_PLANE_STREAMS; j++) {
        const size_t first = j * per_stream < n ? j * per_stream : n;
        uint8_t *const end =
            write_stream(at, c, plane + first, n - first < per_stream ? n - first : per_stream);
        const size_t bytes = (size_t)(end - at);

        if (j < DSC_PLANE_STREAMS - 1) {
            sizes[2 * j] = (uint8_t)bytes;
            sizes[2 * j + 1] = (uint8_t)(bytes >> 8);
        }
        at = end;
    }
    return (size_t)(at - dst);
}

static size_t copy_raw(uint8_t *dst, enum dsc_plane_method *method_out, const uint8_t *plane,
                       size_t n)
{
    memcpy(dst, plane, n);
    *method_out = DSC_PLANE_RAW;
    return n;
}

size_t dsc_plane_pack(uint8_t *dst, enum dsc_plane_method *method_out, const uint8_t *plane,
                      size_t n)
{
    uint32_t counts[DSC_SYMBOLS];
    struct code code = { .first = 0, .last = DSC_SYMBOLS - 1 };

    if (looks_random(plane, n))
        return copy_raw(dst, method_out, plane, n);
    count_bytes(counts, plane, n);
    while (counts[code.first] == 0)
        code.first++;
    while (counts[code.last] == 0)
        code.last--;
    if (code.first == code.last) {
        *dst = *plane;
        *method_out = DSC_PLANE_CONSTANT;
        return 1;
    }
    dsc_code_lengths(code.lengths, counts);
    if (coded_bytes_max(&code, counts) + MARGIN_BYTES > n)
        return copy_raw(dst, method_out, plane, n);
    number_codes(&code);
    *method_out = DSC_PLANE_HUFFMAN;
    return write_plane(dst, &code, plane, n);
}

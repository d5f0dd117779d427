/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a plane that came from a peer. Its code must fill the space of codes exactly, so that all
 * bits mean something; its streams must end where they say.
 */
#include <stdbool.h>
#include <string.h>

#include "codec/bits.h"
#include "codec/huffman.h"
#include "codec/huffman_code.h"

#define GROUP 5 /* symbols that 64 bits hold from any bit of a byte on */

_Static_assert(GROUP *DSC_CODE_BITS_MAX + 7 <= 64, "a group needs one load");

/* What the next bits are: length in the low byte, symbol in the high one. */
struct decoder {
    uint16_t entries[DSC_CODE_SPACE];
};

struct plane_code {
    uint8_t lengths[DSC_SYMBOLS]; /* of first to last */
    int first, last;
    size_t bytes; /* read */
};

static const char *read_code(struct plane_code *c, const uint8_t *src, size_t bytes)
{
    uint8_t ends[2];

    if (bytes < sizeof(ends))
        return "a code of fewer than two symbols";
    copy_once(ends, src, sizeof(ends)); /* a peer may write there meanwhile */
    c->first = ends[0];
    c->last = ends[1];
    if (c->first >= c->last)
        return "a code of fewer than two symbols";
    c->bytes = 2 + (size_t)(c->last - c->first + 2) / 2;
    if (c->bytes > bytes)
        return "a plane that ends within its code";
    for (int s = c->first; s <= c->last; s++) {
        const int at = s - c->first;

        c->lengths[s] = (uint8_t)(src[2 + at / 2] >> (at % 2 * 4) & 15);
    }
    return NULL;
}

static void fill_entries(uint16_t *dst, size_t n, unsigned len, unsigned symbol)
{
    const uint16_t entry = (uint16_t)(symbol << 8 | len);

    for (size_t i = 0; i < n; i++)
        dst[i] = entry;
}

/* Entries of a code of each length; false: lengths are beyond the limit. */
static bool count_entries(size_t *n_of, const struct plane_code *c)
{
    memset(n_of, 0, (DSC_CODE_BITS_MAX + 1) * sizeof(*n_of));
    for (int s = c->first; s <= c->last; s++) {
        if (c->lengths[s] > DSC_CODE_BITS_MAX)
            return false;
        n_of[c->lengths[s]] += (size_t)DSC_CODE_SPACE >> c->lengths[s];
    }
    return true;
}

/* Shorter codes first, of one length the smaller symbols: the entries in ascending order. */
static const char *make_decoder(struct decoder *d, const struct plane_code *c)
{
    size_t n_of[DSC_CODE_BITS_MAX + 1], next[DSC_CODE_BITS_MAX + 1], used = 0;

    if (!count_entries(n_of, c))
        return "a code of more than 11 bits";
    for (unsigned len = 1; len <= DSC_CODE_BITS_MAX; len++) {
        next[len] = used;
        used += n_of[len];
    }
    if (used != DSC_CODE_SPACE)
        return "a code that does not fill its space";
    for (int s = c->first; s <= c->last; s++) {
        const unsigned len = c->lengths[s];
        const size_t n = (size_t)DSC_CODE_SPACE >> len;

        if (len == 0)
            continue;
        fill_entries(d->entries + next[len], n, len, (unsigned)s);
        next[len] += n;
    }
    return NULL;
}

/* The streams of a plane: positions are in bits from `src`. */
struct streams {
    const uint8_t *src;
    size_t bytes; /* of src */
    size_t at[DSC_PLANE_STREAMS], end[DSC_PLANE_STREAMS];
};

static const char *find_streams(struct streams *s, size_t start)
{
    size_t at = start + DSC_STREAM_SIZE_BYTES;

    if (at > s->bytes)
        return "a plane that ends before its streams";
    for (size_t j = 0; j < DSC_PLANE_STREAMS; j++) {
        s->at[j] = 8 * at;
        if (j < DSC_PLANE_STREAMS - 1)
            at += s->src[start + 2 * j] | (size_t)s->src[start + 2 * j + 1] << 8;
        else
            at = s->bytes;
        if (at > s->bytes)
            return "a stream that ends behind its plane";
        s->end[j] = 8 * at;
    }
    return NULL;
}

/* The 57 bits from bit `at` on, and perhaps more, at the top; all 8 bytes are there. */
static inline uint64_t bits_at(const uint8_t *src, size_t at)
{
    uint64_t w;

    memcpy(&w, src + at / 8, sizeof(w));
    return __builtin_bswap64(w) << at % 8;
}

/* As above near the end of the memory: what is behind it counts as zeros. */
static uint64_t last_bits_at(const struct streams *s, size_t at)
{
    const size_t first = at / 8 < s->bytes ? at / 8 : s->bytes;
    const size_t left = s->bytes - first;
    uint8_t tail[8] = { 0 };

    memcpy(tail, s->src + first, left < sizeof(tail) ? left : sizeof(tail));
    return bits_at(tail, at % 8);
}

static inline void take_symbol(uint8_t *dst, const uint16_t *entries, uint64_t *bits, size_t *taken)
{
    const uint16_t e = entries[*bits >> (64 - DSC_CODE_BITS_MAX)];

    *dst = (uint8_t)(e >> 8);
    *bits <<= e & 63;
    *taken += e & 63;
}

/* Groups of all four streams as long as loads stay inside. Returns the symbols of each. */
static size_t read_together(uint8_t *plane, size_t per_stream, size_t n_each,
                            const struct decoder *d, struct streams *s)
{
    const uint8_t *const src = s->src;
    const size_t last = s->bytes >= 8 ? 8 * (s->bytes - 8) : 0;
    uint8_t *const p0 = plane, *const p1 = p0 + per_stream, *const p2 = p1 + per_stream,
                   *const p3 = p2 + per_stream;
    size_t a0 = s->at[0], a1 = s->at[1], a2 = s->at[2], a3 = s->at[3], i = 0;

    if (s->bytes < 8)
        return 0;
    for (; i + GROUP <= n_each && a0 <= last && a1 <= last && a2 <= last && a3 <= last;
         i += GROUP) {
        uint64_t b0 = bits_at(src, a0), b1 = bits_at(src, a1), b2 = bits_at(src, a2),
                 b3 = bits_at(src, a3);

        for (size_t k = i; k < i + GROUP; k++) {
            take_symbol(p0 + k, d->entries, &b0, &a0);
            take_symbol(p1 + k, d->entries, &b1, &a1);
            take_symbol(p2 + k, d->entries, &b2, &a2);
            take_symbol(p3 + k, d->entries, &b3, &a3);
        }
    }
    s->at[0] = a0, s->at[1] = a1, s->at[2] = a2, s->at[3] = a3;
    return i;
}

static void read_alone(uint8_t *dst, size_t n, const struct decoder *d, struct streams *s, size_t j)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = last_bits_at(s, s->at[j]);

        take_symbol(dst + i, d->entries, &bits, &s->at[j]);
    }
}

/* Less than a byte is left of each, and that is zeros. */
static bool end_as_said(const struct streams *s)
{
    for (size_t j = 0; j < DSC_PLANE_STREAMS; j++) {
        const size_t at = s->at[j], end = s->end[j];

        if (at > end || end - at >= 8 || (at < end && (uint8_t)(s->src[at / 8] << at % 8) != 0))
            return false;
    }
    return true;
}

static const char *unpack_streams(uint8_t *plane, size_t n, const struct decoder *d,
                                  struct streams *s)
{
    const size_t per_stream = DSC_STREAM_SYMBOLS(n);
    const size_t before_last = (DSC_PLANE_STREAMS - 1) * per_stream;
    const size_t n_each = n > before_last ? n - before_last : 0; /* the last has fewest */
    const size_t done = read_together(plane, per_stream, n_each, d, s);

    for (size_t j = 0; j < DSC_PLANE_STREAMS; j++) {
        const size_t first = j * per_stream + done;
        const size_t end = (j + 1) * per_stream < n ? (j + 1) * per_stream : n;

        if (first < end)
            read_alone(plane + first, end - first, d, s, j);
    }
    return end_as_said(s) ? NULL : "a stream that does not end where it says";
}

static const char *unpack_coded(uint8_t *plane, size_t n, const uint8_t *src, size_t bytes)
{
    struct streams streams = { .src = src, .bytes = bytes };
    struct plane_code code;
    struct decoder decoder;
    const char *wrong = read_code(&code, src, bytes);

    if (wrong == NULL)
        wrong = make_decoder(&decoder, &code);
    if (wrong == NULL)
        wrong = find_streams(&streams, code.bytes);
    return wrong != NULL ? wrong : unpack_streams(plane, n, &decoder, &streams);
}

const char *dsc_plane_unpack(uint8_t *plane, size_t n, enum dsc_plane_method method,
                             const uint8_t *src, size_t bytes)
{
    switch (method) {
    case DSC_PLANE_RAW:
        if (bytes != n)
            return "a raw plane of another size than the segment";
        memcpy(plane, src, n);
        return NULL;
    case DSC_PLANE_CONSTANT:
        if (bytes != 1)
            return "a constant plane that is not one byte";
        memset(plane, *src, n);
        return NULL;
    case DSC_PLANE_HUFFMAN:
        return unpack_coded(plane, n, src, bytes);
    default:
        return "a plane with an unknown method";
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "net_codec.h"

#include <string.h>

#include "codec/huffman.h"
#include "codec/planes.h"
#include "core/core.h"
#include "net_lines.h"
#include "transport/bytes.h"

#define SEGMENT DSC_PLANE_MAX
#define WIDTH_MAX 4
#define WORD_BYTES sizeof(uint32_t)

static size_t limit_of(size_t bytes)
{
    return bytes - bytes / 32;
}

static size_t width_of(enum net_codec codec)
{
    return codec == NET_CODEC_WORDS ? 4 : codec == NET_CODEC_HALVES ? 2 : 1;
}

/* ---- lines ---- */

#define LL128_DATA (NET_LL128_BYTES - sizeof(uint64_t))

static size_t pack_ll(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    memcpy(dst, src + 4, 4);
    for (size_t i = 0; i < bytes / 8; i++)
        memcpy(dst + 4 + i * 4, src + i * 8, 4);
    return 4 + bytes / 2;
}

static size_t pack_ll128(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    const size_t n = bytes / NET_LL128_BYTES;

    memcpy(dst, src + LL128_DATA, sizeof(uint64_t));
    for (size_t i = 0; i < n; i++)
        memcpy(dst + sizeof(uint64_t) + i * LL128_DATA, src + i * NET_LL128_BYTES, LL128_DATA);
    return sizeof(uint64_t) + n * LL128_DATA;
}

static const char *unpack_ll(uint8_t *dst, size_t bytes, const uint8_t *src, size_t packed)
{
    uint8_t lines[NET_LL128_BYTES];

    if (bytes % NET_LL_BYTES != 0 || packed != 4 + bytes / 2)
        return "LL data of another length";
    for (size_t at = 0; at < bytes; at += NET_LL128_BYTES) {
        const size_t n = dsc_min_size(NET_LL128_BYTES, bytes - at);

        for (size_t i = 0; i < n / 8; i++) {
            memcpy(lines + i * 8, src + 4 + at / 2 + i * 4, 4);
            memcpy(lines + i * 8 + 4, src, 4);
        }
        net_lines_publish(dst + at, lines, n);
    }
    return NULL;
}

static const char *unpack_ll128(uint8_t *dst, size_t bytes, const uint8_t *src, size_t packed)
{
    const size_t n = bytes / NET_LL128_BYTES;
    uint8_t line[NET_LL128_BYTES];

    if (bytes % NET_LL128_BYTES != 0 || packed != sizeof(uint64_t) + n * LL128_DATA)
        return "LL128 data of another length";
    memcpy(line + LL128_DATA, src, sizeof(uint64_t));
    for (size_t i = 0; i < n; i++) {
        memcpy(line, src + sizeof(uint64_t) + i * LL128_DATA, LL128_DATA);
        net_lines_publish(dst + i * NET_LL128_BYTES, line, NET_LL128_BYTES);
    }
    return NULL;
}

/* ---- planes ---- */

struct work {
    _Alignas(64) uint8_t elems[WIDTH_MAX * SEGMENT];
    uint8_t planes[WIDTH_MAX * SEGMENT];
    uint8_t mask[SEGMENT / 8];
};

static size_t segment_max(size_t n, size_t width)
{
    return (1 + width) * WORD_BYTES + dsc_ceil_div(n, 8) + n * width;
}

static size_t write_plane(uint8_t *dst, uint8_t *word, const uint8_t *plane, size_t n)
{
    enum dsc_plane_method method = DSC_PLANE_RAW;
    const size_t bytes = n > 0 ? dsc_plane_pack(dst, &method, plane, n) : 0;

    dsc_put_u32(word, (uint32_t)(bytes << 2 | method));
    return bytes;
}

/* dst: segment_max() bytes. */
static size_t pack_segment(uint8_t *dst, const uint8_t *src, size_t n, size_t width,
                           struct work *work)
{
    size_t at = (1 + width) * WORD_BYTES, kept;

    memcpy(work->elems, src, n * width);
    kept = dsc_drop_zeros(work->mask, work->elems, width, n);
    dsc_split_planes(work->planes, work->elems, width, kept);
    at += write_plane(dst + at, dst, work->mask, dsc_ceil_div(n, 8));
    for (size_t p = 0; p < width; p++)
        at += write_plane(dst + at, dst + (1 + p) * WORD_BYTES, work->planes + p * DSC_PLANE_MAX,
                          kept);
    return at;
}

static size_t pack_planes(uint8_t *dst, const uint8_t *src, size_t bytes, size_t width)
{
    const size_t n_elems = bytes / width, n_segments = dsc_ceil_div(n_elems, SEGMENT);
    size_t at = n_segments * WORD_BYTES;
    struct work work;

    for (size_t s = 0; s < n_segments; s++) {
        const size_t first = s * SEGMENT, n = dsc_min_size(SEGMENT, n_elems - first);
        const size_t used = pack_segment(dst + at, src + first * width, n, width, &work);

        dsc_put_u32(dst + s * WORD_BYTES, (uint32_t)used);
        at += used;
        /* A quarter of the way and nothing saved: the rest is like it. */
        if (s == n_segments / 4 && at > limit_of((first + n) * width) + n_segments * WORD_BYTES)
            return 0;
    }
    memcpy(dst + at, src + n_elems * width, bytes - n_elems * width);
    at += bytes - n_elems * width;
    return at <= limit_of(bytes) ? at : 0;
}

struct packed {
    const uint8_t *src;
    size_t bytes, at;
};

/* Returns NULL, or what is wrong. */
static const char *read_plane(struct packed *packed, size_t index, uint8_t *plane, size_t n)
{
    const uint32_t word = dsc_get_u32(packed->src + index * WORD_BYTES);
    const uint8_t *const src = packed->src + packed->at;
    const size_t bytes = word >> 2;

    if (bytes > packed->bytes - packed->at)
        return "a plane that ends behind its segment";
    packed->at += bytes;
    if (n == 0)
        return bytes == 0 ? NULL : "an empty plane that has bytes";
    return dsc_plane_unpack(plane, n, (enum dsc_plane_method)(word & 3), src, bytes);
}

static const char *unpack_segment(uint8_t *dst, size_t n, size_t width, const uint8_t *src,
                                  size_t bytes, struct work *work)
{
    struct packed packed = { src, bytes, (1 + width) * WORD_BYTES };
    const uint8_t *list[WIDTH_MAX] = { 0 };
    const char *wrong;
    size_t kept;

    if (bytes < packed.at)
        return "a segment that ends before its planes";
    wrong = read_plane(&packed, 0, work->mask, dsc_ceil_div(n, 8));
    if (wrong != NULL)
        return wrong;
    kept = dsc_mask_count(work->mask, n);
    for (size_t p = 0; p < width && wrong == NULL; p++) {
        list[p] = work->planes + p * DSC_PLANE_MAX;
        wrong = read_plane(&packed, 1 + p, work->planes + p * DSC_PLANE_MAX, kept);
    }
    if (wrong != NULL || packed.at != bytes)
        return wrong != NULL ? wrong : "a segment with bytes behind its planes";
    dsc_join_planes(work->elems, width, list, kept);
    dsc_restore_zeros(work->elems, width, n, work->mask, kept);
    memcpy(dst, work->elems, n * width);
    return NULL;
}

static const char *unpack_planes(uint8_t *dst, size_t bytes, const uint8_t *src, size_t packed,
                                 size_t width)
{
    const size_t n_elems = bytes / width, n_segments = dsc_ceil_div(n_elems, SEGMENT);
    size_t at = n_segments * WORD_BYTES;
    struct work work;

    if (packed < at)
        return "a table that ends early";
    for (size_t s = 0; s < n_segments; s++) {
        const size_t first = s * SEGMENT, n = dsc_min_size(SEGMENT, n_elems - first);
        const size_t used = dsc_get_u32(src + s * WORD_BYTES);
        const char *wrong;

        if (used > packed - at)
            return "a segment that ends behind its message";
        wrong = unpack_segment(dst + first * width, n, width, src + at, used, &work);
        if (wrong != NULL)
            return wrong;
        at += used;
    }
    if (packed - at != bytes - n_elems * width)
        return "a rest of another length";
    memcpy(dst + n_elems * width, src + at, packed - at);
    return NULL;
}

/* ---- all ---- */

size_t net_pack_room(size_t bytes)
{
    return bytes + (bytes / SEGMENT + 1) * (segment_max(SEGMENT, 1) - SEGMENT + WORD_BYTES) +
           segment_max(0, WIDTH_MAX);
}

size_t net_pack(uint8_t *dst, const void *src, size_t bytes, enum net_codec codec)
{
    switch (codec) {
    case NET_CODEC_LL:
        return pack_ll(dst, src, bytes);
    case NET_CODEC_LL128:
        return pack_ll128(dst, src, bytes);
    case NET_CODEC_BYTES:
    case NET_CODEC_HALVES:
    case NET_CODEC_WORDS:
        return pack_planes(dst, src, bytes, width_of(codec));
    case NET_CODEC_RAW:
    case NET_CODECS:
        break;
    }
    return 0;
}

/* Two places of 8 KiB tell the kinds apart well enough. */
enum net_codec net_pack_choose(const void *src, size_t bytes)
{
    const uint8_t *const data = src;
    const size_t sample = dsc_min_size(bytes / 2, 8192);
    enum net_codec best = NET_CODEC_RAW;
    size_t least = limit_of(2 * sample);
    uint8_t dst[8192 + 8192 / 8 + 64];
    struct work work;

    for (enum net_codec codec = NET_CODEC_BYTES; codec <= NET_CODEC_WORDS; codec++) {
        const size_t width = width_of(codec), n = sample / width;
        const size_t middle = bytes / 2 / 8 * 8;
        const size_t used = pack_segment(dst, data, n, width, &work) +
                            pack_segment(dst, data + middle, n, width, &work);

        if (n > 0 && used < least) {
            least = used;
            best = codec;
        }
    }
    return best;
}

const char *net_unpack(void *dst, size_t bytes, const uint8_t *src, size_t packed_bytes,
                       enum net_codec codec)
{
    switch (codec) {
    case NET_CODEC_LL:
        return unpack_ll(dst, bytes, src, packed_bytes);
    case NET_CODEC_LL128:
        return unpack_ll128(dst, bytes, src, packed_bytes);
    case NET_CODEC_BYTES:
    case NET_CODEC_HALVES:
    case NET_CODEC_WORDS:
        return unpack_planes(dst, bytes, src, packed_bytes, width_of(codec));
    case NET_CODEC_RAW:
    case NET_CODECS:
        break;
    }
    return "a codec that there is not";
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of another codec, packed without loss: lossless and int8,entropy. Segments of 8192
 * elements count from the message's first element:
 *
 *     | z0 | z1 | ... | 0 .. 0 | segment 0 | segment 1 | ... | 0 .. 0 |
 *       uint32: bytes of a segment
 *
 * A segment is what the other codec makes of its elements, as a message of their own: first what
 * stands before the elements (scales), as it is; then which elements are sent, a bit each, since
 * gradients may have many zeros; then these, cut into planes of bytes. Mantissas are as good as
 * random, exponents are not, and a plane of either is sent as it deserves.
 *
 *     | h | h0 | h1 | ... | scales | mask | plane 0 | plane 1 | ...
 *       uint32: method + 4 * bytes of the mask and of each plane
 *
 * How long a message is follows from its data; the size that a plan reserves is that of planes
 * which are all sent raw. Bytes of a peer are looked at where they are decoded: what is wrong makes
 * its segment NaN and is told to whoever asks (struct dsc_flaw).
 */
#include "codec/bits.h"
#include "codec/codec.h"
#include "codec/huffman.h"
#include "codec/planes.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little endian");

#define SEGMENT DSC_ENTROPY_SEGMENT
#define PLANES_MAX sizeof(float)
#define WORD_BYTES sizeof(uint32_t)
#define MASK_MAX (SEGMENT / 8)

_Static_assert(SEGMENT <= DSC_PLANE_MAX, "a plane is one byte of each element of a segment");

/* ---- sizes ---- */

static size_t table_bytes(size_t n)
{
    return dsc_round_up(dsc_ceil_div(n, SEGMENT) * WORD_BYTES, 16);
}

/* What the inner message of n elements has before them. */
static size_t front_bytes(const struct dsc_codec *codec, size_t n)
{
    return dsc_codec_message_bytes(codec->packed, n) - dsc_round_up(n * codec->n_planes, 16);
}

static size_t head_bytes(const struct dsc_codec *codec)
{
    return (1 + codec->n_planes) * WORD_BYTES;
}

/* A mask takes no more than the elements that are left out, or one byte. */
static size_t segment_bytes_max(const struct dsc_codec *codec, size_t n)
{
    return n == 0 ? 0 : head_bytes(codec) + front_bytes(codec, n) + 1 + n * codec->n_planes;
}

static size_t entropy_message_bytes(const struct dsc_codec *codec, size_t n)
{
    return dsc_round_up(table_bytes(n) + n / SEGMENT * segment_bytes_max(codec, SEGMENT) +
                            segment_bytes_max(codec, n % SEGMENT),
                        16);
}

static size_t segment_elems(const struct dsc_msg *msg, size_t index)
{
    return dsc_min_size(SEGMENT, msg->n - index * SEGMENT);
}

static uint32_t load_word(const uint8_t *src)
{
    uint32_t word;

    copy_once(&word, src, sizeof(word));
    return word;
}

static void store_word(uint8_t *dst, size_t value)
{
    const uint32_t word = (uint32_t)value;

    memcpy(dst, &word, sizeof(word));
}

/* As the table says, but no more than there can be: it may be a peer's, or in a peer's reach. */
static size_t segment_bytes(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t index)
{
    return dsc_min_size(load_word(msg->bytes + index * WORD_BYTES),
                        segment_bytes_max(codec, segment_elems(msg, index)));
}

static size_t segment_offset(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t index)
{
    size_t at = table_bytes(msg->n);

    for (size_t i = 0; i < index; i++)
        at += segment_bytes(codec, msg, i);
    return at;
}

static size_t entropy_used_bytes(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                 size_t limit)
{
    if (limit < table_bytes(msg->n))
        return table_bytes(msg->n);
    return dsc_round_up(segment_offset(codec, msg, dsc_ceil_div(msg->n, SEGMENT)), 16);
}

/* ---- one segment ---- */

/* What the other codec makes of a segment; its elements are behind the scales. */
struct inner {
    _Alignas(64) uint8_t bytes[SEGMENT * sizeof(float)];
    size_t n, front;
};

_Static_assert(SEGMENT / 16 * sizeof(float) <= SEGMENT * (sizeof(float) - 1),
               "scales of the smallest blocks have room where elements are bytes");

static struct dsc_msg inner_message(struct inner *inner, const struct dsc_codec *codec,
                                    const struct dsc_msg *msg, size_t first)
{
    struct dsc_msg m = { .bytes = inner->bytes,
                         .n = segment_elems(msg, first / SEGMENT),
                         .exponent = msg->exponent,
                         .draw = msg->draw };

    m.draw.first += first;
    inner->n = m.n;
    inner->front = front_bytes(codec, m.n);
    return m;
}

static void *elems_of(struct inner *inner)
{
    return inner->bytes + inner->front;
}

/* Writes a plane and its word. Returns its bytes. */
static size_t write_plane(uint8_t *dst, uint8_t *word, const uint8_t *plane, size_t n)
{
    enum dsc_plane_method method = DSC_PLANE_RAW;
    const size_t bytes = n > 0 ? dsc_plane_pack(dst, &method, plane, n) : 0;

    store_word(word, bytes << 2 | method);
    return bytes;
}

/* Returns its bytes, at most segment_bytes_max(). Overwrites the inner message. */
static size_t pack_segment(uint8_t *dst, const struct dsc_codec *codec, struct inner *inner)
{
    uint8_t mask[MASK_MAX];
    uint8_t planes[PLANES_MAX * DSC_PLANE_MAX];
    const size_t kept = dsc_drop_zeros(mask, elems_of(inner), codec->n_planes, inner->n);
    size_t at = head_bytes(codec);

    dsc_split_planes(planes, elems_of(inner), codec->n_planes, kept);
    memcpy(dst + at, inner->bytes, inner->front);
    at += inner->front;
    at += write_plane(dst + at, dst, mask, dsc_ceil_div(inner->n, 8));
    for (size_t p = 0; p < codec->n_planes; p++)
        at += write_plane(dst + at, dst + (1 + p) * WORD_BYTES, planes + p * DSC_PLANE_MAX, kept);
    return at;
}

/* A peer's segment on its way to being read. */
struct packed {
    const uint8_t *src;
    size_t bytes, at;
};

/* The plane of word `index`, as it lies or unpacked into `room`. Returns NULL, or what is wrong. */
static const char *read_plane(struct packed *packed, size_t index, const uint8_t **plane_out,
                              uint8_t *room, size_t n)
{
    const uint32_t word = load_word(packed->src + index * WORD_BYTES);
    const enum dsc_plane_method method = (enum dsc_plane_method)(word & 3);
    const uint8_t *const src = packed->src + packed->at;
    const size_t bytes = word >> 2;

    if (bytes > packed->bytes - packed->at)
        return "a plane that ends behind its segment";
    packed->at += bytes;
    *plane_out = method == DSC_PLANE_RAW && bytes == n ? src : room;
    return *plane_out == src ? NULL : dsc_plane_unpack(room, n, method, src, bytes);
}

static const char *read_planes(struct inner *inner, const struct dsc_codec *codec,
                               struct packed *packed, const uint8_t *mask)
{
    const size_t kept = dsc_mask_count(mask, inner->n);
    const uint8_t *list[PLANES_MAX] = { 0 };
    uint8_t planes[PLANES_MAX * DSC_PLANE_MAX];

    for (size_t p = 0; p < codec->n_planes; p++) {
        const char *const wrong =
            read_plane(packed, 1 + p, &list[p], planes + p * DSC_PLANE_MAX, kept);

        if (wrong != NULL)
            return wrong;
    }
    if (packed->at != packed->bytes)
        return "a segment with bytes behind its planes";
    dsc_join_planes(elems_of(inner), codec->n_planes, list, kept);
    dsc_restore_zeros(elems_of(inner), codec->n_planes, inner->n, mask, kept);
    return NULL;
}

/* NULL, or what is wrong. */
static const char *unpack_segment(struct inner *inner, const struct dsc_codec *codec,
                                  const uint8_t *src, size_t bytes)
{
    struct packed packed = { src, bytes, head_bytes(codec) + inner->front };
    uint8_t mask[MASK_MAX];
    const uint8_t *at;
    const char *wrong;

    if (bytes < packed.at)
        return "a segment that ends before its planes";
    memcpy(inner->bytes, src + head_bytes(codec), inner->front);
    wrong = read_plane(&packed, 0, &at, mask, dsc_ceil_div(inner->n, 8));
    if (wrong != NULL)
        return wrong;
    if (at != mask) /* it is read twice, and a peer may write there meanwhile */
        copy_once(mask, at, dsc_ceil_div(inner->n, 8));
    return read_planes(inner, codec, &packed, mask);
}

/* ---- spans ---- */

/* Where the segment of element `first` starts; those before it have been written. */
static size_t place_of(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first)
{
    return segment_offset(codec, msg, first / SEGMENT);
}

/* Returns the place of the next one. */
static size_t write_segment(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                            size_t place, struct inner *inner)
{
    const size_t index = first / SEGMENT;
    const size_t bytes = pack_segment(msg->bytes + place, codec, inner);

    store_word(msg->bytes + index * WORD_BYTES, bytes);
    if (first + inner->n == msg->n) {
        dsc_codec_pad(msg->bytes, (index + 1) * WORD_BYTES);
        dsc_codec_pad(msg->bytes, place + bytes);
    }
    return place + bytes;
}

static void entropy_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                           size_t n, const float *x, float *decoded)
{
    size_t place = place_of(codec, msg, first);
    struct inner inner;

    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct dsc_msg m = inner_message(&inner, codec, msg, first + at);

        codec->packed->ops->encode(codec->packed, &m, 0, m.n, x + at,
                                   decoded != NULL ? decoded + at : NULL);
        place = write_segment(codec, msg, first + at, place, &inner);
    }
}

static void entropy_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                    size_t first, size_t n, const float *v, const float *r,
                                    float beta, float *r_out, unsigned flags)
{
    size_t place = place_of(codec, msg, first);
    struct inner inner;

    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct dsc_msg m = inner_message(&inner, codec, msg, first + at);

        codec->packed->ops->encode_feedback(codec->packed, &m, 0, m.n, v + at, r + at, beta,
                                            r_out + at, flags);
        place = write_segment(codec, msg, first + at, place, &inner);
    }
}

/* Moves *place to the next segment. False: what is wrong has been told. */
static bool read_segment(struct inner *inner, const struct dsc_codec *codec,
                         const struct dsc_msg *msg, size_t first, size_t *place)
{
    const size_t bytes = segment_bytes(codec, msg, first / SEGMENT);
    const char *const wrong = unpack_segment(inner, codec, msg->bytes + *place, bytes);

    *place += bytes;
    if (wrong != NULL && msg->flaw != NULL && msg->flaw->what == NULL)
        *msg->flaw = (struct dsc_flaw){ wrong, msg->source };
    return wrong == NULL;
}

static void fill_nan(float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of(F32_NAN);
}

static void entropy_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                           size_t n, float *dst, unsigned flags)
{
    size_t place = place_of(codec, msg, first);
    struct inner inner;

    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct dsc_msg m = inner_message(&inner, codec, msg, first + at);

        if (read_segment(&inner, codec, msg, first + at, &place))
            codec->packed->ops->decode(codec->packed, &m, 0, m.n, dst + at, flags);
        else
            fill_nan(dst + at, m.n);
    }
}

static void entropy_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg,
                               size_t first, size_t n, float *acc)
{
    size_t place = place_of(codec, msg, first);
    struct inner inner;

    for (size_t at = 0; at < n; at += SEGMENT) {
        const struct dsc_msg m = inner_message(&inner, codec, msg, first + at);

        if (read_segment(&inner, codec, msg, first + at, &place))
            codec->packed->ops->decode_add(codec->packed, &m, 0, m.n, acc + at);
        else
            fill_nan(acc + at, m.n);
    }
}

const struct dsc_codec_ops dsc_entropy_ops = {
    .message_bytes = entropy_message_bytes,
    .used_bytes = entropy_used_bytes,
    .encode = entropy_encode,
    .encode_feedback = entropy_encode_feedback,
    .decode = entropy_decode,
    .decode_add = entropy_decode_add,
};

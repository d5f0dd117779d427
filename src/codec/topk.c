/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elements with the largest magnitudes, and where they are. Segments of 65536 elements count
 * from the message's first element; each is
 *
 *     | the k values, as a message of their own codec | i0 i1 ... i(k-1) | 0 .. 0 |
 *                                                       2 bytes each, ascending
 *
 * and starts at a multiple of 16 bytes. All other elements decode to +0. A segment with a NaN or
 * Inf is poison, all of it: its values are NaN. A decoder also takes it as poison when its indices
 * do not ascend or leave the segment: bytes of a peer decide neither where memory is written nor,
 * by their order, what an element is.
 */
#include "codec/topk.h"

#include "codec/bits.h"
#include "codec/topk_select.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little endian");

#define RUN 512 /* kept values at a time; a multiple of the values' blocks */

size_t dsc_topk_kept(const struct dsc_codec *codec, size_t n)
{
    const uint64_t per_billion = 1000000000u;
    const size_t k = codec->kept_count != 0
                         ? codec->kept_count
                         : dsc_ceil_div(codec->kept_ppb * (uint64_t)n, per_billion);
    const size_t steps = codec->place.members > 1 ? 10u * (codec->place.members - 1u) : 10u;

    return dsc_min_size(n, dsc_ceil_div(k * (steps + 3u * codec->place.position), steps));
}

static size_t segment_bytes(const struct dsc_codec *codec, size_t n)
{
    const size_t k = dsc_topk_kept(codec, n);

    return dsc_codec_message_bytes(codec->values, k) + dsc_round_up(k * sizeof(uint16_t), 16);
}

static size_t topk_message_bytes(const struct dsc_codec *codec, size_t n)
{
    const size_t rest = n % DSC_SEGMENT;

    return n / DSC_SEGMENT * segment_bytes(codec, DSC_SEGMENT) +
           (rest > 0 ? segment_bytes(codec, rest) : 0);
}

/* One segment of a message. */
struct segment {
    const struct dsc_codec *codec; /* of the values */
    struct dsc_msg values;         /* k of them */
    uint16_t *index;
    size_t n;       /* elements */
    uint32_t *last; /* see dsc_top_select() */
};

static struct segment segment_at(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                 size_t first)
{
    const size_t n = dsc_min_size(DSC_SEGMENT, msg->n - first);
    const size_t k = dsc_topk_kept(codec, n);
    uint8_t *const bytes = msg->bytes + first / DSC_SEGMENT * segment_bytes(codec, DSC_SEGMENT);

    return (struct segment){
        .codec = codec->values,
        .values = { bytes, k, msg->exponent },
        .index = (uint16_t *)(void *)(bytes + dsc_codec_message_bytes(codec->values, k)),
        .n = n,
        .last = msg->thresholds != NULL ? msg->thresholds + first / DSC_SEGMENT : NULL,
    };
}

/* ---- reading ---- */

/*
 * The kept elements, a run at a time. A peer may write to the message meanwhile, also where it is
 * being made: what has been looked at is a copy.
 */
struct reader {
    const struct segment *s;
    size_t next; /* behind the run */
    size_t n, at;
    float d[RUN];
    uint16_t index[RUN];
};

/* False: the segment is poison, and there is no run. */
static bool read_run(struct reader *r)
{
    const struct segment *const s = r->s;
    const size_t first = r->next, n = dsc_min_size(RUN, s->values.n - first);
    const int before = first > 0 ? r->index[RUN - 1] : -1;
    unsigned n_wrong = 0;

    s->codec->ops->decode(s->codec, &s->values, first, n, r->d, 0);
    copy_once(r->index, s->index + first, n * sizeof(*r->index));
    for (size_t i = 0; i < n; i++)
        n_wrong += is_nan(r->d[i]);
    for (size_t i = 1; i < n; i++)
        n_wrong += r->index[i] <= r->index[i - 1];
    r->at = 0;
    r->n = n;
    r->next = first + n;
    if (n_wrong == 0 && r->index[0] > before && r->index[n - 1] < s->n)
        return true;
    r->n = 0;
    r->next = s->values.n;
    return false;
}

static bool has_run(const struct reader *r)
{
    return r->next < r->s->values.n;
}

static void fill(float *dst, float x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = x;
}

static void decode_segment(const struct segment *s, float *dst)
{
    struct reader r = { .s = s };

    memset(dst, 0, s->n * sizeof(*dst));
    while (has_run(&r)) {
        if (!read_run(&r)) {
            fill(dst, float_of(F32_NAN), s->n);
            return;
        }
        for (size_t i = 0; i < r.n; i++)
            dst[r.index[i]] = r.d[i];
    }
}

/* To elements [at, end): adding +0 changes nothing but the sign of -0. */
static void add_zeros(float *acc, size_t at, size_t end)
{
    for (; at < end; at++)
        acc[at] = acc[at] + 0.0f;
}

/* To those from `at` on that are not kept, up to the run's last. Returns the one behind it. */
static size_t add_zeros_between(float *acc, size_t at, const struct reader *r)
{
    for (size_t i = 0; i < r->n; i++) {
        add_zeros(acc, at, r->index[i]);
        at = r->index[i] + (size_t)1;
    }
    return at;
}

static void add_segment(const struct segment *s, float *acc)
{
    const bool has_minus_zero = dsc_kernels_get()->count_minus_zero(acc, s->n) > 0;
    struct reader r = { .s = s };
    size_t at = 0;

    while (has_run(&r)) {
        if (!read_run(&r)) {
            fill(acc, float_of(F32_NAN), s->n);
            return;
        }
        if (has_minus_zero)
            at = add_zeros_between(acc, at, &r);
        for (size_t i = 0; i < r.n; i++)
            acc[r.index[i]] = acc[r.index[i]] + r.d[i];
    }
    if (has_minus_zero)
        add_zeros(acc, at, s->n);
}

static bool segment_stays_finite(const struct segment *s, float a)
{
    struct reader r = { .s = s };

    while (has_run(&r)) {
        if (!read_run(&r))
            return false;
        for (size_t i = 0; i < r.n; i++)
            if (!is_finite(a * r.d[i]))
                return false;
    }
    return true;
}

/* ---- writing ---- */

/* The message of a segment; false if it is poison. */
static bool encode_segment(const struct segment *s, const struct dsc_top_source *src)
{
    const size_t k = s->values.n;
    const bool is_clean = dsc_top_select(s->index, src, s->n, k, s->last);
    float x[RUN];

    for (size_t at = 0; at < k; at += RUN) {
        const size_t len = dsc_min_size(RUN, k - at);

        for (size_t i = 0; i < len; i++) {
            if (!is_clean)
                s->index[at + i] = (uint16_t)(at + i);
            x[i] = is_clean ? dsc_top_value_at(src, &s->index[at + i], s->n) : float_of(F32_NAN);
        }
        s->codec->ops->encode(s->codec, &s->values, at, len, x, NULL);
    }
    dsc_codec_pad((uint8_t *)s->index, k * sizeof(*s->index));
    return is_clean;
}

/* What is kept of a tile. */
struct kept {
    size_t n;
    uint16_t at[DSC_TILE_ELEMS]; /* in the tile */
    float d[DSC_TILE_ELEMS], old[DSC_TILE_ELEMS];
};

/* The next elements of the message that are in the tile [at, at + n), with their old r. */
static void read_tile(struct kept *kept, struct reader *sent, const float *r, size_t at, size_t n)
{
    kept->n = 0;
    for (;;) {
        if (sent->at == sent->n && (!has_run(sent) || !read_run(sent)))
            return;
        const size_t i = sent->index[sent->at];

        if (i >= at + n)
            return;
        kept->at[kept->n] = (uint16_t)(i - at);
        kept->old[kept->n] = r[i];
        kept->d[kept->n++] = sent->d[sent->at++];
    }
}

/* A tile's residual: x, less what was sent. r_out may be r, so that the old r goes first. */
static void keep_tile(struct reader *sent, const struct dsc_top_source *src, size_t at, size_t n,
                      float *r_out, unsigned flags)
{
    const struct dsc_kernels *const kernels = dsc_kernels_get();
    struct kept kept;
    float tile[DSC_TILE_ELEMS];
    float *const left = (flags & DSC_STREAM) != 0 ? tile : r_out + at;

    read_tile(&kept, sent, src->r, at, n);
    kernels->axpy(left, src->v + at, src->r + at, src->beta, n);
    for (size_t i = 0; i < kept.n; i++) {
        float *const x = &left[kept.at[i]];

        *x = residual_of(*x, kept.d[i], kept.old[i], (flags & DSC_KEEP_OLD) != 0);
    }
    if (left == tile)
        kernels->stream(r_out + at, tile, n);
}

static void encode_segment_feedback(const struct segment *s, const struct dsc_top_source *src,
                                    float *r_out, unsigned flags)
{
    struct reader sent = { .s = s };

    if (!encode_segment(s, src)) {
        if ((flags & DSC_KEEP_OLD) == 0)
            fill(r_out, float_of(F32_NAN), s->n);
        else if (r_out != src->r)
            memcpy(r_out, src->r, s->n * sizeof(*r_out));
        return;
    }
    for (size_t at = 0; at < s->n; at += DSC_TILE_ELEMS)
        keep_tile(&sent, src, at, dsc_min_size(DSC_TILE_ELEMS, s->n - at), r_out, flags);
}

/* ---- the table ---- */

static void topk_encode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, const float *x, float *decoded)
{
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);
        const struct dsc_top_source src = { x + at, NULL, 0.0f };

        (void)encode_segment(&s, &src);
        if (decoded != NULL)
            decode_segment(&s, decoded + at);
    }
}

static void topk_encode_feedback(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                 size_t first, size_t n, const float *v, const float *r, float beta,
                                 float *r_out, unsigned flags)
{
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);
        const struct dsc_top_source src = { v + at, r + at, beta };

        encode_segment_feedback(&s, &src, r_out + at, flags);
    }
}

static void topk_decode(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                        size_t n, float *dst, unsigned flags)
{
    (void)flags;
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);

        decode_segment(&s, dst + at);
    }
}

static void topk_decode_add(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                            size_t n, float *acc)
{
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);

        add_segment(&s, acc + at);
    }
}

static bool topk_stays_finite(const struct dsc_codec *codec, const struct dsc_msg *msg,
                              size_t first, size_t n, float a)
{
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);

        if (!segment_stays_finite(&s, a))
            return false;
    }
    return true;
}

static void topk_clear_sent(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                            size_t n, float *u)
{
    for (size_t at = 0; at < n; at += DSC_SEGMENT) {
        const struct segment s = segment_at(codec, msg, first + at);

        for (size_t i = 0; i < s.values.n; i++)
            u[at + dsc_top_index_at(&s.index[i], s.n)] = 0.0f;
    }
}

const struct dsc_codec_ops dsc_topk_ops = {
    .message_bytes = topk_message_bytes,
    .encode = topk_encode,
    .encode_feedback = topk_encode_feedback,
    .decode = topk_decode,
    .decode_add = topk_decode_add,
    .stays_finite = topk_stays_finite,
    .clear_sent = topk_clear_sent,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats. A message is a fixed number of elements in a codec's layout; its size is a pure
 * function of codec and element count, or, for codecs that are `variable`, at most that. All
 * functions here work on a *span* of a message's elements, so that callers can walk a chunk in
 * tiles that stay in the first cache levels.
 *
 * docs/wire_format.md is normative; elements_c.c and blocks_c.c are its arithmetic.
 */
#ifndef DSC_CODEC_H
#define DSC_CODEC_H

#include "codec/kernels.h"

/* Elements of a working tile: 8 KiB of float32, so that five tiles fit in a 48 KiB L1. */
#define DSC_TILE_ELEMS 2048

/* Vectors of at least so many bytes are gone from the caches before they are read again. */
#define DSC_STREAM_BYTES ((size_t)8 << 20)

/* Elements that variable codecs pack together. */
#define DSC_ENTROPY_SEGMENT 8192

/* Why bytes of a peer are no message. Their elements are NaN. */
struct dsc_flaw {
    const char *what; /* in words; NULL: nothing is wrong */
    int source;       /* rank */
};

/* One message and what both ends know about it without asking. */
struct dsc_msg {
    uint8_t *bytes;       /* 16-byte aligned */
    size_t n;             /* elements of the whole message */
    int exponent;         /* E: fp16 carries x * 2^-E; ceil(log2(ranks summed in x)) */
    struct dsc_draw draw; /* for encoding stochastically; first: index of the message's element 0 */
    uint32_t *thresholds; /* of codecs that reuse them, one per segment, when encoding; or NULL */
    struct dsc_flaw *flaw; /* decoding variable codecs: where to tell; NULL: nowhere */
    int source;            /* and of whom: the rank that the message is from */
};

/*
 * Spans: `first` is a multiple of the codec's tile_align, n ends on one or at the message's end.
 * Spans of variable codecs are encoded in ascending order. No function allocates. `msg` bytes of a
 * peer are untrusted; their size was checked.
 */
struct dsc_codec_ops {
    /* Bytes of a message of n elements, a multiple of 16; for variable codecs the most it takes. */
    size_t (*message_bytes)(const struct dsc_codec *codec, size_t n);

    /*
     * Of variable codecs, else NULL: bytes of an encoded message, a multiple of 16 and at most
     * message_bytes(), by its own word, which a receiver compares with what came. Nothing is read
     * beyond `limit` bytes: where they do not tell, the answer is more.
     */
    size_t (*used_bytes)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t limit);

    /* x -> message; decoded (NULL allowed) gets D = decode(encode(x)). x may equal decoded. */
    void (*encode)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first, size_t n,
                   const float *x, float *decoded);

    /*
     * A sender's step in one pass: x = v + beta*r, message = encode(x), r_out = x - D.
     * r_out == r is allowed (one vector). flags: DSC_KEEP_OLD leaves r_out as r was wherever D is
     * not finite (for one vector, where the restore after decode has nothing to restore from);
     * DSC_STREAM says that r_out is not read again soon.
     */
    void (*encode_feedback)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                            size_t n, const float *v, const float *r, float beta, float *r_out,
                            unsigned flags);

    /*
     * message -> dst, NaN canonical; flags: DSC_STREAM. Or acc += D, in one IEEE addition per
     * element.
     */
    void (*decode)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first, size_t n,
                   float *dst, unsigned flags);
    void (*decode_add)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                       size_t n, float *acc);

    /*
     * NULL allowed. True if a*D is finite for all elements of the span, found without decoding;
     * false says nothing.
     */
    bool (*stays_finite)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                         size_t n, float a);

    /* NULL: all elements are sent. Sets u to 0 where this message, an own one, has an element. */
    void (*clear_sent)(const struct dsc_codec *codec, const struct dsc_msg *msg, size_t first,
                       size_t n, float *u);
};

/*
 * Writes the zeros between a part's end at used_bytes and the next multiple of 16. Parts of a
 * message start at multiples of 16 bytes.
 */
void dsc_codec_pad(uint8_t *part, size_t used_bytes);

/* encode_feedback of codecs that have no primitive for it: by `encode`. */
void dsc_codec_encode_feedback_steps(const struct dsc_codec *codec, const struct dsc_msg *msg,
                                     size_t first, size_t n, const float *v, const float *r,
                                     float beta, float *r_out, unsigned flags);

/* Which of the members of a group sends a message, from 0. Alone, or not told: { 0, 0 }. */
struct dsc_place {
    uint16_t position, members;
};

/* That of the longest messages. */
#define DSC_LAST_PLACE ((struct dsc_place){ 1, 2 })

/* ---- error budgets: budget.c ---- */

enum dsc_budget_name {
    DSC_BUDGET_EXACT,
    DSC_BUDGET_HIGH,
    DSC_BUDGET_BALANCED,
    DSC_BUDGET_AGGRESSIVE,
    DSC_BUDGET_NUMBER,
};

struct dsc_budget {
    enum dsc_budget_name name;
    uint32_t ppm; /* of a number: the largest relative error of one encode, in millionths */
};

#define DSC_BUDGET_FORM \
    "exact, high, balanced, aggressive, or a relative error from 0 to 1 with at most 6 decimals"

/* False: the text is none of DSC_BUDGET_FORM. */
bool dsc_budget_parse(const char *text, struct dsc_budget *budget_out);
/* The text of a budget, as it would be parsed. Returns text. */
const char *dsc_budget_text(const struct dsc_budget *budget, char *text, size_t text_bytes);

/* ---- codecs ---- */

/* A parsed spec. */
struct dsc_codec {
    const struct dsc_codec_ops *ops;
    char spec[64];  /* canonical text */
    uint32_t block; /* elements that one NaN takes with it; 1 for casts */
    bool by_dtype;  /* sends the data type's cast: see dsc_codec_resolve() */
    bool lossless;  /* decode(encode(x)) == x for every finite x */
    /* Messages have no fixed size: not for what must know it before (kernels of a GPU). */
    bool variable;
    bool stochastic;     /* codes depend on the message's draw; not for use with feedback */
    uint32_t tile_align; /* spans start at multiples of this; divides 256, or a segment */
    uint32_t e0_ppm;     /* nominal relative L2 error of one encode, docs/codecs.md, millionths */
    bool sums_only;      /* no max or min, no broadcast: what is not sent is 0 */

    /* Top-k alone: the codec of the values, and how many of a segment are kept. */
    const struct dsc_codec *values;
    uint32_t kept_count;           /* at most so many; 0: by ratio */
    uint32_t kept_ppb;             /* billionths of the segment, rounded up */
    bool reuses;                   /* thresholds: of the message with the same place in a call */
    bool by_position;              /* more are kept the later the sender is in its group */
    struct dsc_place place;        /* of the sender; see dsc_codec_at() */
    const struct dsc_codec *inner; /* with ,hadamard: who encodes the rotated values; else NULL */

    /* Variable codecs: whose messages are packed, and the bytes of one element in them. */
    const struct dsc_codec *packed;
    uint32_t n_planes;
    uint32_t fill_ppm; /* what dense gradients take of message_bytes(), nominally; millionths */

    /* automatic.c: a communicator chooses; has no ops. Without a budget: the communicator's. */
    bool is_auto, has_budget;
    struct dsc_budget budget;
};

/* NULL: admitted; else why not, in words. `none` and `lossless` always are. */
const char *dsc_budget_refuses(const struct dsc_budget *budget, const struct dsc_codec *codec,
                               bool feedback);

/* entropy.c: of every row with a packed codec. */
extern const struct dsc_codec_ops dsc_entropy_ops;

/* hadamard.c: of every row with an inner codec, whose spans are at most a tile. */
extern const struct dsc_codec_ops dsc_hadamard_ops;

/* The row of spec "TEXT,hadamard" that goes with the row `base`: *base; error: e0_ppm. */
#define DSC_HADAMARD_ROW(base, text, elems, align, error)                          \
    {                                                                              \
        .ops = &dsc_hadamard_ops, .spec = text ",hadamard",                        \
        .block = (elems) > DSC_HADAMARD_GROUP ? (elems) : DSC_HADAMARD_GROUP,      \
        .tile_align = (align) > DSC_HADAMARD_GROUP ? (align) : DSC_HADAMARD_GROUP, \
        .e0_ppm = (error), .inner = (base)                                         \
    }

/* The row of spec "TEXT,entropy" that goes with the row `base`, whose elements are bytes. */
#define DSC_ENTROPY_ROW(base, text, elems, error)                                              \
    {                                                                                          \
        .ops = &dsc_entropy_ops, .spec = text ",entropy", .block = (elems), .variable = true,  \
        .tile_align = DSC_ENTROPY_SEGMENT, .e0_ppm = (error), .packed = (base), .n_planes = 1, \
        .fill_ppm = 840000                                                                     \
    }

/*
 * A family: all specs with one first word. Each is in the file of its wire format and in the list
 * of codec_registry.c.
 */
struct dsc_family {
    const char *name;
    const char *form;    /* how its options look, for a list of what is allowed: "[:block=N]" */
    const char *options; /* what they may be, in words; NULL: it has none */
    const char *default_option; /* text that means the same as none: ":block=256"; NULL: no such */
    const struct dsc_codec *rows; /* one per spec; the first is without options */
    size_t n_rows;
    /*
     * Instead of rows, where options are free numbers: fills in a codec from what comes after the
     * name, its spec canonical. Returns NULL, or what it takes, in words.
     */
    const char *(*parse)(const char *options, struct dsc_codec *codec);
};

#define DSC_BLOCK_SIZES "N one of 16 32 64 128 256"

extern const struct dsc_family dsc_family_none, dsc_family_fp32, dsc_family_fp16, dsc_family_bf16,
    dsc_family_int8, dsc_family_int4, dsc_family_fp8, dsc_family_mxfp8, dsc_family_mxfp4,
    dsc_family_mxint8, dsc_family_nvfp4, dsc_family_topk, dsc_family_lossless, dsc_family_auto;

/* Codecs that a process may make of free numbers. */
#define DSC_INTERNED_MAX 256

/*
 * The one codec with wanted's spec, made of it if there is none; NULL when DSC_INTERNED_MAX others
 * are there. Lives as long as the process. Threads: any.
 */
const struct dsc_codec *dsc_codec_intern(const struct dsc_codec *wanted);

/*
 * The codec that really runs: for `none` the cast to the data type, for `lossless` that one packed,
 * else the codec itself.
 */
DSC_SHARED const struct dsc_codec *dsc_codec_resolve(const struct dsc_codec *codec,
                                                     dscomm_dtype_t dtype);

/* The codec of messages from that place: the codec itself, or one that is made in *made. */
static inline const struct dsc_codec *dsc_codec_at(const struct dsc_codec *codec,
                                                   struct dsc_place place, struct dsc_codec *made)
{
    if (!codec->by_position)
        return codec;
    *made = *codec;
    made->place = place;
    return made;
}

static inline size_t dsc_codec_message_bytes(const struct dsc_codec *codec, size_t n)
{
    return codec->ops->message_bytes(codec, n);
}

/* Of a message that has been encoded. */
static inline size_t dsc_codec_used_bytes(const struct dsc_codec *codec, const struct dsc_msg *msg)
{
    const size_t most = dsc_codec_message_bytes(codec, msg->n);

    return codec->variable ? codec->ops->used_bytes(codec, msg, most) : most;
}

/*
 * A receiver's step: decodes a span to the output and returns the number of elements for which a*D
 * is not finite. flags: DSC_STREAM.
 */
size_t dsc_codec_decode_output(const struct dsc_codec *codec, const struct dsc_msg *msg,
                               size_t first, size_t n, float *dst, float a, unsigned flags);

/* Registered specs, one canonical text per family and option, for tests that walk all codecs. */
DSC_SHARED const char *const *dsc_codec_test_specs(size_t *n_out);

/*
 * Data types. `bits` is an array of dtype elements with the element's alignment only. load is exact
 * (a NaN may keep its payload); store rounds to nearest even and makes NaN canonical.
 */
void dsc_dtype_load(dscomm_dtype_t dtype, float *dst, const void *bits, size_t n);
void dsc_dtype_store(dscomm_dtype_t dtype, void *bits, const float *src, size_t n);

#endif

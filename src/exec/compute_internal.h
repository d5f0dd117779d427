/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/exec: the parts that an operation's arithmetic is put together from. All work on
 * one tile: n elements from element `at` of the caller's vectors, or from `first` of the op's span.
 */
#ifndef DSC_COMPUTE_INTERNAL_H
#define DSC_COMPUTE_INTERNAL_H

#include "exec/compute.h"

/* Tiles of a thread's scratch memory. */
struct dsc_tiles {
    size_t elems;
    float *value;          /* own value, or the sum */
    float *residual;       /* r, when it is not stored as float32 */
    float *scaled;         /* y = x/A */
    float *decoded;        /* D, then o */
    float *fresh;          /* r' before it is stored, or a decoded input of max and min */
    struct dsc_flaw *flaw; /* of a received message */
};

/* Of the message that the op encodes or decodes. */
static inline const struct dsc_codec *dsc_op_codec(const struct dsc_compute *ctx,
                                                   const struct dsc_op *op, struct dsc_codec *made)
{
    return dsc_codec_at(ctx->plan->codecs[op->tier], op->place, made);
}

struct dsc_tiles dsc_split_scratch(const struct dsc_compute *ctx, float *scratch,
                                   struct dsc_flaw *flaw);

/* ---- compute_vectors.c: the caller's vectors, whatever their types ---- */

/* Where element `at` of the plan's vector is in `send` and in the residual, and in `recv`. */
static inline size_t dsc_send_index(const struct dsc_compute *ctx, size_t at)
{
    return at - ctx->plan->send_base;
}

static inline size_t dsc_recv_index(const struct dsc_compute *ctx, size_t at)
{
    return at - ctx->plan->recv_base;
}

/*
 * Own value of elements [first, first + n) of the op's span: as it lies, or loaded into `tile`.
 * With momentum an input is u = m*u + g, which is made here, once per call and element.
 */
const float *dsc_own_value(const struct dsc_compute *ctx, const struct dsc_op *op, size_t first,
                           size_t n, float *tile);
/* True if the call's input is a momentum's. */
bool dsc_has_momentum(const struct dsc_compute *ctx);
/* True if dsc_own_value() needs no tile. */
bool dsc_own_value_is_there(const struct dsc_compute *ctx, const struct dsc_op *op);

/* u is 0 where the message, of which elements [first, first + n) are at `at`, sends an element. */
void dsc_clear_sent(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                    const struct dsc_msg *msg, size_t first, size_t n, size_t at);

/* Elements [at, at + n) of one of the residual's vectors: as they lie, or loaded into `tile`. */
const float *dsc_load_residual(const struct dsc_compute *ctx, const void *vector, size_t at,
                               size_t n, float *tile);
/* Stores r'; where it is not finite as stored the old r stays. */
void dsc_store_residual(const struct dsc_compute *ctx, size_t at, const float *fresh, size_t n);
/* Elements whose A*o is not finite get back the r, and the u, from before the call. */
void dsc_restore_residual(const struct dsc_compute *ctx, size_t at, const float *o, size_t n);
/* Sets the marks (see dsc_mark_bytes()) of elements [first, first + n) of a message; first is a
 * multiple of DSC_MARK_ELEMS. */
void dsc_mark_nonfinite(const struct dsc_compute *ctx, uint8_t *marks, size_t first, const float *o,
                        size_t n);
/* Marked elements of the n from `at` on get back the r, and the u, from before the call. */
void dsc_restore_marked(const struct dsc_compute *ctx, size_t at, const uint8_t *marks, size_t n);
/* x and o are known: r' = x - A*o, or the old r and u where A*o is not finite (n_bad elements). */
void dsc_keep_owner_residual(const struct dsc_compute *ctx, size_t at, const float *x,
                             const float *o, const float *old, size_t n, size_t n_bad,
                             const struct dsc_tiles *t);

/* Rounds to the output type and stores. Returns the stored values; src may be `tile`. */
const float *dsc_store_output(const struct dsc_compute *ctx, size_t at, const float *src, size_t n,
                              float *tile);
/* Where D is wanted: in the output itself if that is float32, else in the tile. */
float *dsc_decoded_at(const struct dsc_compute *ctx, size_t at, const struct dsc_tiles *t);
/* D is there: its rounding to the output type is stored and returned. */
const float *dsc_output_of(const struct dsc_compute *ctx, size_t at, const float *d, size_t n,
                           const struct dsc_tiles *t);

/* ---- compute_sums.c ---- */

/* The k-th message that the op receives. */
struct dsc_msg dsc_received(const struct dsc_compute *ctx, const struct dsc_op *op, uint32_t k,
                            const uint8_t *payload, const struct dsc_tiles *t);

/* acc op= D of a message. */
void dsc_combine_message(const struct dsc_compute *ctx, const struct dsc_codec *codec,
                         const struct dsc_msg *msg, size_t first, size_t n, float *acc,
                         float *tile);
/* All members' values in ascending rank, the own one in its place, into t->value. */
void dsc_sum_tile(const struct dsc_compute *ctx, const struct dsc_op *op,
                  const uint8_t *const *msgs, size_t first, size_t n, const struct dsc_tiles *t);
/* t->value over A: the value itself unless AVG. */
const float *dsc_divided(const struct dsc_compute *ctx, size_t n, const struct dsc_tiles *t);

/* The message that an operation encodes at `out`. */
struct dsc_msg dsc_own_message(const struct dsc_compute *ctx, const struct dsc_op *op,
                               uint8_t *out);

/* ---- the operations; each returns the output elements that are not finite ---- */

size_t dsc_compute_send(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                        const struct dsc_tiles *t);
size_t dsc_compute_reduce(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, const struct dsc_tiles *t);
size_t dsc_compute_final(const struct dsc_compute *ctx, const struct dsc_op *op,
                         const uint8_t *const *msgs, uint8_t *out, const struct dsc_tiles *t);
size_t dsc_compute_decode(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, const struct dsc_tiles *t);
size_t dsc_compute_sum(const struct dsc_compute *ctx, const struct dsc_op *op,
                       const uint8_t *const *msgs, const struct dsc_tiles *t);
/* marks: NULL, or where those of the span go. */
size_t dsc_compute_result(const struct dsc_compute *ctx, const struct dsc_op *op,
                          const uint8_t *const *msgs, uint8_t *marks, const struct dsc_tiles *t);

#endif

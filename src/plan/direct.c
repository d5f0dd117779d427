/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives in which nothing is summed and every message has one origin.
 *
 * All-to-all: each rank encodes a share for every other and sends it there; its own it keeps, not
 * encoded. In place a share may come before the one in its place has left, so receiving waits for
 * that.
 *
 * Broadcast: the root encodes once. Each of the others gets a piece and forwards its bytes to the
 * rest, so that the root sends the vector once and all links are busy. Pieces may be empty; their
 * messages are sent all the same, and every rank says a word to the root: no rank ends a call
 * before it has heard from all others, so a call with other arguments is always noticed.
 *
 * Stages on the wire: 1 from the origin, 2 forwarded, 0 a word to the root.
 */
#include "plan/builder.h"
#include "plan/pieces.h"

struct direct {
    struct dsc_builder *b;
    int n, me, root;
    size_t count, chunk;
};

static struct direct begin(struct dsc_builder *b)
{
    return (struct direct){ .b = b,
                            .n = b->params->n_ranks,
                            .me = b->params->rank,
                            .root = b->params->root,
                            .count = b->params->count,
                            .chunk = b->plan->chunk_elems };
}

static int wrap(const struct direct *d, int rank)
{
    return (rank % d->n + d->n) % d->n;
}

/* Chunks of a piece; an empty one has one that is empty. */
static uint32_t n_chunks(const struct direct *d, size_t start, size_t end)
{
    return end == start ? 1 : (uint32_t)dsc_ceil_div(end - start, d->chunk);
}

/* Chunk c of [start, end). */
static struct dsc_op chunk_op(const struct direct *d, enum dsc_op_kind kind, size_t start,
                              size_t end, uint32_t c)
{
    const size_t from = start + (size_t)c * d->chunk;
    const size_t n = dsc_min_size(end - from, d->chunk);
    const bool is_message = kind != DSC_OP_RESULT;

    return (struct dsc_op){
        .kind = kind,
        .start = from,
        .n = (uint32_t)n,
        .msg_bytes = is_message ? (uint32_t)dsc_codec_message_bytes(d->b->plan->codecs[0], n) : 0,
        .own_partial = DSC_NO_BUFFER
    };
}

/* ---- all-to-all ---- */

static void add_share(struct direct *d, int distance, enum dsc_op_kind kind, uint32_t first_send)
{
    const size_t share = dsc_plan_share(d->b->params);
    const int peer = wrap(d, kind == DSC_OP_DECODE ? d->me - distance : d->me + distance);
    const size_t start = (size_t)peer * share, end = start + share;
    const uint32_t n = n_chunks(d, start, end);

    for (uint32_t c = 0; c < n; c++) {
        const struct dsc_op op = chunk_op(d, kind, start, end, c);
        const uint64_t key = dsc_msg_key(c, 1, c);

        dsc_builder_op(d->b, &op, key, (uint32_t)distance);
        if (kind == DSC_OP_SEND)
            dsc_builder_send(d->b, peer, key);
        if (kind != DSC_OP_DECODE)
            continue;
        dsc_builder_recv(d->b, peer, key, op.msg_bytes, 0);
        /* what goes to the peer lies here: it is n - distance ranks above */
        dsc_builder_dep(d->b, first_send + (uint32_t)(d->n - distance - 1) * n + c);
    }
}

dscomm_status_t dsc_build_all_to_all(struct dsc_builder *b)
{
    struct direct d = begin(b);
    uint32_t first_send;

    while (dsc_ceil_div(dsc_plan_share(b->params), d.chunk) > DSC_MAX_CHUNKS)
        d.chunk *= 2;
    b->plan->chunk_elems = d.chunk;
    add_share(&d, 0, DSC_OP_RESULT, 0);
    first_send = b->n_ops;
    for (int k = 1; k < d.n; k++)
        add_share(&d, k, DSC_OP_SEND, 0);
    for (int k = 1; k < d.n; k++)
        add_share(&d, k, DSC_OP_DECODE, first_send);
    return DSCOMM_OK;
}

/* ---- broadcast ---- */

/* Piece k of n - 1 belongs to the k-th rank that is not the root. */
static int owner_of(const struct direct *d, int k)
{
    return k < d->root ? k : k + 1;
}

/* Doubles the chunk until all pieces' chunks can be numbered in the header. */
static void fit_chunk(struct direct *d)
{
    for (bool fits = false; !fits; d->chunk *= fits ? 1 : 2) {
        uint64_t n = 0;

        for (int k = 0; k < d->n - 1; k++)
            n += n_chunks(d, dsc_cut(0, d->count, d->n - 1, k),
                          dsc_cut(0, d->count, d->n - 1, k + 1));
        fits = n <= DSC_MAX_CHUNKS;
    }
}

/* The piece's owner passes it on to all but the root, who has it. */
static void add_forwards(struct direct *d, uint64_t key)
{
    for (int k = 1; k < d->n; k++)
        if (wrap(d, d->me + k) != d->root)
            dsc_builder_send(d->b, wrap(d, d->me + k), key);
}

static void add_piece(struct direct *d, int k, uint32_t base)
{
    const size_t start = dsc_cut(0, d->count, d->n - 1, k);
    const size_t end = dsc_cut(0, d->count, d->n - 1, k + 1);
    const int owner = owner_of(d, k);
    const int source = d->me == owner ? d->root : owner;
    const bool is_root = d->me == d->root;

    for (uint32_t c = 0; c < n_chunks(d, start, end); c++) {
        const struct dsc_op op = chunk_op(d, is_root ? DSC_OP_FINAL : DSC_OP_DECODE, start, end, c);
        const uint64_t first = dsc_msg_key(c, 1, base + c);
        const uint64_t second = dsc_msg_key(c + DSC_STAGE_LAG, 2, base + c);

        dsc_builder_op(d->b, &op, source == owner && !is_root ? second : first,
                       (uint32_t)wrap(d, owner - d->me));
        if (is_root)
            dsc_builder_send(d->b, owner, first);
        else
            dsc_builder_recv(d->b, source, source == owner ? second : first, op.msg_bytes, 0);
        if (d->me == owner)
            add_forwards(d, second);
    }
}

/* An empty message of rank `from` to the root. */
static void add_word(struct direct *d, int from)
{
    const bool is_root = d->me == d->root;
    const struct dsc_op op = chunk_op(d, is_root ? DSC_OP_DECODE : DSC_OP_SEND, 0, 0, 0);
    const uint64_t key = dsc_msg_key(0, 0, 0);

    dsc_builder_op(d->b, &op, key, (uint32_t)wrap(d, from - d->me));
    if (is_root)
        dsc_builder_recv(d->b, from, key, 0, 0);
    else
        dsc_builder_send(d->b, d->root, key);
}

dscomm_status_t dsc_build_broadcast(struct dsc_builder *b)
{
    struct direct d = begin(b);
    uint32_t base = 0;

    fit_chunk(&d);
    b->plan->chunk_elems = d.chunk;
    for (int k = 0; k < d.n - 1; k++) {
        add_piece(&d, k, base);
        base += n_chunks(&d, dsc_cut(0, d.count, d.n - 1, k), dsc_cut(0, d.count, d.n - 1, k + 1));
        if (d.me == d.root || d.me == owner_of(&d, k))
            add_word(&d, owner_of(&d, k));
    }
    return DSCOMM_OK;
}

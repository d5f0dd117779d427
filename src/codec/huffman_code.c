/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which symbol gets how many bits. Huffman's tree from sorted counts, in integers, so that the
 * lengths are the same everywhere; codes beyond the limit are pulled up and others pushed down
 * until the space is exactly full.
 */
#include "codec/huffman_code.h"

#include <string.h>

/* A symbol that occurs: its count above, its number below, so that integers sort as pairs. */
#define LEAF(count, symbol) ((count) << 8 | (symbol))
#define COUNT_OF(leaf) ((leaf) >> 8)
#define SYMBOL_OF(leaf) ((leaf)&0xff)

/* Stable, by the 8 bits from `shift`. */
static void sort_by_byte(uint32_t *dst, const uint32_t *src, int n, int shift)
{
    int start[DSC_SYMBOLS + 1] = { 0 };

    for (int i = 0; i < n; i++)
        start[(src[i] >> shift & 0xff) + 1]++;
    for (int i = 0; i < DSC_SYMBOLS; i++)
        start[i + 1] += start[i];
    for (int i = 0; i < n; i++)
        dst[start[src[i] >> shift & 0xff]++] = src[i];
}

/* By count, then by symbol. Returns how many occur. */
static int sorted_leaves(uint32_t *leaves, const uint32_t *counts)
{
    uint32_t other[DSC_SYMBOLS];
    int n = 0;

    for (uint32_t s = 0; s < DSC_SYMBOLS; s++)
        if (counts[s] != 0)
            leaves[n++] = LEAF(counts[s], s);
    sort_by_byte(other, leaves, n, 8);
    sort_by_byte(leaves, other, n, 16);
    return n;
}

/* The n_inner = n - 1 sums of the tree: of each, which inner node it is a part of. */
struct tree {
    uint32_t weight[DSC_SYMBOLS];
    uint16_t inner_parent[DSC_SYMBOLS], leaf_parent[DSC_SYMBOLS];
};

/* Joins the two lightest again and again; of equal ones a leaf comes first, then the older sum. */
static void grow_tree(struct tree *t, const uint32_t *leaves, int n)
{
    int leaf = 0, inner = 0;

    for (int next = 0; next < n - 1; next++) {
        t->weight[next] = 0;
        for (int k = 0; k < 2; k++) {
            if (inner == next || (leaf < n && COUNT_OF(leaves[leaf]) <= t->weight[inner])) {
                t->weight[next] += COUNT_OF(leaves[leaf]);
                t->leaf_parent[leaf++] = (uint16_t)next;
            } else {
                t->weight[next] += t->weight[inner];
                t->inner_parent[inner++] = (uint16_t)next;
            }
        }
    }
}

/* How many leaves have each length, those beyond the limit counted as of the limit. */
static void count_depths(int *n_of, struct tree *t, int n)
{
    uint16_t depth[DSC_SYMBOLS];

    memset(n_of, 0, (DSC_CODE_BITS_MAX + 1) * sizeof(*n_of));
    depth[n - 2] = 0; /* the root */
    for (int i = n - 3; i >= 0; i--)
        depth[i] = (uint16_t)(depth[t->inner_parent[i]] + 1);
    for (int i = 0; i < n; i++) {
        const int d = depth[t->leaf_parent[i]] + 1;

        n_of[d < DSC_CODE_BITS_MAX ? d : DSC_CODE_BITS_MAX]++;
    }
}

/*
 * The space is overfull by as many codes of the limit's length as were cut: each step takes one of
 * them as the partner of the longest shorter code, which gets longer by one bit.
 */
static void fill_space(int *n_of)
{
    int used = 0;

    for (int len = 1; len <= DSC_CODE_BITS_MAX; len++)
        used += n_of[len] << (DSC_CODE_BITS_MAX - len);
    for (; used > DSC_CODE_SPACE; used--) {
        int len = DSC_CODE_BITS_MAX - 1;

        while (n_of[len] == 0)
            len--;
        n_of[DSC_CODE_BITS_MAX]--;
        n_of[len]--;
        n_of[len + 1] += 2;
    }
}

void dsc_code_lengths(uint8_t lengths[DSC_SYMBOLS], const uint32_t counts[DSC_SYMBOLS])
{
    uint32_t leaves[DSC_SYMBOLS];
    const int n = sorted_leaves(leaves, counts);
    int n_of[DSC_CODE_BITS_MAX + 1], next = 0;
    struct tree tree;

    grow_tree(&tree, leaves, n);
    count_depths(n_of, &tree, n);
    fill_space(n_of);
    memset(lengths, 0, DSC_SYMBOLS);
    for (int len = DSC_CODE_BITS_MAX; len > 0; len--)
        for (int k = 0; k < n_of[len]; k++)
            lengths[SYMBOL_OF(leaves[next++])] = (uint8_t)len;
}

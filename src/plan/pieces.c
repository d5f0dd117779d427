/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of groups as a flat list of stages. Every rank builds the whole list, because the order
 * of messages follows from stages of other ranks too. Walks the groups bottom up: a node's result
 * is its list of pieces (span, owner, stage that made it); joining nodes cuts their common
 * refinement again among the owners.
 */
#include "plan/builder.h"
#include "plan/pieces.h"

#include <stdlib.h>
#include <string.h>

struct piece {
    size_t start, end;
    int owner;
    int stage; /* that made it; -1: the rank's own input */
};

/* A subtree: its pieces cover the vector in ascending order. */
struct node {
    struct piece *pieces;
    int n_pieces;
    int n_leaves;
    int min_leaf;
};

size_t dsc_cut(size_t start, size_t end, int m, int k)
{
    const size_t n_blocks = dsc_ceil_div(end - start, DSC_PIECE_ALIGN);
    const size_t whole = n_blocks / (size_t)m, rest = n_blocks % (size_t)m;
    /* floor(k * n_blocks / m) without overflow */
    const size_t blocks = (size_t)k * whole + (size_t)k * rest / (size_t)m;

    return dsc_min_size(end, start + blocks * DSC_PIECE_ALIGN);
}

/* ---- joining nodes ---- */

static int compare_size(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;

    return (x > y) - (x < y);
}

static int compare_member(const void *a, const void *b)
{
    return ((const struct dsc_member *)a)->rank - ((const struct dsc_member *)b)->rank;
}

/* All ends of pieces, ascending and without repeats. */
static size_t *refine(const struct node *nodes, int n_nodes, int *n_out)
{
    size_t n = 0, kept = 0;
    size_t *edges;

    for (int i = 0; i < n_nodes; i++)
        n += 2 * (size_t)nodes[i].n_pieces;
    edges = dsc_calloc(DSC_MEM_PLAN, n + 1, sizeof(*edges));
    if (edges == NULL)
        return NULL;
    n = 0;
    for (int i = 0; i < n_nodes; i++)
        for (int k = 0; k < nodes[i].n_pieces; k++) {
            edges[n++] = nodes[i].pieces[k].start;
            edges[n++] = nodes[i].pieces[k].end;
        }
    qsort(edges, n, sizeof(*edges), compare_size);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || edges[kept - 1] != edges[i])
            edges[kept++] = edges[i];
    *n_out = (int)kept;
    return edges;
}

/* The piece of a node that holds [start, ...). */
static const struct piece *piece_at(const struct node *node, size_t start)
{
    int low = 0, high = node->n_pieces - 1;

    while (low < high) {
        const int mid = (low + high + 1) / 2;

        if (node->pieces[mid].start <= start)
            low = mid;
        else
            high = mid - 1;
    }
    return &node->pieces[low];
}

/* Cuts one refined span among its owners below; appends stages and the joined node's pieces. */
static bool join_span(struct dsc_tree *tree, const struct node *nodes, int n_nodes, size_t start,
                      size_t end, int tier, int level, struct node *out)
{
    const int first = tree->n_members;

    if (!dsc_grow((void **)&tree->members, (size_t)first, (size_t)n_nodes, sizeof(*tree->members)))
        return false;
    for (int i = 0; i < n_nodes; i++) {
        const struct piece *below = piece_at(&nodes[i], start);

        tree->members[first + i] = (struct dsc_member){ .rank = below->owner,
                                                        .weight = nodes[i].n_leaves,
                                                        .below = below->stage };
    }
    tree->n_members += n_nodes;
    qsort(tree->members + first, (size_t)n_nodes, sizeof(*tree->members), compare_member);

    for (int k = 0; k < n_nodes; k++) {
        const size_t a = dsc_cut(start, end, n_nodes, k), e = dsc_cut(start, end, n_nodes, k + 1);
        const int owner = tree->members[first + k].rank;

        if (a == e)
            continue;
        if (!dsc_grow((void **)&tree->stages, (size_t)tree->n_stages, 1, sizeof(*tree->stages)) ||
            !dsc_grow((void **)&out->pieces, (size_t)out->n_pieces, 1, sizeof(*out->pieces)))
            return false;
        out->pieces[out->n_pieces++] = (struct piece){ a, e, owner, tree->n_stages };
        tree->stages[tree->n_stages++] =
            (struct dsc_stage){ a, e, owner, tier, level, tree->n_joins, n_nodes, first };
    }
    return true;
}

static void free_pieces(struct node *nodes, int n_nodes)
{
    for (int i = 0; i < n_nodes; i++) {
        dsc_free(nodes[i].pieces);
        nodes[i].pieces = NULL;
    }
}

/* One node of all nodes; theirs are freed. The joined pieces come out ascending. */
static bool join(struct dsc_tree *tree, struct node *nodes, int n_nodes, int tier, int level,
                 struct node *out)
{
    int n_edges = 0;
    size_t *edges = refine(nodes, n_nodes, &n_edges);
    bool ok = edges != NULL;

    *out = (struct node){ .min_leaf = nodes[0].min_leaf };
    for (int i = 0; i < n_nodes; i++)
        out->n_leaves += nodes[i].n_leaves;
    for (int i = 0; ok && i + 1 < n_edges; i++)
        ok = join_span(tree, nodes, n_nodes, edges[i], edges[i + 1], tier, level, out);
    tree->n_joins++;
    dsc_free(edges);
    free_pieces(nodes, n_nodes);
    return ok;
}

static int compare_node(const void *a, const void *b)
{
    return ((const struct node *)a)->min_leaf - ((const struct node *)b)->min_leaf;
}

/* More than DSC_VIRTUAL_TIER nodes: rows of ceil(sqrt(m)) consecutive ones, then the rows. */
static bool join_wide(struct dsc_tree *tree, struct node *nodes, int n_nodes, int tier,
                      struct node *out)
{
    int a = 1, n_rows = 0;
    bool ok = true;

    qsort(nodes, (size_t)n_nodes, sizeof(*nodes), compare_node);
    if (n_nodes <= DSC_VIRTUAL_TIER)
        return join(tree, nodes, n_nodes, tier, 2 * tier + 1, out);
    while (a * a < n_nodes)
        a++;
    for (int i = 0; ok && i < n_nodes; i += a) {
        struct node row;
        const int len = n_nodes - i < a ? n_nodes - i : a;

        ok = join(tree, nodes + i, len, tier, 2 * tier, &row);
        nodes[n_rows++] = row; /* n_rows <= i: the nodes there were consumed */
    }
    if (!ok)
        return false;
    return join(tree, nodes, n_rows, tier, 2 * tier + 1, out);
}

/* ---- shares ---- */

/* Every rank owns its share and is a member of all: one exchange, whatever the number of ranks. */
static bool build_shares(const struct dsc_plan_params *params, struct dsc_tree *tree)
{
    const int n = params->n_ranks;
    const size_t share = dsc_plan_share(params);

    tree->stages = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*tree->stages));
    tree->members = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*tree->members));
    tree->finals = dsc_calloc(DSC_MEM_PLAN, (size_t)n, sizeof(*tree->finals));
    if (tree->stages == NULL || tree->members == NULL || tree->finals == NULL)
        return false;
    for (int r = 0; r < n; r++) {
        const size_t start = (size_t)r * share;

        tree->members[r] = (struct dsc_member){ .rank = r, .weight = 1, .below = -1 };
        tree->stages[r] = (struct dsc_stage){
            .start = start, .end = start + share, .owner = r, .level = 1, .n_members = n
        };
        tree->finals[r] = r;
    }
    tree->n_stages = tree->n_members = tree->n_finals = n;
    tree->n_joins = 1;
    return true;
}

/* ---- the whole tree ---- */

static bool make_leaves(const struct dsc_plan_params *params, struct node *nodes)
{
    for (int r = 0; r < params->n_ranks; r++) {
        struct piece *own = dsc_calloc(DSC_MEM_PLAN, 16, sizeof(*own));

        if (own == NULL)
            return false;
        *own = (struct piece){ 0, params->count, r, -1 };
        nodes[r] = (struct node){ own, 1, 1, r };
    }
    return true;
}

static int group_of(const struct dsc_plan_params *params, int tier, const struct node *node)
{
    return params->groups == NULL ? 0 : params->groups[tier * params->n_ranks + node->min_leaf];
}

/* Joins the nodes of one tier that share a group; the results take the first places. */
static bool join_tier(const struct dsc_plan_params *params, struct dsc_tree *tree, int tier,
                      struct node *nodes, int *n_nodes, struct node *scratch)
{
    int n_out = 0;

    for (int i = 0; i < *n_nodes; i++) {
        int n_members = 0, group;

        if (nodes[i].pieces == NULL) /* already joined */
            continue;
        group = group_of(params, tier, &nodes[i]);
        for (int k = i; k < *n_nodes; k++) {
            if (nodes[k].pieces == NULL || group_of(params, tier, &nodes[k]) != group)
                continue;
            scratch[n_members++] = nodes[k];
            nodes[k].pieces = NULL;
        }
        if (!join_wide(tree, scratch, n_members, tier, &nodes[n_out++]))
            return false;
    }
    *n_nodes = n_out;
    return true;
}

static bool take_finals(struct dsc_tree *tree, const struct node *root)
{
    tree->finals = dsc_calloc(DSC_MEM_PLAN, (size_t)root->n_pieces + 1, sizeof(*tree->finals));
    if (tree->finals == NULL)
        return false;
    for (int i = 0; i < root->n_pieces; i++)
        tree->finals[i] = root->pieces[i].stage;
    tree->n_finals = root->n_pieces;
    return true;
}

/* False: out of memory. */
static bool build_groups(const struct dsc_plan_params *params, struct dsc_tree *tree_out)
{
    struct node *nodes, *scratch;
    int n_nodes = params->n_ranks;
    bool ok;

    nodes = dsc_calloc(DSC_MEM_PLAN, (size_t)n_nodes, sizeof(*nodes));
    scratch = dsc_calloc(DSC_MEM_PLAN, (size_t)n_nodes, sizeof(*scratch));
    ok = nodes != NULL && scratch != NULL && make_leaves(params, nodes);
    for (int t = 0; ok && t < params->n_tiers; t++)
        ok = join_tier(params, tree_out, t, nodes, &n_nodes, scratch);
    ok = ok && take_finals(tree_out, &nodes[0]);
    if (nodes != NULL)
        free_pieces(nodes, params->n_ranks);
    if (scratch != NULL) /* holds pieces only when a join failed */
        free_pieces(scratch, params->n_ranks);
    dsc_free(nodes);
    dsc_free(scratch);
    return ok;
}

dscomm_status_t dsc_tree_build(const struct dsc_plan_params *params, struct dsc_tree *tree_out)
{
    memset(tree_out, 0, sizeof(*tree_out));
    DSC_TRY(dsc_tree_check(params));
    if (params->collective == DSC_ALLREDUCE ? build_groups(params, tree_out)
                                            : build_shares(params, tree_out))
        return DSCOMM_OK;
    dsc_tree_fini(tree_out);
    return dsc_fail(DSCOMM_ERR_NO_MEMORY, "plan of %d ranks", params->n_ranks);
}

void dsc_tree_fini(struct dsc_tree *tree)
{
    dsc_free(tree->stages);
    dsc_free(tree->members);
    dsc_free(tree->finals);
    memset(tree, 0, sizeof(*tree));
}

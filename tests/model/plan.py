# SPDX-License-Identifier: Apache-2.0
"""Who owns which elements: tiers, pieces, and the exchanges that a tree of groups implies.

A layout is nested lists of ranks, one nesting per tier, the innermost the fastest. Wide groups are
rewritten as two levels before anything else, so the rest knows one recursion only: solve the
children, overlay their cuts, and cut every overlay piece again among its owners.
"""
from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt

from ieee import ceil_div

GRANULE = 256   # pieces and chunks start at multiples of it, counted from the piece above
WIDEST = 32     # members of one exchange; a group with more is arranged in rows and columns


@dataclass(frozen=True)
class Node:
    """A rank (no children) or a group. tier selects the codec: 1 is the fastest, 0 a rank."""
    tier: int
    level: int       # height in the rewritten tree; wide tiers have two levels with one tier
    ranks: tuple     # all ranks below, ascending
    children: tuple = ()


@dataclass(frozen=True)
class Piece:
    start: int
    end: int
    owner: int


@dataclass(frozen=True)
class Exchange:
    """Members send their partial sums of [start, end) to the owner, who adds them."""
    start: int
    end: int
    owner: int
    members: tuple   # ascending rank, the owner among them: this is the order of the sum
    weights: tuple   # how many ranks each member's partial sum covers
    tier: int
    level: int


@dataclass(frozen=True)
class Plan:
    n_ranks: int
    n_tiers: int
    n_levels: int
    exchanges: tuple  # children before parents, ascending start within a group
    final: tuple      # pieces of the whole vector after the last tier, ascending


def parse_layout(text):
    """'(0,1),(2,3)' -> [[0, 1], [2, 3]]. Only digits, commas and brackets are legal."""
    if not text or set(text) - set('0123456789,()'):
        raise ValueError('bad layout "%s"' % text)
    stack = [[]]
    for token in text.replace('(', ',(,').replace(')', ',),').split(','):
        if token == '(':
            stack.append([])
        elif token == ')':
            stack[-2].append(stack.pop())
        elif token:
            stack[-1].append(int(token))
    return stack[0]


def layout_text(nested):
    return ','.join(str(c) if isinstance(c, int) else '(%s)' % layout_text(c) for c in nested)


def _group(children, tier):
    ranks = tuple(sorted(r for c in children for r in c.ranks))
    return Node(tier, 1 + max(c.level for c in children), ranks, tuple(children))


def _tree(nested):
    if isinstance(nested, int):
        return Node(0, 0, (nested,))
    children = sorted((_tree(c) for c in nested), key=lambda c: c.ranks[0])
    tier = 1 + max(c.tier for c in children)
    if len(children) > WIDEST:
        row = isqrt(len(children) - 1) + 1  # ceil of the square root
        children = [_group(children[i:i + row], tier) for i in range(0, len(children), row)]
    return _group(children, tier)


def make_tree(nested):
    """The rewritten tree of a layout; every rank 0..p-1 must occur exactly once."""
    tree = _tree(nested)
    if tree.ranks != tuple(range(len(tree.ranks))):
        raise ValueError('a layout names each rank from 0 on once')
    return tree


def cut(start, end, parts):
    """parts + 1 edges; whole granules are dealt out as evenly as integers allow."""
    granules = ceil_div(end - start, GRANULE)
    return [min(end, start + GRANULE * (k * granules // parts)) for k in range(parts + 1)]


def _overlay(per_child):
    """(start, end, owners in child order) of the coarsest pieces that respect all cuts below."""
    edges = sorted({edge for pieces in per_child for p in pieces for edge in (p.start, p.end)})
    starts = [[p.start for p in pieces] for pieces in per_child]
    for a, b in zip(edges, edges[1:]):
        owners = [pieces[bisect_right(s, a) - 1].owner for pieces, s in zip(per_child, starts)]
        yield a, b, owners


def _solve(node, n, exchanges):
    """Appends the node's exchanges after its children's; returns the pieces it ends up with."""
    if not node.children:
        return [Piece(0, n, node.ranks[0])] if n else []
    below = [_solve(child, n, exchanges) for child in node.children]
    pieces = []
    for start, end, owners in _overlay(below):
        pairs = sorted(zip(owners, (len(c.ranks) for c in node.children)))
        members, weights = zip(*pairs)
        edges = cut(start, end, len(members))
        for a, b, owner in zip(edges, edges[1:], members):
            if a == b:
                continue
            pieces.append(Piece(a, b, owner))
            exchanges.append(Exchange(a, b, owner, members, weights, node.tier, node.level))
    return pieces


def build(nested, n):
    """The plan of an AllReduce of n elements over a layout."""
    tree, exchanges = make_tree(nested), []
    final = _solve(tree, n, exchanges)
    return Plan(len(tree.ranks), tree.tier, tree.level, tuple(exchanges), tuple(final))


def shares(n_ranks, n):
    """The plan of a collective in which every rank owns an equal share of n elements, in one tier."""
    everybody, share = tuple(range(n_ranks)), n // n_ranks
    pieces = tuple(Piece(r * share, (r + 1) * share, r) for r in everybody if share)
    exchanges = tuple(Exchange(p.start, p.end, p.owner, everybody, (1,) * n_ranks, 1, 1)
                      for p in pieces)
    return Plan(n_ranks, 1, 1, exchanges, pieces)


def chunks(length, chunk, align):
    """Spans of the messages of one piece, relative to its start. chunk 0: the piece in one.

    align: the largest of the call's codecs; 256 unless one works on longer segments.
    """
    step = ceil_div(chunk, align) * align if chunk else max(length, 1)
    return [(a, min(a + step, length)) for a in range(0, length, step)]

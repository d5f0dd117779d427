# SPDX-License-Identifier: Apache-2.0
"""The other collectives, built from what an AllReduce is made of.

A vector with shares holds one for each rank, in rank order. Inputs and residuals are indexed by the
elements that a rank passes in; out is the whole vector, of which a rank may get its share only.
"""
import numpy as np

import formats
import plan as planning
from ieee import F32, ceil_div
from reduce import Call, allreduce

MARKED = 256   # elements that a mark stands for


def mark_bytes(n):
    return 16 * ceil_div(ceil_div(ceil_div(n, MARKED), 8), 16)


class ReduceScatter(Call):
    """Up, as in an AllReduce; then the owner rounds its sum, which nobody encodes."""

    def _plan(self):
        return planning.shares(self.n_ranks, self.count)

    def _transfer(self):
        for exchange in self.plan.exchanges:
            self._up(exchange)
        for piece in self.plan.final:
            self._result(piece)
        return [1]

    def _result(self, piece):
        span = slice(piece.start, piece.end)
        x = self._corrected(piece.owner, span, 1)
        y = x / self.divisor if self.setup.op == 'avg' else x
        self.out[span] = self.type.rounded(y)
        self._keep(piece.owner, span, 1, x - self.divisor * self.out[span])
        if self.residual is not None:
            marks = sum(mark_bytes(b - a) for a, b in
                        planning.chunks(piece.end - piece.start, self.setup.chunk, self.align))
            self.result.sent[piece.owner] += marks * (self.n_ranks - 1)

    def _restored(self, lost):
        """Senders do not see the sums: they are told of runs of MARKED elements."""
        if self.n_ranks == 1:
            return lost
        restored = lost.copy()
        for piece in self.plan.final:
            for a in range(piece.start, piece.end, MARKED):
                run = slice(a, min(a + MARKED, piece.end))
                restored[run] = lost[run].any()
        return restored


class AllGather(Call):
    """Down, as in an AllReduce: what owners encode is their own input."""

    def _plan(self):
        return planning.shares(self.n_ranks, self.count * self.n_ranks)

    def _transfer(self):
        own, shares = slice(0, self.count), []
        for rank in range(self.n_ranks):
            x = self._corrected(rank, own, 1)
            seen, size = self._send(('gather', rank, 0), x, 1, 0, range(self.n_ranks))
            shares.append(self.type.rounded(seen))
            self._keep(rank, own, 1, x - shares[rank])
            self.result.sent[rank] += size * (self.n_ranks - 1)
        self.out = np.concatenate(shares).astype(F32)
        return [1]

    def _restored(self, lost):
        return lost.reshape(self.n_ranks, self.count)


class Direct(Call):
    """No sums, so nothing that a sender may leave out."""

    def __init__(self, setup, *rest):
        super().__init__(setup, *rest)
        if any(isinstance(c, formats.TopK) for c in self.codecs):
            raise ValueError('top-k is for sums and their halves')


class Broadcast(Direct):
    """The root's encode; each other rank gets a piece from the root and passes it on."""

    def _plan(self):
        return None  # one piece per rank that is not the root

    def _transfer(self):
        others = [r for r in range(self.n_ranks) if r != self.setup.root]
        edges = planning.cut(0, self.count, len(others))
        for rank, a, b in zip(others, edges, edges[1:]):
            y = self.value[self.setup.root, a:b]
            seen, size = self._send(('broadcast', self.setup.root, a), y, 1, 0)
            self.out[a:b] = self.type.rounded(seen)
            self.result.sent[self.setup.root] += size
            self.result.sent[rank] += size * (self.n_ranks - 2)
        return [1]


class AllToAll(Direct):
    """Every share but the own one is encoded for its receiver."""

    def _plan(self):
        return planning.shares(self.n_ranks, self.count)

    def _transfer(self):
        share = self.count // self.n_ranks
        out = np.zeros((self.n_ranks, self.n_ranks, share), F32)  # [receiver][sender]
        self.kept = np.zeros(self.value.shape, bool)
        for sender in range(self.n_ranks):
            for receiver in range(self.n_ranks):
                span = slice(receiver * share, (receiver + 1) * share)
                seen = self._arrives(sender, receiver, span)
                out[receiver, sender] = self.type.rounded(seen)
        self.out = out.reshape(-1)
        return [1]

    def _arrives(self, sender, receiver, span):
        """What the receiver decodes; the sender sees where it is not finite and keeps its r there."""
        x = self._corrected(sender, span, 1)
        if sender == receiver:
            seen = self.type.rounded(x)
        else:
            seen, size = self._send(('share', sender, span.start), x, 1, 0)
            self.result.sent[sender] += size
        self._keep(sender, span, 1, x - seen)
        self.kept[sender, span] = ~np.isfinite(seen)
        return seen

    def _restored(self, lost):
        return lost if self.n_ranks == 1 else self.kept


def broadcast(setup, inputs, residual=None, number=0):
    if residual is not None:
        raise ValueError('a broadcast takes no feedback')
    return Broadcast(setup, inputs, None, number).run()


def all_to_all(setup, inputs, residual=None, number=0):
    """inputs: [rank][n_ranks * count]; the result's out is [rank][n_ranks * count] in one."""
    return AllToAll(setup, inputs, residual, number).run()


def reduce_scatter(setup, inputs, residual=None, number=0):
    """inputs: [rank][n_ranks * count]; rank r gets the r-th share of the result's out."""
    return ReduceScatter(setup, inputs, residual, number).run()


def all_gather(setup, inputs, residual=None, number=0):
    return AllGather(setup, inputs, residual, number).run()


# name -> (call, a rank passes in a share per rank, a rank gets its own share only)
COLLECTIVES = {
    'allreduce': (allreduce, False, False),
    'reduce_scatter': (reduce_scatter, True, True),
    'all_gather': (all_gather, False, False),
    'broadcast': (broadcast, False, False),
    'all_to_all': (all_to_all, True, True),
}

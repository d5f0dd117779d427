# SPDX-License-Identifier: Apache-2.0
"""One AllReduce of all ranks in one process: sums, the residual and its law, what is sent.

Every line that computes is one float32 operation with one rounding, in the order in which an
implementation has to do it. Residual and Call follow the life of the real objects: the encoder
reads one vector and writes another, and only a finished call makes the new one current.
"""
from dataclasses import dataclass, field

import numpy as np

import formats
import plan as planning
from ieee import BF16, DATA_TYPES, F32, pick


class Residual:
    """Error feedback of all ranks. kind: fp32, or bf16 (rounded at every store).

    Without a shadow there is one vector only. The call cannot be undone then, so nothing that is
    not finite may be stored in the first place: such an element keeps what it has, which for a
    poisoned block means all of its elements, because they all decode to NaN.
    """

    def __init__(self, n_ranks, count, kind='fp32', shadow=True, known_zero=False, momentum=0.0):
        if (kind == 'bf16' or momentum) and not shadow:
            raise ValueError('a bf16 residual and momentum need the shadow')
        self.kind, self.shadow, self.momentum = kind, shadow, F32(momentum)
        self.known_zero = known_zero and not momentum
        self.current = np.zeros((n_ranks, count), F32)
        self.next = self.current
        self.velocity = np.zeros((n_ranks, count), F32)  # u; stays zero without momentum
        self.next_velocity = self.velocity

    def begin(self, inputs):
        """What is reduced: the inputs, with momentum u = m*u + g in their place."""
        if self.shadow:
            self.next = self.current.copy()
        if not self.momentum:
            return inputs
        self.next_velocity = inputs + self.momentum * self.velocity
        return self.next_velocity.copy()

    def clear_sent(self, rank, indices):
        """Momentum of what a top-k message sends has done its work."""
        if self.momentum:
            self.next_velocity[rank, indices] = 0

    def read(self, rank, span):
        return self.current[rank, span]

    def read_new(self, rank, span):
        """What this call has written so far."""
        return self.next[rank, span]

    def write(self, rank, span, r):
        if self.kind == 'bf16':
            r = BF16.rounded(r)
        if self.shadow:
            self.next[rank, span] = r
        else:
            finite = np.isfinite(r)
            self.next[rank, span][finite] = r[finite]

    def finish(self, lost):
        """lost: elements, or [rank][element], that take their old residual back."""
        if self.shadow:
            lost = np.broadcast_to(lost, self.next.shape)
            self.next[lost] = self.current[lost]
            self.next_velocity[lost] = self.velocity[lost]
        self.current, self.velocity = self.next, self.next_velocity


@dataclass
class Setup:
    """What all ranks agree on before a call."""
    layout: list
    codecs: list               # one spec per tier, fastest first; a single one serves all tiers
    op: str = 'sum'
    dtype: str = 'fp32'
    algo: str = 'tiered'       # or oneshot; tiered with one tier is the two-shot
    beta: float = 1.0
    chunk: int = 0             # elements per message, 0: one message per piece
    seed: int = 0              # of stochastic rounding
    root: int = 0              # of a broadcast

    def specs(self, n_tiers):
        if len(self.codecs) not in (1, n_tiers):
            raise ValueError('%d codecs for %d tiers' % (len(self.codecs), n_tiers))
        return self.codecs * (n_tiers if len(self.codecs) == 1 else 1)


AS_THEY_ARE = ('none', 'lossless')  # codecs that leave a residual alone that is known to be zero


@dataclass
class Result:
    out: np.ndarray            # bits of the data type, the same on every rank
    sent: list                 # payload bytes per rank
    lost: int = 0              # elements whose A*o is not finite
    messages: dict = field(default_factory=dict)  # (tier or 'final', rank, start) -> bytes


def ceil_log2(n):
    return (n - 1).bit_length()


class Call:
    """State of one call. Methods are in the order in which they run."""

    def __init__(self, setup, inputs, residual=None, number=0):
        self.setup, self.residual, self.number = setup, residual, number
        self.n_ranks, self.count = inputs.shape
        self.plan = self._plan()
        self.type = DATA_TYPES[setup.dtype]
        self.specs = setup.specs(self.plan.n_tiers if self.plan else 1)
        self.codecs = [formats.parse(s, setup.dtype) for s in self.specs]
        self.align = max(c.align for c in self.codecs)
        self.sums = setup.op in ('sum', 'avg')
        if not self.sums and any(isinstance(c, formats.TopK) for c in self.codecs):
            raise ValueError('top-k is for sums')
        if residual is not None and not self.sums:
            raise ValueError('max and min take no feedback')
        if residual is not None and any(c.stochastic for c in self.codecs):
            raise ValueError('stochastic rounding takes no feedback')
        self.divisor = F32(self.n_ranks if setup.op == 'avg' else 1)
        self.value = np.array([self.type.from_bits(row) for row in inputs], F32)
        self.value = self.value.reshape(inputs.shape)
        self.out = np.zeros(self.count, F32)
        self.result = Result(None, [0] * self.n_ranks)

    def run(self):
        if self.residual is not None:
            self.value = self.residual.begin(self.value)
        used = self._one_rank() if self.n_ranks == 1 else self._transfer()
        lost = ~np.isfinite(self.divisor * self.out)
        if self.residual is not None:
            self.residual.finish(self._restored(lost))
            self.residual.known_zero &= all(self.specs[t - 1] in AS_THEY_ARE for t in used)
        self.result.lost = int(lost.sum())
        self.result.out = self.type.to_bits(self.out)
        return self.result

    # The next three are what other collectives do in their own way (collectives.py).

    def _plan(self):
        return planning.build(self.setup.layout, self.count)

    def _transfer(self):
        """Moves and reduces; returns the tiers whose codec may have touched the residual."""
        return self._one_shot() if self.setup.algo == 'oneshot' else self._tiered()

    def _restored(self, lost):
        """Which elements of the residual are as before the call."""
        return lost

    def _feedback_at(self, tier):
        # A residual known to be zero need not be touched by a codec that promises to add nothing.
        r = self.residual
        idle = r is None or (r.known_zero and self.specs[tier - 1] in AS_THEY_ARE)
        return None if idle else r

    def _corrected(self, rank, span, tier):
        r = self._feedback_at(tier)
        v = self.value[rank, span]
        return v if r is None else v + F32(self.setup.beta) * r.read(rank, span)

    def _keep(self, rank, span, tier, new):
        r = self._feedback_at(tier)
        if r is not None:
            r.write(rank, span, new)

    def _send(self, key, y, tier, exponent, members=None):
        """(what every receiver decodes, payload bytes) of a piece, chunk by chunk. members: of the
        group that the sender is in, where there is one."""
        codec, seen, size = self.codecs[tier - 1], np.zeros(len(y), F32), 0
        if members is not None:
            codec = codec.at(members.index(key[1]), len(members))
        _, rank, start = key
        for a, b in planning.chunks(len(y), self.setup.chunk, self.align):
            draw = (self.setup.seed, self.number, rank, start + a)
            message = codec.encode(y[a:b], exponent, draw)
            seen[a:b] = codec.decode(message, b - a, exponent)
            if self.residual is not None and isinstance(codec, formats.TopK):
                self.residual.clear_sent(rank, start + a + codec.indices(message, b - a))
            self.result.messages[key + (a,)] = message
            size += len(message)
        return seen, size

    def _combine(self, acc, x):
        if acc is None:
            return x.copy()  # not 0 + x: a sum of -0 stays -0
        return acc + x if self.sums else pick(acc, x, self.setup.op == 'max')

    def _one_rank(self):
        tier, span = len(self.specs), slice(0, self.count)
        x = self._corrected(0, span, tier)
        self.out = self.type.rounded(x)
        self._keep(0, span, tier, x - self.out)
        return [tier]

    def _one_shot(self):
        tier, everything, total, sizes = self.plan.n_tiers, slice(0, self.count), None, []
        for rank in range(self.n_ranks):
            x = self._corrected(rank, everything, tier)
            seen, size = self._send(('oneshot', rank, 0), x, tier, 0, range(self.n_ranks))
            self._keep(rank, everything, tier, x - seen)
            sizes.append(size)
            total = self._combine(total, seen)
        self.result.sent = [self._one_shot_bytes(sizes, rank) for rank in range(self.n_ranks)]
        mean = total / self.divisor if self.setup.op == 'avg' else total
        self.out = self.type.rounded(mean)
        self._charge_owners(total, tier)
        return [tier]

    def _one_shot_bytes(self, sizes, rank):
        """To everybody; more than 8 ranks pass on what they have, to 1, 2, 4 ... ranks below."""
        n, steps = self.n_ranks, [1 << t for t in range((self.n_ranks - 1).bit_length())]
        if n <= 8:
            return sizes[rank] * (n - 1)
        return sum(sizes[(rank + d) % n] for d in range(n) for s in steps if d < s < n - d)

    def _charge_owners(self, total, tier):
        """Output rounding goes to the rank that would own the element in a two-shot."""
        edges = planning.cut(0, self.count, self.n_ranks)
        for rank, (a, b) in enumerate(zip(edges, edges[1:])):
            span, r = slice(a, b), self._feedback_at(tier)
            if r is not None:
                missing = total[span] - self.divisor * self.out[span]
                r.write(rank, span, r.read_new(rank, span) + missing)

    def _tiered(self):
        for exchange in self.plan.exchanges:
            self._up(exchange)
        sizes = {p: self._final(p) for p in self.plan.final}
        for exchange in self.plan.exchanges:
            self._down(exchange, sizes)
        return sorted({e.tier for e in self.plan.exchanges if len(e.members) > 1}
                      | {self.plan.n_tiers})

    def _up(self, exchange):
        span, total = slice(exchange.start, exchange.end), None
        for rank, weight in zip(exchange.members, exchange.weights):
            part = self.value[rank, span]
            if rank != exchange.owner:
                part = self._contribute(rank, span, weight, exchange)
            total = self._combine(total, part)
        self.value[exchange.owner, span] = total

    def _contribute(self, rank, span, weight, exchange):
        x = self._corrected(rank, span, exchange.tier)
        exponent = ceil_log2(weight) if self.sums else 0
        seen, size = self._send((exchange.level, rank, exchange.start), x, exchange.tier, exponent,
                                exchange.members)
        self._keep(rank, span, exchange.tier, x - seen)
        self.result.sent[rank] += size
        return seen

    def _final(self, piece):
        """The one encode whose bytes reach everybody; the owner, too, takes what they decode to."""
        tier, span = self.plan.n_tiers, slice(piece.start, piece.end)
        x = self._corrected(piece.owner, span, tier)
        y = x / self.divisor if self.setup.op == 'avg' else x
        exponent = ceil_log2(self.n_ranks) if self.setup.op == 'sum' else 0
        members = [e.members for e in self.plan.exchanges
                   if e.level == self.plan.n_levels and e.start == piece.start][0]
        seen, size = self._send(('final', piece.owner, piece.start), y, tier, exponent, members)
        self.out[span] = self.type.rounded(seen)
        self._keep(piece.owner, span, tier, x - self.divisor * self.out[span])
        return size

    def _down(self, exchange, sizes):
        forwarded = sum(size for p, size in sizes.items()
                        if exchange.start <= p.start and p.end <= exchange.end)
        self.result.sent[exchange.owner] += forwarded * (len(exchange.members) - 1)


def allreduce(setup, inputs, residual=None, number=0):
    """inputs: bits of the data type [rank][element]. The residual object is updated. number: of the
    call on its communicator, from 0; stochastic rounding draws by it."""
    return Call(setup, inputs, residual, number).run()

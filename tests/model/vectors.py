# SPDX-License-Identifier: Apache-2.0
"""Whole calls as one line of text each: parameters, then what the library must produce.

A C test needs no JSON and no Python to use them: tokens are key=value, separated by one blank,
in the order of the fields of Case, followed by out= res= sent=. Values hold no blanks; an empty
list is '-'; coll is left out for an AllReduce, root but for a broadcast, momentum where it is 0.
Meaning of the results: out is the CRC-32 of the output per call (little endian, data type; the same
on every rank), where ranks get different shares per call and rank; res, per rank, that of the
residual after the last call as float32, '-' without feedback; sent, per rank, the payload bytes of
the last call; mom, per rank, only with momentum, the CRC-32 of that vector after the last call.

    vectors.py list            all cases of case_list.py, computed
    vectors.py run < lines     completes lines that hold parameters only, defaults may be left out
    vectors.py check FILE      recomputes every line of FILE and compares
"""
import sys
from dataclasses import dataclass, fields

import numpy as np

import generate
import plan as planning
from ieee import DATA_TYPES, bits_of, crc
from collectives import COLLECTIVES
from reduce import Residual, Setup

RESULTS = ('out', 'res', 'sent', 'mom')


@dataclass(frozen=True)
class Case:
    layout: str = '0,1,2,3'
    codecs: str = 'none'       # one spec per tier from the fastest, separated by ';'
    op: str = 'sum'
    dtype: str = 'fp32'
    algo: str = 'tiered'       # one tier: two-shot; oneshot uses the last tier's codec
    count: int = 2500
    calls: int = 3
    beta: float = 1.0
    feedback: int = 1          # 0: no feedback object
    rdtype: str = 'fp32'       # how the residual is stored
    shadow: int = 1
    known_zero: int = 0        # 1: the object is known to be zero before the first call
    chunk: int = 0             # elements per message; 0: one message per piece
    seed: int = 1              # of the inputs and of stochastic rounding
    inject: str = '-'          # call:rank:index:bits of the data type in hex, separated by ','
    coll: str = 'allreduce'    # count is that of a share where a rank passes in or gets shares
    root: int = 0              # of a broadcast
    momentum: float = 0.0      # of the feedback object

    def text(self):
        hidden = {'coll'} if self.coll == 'allreduce' else set()
        hidden |= {'root'} if self.coll != 'broadcast' else set()
        hidden |= {'momentum'} if not self.momentum else set()
        shown = [f for f in fields(self) if f.name not in hidden]
        return ' '.join('%s=%s' % (f.name, _plain(getattr(self, f.name))) for f in shown)


def _plain(value):
    return '%g' % value if isinstance(value, float) else str(value)


def parse_line(line):
    """(Case, {results}) of a line; missing keys take their defaults."""
    pairs = dict(token.split('=', 1) for token in line.split())
    results = {k: pairs.pop(k) for k in RESULTS if k in pairs}
    types = {f.name: f.type for f in fields(Case)}
    unknown = set(pairs) - set(types)
    if unknown:
        raise ValueError('unknown key %s' % ', '.join(sorted(unknown)))
    return Case(**{k: types[k](v) for k, v in pairs.items()}), results


def _injections(text):
    if text == '-':
        return []
    quads = [item.split(':') for item in text.split(',')]
    return [(int(call), int(rank), int(index), int(bits, 16)) for call, rank, index, bits in quads]


def setup_of(case):
    return Setup(planning.parse_layout(case.layout), case.codecs.split(';'), case.op, case.dtype,
                 case.algo, case.beta, case.chunk, case.seed, case.root)


def run_calls(case):
    """Yields (inputs, result, residual or None) after each call."""
    setup = setup_of(case)
    n_ranks = len(planning.make_tree(setup.layout).ranks)
    run, has_shares, _ = COLLECTIVES[case.coll]
    count = case.count * (n_ranks if has_shares else 1)
    residual = None
    if case.feedback:
        residual = Residual(n_ranks, count, case.rdtype, bool(case.shadow), bool(case.known_zero),
                            case.momentum)
    for call in range(case.calls):
        rows = generate.inputs(case.seed, n_ranks, call, count, DATA_TYPES[case.dtype],
                               _injections(case.inject))
        yield rows, run(setup, rows, residual, call), residual


def _outputs(case, result, n_ranks):
    """What ranks get: one array for all, or one per rank."""
    gets_share = COLLECTIVES[case.coll][2]
    return result.out.reshape(n_ranks, -1) if gets_share else [result.out]


def evaluate(case):
    """The three result tokens of a case."""
    outs = []
    for rows, result, residual in run_calls(case):
        outs += [crc(np.ascontiguousarray(out)) for out in _outputs(case, result, len(rows))]
    res = [crc(bits_of(r)) for r in residual.current] if residual is not None else ['-']
    found = {'out': ','.join(outs), 'res': ','.join(res), 'sent': ','.join(map(str, result.sent))}
    if case.momentum:
        found['mom'] = ','.join(crc(bits_of(u)) for u in residual.velocity)
    return found


def complete(case):
    results = evaluate(case)
    return case.text() + ''.join(' %s=%s' % (k, results[k]) for k in RESULTS if k in results)


def _check(path):
    failed = 0
    with open(path, encoding='ascii') as lines:
        for number, line in enumerate(lines, 1):
            case, results = parse_line(line)
            if evaluate(case) != results:
                print('%s:%d differs: %s' % (path, number, case.text()))
                failed += 1
    return failed


def main(args):
    if args == ['list']:
        from case_list import cases
        for case in cases():
            print(complete(case))
    elif args == ['run']:
        for line in sys.stdin:
            print(complete(parse_line(line)[0]), flush=True)
    elif len(args) == 2 and args[0] == 'check':
        return 1 if _check(args[1]) else 0
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

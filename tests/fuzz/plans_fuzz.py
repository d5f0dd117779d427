#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random plans against the model: plans_fuzz.py [--seed N] [--seconds N | --only N] LAW_DUMP

Case i of a seed is always the same: ranks and tiers, a codec per tier, operation, data type, count,
chunk, window, threads, transport, residual, NaN and Inf. Every one is judged as in
tests/conformance/law_test.py: the residual law, and outputs and residuals equal to the model's bit
by bit. Exit code 1 when a check failed; --seed and --only repeat it.
"""
import argparse
import os
import random
import sys
import time

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path.insert(0, os.path.join(TESTS, 'conformance'))
import law_test  # noqa: E402

CODECS = ('none', 'fp32', 'fp16', 'bf16', 'int8', 'int8:block=16', 'int8:block=32', 'int8:block=64',
          'int8:block=128', 'int4', 'int4:block=16', 'int4:block=256', 'fp8', 'fp8:e5m2',
          'topk:0.01', 'topk:0.1,int8', 'topk:k=50,fp8',
          'int8,hadamard', 'int4,hadamard', 'int4:block=16,hadamard', 'fp8:e5m2,hadamard', 'int4:signed',
          'mxfp8', 'mxfp8,ceil',
          'mxfp8:e5m2', 'mxfp8:e5m2,ceil', 'mxfp4', 'mxfp4,ceil', 'mxint8', 'mxint8,ceil', 'nvfp4',
          'lossless', 'int8,entropy')
RANKS_MAX = 9
BAD_BITS = {'fp32': ('7fc00000', '7f800000', 'ff800000', '7f800001'),
            'fp16': ('7e00', '7c00', 'fc00', '7d01'), 'bf16': ('7fc0', '7f80', 'ff80', '7f81')}


def sizes(rng, height):
    """A node: a number of ranks, or a list of nodes."""
    n = rng.choice((1, 1, 2, 2, 3, 4, 9))
    if height == 1:
        return n
    return [sizes(rng, height - 1) for _ in range(min(n, 4))]


def count_ranks(node):
    return node if isinstance(node, int) else sum(count_ranks(child) for child in node)


def layout_text(node, first=0):
    """As in golden files: ((0,1),(2)),((3,4,5))."""
    if isinstance(node, int):
        return ','.join(str(first + i) for i in range(node))
    parts = []
    for child in node:
        parts.append('(%s)' % layout_text(child, first))
        first += count_ranks(child)
    return ','.join(parts)


def random_layout(rng):
    """(text, ranks, tiers)"""
    height = rng.choice((1, 1, 1, 2, 2, 3))
    while True:
        node = sizes(rng, height)
        if count_ranks(node) <= RANKS_MAX:
            return layout_text(node), count_ranks(node), height


def random_count(rng):
    """Mostly small or beside a multiple of a block or chunk."""
    near = rng.choice((16, 256, 1024, 4096)) * rng.randint(1, 12) + rng.choice((-1, 0, 1))
    return rng.choice((rng.randint(1, 40), near, rng.randint(1, 20000)))


def random_inject(rng, case, n_ranks):
    if rng.random() < 0.6:
        return '-'
    places = ['%d:%d:%d:%s' % (rng.randrange(case['calls']), rng.randrange(n_ranks),
                               rng.randrange(case['count']), rng.choice(BAD_BITS[case['dtype']]))
              for _ in range(rng.randint(1, 4))]
    return ','.join(places)


def random_case(rng):
    """(variables, what law_test.Checker.run() takes)"""
    layout, n_ranks, n_tiers = random_layout(rng)
    case = {'layout': layout, 'codecs': ';'.join(rng.choice(CODECS) for _ in range(n_tiers)),
            'op': rng.choice(('sum', 'avg')), 'dtype': rng.choice(('fp32', 'fp16', 'bf16')),
            'count': random_count(rng), 'calls': rng.randint(1, 4),
            'rdtype': rng.choice(('fp32', 'fp32', 'bf16')), 'shadow': rng.choice((1, 1, 0)),
            'seed': rng.randint(1, 1 << 30), 'chunk': rng.choice((256, 512, 1024, 4096, 65536)),
            'transport': rng.choice(('loopback', 'shm', 'tcp', 'auto'))}
    if 'topk' in case['codecs']:
        case['chunk'] = 65536  # a segment of float32 must fit where another tier sends it
    if case['rdtype'] == 'bf16':
        case['shadow'] = 1  # the library refuses the other
    if n_tiers == 1 and rng.random() < 0.3:
        case['algo'] = 'oneshot'
        # The owner stores twice: what the first store rounds off may be large beside a small sum of
        # both, by which the law's bound for bf16 goes. The bits are compared all the same.
        case['law'] = case['rdtype'] == 'fp32'
    case['inject'] = random_inject(rng, case, n_ranks)
    variables = {'DSCOMM_WINDOW': str(rng.choice((1, 2, 4, 7, 64))),
                 'DSCOMM_THREADS': str(rng.randint(1, 3)),
                 'DSCOMM_SOCKET_NSOCKS': str(rng.choice((1, 1, 2, 3)))}
    return variables, case


def run_case(checker, seed, index):
    """False: a check failed; what it was has been printed."""
    variables, case = random_case(random.Random('%d:%d' % (seed, index)))
    n_bad = checker.n_bad
    os.environ.update(variables)
    with open(os.devnull, 'w', encoding='ascii') as quiet:
        shown, sys.stdout = sys.stdout, quiet  # the law prints its figures for every case
        said = []
        checker.report = said.append
        try:
            checker.run('random', case)
        finally:
            sys.stdout = shown
    if checker.n_bad == n_bad:
        return True
    print('FAILED: plans_fuzz.py --seed %d --only %d: %s %s' % (seed, index, variables, case))
    for line in said:
        print('    ' + line)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('law_dump')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--seconds', type=float, default=10)
    parser.add_argument('--only', type=int)
    args = parser.parse_args()
    os.environ['DSCOMM_LOG_LEVEL'] = 'error'
    os.environ['DSCOMM_SOCKET_IFNAME'] = 'lo'
    checker = law_test.Checker(args.law_dump, os.path.join(TESTS, 'model'))
    # The law allows 4 roundings, which sums of 9 ranks exceed once in millions of elements.
    checker.law.ULP *= 2
    print('plans_fuzz: seed %d' % args.seed, flush=True)
    if args.only is not None:
        return not run_case(checker, args.seed, args.only)
    end = time.monotonic() + args.seconds
    index = n_failed = 0
    while time.monotonic() < end and n_failed < 10:
        n_failed += not run_case(checker, args.seed, index)
        index += 1
    print('plans_fuzz: %d plans, %d failed' % (index, n_failed))
    return n_failed > 0


if __name__ == '__main__':
    sys.exit(main())

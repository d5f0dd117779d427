#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close a collective over TCP comes to what slow links can carry, and whether `wire` is true.

Four ranks in four network namespaces, each link held to 1 Gbit/s in both directions (netns.py).
Every round measures the links (iperf3, a ring of four flows at once, so that each link is full in
both directions) and runs all_reduce_perf once per codec. Judged are medians over the rounds:

    time / (bytes sent per rank / raw TCP payload rate)      at most the limit of the codec
    all bytes that the program says it sent / tx_bytes of the interfaces     at most 3% apart

Exit code: 0 within the requirements, 1 not, 2 bad option, 77 where it cannot run: not root, a tool
is missing, no namespaces.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import netns  # noqa: E402

N_RANKS = 4
LIMITS = {'none': 1.15, 'int8': 1.2}
WIRE_LIMIT = 0.03
PORT = 29500


def run_ranks(net, args, codec):
    """One run of the program; the result of its one row and the bytes the interfaces sent."""
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    before = [net.tx_bytes(i) for i in range(N_RANKS)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'result.json')
        ranks = []
        for i in range(N_RANKS):
            env = {'RANK': str(i), 'WORLD_SIZE': str(N_RANKS), 'MASTER_ADDR': net.address(0),
                   'MASTER_PORT': str(PORT), 'DSCOMM_SOCKET_IFNAME': 'eth0'}
            words = [args.program, '--transport', 'tcp', '-b', args.size, '-e', args.size, '-n',
                     str(args.iters), '-w', '1', '-T', '60', '--codec', codec, '-J', path]
            ranks.append(net.start(i, words, env, **pipes))
        netns.wait_for(net, ranks, 120, 'all_reduce_perf')
        with open(path, encoding='utf-8') as handle:
            result = json.load(handle)['results'][0]
    sent = statistics.mean(net.tx_bytes(i) - before[i] for i in range(N_RANKS))
    return result, sent


def one_round(net, args, codec):
    rate = net.raw_rate(args.raw_seconds)
    result, sent = run_ranks(net, args, codec)
    wire = result['wire_bytes']
    # Out-of-place and in-place; each the exact probe, one warm-up and the timed calls.
    said = wire * 2 * (2 + args.iters)
    seconds = statistics.mean(result[p]['median_us'] for p in ('out_of_place', 'in_place')) * 1e-6
    return {'codec': codec, 'raw_mb_per_s': rate / 1e6, 'time_ms': seconds * 1e3,
            'wire_bytes': wire, 'ratio': seconds / (wire / rate), 'tx_bytes': sent,
            'wire_error': said / sent - 1}


def judge(rounds, codec):
    mine = [r for r in rounds if r['codec'] == codec]
    median = {key: statistics.median(r[key] for r in mine)
              for key in ('raw_mb_per_s', 'time_ms', 'wire_bytes', 'ratio', 'wire_error')}
    limit = LIMITS.get(codec)
    median.update(codec=codec, limit=limit, wire_limit=WIRE_LIMIT,
                  ok=(limit is None or median['ratio'] <= limit) and
                  abs(median['wire_error']) <= WIRE_LIMIT)
    return median


def measure(args):
    net = netns.Network(N_RANKS, args.rate)
    rounds = []
    try:
        net.serve_raw_rate()
        for _ in range(args.rounds):
            for codec in args.codec:
                rounds.append(one_round(net, args, codec))
                print('# %(codec)-16s raw %(raw_mb_per_s)7.2f MB/s, call %(time_ms)8.2f ms, '
                      'ratio %(ratio).3f, wire off by %(wire_error)+.2f%%' % {
                          **rounds[-1], 'wire_error': 100 * rounds[-1]['wire_error']}, flush=True)
    finally:
        net.close()
    return rounds


def report(args, rounds):
    verdicts = [judge(rounds, codec) for codec in args.codec]
    print('%-16s %12s %12s %14s %8s %8s %10s' %
          ('codec', 'raw (MB/s)', 'time (ms)', 'wire (B/rank)', 'ratio', 'limit', 'wire off'))
    for v in verdicts:
        print('%-16s %12.2f %12.2f %14.0f %8.3f %8s %+9.2f%%  %s' %
              (v['codec'], v['raw_mb_per_s'], v['time_ms'], v['wire_bytes'], v['ratio'],
               v['limit'] or '-', 100 * v['wire_error'], 'ok' if v['ok'] else 'TOO FAR OFF'))
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as handle:
            json.dump({'size': args.size, 'rate': args.rate, 'burst_bytes': netns.burst_bytes(),
                       'latency_ms': netns.LATENCY_MS, 'verdicts': verdicts, 'rounds': rounds},
                      handle, indent=1)
            handle.write('\n')
    return 0 if all(v['ok'] for v in verdicts) else 1


def parse_args():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--program', help='all_reduce_perf to run',
                        default=os.path.join(root, 'build/release/perf/all_reduce_perf'))
    parser.add_argument('--codec', action='append', help='repeat for more (none, int8)')
    parser.add_argument('--size', default='64M')
    parser.add_argument('--iters', type=int, default=3)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--raw-seconds', type=int, default=2)
    parser.add_argument('--rate', default='1gbit', help='of each link, as tc writes it')
    parser.add_argument('--json', metavar='FILE')
    args = parser.parse_args()
    args.codec = args.codec or ['none', 'int8']
    return args


def why_not(args):
    """Why this machine cannot do it, or None."""
    if not os.access(args.program, os.X_OK):
        return 'needs %s, built by: cmake --preset release && cmake --build --preset release' % \
            args.program
    return netns.why_not()


def main():
    args = parse_args()
    problem = why_not(args)
    if problem:
        print('netns_check: skipped: ' + problem, file=sys.stderr)
        return 77
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that namespaces are removed
    try:
        return report(args, measure(args))
    except netns.Failed as failed:
        print('netns_check: %s' % failed, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())

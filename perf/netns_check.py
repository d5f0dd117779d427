#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close a collective over TCP comes to what slow links can carry, and whether `wire` is true.

Four ranks in four network namespaces on one bridge, each link held to 1 Gbit/s in both directions:

    ns r0: eth0 --- p0 \\
    ns r1: eth0 --- p1  \\  ns sw: bridge      tbf on every eth0 (what a rank sends)
    ns r2: eth0 --- p2  /                      and on every p    (what a rank receives)
    ns r3: eth0 --- p3 /

Every round measures the links (iperf3, a ring of four flows at once, so that each link is full in
both directions) and runs all_reduce_perf once per codec. Judged are medians over the rounds:

    time / (bytes sent per rank / raw TCP payload rate)      at most the limit of the codec
    all bytes that the program says it sent / tx_bytes of the interfaces     at most 3% apart

Exit code: 0 within the requirements, 1 not, 2 bad option, 77 where it cannot run: not root, a tool
is missing, no namespaces.
"""
import argparse
import atexit
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

N_RANKS = 4
LIMITS = {'none': 1.15, 'int8': 1.2}
WIRE_LIMIT = 0.03
# tbf cuts a GSO packet (up to 64 KiB) that is larger than its bucket into wire packets before it
# sends them, which costs CPU that a real network card would not take from the ranks. A bucket of two
# such packets lets them pass whole; their wire headers are charged to the bucket all the same. At
# 1 Gbit/s it is 2 ms of traffic: nothing beside a call of some 200 ms. 50 ms of queue: no drops
# before TCP notices the delay.
BURST_BYTES = 256 * 1024
LATENCY_MS = 50
PORT = 29500


class Failed(Exception):
    """A command did not do what it should."""


def sh(*words):
    """Run a command that must succeed."""
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Failed('%s: %s' % (' '.join(words), run.stderr.strip()))
    return run.stdout


class Network:
    """The namespaces, gone when closed, whatever happened before."""

    def __init__(self, rate):
        tag = 'dsc%d' % os.getpid()
        self.switch = tag + 'sw'
        self.ranks = ['%sr%d' % (tag, i) for i in range(N_RANKS)]
        self.children = []
        atexit.register(self.close)
        self.make(self.switch)
        sh('ip', '-n', self.switch, 'link', 'add', 'br0', 'type', 'bridge')
        sh('ip', '-n', self.switch, 'link', 'set', 'br0', 'up')
        for i, name in enumerate(self.ranks):
            self.plug(i, name, rate)

    def make(self, name):
        sh('ip', 'netns', 'add', name)
        sh('ip', '-n', name, 'link', 'set', 'lo', 'up')

    def plug(self, i, name, rate):
        port = 'p%d' % i
        self.make(name)
        sh('ip', '-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', port, 'netns',
           self.switch)
        sh('ip', '-n', self.switch, 'link', 'set', port, 'master', 'br0', 'up')
        sh('ip', '-n', name, 'addr', 'add', self.address(i) + '/24', 'dev', 'eth0')
        sh('ip', '-n', name, 'link', 'set', 'eth0', 'up')
        for netns, device in ((name, 'eth0'), (self.switch, port)):
            sh('tc', '-n', netns, 'qdisc', 'add', 'dev', device, 'root', 'tbf', 'rate', rate,
               'burst', str(BURST_BYTES), 'latency', '%dms' % LATENCY_MS)

    @staticmethod
    def address(i):
        return '10.77.0.%d' % (i + 1)

    def start(self, i, words, env=None, **kwargs):
        child = subprocess.Popen(['ip', 'netns', 'exec', self.ranks[i]] + words,
                                 env={**os.environ, **(env or {})}, start_new_session=True,
                                 text=True, **kwargs)
        self.children.append(child)
        return child

    def end(self, child):
        """Ends a child and what it has started (its session is its own)."""
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.children.remove(child)

    def tx_bytes(self, i):
        stats = json.loads(sh('ip', '-n', self.ranks[i], '-j', '-s', 'link', 'show', 'eth0'))
        return stats[0]['stats64']['tx']['bytes']

    def close(self):
        for child in list(self.children):
            self.end(child)
        for name in self.ranks + [self.switch]:
            subprocess.run(['ip', 'netns', 'del', name], capture_output=True, check=False)
        atexit.unregister(self.close)


def wait_for(net, children, timeout_s, what):
    """Waits for all; their outputs. Ends them when one fails or time is up."""
    deadline = time.monotonic() + timeout_s
    outputs = []
    try:
        for child in children:
            out, err = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if child.returncode != 0:
                raise Failed('%s: exit code %d: %s %s' % (what, child.returncode, out, err))
            outputs.append(out)
    except subprocess.TimeoutExpired as expired:
        raise Failed('%s: not done after %d s' % (what, timeout_s)) from expired
    finally:
        for child in children:
            net.end(child)
    return outputs


def raw_rate(net, seconds):
    """TCP payload bytes per second of a link while all links are full both ways: mean of 4 flows."""
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    clients = []
    for i in range(N_RANKS):
        target = net.address((i + 1) % N_RANKS)
        clients.append(net.start(i, ['iperf3', '-c', target, '-t', str(seconds), '-O', '0.5', '-J'],
                                 **pipes))
    ends = [json.loads(text)['end'] for text in wait_for(net, clients, seconds + 20, 'iperf3')]
    return statistics.mean(end['sum_received']['bits_per_second'] / 8 for end in ends)


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
        wait_for(net, ranks, 120, 'all_reduce_perf')
        with open(path, encoding='utf-8') as handle:
            result = json.load(handle)['results'][0]
    sent = statistics.mean(net.tx_bytes(i) - before[i] for i in range(N_RANKS))
    return result, sent


def one_round(net, args, codec):
    rate = raw_rate(net, args.raw_seconds)
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
    net = Network(args.rate)
    rounds = []
    try:
        for i in range(N_RANKS):
            net.start(i, ['iperf3', '-s'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
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
            json.dump({'size': args.size, 'rate': args.rate, 'burst_bytes': BURST_BYTES,
                       'latency_ms': LATENCY_MS, 'verdicts': verdicts, 'rounds': rounds}, handle,
                      indent=1)
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


def no_namespaces():
    """Why a namespace cannot be made and entered here (a container may forbid it), or None."""
    name = 'dsc%dprobe' % os.getpid()
    try:
        for words in (['netns', 'add', name], ['-n', name, 'link', 'set', 'lo', 'up']):
            done = subprocess.run(['ip'] + words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return 'cannot make a network namespace: ' + done.stderr.strip()
    finally:
        subprocess.run(['ip', 'netns', 'del', name], capture_output=True, check=False)
    return None


def why_not(args):
    """Why this machine cannot do it, or None."""
    if os.geteuid() != 0:
        return 'needs root, for network namespaces'
    missing = [tool for tool in ('ip', 'tc', 'iperf3') if shutil.which(tool) is None]
    if missing:
        return 'needs %s (Debian: iproute2 iperf3)' % ' '.join(missing)
    if not os.access(args.program, os.X_OK):
        return 'needs %s, built by: cmake --preset release && cmake --build --preset release' % \
            args.program
    return no_namespaces()


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
    except Failed as failed:
        print('netns_check: %s' % failed, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())

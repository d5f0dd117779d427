#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do many ranks cost more than their bytes and their arithmetic? 2 to 64 ranks on one machine.

Ranks share the CPUs, so a call of n ranks should take what all of them together have to do:

    model = codec work of all ranks / CPUs  +  bytes that all ranks send / rate of the machine

The codec work of a rank in a two-shot is S bytes encoded and 2 (n - 1) / n S decoded, at the rates
that codec_perf measures on one core. The rate of the machine is measured beside every row, while
the same neighbours load it: over TCP a pair of processes per two CPUs exchanges messages as long as
those of the plan, for loopback every CPU copies memory.

Printed per row: median call, model, their ratio; the first call, which makes the connections; and
the memory that a rank has over and above one that runs alone on the same vectors, so what messages
and connections take. Exit code: 0 all ratios within the limit, 1 not, 2 bad option, 77 cannot run.
"""
import argparse
import json
import math
import multiprocessing
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 3.0
FILES_PER_LINK = 3  # control and data socket, and one that is being made
RATE_SECONDS = 0.6
COPY_BYTES = 32 << 20  # far beyond caches
ALONE_CALLS = 200  # of one rank: long enough for its memory to be seen


class Failed(Exception):
    """A command did not do what it should."""


# ---- what the machine can do ----

def swap_messages(mine, message_bytes, until):
    """Sends and receives whole messages in turn; the bytes sent until the time is up."""
    data = memoryview(bytearray(message_bytes))
    sent = 0
    while time.monotonic() < until:
        mine.sendall(data)
        got = 0
        while got < message_bytes:
            n = mine.recv_into(data[got:])
            if n == 0:
                return sent
            got += n
        sent += message_bytes
    mine.shutdown(socket.SHUT_WR)
    return sent


def tcp_pair():
    with socket.create_server(('127.0.0.1', 0)) as server:
        a = socket.create_connection(server.getsockname())
        b = server.accept()[0]
    for end in (a, b):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return a, b


def copy_memory(until):
    source, target = bytes(COPY_BYTES), bytearray(COPY_BYTES)
    copied = 0
    while time.monotonic() < until:
        target[:] = source
        copied += COPY_BYTES
    return copied


def in_processes(jobs):
    """Runs (function, arguments...) all at once, each in a process; the sum of their results."""
    queue = multiprocessing.SimpleQueue()
    children = []
    for function, *values in jobs:
        child = multiprocessing.Process(target=lambda f=function, v=values: queue.put(f(*v)))
        child.start()
        children.append(child)
    total = sum(queue.get() for _ in children)
    for child in children:
        child.join()
    return total


def machine_rate(transport, message_bytes, n_cpus):
    """Bytes per second that reach somebody while all CPUs do nothing else."""
    until = time.monotonic() + RATE_SECONDS
    if transport == 'loopback':
        return in_processes([(copy_memory, until)] * n_cpus) / RATE_SECONDS
    ends = [end for _ in range(max(1, n_cpus // 2)) for end in tcp_pair()]
    try:
        return in_processes([(swap_messages, end, message_bytes, until)
                             for end in ends]) / RATE_SECONDS
    finally:
        for end in ends:
            end.close()


def codec_rates(args, codec):
    """Bytes of float32 per second on one core: encode with feedback, decode and add."""
    out = run([args.codec_perf, '-b', '16M', '-n', '3', '--codec', codec], args.timeout)
    lines = [line.split() for line in out.splitlines()]
    names = next(line[1:] for line in lines if line[:2] == ['#', 'codec'])
    row = dict(zip(names, lines[-1]))  # the best instruction set comes last
    encode = row['encode'] if codec == 'none' else row['enc+fb']
    return float(encode) * 1e9, float(row['dec+add']) * 1e9


# ---- one run ----

def run(words, timeout, env=None):
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout,
                              env=env)
    except subprocess.TimeoutExpired as expired:
        raise Failed('%s: not done after %d s' % (' '.join(words), timeout)) from expired
    if done.returncode != 0:
        raise Failed('%s: exit code %d: %s' % (' '.join(words), done.returncode, done.stderr))
    return done.stdout


def peak_bytes(pid):
    """Most memory that a process has had in its own pages; 0 when it is gone."""
    try:
        with open('/proc/%d/status' % pid, encoding='ascii') as handle:
            fields = dict(line.split(':', 1) for line in handle)
        shared = int(fields['RssFile'].split()[0])
        return (int(fields['VmHWM'].split()[0]) - shared) * 1024
    except (OSError, KeyError):
        return 0


def children_of(pid):
    try:
        with open('/proc/%d/task/%d/children' % (pid, pid), encoding='ascii') as handle:
            return [int(word) for word in handle.read().split()]
    except OSError:
        return []


class Watch(threading.Thread):
    """Memory of the ranks of a running program, looked at until it ends."""

    def __init__(self, child):
        super().__init__(daemon=True)
        self.child = child
        self.peaks = {}

    def run(self):
        while self.child.poll() is None:
            for pid in children_of(self.child.pid):
                self.peaks[pid] = max(self.peaks.get(pid, 0), peak_bytes(pid))
            time.sleep(0.005)


def run_ranks(args, transport, codec, size, n_ranks, n_calls):
    """The program's row for one size, and the memory of all its ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'result.json')
        words = [args.program, '--transport', transport, '-g', str(n_ranks), '--codec', codec,
                 '-b', size, '-e', size, '-w', '0', '-n', str(n_calls), '-I', '1', '-T', '120',
                 '-J', path]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        watch = Watch(child)
        watch.start()
        try:
            out = child.communicate(timeout=args.timeout)[0]
        except subprocess.TimeoutExpired as expired:
            raise Failed('%s: not done after %d s' % (' '.join(words), args.timeout)) from expired
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
        watch.join()
        if child.returncode != 0:
            raise Failed('%s: exit code %d: %s' % (' '.join(words), child.returncode, out))
        with open(path, encoding='utf-8') as handle:
            return json.load(handle)['results'][0], sum(watch.peaks.values())


def message_bytes(row, n_ranks):
    """Mean length of a message, header included."""
    chunk = int(re.search(r'chunks of (\d+) elements', row['plan']).group(1))
    n_chunks = math.ceil(row['count'] / n_ranks / chunk)
    return max(1, int(row['wire_bytes']) // (2 * (n_ranks - 1) * n_chunks))


def model_seconds(row, n_ranks, n_cpus, rate, rates):
    encode, decode = rates
    share = (n_ranks - 1) / n_ranks
    codec = n_ranks * row['size'] * (1 / encode + 2 * share / decode) / n_cpus
    return codec, n_ranks * row['wire_bytes'] / rate


def measure(args, transport, codec, size, n_ranks):
    """The collective and the machine in turn, so that both meet the same neighbours."""
    n_cpus = len(os.sched_getaffinity(0))
    row, memory = run_ranks(args, transport, codec, size, n_ranks, args.iters)
    alone = run_ranks(args, transport, codec, size, 1, ALONE_CALLS)[1]
    times = row['out_of_place_per_iter']['times_us']
    message = message_bytes(row, n_ranks)
    rate = machine_rate(transport, message, n_cpus)
    codec_s, wire_s = model_seconds(row, n_ranks, n_cpus, rate, codec_rates(args, codec))
    call_s = statistics.median(times[1:]) * 1e-6
    return {'transport': transport, 'codec': codec, 'size': row['size'], 'ranks': n_ranks,
            'call_ms': call_s * 1e3, 'codec_ms': codec_s * 1e3, 'wire_ms': wire_s * 1e3,
            'ratio': call_s / (codec_s + wire_s), 'first_ms': times[0] * 1e-3,
            'connections': n_ranks * (n_ranks - 1) // 2, 'rate_gb_per_s': rate / 1e9,
            'message_bytes': message, 'rank_mib': (memory / n_ranks - alone) / 2**20,
            'wrong': row['out_of_place']['nwrong'] + row['in_place']['nwrong']}


# ---- the report ----

HEAD = ('%-9s %-6s %9s %5s %10s %10s %6s %10s %6s %9s' %
        ('transport', 'codec', 'size', 'ranks', 'call (ms)', 'model (ms)', 'ratio', 'first (ms)',
         'conns', 'MiB/rank'))


def show(row, limit):
    verdict = 'ok' if row['ok'] else 'WRONG' if row['wrong'] else 'OVER %.1f' % limit
    print('%-9s %-6s %9d %5d %10.2f %10.2f %6.2f %10.1f %6d %9.2f  %s' %
          (row['transport'], row['codec'], row['size'], row['ranks'], row['call_ms'],
           row['codec_ms'] + row['wire_ms'], row['ratio'], row['first_ms'], row['connections'],
           row['rank_mib'], verdict), flush=True)


def allow_files(args):
    """A process of n ranks holds all their sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 64 + FILES_PER_LINK * max(args.ranks)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return 'needs %d open files, the limit is %d' % (needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None


def parse_args():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(root, 'build/release/perf/')
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--program', default=folder + 'all_reduce_perf')
    parser.add_argument('--codec-perf', default=folder + 'codec_perf')
    parser.add_argument('--ranks', type=int, nargs='+', default=[2, 4, 8, 16, 32, 64])
    parser.add_argument('--size', nargs='+', default=['1M', '16M'])
    parser.add_argument('--codec', nargs='+', default=['none', 'int8'])
    parser.add_argument('--transport', nargs='+', default=['loopback', 'tcp'],
                        choices=['loopback', 'tcp'])
    parser.add_argument('--iters', type=int, default=8, help='calls per row, the first included')
    parser.add_argument('--limit', type=float, default=LIMIT, help='of measured over model')
    parser.add_argument('--timeout', type=int, default=300, help='seconds for one program')
    parser.add_argument('--json', metavar='FILE')
    args = parser.parse_args()
    if args.iters < 2 or min(args.ranks) < 2:
        parser.error('--iters and --ranks must be 2 or more')
    return args


def main():
    args = parse_args()
    missing = [p for p in (args.program, args.codec_perf) if not os.access(p, os.X_OK)]
    problem = 'needs %s, built by: cmake --preset release && cmake --build --preset release' % \
        missing[0] if missing else allow_files(args)
    if problem:
        print('scale_check: skipped: ' + problem, file=sys.stderr)
        return 77
    rows = []
    print(HEAD)
    try:
        for transport in args.transport:
            for codec in args.codec:
                for size in args.size:
                    for n_ranks in args.ranks:
                        row = measure(args, transport, codec, size, n_ranks)
                        row['ok'] = row['ratio'] <= args.limit and row['wrong'] == 0
                        rows.append(row)
                        show(row, args.limit)
    except Failed as failed:
        print('scale_check: %s' % failed, file=sys.stderr)
        return 1
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as handle:
            json.dump({'cpus': len(os.sched_getaffinity(0)), 'limit': args.limit, 'rows': rows},
                      handle, indent=1)
            handle.write('\n')
    return 0 if all(row['ok'] for row in rows) else 1


if __name__ == '__main__':
    sys.exit(main())

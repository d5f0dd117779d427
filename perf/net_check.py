#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The net plugin against what the sockets below it can do: net_check.py CHECK [options].

  local     two processes on this host: throughput and CPU time per byte against iperf3 with the same
            number of sockets, each at least 0.95 times and at most 1.2 times
  latency   round trips of 8 bytes against plain sockets, at most 1.3 times
  link      over a link held to 10 Gbit/s in network namespaces (root): at least 0.95 of its payload
  lossless  over 1 Gbit/s (root), with compression on and off: gradients, LL data, random bytes

Runs alternate; medians count. Prints one line per figure; exit code 0: all hold, 1: not, 77: cannot
be measured here.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import netns

IPERF_PORT = '5299'
GRAD_HEADER_BYTES = 64  # of data/*.grad


class Judge:
    def __init__(self):
        self.bad = 0

    def at_least(self, what, value, limit):
        self.say(what, value, limit, value >= limit, 'at least')

    def at_most(self, what, value, limit):
        self.say(what, value, limit, value <= limit, 'at most')

    def say(self, what, value, limit, good, words):
        self.bad += not good
        print('%-52s %7.3f  %s %.2f  %s' % (what, value, words, limit, 'ok' if good else 'BAD'),
              flush=True)


def run_json(words, env=None, timeout=60):
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise netns.Failed('%s: %s %s' % (' '.join(words), done.stdout, done.stderr))
    return done.stdout


def reports(text):
    return {r['role']: r for r in map(json.loads, text.splitlines())}


def local_net(args):
    out = reports(run_json([args.net_perf, '--plugin=' + args.plugin,
                            '--seconds=%g' % args.seconds],
                           {'DSCOMM_SOCKET_IFNAME': 'lo', 'DSCOMM_SOCKET_NSOCKS': str(args.socks)}))
    received = out['receive']
    cpu = received['cpu_s'] + out['send']['cpu_s']
    return received['bytes'] / received['seconds'], cpu / received['bytes']


def local_iperf(args):
    server = subprocess.Popen(['iperf3', '-s', '-1', '-p', IPERF_PORT], stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    try:
        end = json.loads(run_json(['iperf3', '-c', '127.0.0.1', '-p', IPERF_PORT, '-l', '1M', '-P',
                                   str(args.socks), '-t', '%d' % max(1, args.seconds), '-J']))['end']
        server.wait(20)
    finally:
        server.kill()
        server.wait()
    total = end['sum_received']
    use = end['cpu_utilization_percent']
    return total['bits_per_second'] / 8, \
        (use['host_total'] + use['remote_total']) / 100 * total['seconds'] / total['bytes']


def alternate(args, *sides):
    runs = [[side() for side in sides] for _ in range(args.rounds)]
    return [[run[i] for run in runs] for i in range(len(sides))]


def median(values):
    return statistics.median(values)


def check_local(args, judge):
    ours, iperf = alternate(args, lambda: local_net(args), lambda: local_iperf(args))
    print('net %.2f GB/s, iperf3 %.2f GB/s' % (median([r for r, _ in ours]) / 1e9,
                                               median([r for r, _ in iperf]) / 1e9))
    judge.at_least('local, %d sockets: rate / iperf3' % args.socks,
                   median([r for r, _ in ours]) / median([r for r, _ in iperf]), 0.95)
    judge.at_most('local, %d sockets: CPU per byte / iperf3' % args.socks,
                  median([c for _, c in ours]) / median([c for _, c in iperf]), 1.2)


def check_latency(args, judge):
    def ping(words):
        return reports(run_json([args.net_perf] + words + ['--latency', '--bytes=8', '--seconds=%g'
                                                           % args.seconds],
                                {'DSCOMM_SOCKET_IFNAME': 'lo'}))['ping']['p50_us']
    ours, bare = alternate(args, lambda: ping(['--plugin=' + args.plugin]), lambda: ping(['--bare']))
    # The best of many short runs: on a busy machine the median is the scheduler's.
    print('best round trip: net %.1f us, plain sockets %.1f us' % (min(ours), min(bare)))
    judge.at_most('latency of 8 bytes / plain sockets', min(ours) / min(bare), 1.3)


def over_link(net, args, data, env):
    """Bytes per second that arrive, from rank 0 to rank 1."""
    with tempfile.TemporaryDirectory() as folder:
        env = {'DSCOMM_SOCKET_IFNAME': net.interface, 'DSCOMM_SOCKET_NSOCKS': str(args.socks), **env}
        children = [net.start(i, [args.net_perf, '--plugin=' + args.plugin, '--role=' + role,
                                  '--meet=' + os.path.join(folder, 'meet'), '--data=' + data,
                                  '--seconds=%g' % args.seconds] + args.extra, env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    for i, role in enumerate(('send', 'receive'))]
        texts = netns.wait_for(net, children, 60 + args.seconds, 'net_perf')
    received = reports(texts[1])['receive']
    return received['bytes'] / received['seconds']


def iperf_over_link(net, args):
    child = net.start(0, ['iperf3', '-t', '%d' % max(1, args.seconds), '-l', '1M', '-P',
                          str(args.socks), '-J', '-c', net.address(1)], stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE)
    end = json.loads(netns.wait_for(net, [child], 60 + args.seconds, 'iperf3')[0])['end']
    return end['sum_received']['bits_per_second'] / 8


def link_rate(rate):
    """Payload of 1448 bytes in frames that the shaper counts with 66 bytes of headers."""
    return rate / 8 * 1448 / 1514


def check_link(args, judge):
    args.extra = ['--bytes=%d' % (1 << 20)]
    net = netns.Network(2, '10gbit')
    net.serve_raw_rate()
    pairs = [(over_link(net, args, 'random', {}), iperf_over_link(net, args))
             for _ in range(args.rounds)]
    net.close()
    rates = [ours for ours, _ in pairs]
    print('net %.2f GB/s, iperf3 %.2f GB/s, the link %.2f GB/s' %
          (median(rates) / 1e9, median([iperf for _, iperf in pairs]) / 1e9, link_rate(10e9) / 1e9))
    judge.at_least('link of 10 Gbit/s: payload / link', median(rates) / link_rate(10e9), 0.95)


def write_bf16_gradients(path, name):
    """The upper halves of the float32 gradients that come with the project."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, 'data', name + '.grad'), 'rb') as handle:
        floats = handle.read()[GRAD_HEADER_BYTES:]
    halves = bytearray(len(floats) // 4 * 2)
    halves[0::2], halves[1::2] = floats[2::4], floats[3::4]
    with open(path, 'wb') as handle:
        handle.write(halves)


def check_lossless(args, judge):
    folder = tempfile.TemporaryDirectory()
    files = {name: os.path.join(folder.name, name) for name in ('lm', 'cnn')}
    for name, path in files.items():
        write_bf16_gradients(path, name)
    net = netns.Network(2, '1gbit')
    for name, data, mode, limit, extra in (
            ('bf16 gradients lm, on', files['lm'], 'on', 1.3, []),
            ('bf16 gradients cnn, on', files['cnn'], 'on', 1.3, []),
            ('bf16 gradients cnn, auto', files['cnn'], 'auto', 1.1, []),
            ('LL of bf16 gradients, on', files['cnn'] + ':ll', 'on', 1.9, ['--bytes=65536']),
            ('random bytes, on', 'random', 'on', 0.98, []),
            ('random bytes, auto', 'random', 'auto', 0.98, [])):
        args.extra = extra
        shrunk, off = alternate(args,
                                lambda: over_link(net, args, data, {'DSCOMM_NET_COMPRESS': mode}),
                                lambda: over_link(net, args, data, {'DSCOMM_NET_COMPRESS': 'off'}))
        judge.at_least('1 Gbit/s, %s / off' % name, median(shrunk) / median(off), limit)
    net.close()
    folder.cleanup()


CHECKS = {'local': check_local, 'latency': check_latency, 'link': check_link,
          'lossless': check_lossless}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    build = os.path.join(here, '..', 'build', 'release')
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('check', choices=sorted(CHECKS))
    parser.add_argument('--net-perf', default=os.path.join(build, 'perf', 'net_perf'))
    parser.add_argument('--plugin', default=os.path.join(build, 'plugin', 'libnccl-net-dscomm.so'))
    parser.add_argument('--rounds', type=int, default=11)
    parser.add_argument('--seconds', type=float, default=1)
    parser.add_argument('--socks', type=int, default=1)
    args = parser.parse_args()
    reason = netns.why_not()
    if reason and args.check in ('link', 'local', 'lossless'):
        print(reason)
        return 77
    args.plugin, args.net_perf = map(os.path.abspath, (args.plugin, args.net_perf))
    judge = Judge()
    try:
        CHECKS[args.check](args, judge)
    except netns.Failed as failed:
        print(failed)
        return 1
    return 1 if judge.bad else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The net plugin against what the sockets below it can do: net_check.py CHECK [options].

  local     two processes on this host: throughput and CPU time per byte against iperf3 with the same
            number of sockets, at least 0.95 times and at most 1.2 times, after a second to warm up.
            Each has the congestion control that it has by itself, or that of --congestion. iperf3 sleeps while nothing comes; NCCL polls, whatever the
            net: that time is shown, and is not the net's
  latency   round trips of 8 bytes against plain sockets, at most 1.3 times
  link      over a link held to 10 Gbit/s in network namespaces (root): at least 0.95 of its payload
  lossless  over 1 Gbit/s (root), with compression on and off: gradients, LL data, random bytes
  rdma      in the virtual machine of tests/vm/run.py, from one port to another: 1 MiB at least 0.9
            times as fast as perftest's ib_write_bw and ib_send_bw, small messages at most 1.3 times
            as late as ib_send_lat's

Runs alternate; medians count. Prints one line per figure; exit code 0: all hold, 1: not, 77: cannot
be measured here. With --functional one short round is made and no figure judged: only that all of
it runs and that both processes tell the same story.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import netns

GRAD_HEADER_BYTES = 64  # of data/*.grad
MESSAGE_BYTES = 1 << 20
LL_MESSAGE_BYTES = 64 << 10  # NCCL's longest


class Judge:
    def __init__(self, functional):
        self.functional = functional
        self.bad = 0

    def at_least(self, what, value, limit):
        self.say(what, value, limit, value >= limit, 'at least')

    def at_most(self, what, value, limit):
        self.say(what, value, limit, value <= limit, 'at most')

    def say(self, what, value, limit, good, words):
        self.bad += not good and not self.functional
        verdict = 'not judged' if self.functional else 'ok' if good else 'BAD'
        print('%-52s %7.3f  %s %.2f  %s' % (what, value, words, limit, verdict), flush=True)


def run_json(words, env=None, timeout=60):
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise netns.Failed('%s: %s %s' % (' '.join(words), done.stdout, done.stderr))
    return done.stdout


def reports(text):
    return {r['role']: r for r in map(json.loads, text.splitlines())}


def stream_reports(text):
    """Of both ends."""
    out = reports(text)
    sent, received = (out[role]['all_bytes'] for role in ('send', 'receive'))
    if sent != received:
        raise netns.Failed('%d bytes were sent, %d received' % (sent, received))
    for side in out.values():
        if not (side['bytes'] > 0 and side['seconds'] > 0 and 0 <= side['waited_s'] <= side['cpu_s']):
            raise netns.Failed('net_perf says what cannot be: %s' % side)
    return out


def local_net(args):
    out = stream_reports(run_json([args.net_perf, '--plugin=' + args.plugin,
                                   '--bytes=%d' % MESSAGE_BYTES, '--seconds=%g' % args.seconds,
                                   '--warm=%d' % args.warm, '--in-flight=%d' % args.in_flight],
                                  {'DSCOMM_SOCKET_IFNAME': 'lo',
                                   'DSCOMM_SOCKET_CONGESTION': args.congestion or 'auto',
                                   'DSCOMM_SOCKET_NSOCKS': str(args.socks)}))
    received = out['receive']
    cpu, waited = (sum(side[what] for side in out.values()) for what in ('cpu_s', 'waited_s'))
    return received['bytes'] / received['seconds'], (cpu - waited) / received['bytes'], waited / cpu


def free_port():
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        return str(sock.getsockname()[1])


def local_iperf(args):
    port = free_port()
    server = subprocess.Popen(['iperf3', '-s', '-1', '-p', port], stdout=subprocess.DEVNULL)
    client = ['iperf3', '-c', '127.0.0.1', '-p', port, '-l', str(MESSAGE_BYTES), '-P',
              str(args.socks), '-O', str(args.warm), '-t', '%d' % max(1, args.seconds), '-J']
    if args.congestion:
        client += ['-C', args.congestion]
    deadline = time.monotonic() + 20
    try:
        while True:
            time.sleep(0.2)  # until it listens
            try:
                end = json.loads(run_json(client))['end']
                break
            except netns.Failed as failed:
                if 'refused' not in str(failed) or time.monotonic() > deadline:
                    raise
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
    rate, cpu, waits = map(median, zip(*ours))
    iperf_rate, iperf_cpu = map(median, zip(*iperf))
    print('net %.2f GB/s, iperf3 %.2f GB/s; %.0f %% of the net\'s CPU time polled in vain' %
          (rate / 1e9, iperf_rate / 1e9, 100 * waits))
    judge.at_least('local, %d sockets: rate / iperf3' % args.socks, rate / iperf_rate, 0.95)
    judge.at_most('local, %d sockets: CPU per byte / iperf3' % args.socks, cpu / iperf_cpu, 1.2)


def check_latency(args, judge):
    def ping(words):
        return reports(run_json([args.net_perf] + words + ['--latency', '--bytes=8', '--seconds=%g'
                                                           % args.seconds],
                                {'DSCOMM_SOCKET_IFNAME': 'lo'}))['ping']['p50_us']
    ours, bare = alternate(args, lambda: ping(['--plugin=' + args.plugin]), lambda: ping(['--bare']))
    # The best of many short runs: on a busy machine the median is the scheduler's.
    print('best round trip: net %.1f us, plain sockets %.1f us' % (min(ours), min(bare)))
    judge.at_most('latency of 8 bytes / plain sockets', min(ours) / min(bare), 1.3)


def over_link(net, args, data, env, message_bytes=MESSAGE_BYTES):
    """Bytes per second that arrive, from rank 0 to rank 1."""
    with tempfile.TemporaryDirectory() as folder:
        env = {'DSCOMM_SOCKET_IFNAME': net.interface, 'DSCOMM_SOCKET_NSOCKS': str(args.socks), **env}
        children = [net.start(i, [args.net_perf, '--plugin=' + args.plugin, '--role=' + role,
                                  '--meet=' + os.path.join(folder, 'meet'), '--data=' + data,
                                  '--bytes=%d' % message_bytes, '--seconds=%g' % args.seconds], env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    for i, role in enumerate(('send', 'receive'))]
        texts = netns.wait_for(net, children, 60 + args.seconds, 'net_perf')
    received = stream_reports(''.join(texts))['receive']
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
    for name, data, mode, limit, message_bytes in (
            ('bf16 gradients lm, on', files['lm'], 'on', 1.3, MESSAGE_BYTES),
            ('bf16 gradients cnn, on', files['cnn'], 'on', 1.3, MESSAGE_BYTES),
            ('bf16 gradients cnn, auto', files['cnn'], 'auto', 1.1, MESSAGE_BYTES),
            ('LL of bf16 gradients, on', files['cnn'] + ':ll', 'on', 1.9, LL_MESSAGE_BYTES),
            ('random bytes, on', 'random', 'on', 0.98, MESSAGE_BYTES),
            ('random bytes, auto', 'random', 'auto', 0.98, MESSAGE_BYTES)):
        shrunk, off = alternate(args, *(lambda compress=compress: over_link(
            net, args, data, {'DSCOMM_NET_COMPRESS': compress}, message_bytes)
                                        for compress in (mode, 'off')))
        judge.at_least('1 Gbit/s, %s / off' % name, median(shrunk) / median(off), limit)
    net.close()
    folder.cleanup()


# ---- over RDMA ----

RDMA_PORTS = ('rxe0', 'rxe1')
# tests/vm/init.c has the packets for a port handled by the CPU of its number. Which CPUs the
# programs are on makes a round trip half as long again: both have the same, the faster ones.
RDMA_CPUS = {'rxe0': 1, 'rxe1': 0}


def on_cpu_of(port, words):
    return ['taskset', '-c', str(RDMA_CPUS[port])] + words


def finish(children, what):
    texts = []
    for child in children:
        out, err = child.communicate(timeout=100)
        if child.returncode != 0:
            raise netns.Failed('%s: %d %s %s' % (what, child.returncode, out, err))
        texts.append(out)
    return texts


def over_ports(args, options):
    """Reports of net_perf, its sender on one port, its receiver on the other."""
    with tempfile.TemporaryDirectory() as folder:
        children = [subprocess.Popen(
            on_cpu_of(port, [args.net_perf, '--plugin=' + args.plugin, '--role=' + role,
                             '--seconds=%g' % args.seconds,
                             '--meet=' + os.path.join(folder, 'meet')] + options), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, 'DSCOMM_NET': 'verbs', 'DSCOMM_IB_HCA': '=' + port})
                    for role, port in zip(('send', 'receive'), RDMA_PORTS)]
        return ''.join(finish(children, 'net_perf'))


def perftest(program, size, count, column, options=()):
    """A column of the one line of figures that a pair of the program prints."""
    port = free_port()
    words = [program, '-F', '-x', '1', '-s', str(size), '-n', str(count), '-p', port, *options]
    near, far = RDMA_PORTS
    server = subprocess.Popen(on_cpu_of(far, words + ['-d', far]), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    try:
        while True:
            time.sleep(0.3)  # until it listens
            try:
                text = run_json(on_cpu_of(near, words + ['-d', near, '127.0.0.1']))
                break
            except netns.Failed:
                if time.monotonic() > deadline:
                    raise
        server.wait(20)
    finally:
        server.kill()
        server.wait()
    lines = [line.split() for line in text.splitlines()]
    return next(float(line[column]) for line in lines if line[:1] == [str(size)])


def check_rdma(args, judge):
    def stream():
        out = stream_reports(over_ports(args, ['--bytes=%d' % MESSAGE_BYTES]))
        return out['receive']['bytes'] / out['receive']['seconds'] / (1 << 20)

    def ping():
        return reports(over_ports(args, ['--latency', '--bytes=8']))['ping']['p50_us'] / 2

    count = max(20, int(40 * args.seconds))
    ours, write, send = alternate(
        args, stream, *(lambda program=program: perftest(program, MESSAGE_BYTES, count, 3, ('-t', '8'))
                        for program in ('ib_write_bw', 'ib_send_bw')))
    print('net %.1f MiB/s, ib_write_bw %.1f, ib_send_bw %.1f' %
          (median(ours), median(write), median(send)))
    judge.at_least('RDMA, 1 MiB: rate / ib_write_bw', median(ours) / median(write), 0.9)
    judge.at_least('RDMA, 1 MiB: rate / ib_send_bw', median(ours) / median(send), 0.9)
    late, theirs = alternate(args, ping, lambda: perftest('ib_send_lat', 8, 1000, 4))
    print('one way: net %.1f us, ib_send_lat %.1f us' % (median(late), median(theirs)))
    judge.at_most('RDMA, latency of 8 bytes / ib_send_lat', median(late) / median(theirs), 1.3)


CHECKS = {'local': check_local, 'latency': check_latency, 'link': check_link,
          'lossless': check_lossless, 'rdma': check_rdma}


def why_not(check):
    """Why this check cannot be made here, or None."""
    if check == 'local':
        return None if shutil.which('iperf3') else 'needs iperf3'
    if check == 'rdma':
        good = 'DSC_VM' in os.environ and shutil.which('ib_send_bw')
        return None if good else 'needs the virtual machine of tests/vm/run.py, and perftest'
    return netns.why_not() if check in ('link', 'lossless') else None


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
    parser.add_argument('--warm', type=int, default=1, help='seconds before those of local')
    parser.add_argument('--socks', type=int, default=1)
    parser.add_argument('--in-flight', type=int, default=8, help='messages at a time in local')
    parser.add_argument('--congestion', help='congestion control in local, for both')
    parser.add_argument('--functional', action='store_true')
    args = parser.parse_args()
    if args.functional:
        args.rounds, args.seconds, args.warm = 1, 0.2, 0
    reason = why_not(args.check)
    if reason:
        print(reason)
        return 77
    args.plugin, args.net_perf = map(os.path.abspath, (args.plugin, args.net_perf))
    judge = Judge(args.functional)
    try:
        CHECKS[args.check](args, judge)
    except netns.Failed as failed:
        print(failed)
        return 1
    return 1 if judge.bad else 0


if __name__ == '__main__':
    sys.exit(main())

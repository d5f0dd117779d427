# SPDX-License-Identifier: Apache-2.0
"""Network namespaces with slow links, for programs that measure over them.

Each rank has a namespace, all on one bridge, each link held to a rate in both directions, or to none:

    ns r0: eth0 --- p0 \\
    ns r1: eth0 --- p1  \\  ns sw: bridge      tbf on every eth0 (what a rank sends)
    ns r2: eth0 --- p2  /                      and on every p    (what a rank receives)
    ns r3: eth0 --- p3 /
"""
import atexit
import json
import os
import shutil
import signal
import statistics
import subprocess
import time

# tbf cuts a GSO packet that is larger than its bucket into wire packets before it sends them, which
# costs CPU that a real network card would not take from the ranks. So a bucket holds one such packet
# with the headers of its wire packets, which count too, and no more: what lies in the bucket passes
# on credit, faster than any link of that rate. Measured at 1 Gbit/s with four flows and packets of
# 64 KiB: 72000 bytes carry as much as 256 KiB, 65536 half of it. 50 ms of queue: no drops before TCP
# notices the delay.
PACKET_BYTES = 65536
LATENCY_MS = 50


def burst_bytes(packet_bytes=PACKET_BYTES):
    """Bucket of a link whose ranks send packets of at most this length."""
    return packet_bytes * 11 // 10


class Failed(Exception):
    """A command did not do what it should."""


def sh(*words):
    """Run a command that must succeed."""
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Failed('%s: %s' % (' '.join(words), run.stderr.strip()))
    return run.stdout


def why_not():
    """Why namespaces with slow links cannot be had here (a container may forbid them), or None."""
    if os.geteuid() != 0:
        return 'needs root, for network namespaces'
    missing = [tool for tool in ('ip', 'tc', 'iperf3') if shutil.which(tool) is None]
    if missing:
        return 'needs %s (Debian: iproute2 iperf3)' % ' '.join(missing)
    name = 'dsc%dprobe' % os.getpid()
    try:
        for words in (['netns', 'add', name], ['-n', name, 'link', 'set', 'lo', 'up']):
            done = subprocess.run(['ip'] + words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return 'cannot make a network namespace: ' + done.stderr.strip()
    finally:
        subprocess.run(['ip', 'netns', 'del', name], capture_output=True, check=False)
    return None


def kill(pid):
    """A process that may have ended just now."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Children:
    """Programs that were started, each in a session of its own, so that all of it can be ended."""

    def __init__(self):
        self.children = []

    def spawn(self, words, env=None, **kwargs):
        child = subprocess.Popen(words, env={**os.environ, **(env or {})}, start_new_session=True,
                                 text=True, **kwargs)
        self.children.append(child)
        return child

    def end(self, child):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.children.remove(child)

    def end_all(self):
        for child in list(self.children):
            self.end(child)


class Network(Children):
    """The namespaces, gone when closed, whatever happened before."""
    interface = 'eth0'

    def __init__(self, n_ranks, rate, cpus=None, packet_bytes=PACKET_BYTES):
        """cpus: of each rank, as taskset -c takes them, where namespaces stand for hosts that share
        no CPUs. packet_bytes: longest packet before segmentation; less credit, more CPU time."""
        self.cpus = cpus
        self.packet_bytes = packet_bytes
        tag = 'dsc%d' % os.getpid()
        self.switch = tag + 'sw'
        self.prefix = tag + 'r'  # of the ranks' names; their number follows
        self.ranks = ['%s%d' % (self.prefix, i) for i in range(n_ranks)]
        super().__init__()
        atexit.register(self.close)
        self.make(self.switch)
        sh('ip', '-n', self.switch, 'link', 'add', 'br0', 'type', 'bridge')
        sh('ip', '-n', self.switch, 'addr', 'add', self.address(-1) + '/24', 'dev', 'br0')
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
        for netns, device in ((name, 'eth0'), (self.switch, port)) if rate else ():
            sh('ip', '-n', netns, 'link', 'set', 'dev', device, 'gso_max_size',
               str(self.packet_bytes))
            sh('tc', '-n', netns, 'qdisc', 'add', 'dev', device, 'root', 'tbf', 'rate', rate,
               'burst', str(burst_bytes(self.packet_bytes)), 'latency', '%dms' % LATENCY_MS)

    @staticmethod
    def address(i):
        """Of rank i; -1: of the bridge, where a launcher of all ranks sits."""
        return '10.77.0.%d' % (i + 1 if i >= 0 else 254)

    def start(self, i, words, env=None, **kwargs):
        """A child in the namespace of rank i, or -1: of the bridge."""
        name = self.ranks[i] if i >= 0 else self.switch
        pinned = ['taskset', '-c', self.cpus[i]] if self.cpus and i >= 0 else []
        return self.spawn(['ip', 'netns', 'exec', name] + pinned + words, env, **kwargs)

    def tx_bytes(self, i):
        stats = json.loads(sh('ip', '-n', self.ranks[i], '-j', '-s', 'link', 'show', 'eth0'))
        return stats[0]['stats64']['tx']['bytes']

    def serve_raw_rate(self):
        """Starts what raw_rate() needs on the other end of each link."""
        for i in range(len(self.ranks)):
            self.start(i, ['iperf3', '-s'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)

    def raw_rate(self, seconds):
        """TCP payload bytes per second of a link while all links are full both ways: a ring of
        flows at once, their mean."""
        n_ranks = len(self.ranks)
        words = ['iperf3', '-t', str(seconds), '-O', '0.5', '-J', '-c']
        clients = [self.start(i, words + [self.address((i + 1) % n_ranks)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for i in range(n_ranks)]
        ends = [json.loads(text)['end'] for text in wait_for(self, clients, seconds + 20, 'iperf3')]
        return statistics.mean(end['sum_received']['bits_per_second'] / 8 for end in ends)

    def close(self):
        self.end_all()
        for name in self.ranks + [self.switch]:
            # A daemon has left its session; in a namespace of ours everything is ours.
            inside = subprocess.run(['ip', 'netns', 'pids', name], capture_output=True, text=True,
                                    check=False)
            for pid in inside.stdout.split():
                kill(int(pid))
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

# SPDX-License-Identifier: Apache-2.0
"""The sides of a comparison: their processes, started once, and how they are told what to do.

Ranks wait for commands on a unix socket (compare_worker.c). A place says where they run: Here, or
netns.Network. Both start and end children in the same way.
"""
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
PERF = os.path.dirname(HERE)
sys.path[:0] = [PERF, os.path.join(PERF, 'data')]
from grad_format import read_grad  # noqa: E402
from netns import Children, Failed  # noqa: E402

DATA = os.path.join(PERF, 'data', 'lm.grad')
START_S = 60     # torch alone needs some seconds
COMMAND_MAX_S = 150  # of an answer; a worker gives up later (LIMIT_S of compare_worker.c)
LEAVE_S = 10
TAIL_LINES = 20  # of a side's stderr, in an error
# Where a vector starts in the data: before lie embeddings of words that no batch held, all zero.
FIRST_ELEM = 24576
LAUNCHER = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_', 'OMPI_', 'PMI_', 'PMIX_', 'SLURM_',
            'TORCHELASTIC_')


def clean_environment():
    """Forgets what another launcher set; ours sets its own."""
    for name in list(os.environ):
        if name.startswith(LAUNCHER):
            del os.environ[name]


class Here(Children):
    """This machine as it is; what netns.Network is for links."""
    interface = None

    @staticmethod
    def address(_):
        return '127.0.0.1'

    def start(self, _, words, env=None, **kwargs):
        return self.spawn(words, env, **kwargs)

    def close(self):
        self.end_all()


def free_port():
    """A port whose successor is free too: DSComm meets at MASTER_PORT + 1."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(('', 0))
            port = first.getsockname()[1]
            try:
                second.bind(('', port + 1))
                return port
            except OSError:
                continue
    raise Failed('no two free ports in a row')


class Side:
    """The ranks of one side."""

    def __init__(self, name, log, timeout_s):
        self.name = name
        self.timeout_s = timeout_s  # of an answer
        self.log = log  # path; what the ranks write
        self.children = []
        self.conns = {}  # rank -> the two ends of its socket as files
        self.version = '?'

    def tail(self):
        with open(self.log, encoding='utf-8', errors='replace') as handle:
            lines = handle.read().splitlines()[-TAIL_LINES:]
        return ''.join('\n    ' + line for line in lines) or ' nothing'

    def fail(self, what):
        raise Failed('side %s: %s; it wrote:%s' % (self.name, what, self.tail()))

    def ask(self, line):
        """Sends all ranks a command; their answers by rank."""
        deadline = time.monotonic() + self.timeout_s
        for rank, conn in self.conns.items():
            try:
                conn.sendall(line.encode() + b'\n')
            except OSError as error:
                self.fail('rank %d is gone (%s)' % (rank, error))
        return [self.answer(rank, line, deadline) for rank in sorted(self.conns)]

    def answer(self, rank, line, deadline):
        try:
            return read_line(self.conns[rank], deadline)
        except socket.timeout:
            return self.fail('rank %d did not answer "%s" in %d s' % (rank, line, self.timeout_s))
        except (EOFError, OSError):
            return self.fail('rank %d ended during "%s"' % (rank, line))

    def knows(self, codec):
        return all(answer['known'] for answer in self.ask('know ' + codec))

    def run(self, codec, n_bytes, n_warm, n_calls):
        """Calls in all ranks: microseconds of the slowest rank of each, and what it took."""
        answers = self.ask('run %s %d %d %d' % (codec, n_bytes, n_warm, n_calls))
        sent = [a['sent'] for a in answers]
        return {'times_us': [max(t) / 1e3 for t in zip(*(a['times_ns'] for a in answers))],
                'sent': sum(sent) / len(sent) / n_calls if min(sent) >= 0 else None,
                'rss_kib': max(a['rss_kib'] for a in answers),
                'err': max(a['err'] for a in answers)}


def read_line(conn, deadline):
    """One line of JSON. Answers come one at a time, so nothing may follow it."""
    data = b''
    while not data.endswith(b'\n'):
        conn.settimeout(max(0.01, deadline - time.monotonic()))
        part = conn.recv(1 << 16)
        if not part:
            raise EOFError
        data += part
    return json.loads(data)


class Stage:
    """Sides in one place, on the same data. Closing it ends all."""

    def __init__(self, place, build, n_ranks, timeout_s):
        self.place, self.build, self.n_ranks, self.timeout_s = place, build, n_ranks, timeout_s
        self.sides = {}
        # In memory: a page that is written to disk now and then would disturb the barrier.
        shm = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix='dscomm-compare-%d-' % os.getpid(), dir=shm)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(self.folder, 'control'))
        self.listener.listen(64)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.close(0 if failure else LEAVE_S)

    def write_shared(self, path):
        """struct compare_shared of compare_worker.h."""
        sets = np.roll(read_grad(DATA).grads[:self.n_ranks], -FIRST_ELEM, axis=1).astype('<f4')
        if len(sets) < self.n_ranks:
            raise Failed('%d ranks, allowed: 1 to %d, the sets of %s' %
                         (self.n_ranks, len(sets), DATA))
        header = bytes(128) + struct.pack('<QQ', self.n_ranks, sets.shape[1])
        with open(path, 'wb') as handle:
            handle.write(header.ljust(4096, b'\0'))
            handle.write(sets.tobytes())
            handle.write((-sets).tobytes())

    def add(self, name, start):
        """Starts a side: start(stage, last words of each worker, stdin and outputs) -> children."""
        side = Side(name, os.path.join(self.folder, name + '.log'), self.timeout_s)
        shared = os.path.join(self.folder, name + '.shared')
        self.write_shared(shared)
        self.sides[name] = side
        with open(side.log, 'wb') as log:
            pipes = {'stdin': subprocess.DEVNULL, 'stdout': log, 'stderr': log}
            side.children = start(self, [os.path.join(self.folder, 'control'), shared, name], pipes)
        deadline = time.monotonic() + START_S
        while len(side.conns) < self.n_ranks:
            self.accept(side, deadline)
        return side

    def accept(self, side, deadline):
        self.listener.settimeout(0.2)
        try:
            conn, _ = self.listener.accept()
        except socket.timeout:
            ended = [c.returncode for c in side.children if c.poll() is not None]
            if ended:
                side.fail('a process ended at the start, exit code %d' % ended[0])
            if time.monotonic() > deadline:
                side.fail('%d of %d ranks came in %d s' %
                          (len(side.conns), self.n_ranks, START_S))
            return
        hello = read_line(conn, deadline)
        if hello['side'] != side.name:
            side.fail('a rank of %s came' % hello['side'])
        side.conns[hello['rank']] = conn
        side.version = hello['version']

    def leave(self, side, patience_s):
        """Ranks end when their sockets close. Who stays is asked to end, so that a launcher takes
        its daemons along, then killed."""
        for conn in side.conns.values():
            conn.close()
        deadline = time.monotonic() + patience_s
        for patience in (deadline, deadline + LEAVE_S):
            for child in side.children:
                try:
                    child.wait(max(0.01, patience - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.terminate()
        for child in side.children:
            self.place.end(child)

    def close(self, patience_s):
        for side in self.sides.values():
            self.leave(side, patience_s)
        self.sides = {}
        self.listener.close()
        self.place.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- how each side starts ----

def start_ranks(stage, words, pipes, env, env_of_rank=lambda rank: {}):
    """One process per rank, told by torchrun's variables who it is."""
    port = str(free_port())
    return [stage.place.start(rank, words, {
        'RANK': str(rank), 'WORLD_SIZE': str(stage.n_ranks),
        'MASTER_ADDR': stage.place.address(0), 'MASTER_PORT': port, **env, **env_of_rank(rank)},
        **pipes)
        for rank in range(stage.n_ranks)]


def dscomm(transport, settings=None, hosts=None):
    """The library's defaults, but for the transport that is to be measured and DSCOMM_* settings.
    hosts: the name of each rank's host, where namespaces stand for several."""
    def env_of_rank(rank):
        return {'DSCOMM_HOST_ID': hosts[rank]} if hosts else {}

    def start(stage, words, pipes):
        env = {'DSCOMM_TRANSPORT': transport, **(settings or {})}
        if stage.place.interface:
            env['DSCOMM_SOCKET_IFNAME'] = stage.place.interface
        return start_ranks(stage, [os.path.join(stage.build, 'compare_dscomm')] + words, pipes, env,
                           env_of_rank)
    return start


def gloo(stage, words, pipes):
    env = {'GLOO_SOCKET_IFNAME': stage.place.interface} if stage.place.interface else {}
    library = os.path.join(stage.build, 'libcompare_worker.so')
    return start_ranks(stage, [sys.executable, os.path.join(HERE, 'gloo_worker.py'), library] +
                       words, pipes, env)


def open_mpi(*options):
    """mpirun on this machine, at its defaults but for the options given."""
    def start(stage, words, pipes):
        crowded = ['--oversubscribe'] if os.cpu_count() < stage.n_ranks else []
        return [stage.place.start(0, ['mpirun', '-np', str(stage.n_ranks), *crowded, *options,
                                      os.path.join(stage.build, 'compare_mpi')] + words,
                                  mpi_env(stage), **pipes)]
    return start


def open_mpi_over_links(stage, words, pipes):
    """mpirun beside the bridge, its daemons in the namespaces as if on hosts. They do not see that
    all share the cores of one machine, so ranks that wait are told to let others run."""
    hosts = ','.join(stage.place.address(rank) for rank in range(stage.n_ranks))
    options = ['--host', hosts, '--mca', 'plm_rsh_agent', os.path.join(HERE, 'netns_rsh.sh'),
               '--mca', 'plm_rsh_no_tree_spawn', '1', '--mca', 'mpi_yield_when_idle', '1']
    env = {**mpi_env(stage), 'COMPARE_NETNS': stage.place.prefix}
    return [stage.place.start(-1, ['mpirun', '-np', str(stage.n_ranks), *options,
                                   os.path.join(stage.build, 'compare_mpi')] + words, env, **pipes)]


def mpi_env(stage):
    """Open MPI refuses root without being asked twice; its session files go with the folder."""
    return {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
            'TMPDIR': stage.folder}

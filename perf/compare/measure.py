# SPDX-License-Identifier: Apache-2.0
"""What is measured: the parts of a comparison, each side in turn with all others.

A part runs its jobs (a side with a codec) in rounds, forwards and backwards, so that a slow drift
of the machine meets all. A job's time is the median over rounds of the median over a round's calls.
"""
import os
import statistics
import sys
import time

import sides
from netns import LATENCY_MS, Failed, Network, burst_bytes

CODECS = ('none', 'bf16', 'fp16', 'int8', 'fp8', 'fp8:e5m2', 'int4', 'topk:0.01', 'topk:0.001,int8')
SLOW_CODECS = ('topk:0.01', 'topk:0.001,int8')
SLOW_RATE = '100mbit'
SLOW_ROUNDS = 3  # of one call, since gloo's takes seconds
LINK_RANKS = 4
LOCAL_RANKS = 2
MIB = 1 << 20

# A wrong answer is not slow or fast. Largest relative L2 error of a call, with feedback; a bound
# for blunders: tests/ holds codecs to what they promise. What top-k sends waited for many calls.
ERR_MAX = {'none': 1e-6, 'bf16': 0.02, 'fp16': 0.01, 'int8': 0.05, 'fp8': 0.3, 'int4': 0.5,
           'topk': 4.0, 'auto': 0.05}  # of auto: what the budget `balanced` admits


def say(text):
    print('# ' + text, file=sys.stderr, flush=True)


def check_output(side, codec, n_bytes, err):
    allowed = ERR_MAX[codec.split(':')[0]]
    if not err <= allowed:
        raise Failed('side %s, codec %s, %d bytes: relative error %.3g of the output, allowed: %.3g'
                     % (side, codec, n_bytes, err, allowed))


def one_job(stage, job, n_bytes, n_warm, n_calls):
    side, codec = job
    place = stage.place
    on_links = isinstance(place, Network)
    before = [place.tx_bytes(i) for i in range(stage.n_ranks)] if on_links else []
    result = stage.sides[side].run(codec, n_bytes, n_warm, n_calls)
    check_output(side, codec, n_bytes, result['err'])
    result['tx_bytes'] = None
    if on_links:
        tx = sum(place.tx_bytes(i) for i in range(stage.n_ranks)) - sum(before)
        result['tx_bytes'] = tx / stage.n_ranks / (n_warm + n_calls)
    return result


def summary(job, n_bytes, results):
    def median(key):
        values = [r[key] for r in results]
        return None if None in values else statistics.median(values)
    rounds = [statistics.median(r['times_us']) for r in results]
    return {'side': job[0], 'codec': job[1], 'bytes': n_bytes,
            'median_us': statistics.median(rounds), 'rounds_us': [round(us, 3) for us in rounds],
            'calls': len(results[0]['times_us']), 'sent': median('sent'),
            'tx_bytes': median('tx_bytes'), 'rss_kib': median('rss_kib'),
            'err': max(r['err'] for r in results)}


def alternate(stage, jobs, n_bytes, n_rounds, n_warm, n_calls, before_round=None):
    """All jobs in each round; a row per job."""
    results = {job: [] for job in jobs}
    for i in range(n_rounds):
        if before_round:
            before_round()
        for job in jobs if i % 2 == 0 else reversed(jobs):
            results[job].append(one_job(stage, job, n_bytes, n_warm, n_calls))
    return [summary(job, n_bytes, results[job]) for job in jobs]


def start(stage, starters):
    for name, starter in starters.items():
        side = stage.add(name, starter)
        say('%s: %d ranks, %s' % (name, stage.n_ranks, side.version))


def known_codecs(side, wanted):
    known = [codec for codec in wanted if side.knows(codec)]
    absent = [codec for codec in wanted if codec not in known]
    if absent:
        say('this build has no codec ' + ' '.join(absent))
    return known, absent


def measure_over_links(args, rate, others, codecs, shape):
    """Four ranks, links of that rate, TCP. shape: bytes, rounds, calls to warm up, timed calls."""
    raw = []
    net = Network(LINK_RANKS, rate)
    with sides.Stage(net, args.build, LINK_RANKS, args.timeout) as stage:
        net.serve_raw_rate()
        start(stage, {'dscomm': sides.dscomm('tcp'), **others})
        known, absent = known_codecs(stage.sides['dscomm'], codecs)
        jobs = [(name, 'none') for name in others] + [('dscomm', codec) for codec in known]
        say('%d bytes over links of %s, %d rounds' % (shape[0], rate, shape[1]))
        rows = alternate(stage, jobs, *shape,
                         before_round=lambda: raw.append(net.raw_rate(args.raw_seconds)))
        versions = {name: side.version for name, side in stage.sides.items()}
    return {'ranks': LINK_RANKS, 'rate': rate, 'burst_bytes': burst_bytes(),
            'latency_ms': LATENCY_MS, 'raw_bytes_per_s': statistics.median(raw),
            'raw_rounds': raw, 'rounds': shape[1], 'absent': absent, 'versions': versions,
            'rows': rows}


def measure_links(args):
    return measure_over_links(args, args.rate, {'gloo': sides.gloo,
                                                'open_mpi': sides.open_mpi_over_links},
                              args.codecs, (args.link_bytes, args.rounds, 1, args.link_calls))


def measure_slow(args):
    """Without a call to warm up: connections are there after the first round, which is one of
    three."""
    return measure_over_links(args, SLOW_RATE, {'gloo': sides.gloo}, list(SLOW_CODECS),
                              (args.slow_bytes, SLOW_ROUNDS, 0, 1))


def shape_of_calls(n_bytes, rounds):
    """Rounds, warm-up and timed calls per round: small calls are many, because each is noisy."""
    n_calls = max(3, min(300, 32 * MIB // n_bytes))
    return (max(rounds, 11) if n_bytes <= MIB and rounds >= 5 else rounds, max(1, n_calls // 10),
            n_calls)


def measure_local(args):
    """Two ranks on this machine, links as fast as it copies."""
    rows = []
    with sides.Stage(sides.Here(), args.build, LOCAL_RANKS, args.timeout) as stage:
        start(stage, {'dscomm_shm': sides.dscomm('shm'), 'dscomm_tcp': sides.dscomm('tcp'),
                      'open_mpi_shm': sides.open_mpi(),
                      'open_mpi_tcp': sides.open_mpi('--mca', 'btl', 'tcp,self'),
                      'gloo': sides.gloo})
        known, absent = known_codecs(stage.sides['dscomm_tcp'], ['int8'])
        jobs = [(name, 'none') for name in stage.sides] + [('dscomm_tcp', codec) for codec in known]
        for n_bytes in args.sizes:
            say('%d bytes on this machine' % n_bytes)
            rows += alternate(stage, jobs, n_bytes, *shape_of_calls(n_bytes, args.rounds))
        versions = {name: side.version for name, side in stage.sides.items()}
    return {'ranks': LOCAL_RANKS, 'rounds': args.rounds, 'absent': absent, 'versions': versions,
            'rows': rows}


PARTS = {'links': measure_links, 'slow': measure_slow, 'local': measure_local}


def cpu_model():
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as handle:
            for line in handle:
                if line.startswith('model name'):
                    return line.split(':', 1)[1].strip()
    except OSError:
        pass
    return os.uname().machine


def busy_share():
    """Share of the cores that others use while no side runs, over a second."""
    def ticks():
        with open('/proc/stat', encoding='ascii') as handle:
            fields = [int(word) for word in handle.readline().split()[1:]]
        return sum(fields), fields[3] + fields[4]  # all, idle and waiting for a disk
    total, idle = ticks()
    time.sleep(1)
    total_then, idle_then = ticks()
    return round(1 - (idle_then - idle) / max(1, total_then - total), 3)


def machine():
    return {'cpu': cpu_model(), 'cores': os.cpu_count(), 'kernel': os.uname().release,
            'busy_before': busy_share(),
            'env': {k: v for k, v in sorted(os.environ.items()) if k.startswith('DSCOMM_') and
                    k != 'DSCOMM_SECRET'}}

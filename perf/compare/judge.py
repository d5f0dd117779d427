# SPDX-License-Identifier: Apache-2.0
"""Figures of a comparison and what is required of them.

A figure is measured, then judged: `goal` reached, `pass` reached, MISSED, or `absent` where what it
needs was asked for and is not in the build. A part that did not run has no figures. MISSED and
absent make the exit code 1.
"""
import math

# At least: pass, goal.
SPEED_OVER_GLOO = {'int8': (3.4, 3.6), 'int4': (6.0, 6.5), 'topk:0.01': (5.0, 7.0)}
SLOW_SPEED_OVER_GLOO = {'topk:0.01': (25.0, None)}
SENT_PERCENT = {'topk:0.01': 3.0, 'topk:0.001,int8': 0.5}  # at most, of fp32's bytes
WIRE_TIMES = {'none': 1.08}  # at most; other codecs:
WIRE_TIMES_DEFAULT = 1.15
LOCAL_MEAN, LOCAL_WORST, LOCAL_INT8 = 1.10, 1.25, 0.5  # at most


def row_of(part, side, codec, n_bytes=None):
    for row in part['rows']:
        if (row['side'], row['codec']) == (side, codec) and n_bytes in (None, row['bytes']):
            return row
    return None


def sizes_of(part):
    return sorted({row['bytes'] for row in part['rows']})


def time_ratio(part, above, below, n_bytes):
    """Time of one (side, codec) over that of another; None where one is missing."""
    rows = [row_of(part, side, codec, n_bytes) for side, codec in (above, below)]
    return rows[0]['median_us'] / rows[1]['median_us'] if all(rows) else None


def wire_times(part, codec):
    """Time over (bytes sent per rank / raw rate of the links); None without the codec."""
    row = row_of(part, 'dscomm', codec)
    return row['median_us'] * 1e-6 / (row['sent'] / part['raw_bytes_per_s']) if row else None


def verdict(value, is_at_most, passes, goal):
    if value is None:
        return 'absent'

    def holds(limit):
        return value <= limit if is_at_most else value >= limit
    if not holds(passes):
        return 'MISSED'
    return 'goal' if goal is not None and holds(goal) else 'pass'


def figure(name, value, is_at_most, passes, goal=None):
    return {'name': name, 'value': value, 'is_at_most': is_at_most, 'pass': passes, 'goal': goal,
            'verdict': verdict(value, is_at_most, passes, goal)}


def asked_for(part):
    measured = [row['codec'] for row in part['rows'] if row['side'] == 'dscomm']
    return measured + part['absent']


def sent_percent(part, codec):
    """Of the least that a rank sends without a codec: 2(n-1)/n vectors. None without the codec."""
    row = row_of(part, 'dscomm', codec)
    least = 2 * (part['ranks'] - 1) / part['ranks']
    return 100 * row['sent'] / (least * row['bytes']) if row else None


def over_gloo(part, name, limits):
    n_bytes = sizes_of(part)[0]
    for codec, (passes, goal) in limits.items():
        if codec in asked_for(part):
            yield figure('%s: gloo fp32 / DSComm %s' % (name, codec),
                         time_ratio(part, ('gloo', 'none'), ('dscomm', codec), n_bytes), False,
                         passes, goal)


def link_figures(part):
    yield from over_gloo(part, 'links', SPEED_OVER_GLOO)
    for codec in asked_for(part):
        if codec in SENT_PERCENT:
            yield figure('links: %s, bytes sent / fp32, %%' % codec, sent_percent(part, codec), True,
                         SENT_PERCENT[codec])
        if not codec.startswith('topk'):  # so few bytes that computing sets the time, not the wire
            yield figure('links: %s, time / wire time' % codec, wire_times(part, codec), True,
                         WIRE_TIMES.get(codec, WIRE_TIMES_DEFAULT))


def local_figures(part):
    sizes = sizes_of(part)
    for transport in ('shm', 'tcp'):
        ours, theirs = ('dscomm_' + transport, 'none'), ('open_mpi_' + transport, 'none')
        ratios = [time_ratio(part, ours, theirs, n_bytes) for n_bytes in sizes]
        name = 'local: none over %s / Open MPI, ' % transport
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield figure(name + 'geometric mean', mean, True, LOCAL_MEAN)
        yield figure(name + 'worst size', max(ratios), True, LOCAL_WORST)
    yield figure('local: int8 over tcp / Open MPI, largest size',
                 time_ratio(part, ('dscomm_tcp', 'int8'), ('open_mpi_tcp', 'none'), sizes[-1]),
                 True, LOCAL_INT8)


def figures_of(result):
    found = []
    if result.get('links'):
        found += link_figures(result['links'])
    if result.get('slow'):
        found += over_gloo(result['slow'], 'slow', SLOW_SPEED_OVER_GLOO)
    if result.get('local'):
        found += local_figures(result['local'])
    return found


def all_hold(figures):
    return all(f['verdict'] in ('pass', 'goal') for f in figures)

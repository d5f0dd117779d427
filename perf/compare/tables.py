# SPDX-License-Identifier: Apache-2.0
"""Tables of a result, in Markdown: the same on the screen and in docs/perf.md."""
import re

import judge

SIDES = {'gloo': 'gloo', 'open_mpi': 'Open MPI', 'dscomm': 'DSComm'}
SHORT = {1 << 10: 'KiB', 1 << 20: 'MiB', 1 << 30: 'GiB'}


def size_text(n_bytes):
    for unit in sorted(SHORT, reverse=True):
        if n_bytes >= unit and n_bytes % unit == 0:
            return '%d %s' % (n_bytes // unit, SHORT[unit])
    return '%d B' % n_bytes


def time_text(us):
    """Three digits: nobody measures more here."""
    unit, value = ('ms', us / 1e3) if us >= 1000 else ('us', us)
    return '%.*f %s' % (0 if value >= 100 else 1 if value >= 10 else 2, value, unit)


def ratio_text(value):
    return '-' if value is None else '%.2f' % value


def rate_text(rate):
    """tc's 1gbit as 1 Gbit/s; what is not of that form stays."""
    found = re.fullmatch(r'([\d.]+)([kmg])bit', rate)
    return '%s %sbit/s' % (found.group(1), found.group(2).upper()) if found else rate


def table(head, rows):
    """Aligned, so that it reads well as text too."""
    lines = [head] + rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def text(cells):
        return '| %s |' % ' | '.join(c.ljust(w) for c, w in zip(cells, widths))
    return '\n'.join([text(head), '|%s|' % '|'.join('-' * (w + 2) for w in widths)] +
                     [text(row) for row in rows])


def figure_table(figures):
    rows = []
    for f in figures:
        sign = '<=' if f['is_at_most'] else '>='
        rows.append([f['name'], '-' if f['value'] is None else '%.3f' % f['value'],
                     '%s %.2f' % (sign, f['pass']),
                     '-' if f['goal'] is None else '%s %.2f' % (sign, f['goal']), f['verdict']])
    return table(['figure', 'measured', 'pass', 'goal', 'verdict'], rows)


def link_row(part, row):
    gloo = judge.row_of(part, 'gloo', 'none')
    is_ours = row['side'] == 'dscomm'
    sent = row['sent'] if row['sent'] is not None else row['tx_bytes']
    return [SIDES[row['side']], row['codec'] if is_ours else 'fp32', time_text(row['median_us']),
            ratio_text(gloo['median_us'] / row['median_us']),
            '%.2f' % (sent / 1e6) + ('' if is_ours else ' *'),
            ratio_text(judge.wire_times(part, row['codec']) if is_ours else None),
            '%.1e' % row['err'], '%.0f' % (row['rss_kib'] / 1024)]


def link_table(part):
    rows = [link_row(part, row) for row in part['rows']]
    rows += [['DSComm', codec, 'not in this build'] + ['-'] * 5 for codec in part['absent']]
    return table(['side', 'codec', 'time', 'gloo / this', 'sent per rank (MB)', 'time / wire time',
                  'err', 'memory (MiB)'], rows)


def local_row(part, n_bytes):
    def time_of(side, codec='none'):
        row = judge.row_of(part, side, codec, n_bytes)
        return time_text(row['median_us']) if row else '-'
    cells = [size_text(n_bytes)]
    for transport in ('shm', 'tcp'):
        ours, theirs = 'dscomm_' + transport, 'open_mpi_' + transport
        cells += [time_of(ours), time_of(theirs),
                  ratio_text(judge.time_ratio(part, (ours, 'none'), (theirs, 'none'), n_bytes))]
    return cells + [time_of('dscomm_tcp', 'int8'),
                    ratio_text(judge.time_ratio(part, ('dscomm_tcp', 'int8'),
                                                ('open_mpi_tcp', 'none'), n_bytes)),
                    time_of('gloo')]


def local_table(part):
    return table(['size', 'none, shm', 'Open MPI, shm', 'ratio', 'none, tcp', 'Open MPI, tcp',
                  'ratio', 'int8, tcp', 'int8 / Open MPI', 'gloo'],
                 [local_row(part, n_bytes) for n_bytes in judge.sizes_of(part)])


def link_text(part):
    raw = part['raw_bytes_per_s'] / 1e6
    return ('%d ranks over links of %s (raw TCP payload rate %.1f MB/s), %s of fp32, medians of %d '
            'rounds:\n\n%s' % (part['ranks'], rate_text(part['rate']), raw,
                               size_text(judge.sizes_of(part)[0]), part['rounds'],
                               link_table(part)))


def local_text(part):
    return ('%d ranks on this machine, links as fast as it copies, medians of %d rounds (11 up to '
            '1 MiB in a full run):\n\n%s' % (part['ranks'], part['rounds'], local_table(part)))


def versions_text(result):
    names = {}
    for part in filter(None, (result.get(name) for name in ('links', 'slow', 'local'))):
        for side, version in part['versions'].items():
            names[version if not side.startswith('dscomm') else 'DSComm ' + version] = True
    machine = result['machine']
    return ('%s; %d cores (%s), Linux %s. Others used %.0f%% of the cores before and %.0f%% after.'
            % (', '.join(names), machine['cores'], machine['cpu'], machine['kernel'],
               100 * machine['busy_before'], 100 * machine['busy_after']))


def report(result, figures):
    parts = [versions_text(result)]
    parts += [link_text(result[name]) for name in ('links', 'slow') if result.get(name)]
    if result.get('local'):
        parts.append(local_text(result['local']))
    return '\n\n'.join(parts + [figure_table(figures)]) + '\n'

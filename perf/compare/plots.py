# SPDX-License-Identifier: Apache-2.0
"""Plots of a result as SVG. The same result and matplotlib give the same bytes."""
import os

import matplotlib

matplotlib.use('svg')
import matplotlib.pyplot as plt  # noqa: E402

import judge  # noqa: E402
import tables  # noqa: E402

COLOURS = {'gloo': '#9a7b0a', 'open_mpi': '#8a3f8f', 'dscomm': '#1b6ca8', 'int8': '#c1571a',
           'limit': '#555555'}
matplotlib.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'dscomm', 'font.size': 9,
                            'font.family': 'DejaVu Sans', 'axes.spines.top': False,
                            'axes.spines.right': False})


def save(figure, path):
    figure.savefig(path, metadata={'Date': None}, facecolor='white')
    plt.close(figure)
    with open(path, encoding='utf-8') as handle:
        lines = [line.rstrip() for line in handle]
    with open(path, 'w', encoding='utf-8') as handle:
        handle.write('\n'.join(lines) + '\n')


def draw_links(part, path):
    """A bar per side and codec: time; the mark: what its bytes need on the wire at least."""
    rows = part['rows']
    figure, axes = plt.subplots(figsize=(7.6, 0.34 * len(rows) + 1.1), layout='constrained')
    for y, row in enumerate(rows):
        ms = row['median_us'] / 1e3
        axes.barh(y, ms, 0.66, color=COLOURS[row['side']])
        axes.annotate(tables.time_text(row['median_us']), (ms, y), (4, 0), va='center',
                      textcoords='offset points')
        if row['side'] == 'dscomm':
            wire_ms = row['sent'] / part['raw_bytes_per_s'] * 1e3
            axes.plot([wire_ms, wire_ms], [y - 0.33, y + 0.33], color='white', linewidth=1.5)
    names = ['%s %s' % (tables.SIDES[r['side']], r['codec'] if r['side'] == 'dscomm' else 'fp32')
             for r in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel('ms; white mark: bytes sent / raw rate of the links')
    axes.margins(x=0.12)
    axes.set_title('AllReduce of %s over links of %s, %d ranks' % (
        tables.size_text(judge.sizes_of(part)[0]), tables.rate_text(part['rate']), part['ranks']),
        loc='left', fontsize=10)
    save(figure, path)


LOCAL_LINES = (  # label, ours, theirs, colour, style
    ('none over shm', ('dscomm_shm', 'none'), 'open_mpi_shm', 'dscomm', 'o-'),
    ('none over TCP', ('dscomm_tcp', 'none'), 'open_mpi_tcp', 'dscomm', 's--'),
    ('int8 over TCP', ('dscomm_tcp', 'int8'), 'open_mpi_tcp', 'int8', 's-'),
    ('gloo (TCP)', ('gloo', 'none'), 'open_mpi_tcp', 'gloo', '^:'),
)


def draw_local(part, path):
    """Time over Open MPI's on the same kind of link, by size: below 1 is faster."""
    sizes = judge.sizes_of(part)
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout='constrained')
    for label, ours, theirs, colour, style in LOCAL_LINES:
        points = [(size, judge.time_ratio(part, ours, (theirs, 'none'), size)) for size in sizes]
        points = [point for point in points if point[1] is not None]
        axes.plot(*zip(*points), style, color=COLOURS[colour], label=label, markersize=4.5)
    axes.axhline(1, color=COLOURS['limit'], linewidth=0.8)
    axes.axhline(judge.LOCAL_WORST, color=COLOURS['limit'], linewidth=0.8, linestyle=':',
                 label='limit of a size for none')
    axes.set_xscale('log', base=2)
    axes.set_xticks(sizes, [tables.size_text(size) for size in sizes])
    axes.minorticks_off()
    axes.set_yscale('log', base=2)
    axes.yaxis.set_major_formatter(lambda y, _: '%g' % y)
    axes.set_ylabel('time / time of Open MPI')
    axes.legend(frameon=False, ncols=3, fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.1))
    axes.set_title('AllReduce of fp32 between %d ranks on one machine' % part['ranks'], loc='left',
                   fontsize=10)
    save(figure, path)


def draw(result, folder):
    """Paths of what was drawn."""
    paths = []
    for name, function in (('links', draw_links), ('local', draw_local)):
        if result.get(name):
            paths.append(os.path.join(folder, 'compare_%s.svg' % name))
            function(result[name], paths[-1])
    return paths

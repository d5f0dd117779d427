#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Table and plot of docs/codecs.md from what codec_error measures.

    docs/figures/draw_codecs.py build/release/perf/codec_error           writes both
    docs/figures/draw_codecs.py --check build/release/perf/codec_error   are all codecs and sets there?
"""
import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, '..', 'codecs.md')
FIGURE = os.path.join(HERE, 'codec_errors.svg')
BEGIN, END = '<!-- measured: begin -->\n', '<!-- measured: end -->\n'
PLOTTED = ('lm', 'cnn', 'normal', '1 in 100 times 10', '1 in 1000 times 1000', 't, nu = 3')
SHOWN = ('bf16', 'int8', 'fp8', 'fp8:e5m2', 'int4', 'int4:signed', 'int4:block=16', 'int4,hadamard',
         'int4,sr')


def measure(program):
    """{codec: {'ratio', 'e0', set: (error, cosine, ratio)}} and the sets, in the program's order.

    A codec's own ratio is that of the first set: only packed messages have others."""
    text = subprocess.run([program], check=True, stdout=subprocess.PIPE, timeout=120).stdout.decode()
    codecs, sets = {}, []
    for line in text.splitlines():
        codec, name, error, cosine, ratio, nominal = line.split('\t')
        row = codecs.setdefault(codec, {'ratio': ratio, 'e0': nominal})
        row[name] = (error, cosine, ratio)
        if name not in sets:
            sets.append(name)
    return codecs, sets


def table(codecs, rows, cell):
    head = ['codec', 'ratio', 'e0'] + rows
    lines = ['| %s |' % ' | '.join(head), '|%s' % ('---|' * len(head))]
    for codec, row in codecs.items():
        lines.append('| %s |' % ' | '.join(['`%s`' % codec, row['ratio'], row['e0']]
                                           + [cell(row[name]) for name in rows]))
    return '\n'.join(lines) + '\n'


def measured_part(codecs, sets):
    half = (len(sets) + 1) // 2
    packed = {c: row for c, row in codecs.items() if any(row[s][2] != row['ratio'] for s in sets)}
    parts = [BEGIN]
    for title, at, shown in (('Relative L2 error', 0, codecs),
                             ('Cosine of values and decoded values', 1, codecs),
                             ('Ratio where it depends on the values', 2, packed)):
        for rows in (sets[:half], sets[half:]):
            parts.append('**%s.**\n\n%s\n' % (title, table(shown, rows, lambda c: c[at])))
    return '\n'.join(parts) + END


def split_page():
    with open(PAGE, encoding='utf-8') as page:
        before, rest = page.read().split(BEGIN)
    part, after = rest.split(END)
    return before, part, after


def draw(codecs):
    import matplotlib
    matplotlib.use('svg')
    matplotlib.rcParams.update({'svg.hashsalt': 'dscomm', 'font.size': 8})
    import matplotlib.pyplot as plt
    shown = [c for c in SHOWN if c in codecs]
    figure, axes = plt.subplots(figsize=(8, 4.2))
    width = 0.8 / len(shown)
    for i, codec in enumerate(shown):
        values = [float(codecs[codec][name][0]) for name in PLOTTED]
        axes.bar([x + i * width for x in range(len(PLOTTED))], values, width, label=codec,
                 color=plt.get_cmap('tab10')(i))
    axes.set_yscale('log')
    axes.set_xticks([x + 0.4 for x in range(len(PLOTTED))], PLOTTED)
    axes.set_ylabel('relative L2 error of one encode')
    axes.legend(ncol=3, frameon=False)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={'Date': None})


def check(codecs, sets):
    """Names of codecs and sets that the page does not have, or has and should not."""
    part = split_page()[1]
    cells = {cell.strip() for line in part.splitlines() for cell in line.split('|')}
    listed = {cell.strip('`') for cell in cells if cell.startswith('`')}
    return sorted(set(codecs) ^ listed) + sorted(set(sets) - cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--check', action='store_true')
    parser.add_argument('program')
    args = parser.parse_args()
    codecs, sets = measure(args.program)
    if args.check:
        stale = check(codecs, sets)
        if stale:
            print('docs/codecs.md is not up to date in %s; run docs/figures/draw_codecs.py %s'
                  % (', '.join(stale), args.program))
        return 1 if stale else 0
    before, _, after = split_page()
    with open(PAGE, 'w', encoding='utf-8') as page:
        page.write(before + measured_part(codecs, sets) + after)
    draw(codecs)
    return 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws AllReduce plans from the executable specification (tests/model/plan.py) as SVG.

    docs/figures/draw_plan.py [FOLDER]        default: this folder; needs python3-matplotlib

One panel per tier going up, one for the way down. A row is a rank, the horizontal axis the vector.
Colour: the rank that owns the piece in that panel. Full: the rank owns it. Pale: it sends its
partial sum to the owner (up), or receives the owner's final bytes (down). Empty: not its business.
"""
import os
import sys

import matplotlib

matplotlib.use('svg')
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'tests', 'model'))
sys.dont_write_bytecode = True
import plan  # noqa: E402

COUNT = 2500
FIGURES = (
    ('two_shot_4.svg', '0,1,2,3', 'Two-shot, 4 ranks'),
    ('tiered_3_4.svg', '(0,1,2),(3,4,5,6)', 'Two tiers, groups of 3 and 4 ranks'),
)
COLOURS = ('#1b6ca8', '#c1571a', '#3f7d3a', '#8a3f8f', '#9a7b0a', '#0f7f82', '#a32a45')
ROW = 0.74        # height of a rank's bar
PALE = 0.22       # share of colour where a rank does not own


def source_of(built, final, rank):
    """Who sends a final piece to a rank that does not own it: the owner in its highest exchange."""
    return max((x for x in built.exchanges if x.start <= final.start and final.end <= x.end
                and rank in x.members and x.owner != rank), key=lambda x: x.level).owner


def draw_span(axes, rank, start, end, owner, text, is_owner):
    share = 1 if is_owner else PALE
    colour = [1 - share * (1 - c) for c in to_rgb(COLOURS[owner])]
    axes.barh(rank, end - start, ROW, start, facecolor=colour, edgecolor='white', linewidth=1.2)
    axes.text((start + end) / 2, rank, text, ha='center', va='center', fontsize=8,
              color='white' if is_owner else 'black')


def draw_up(axes, built, tier):
    for x in built.exchanges:
        if x.tier != tier:
            continue
        for rank in x.members:
            draw_span(axes, rank, x.start, x.end, x.owner,
                      'sum' if rank == x.owner else '→ %d' % x.owner, rank == x.owner)


def draw_down(axes, built):
    for final in built.final:
        for rank in range(built.n_ranks):
            is_owner = rank == final.owner
            source = None if is_owner else source_of(built, final, rank)
            draw_span(axes, rank, final.start, final.end, final.owner,
                      'final' if is_owner else '← %d' % source, is_owner)


def edges_of(spans):
    return sorted({edge for span in spans for edge in (span.start, span.end)})


def frame(axes, built, title, edges):
    axes.set_title(title, loc='left', fontsize=9)
    axes.set_xlim(0, COUNT)
    axes.set_ylim(built.n_ranks - 0.5, -0.5)
    axes.set_yticks(range(built.n_ranks), ['rank %d' % r for r in range(built.n_ranks)], fontsize=8)
    axes.set_xticks(edges, [str(e) for e in edges], fontsize=7)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def draw(layout, title, path):
    built = plan.build(plan.parse_layout(layout), COUNT)
    n_panels = built.n_tiers + 1
    figure, panels = plt.subplots(n_panels, 1, figsize=(7.6, n_panels * (0.27 * built.n_ranks + 0.6)),
                                  layout='constrained')
    figure.suptitle('%s: %s, %d elements' % (title, layout, COUNT), fontsize=10, x=0.01, ha='left')
    for tier in range(1, n_panels):
        spans = [x for x in built.exchanges if x.tier == tier]
        draw_up(panels[tier - 1], built, tier)
        frame(panels[tier - 1], built, 'Up, tier %d: members send partial sums, the owner adds them '
              'in rank order' % tier, edges_of(spans))
    draw_down(panels[-1], built)
    frame(panels[-1], built, 'Down: the final owner encodes once, the same bytes are forwarded to every rank',
          edges_of(built.final))
    # No date and fixed ids: the same plan and matplotlib give the same file.
    figure.savefig(path, metadata={'Date': None}, facecolor='white')
    plt.close(figure)
    with open(path, encoding='utf-8') as handle:
        lines = [line.rstrip() for line in handle]
    with open(path, 'w', encoding='utf-8') as handle:
        handle.write('\n'.join(lines) + '\n')


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else HERE
    matplotlib.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'dscomm',
                                'font.family': 'DejaVu Sans'})
    for name, layout, title in FIGURES:
        draw(layout, title, os.path.join(folder, name))
        print(os.path.join(folder, name))


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/figures/tuner_links.svg: predicted time of a call by the rate of the link, per codec, on
the device of docs/tuner.md, with and without overlap. draw_tuner.py PROGRAM, which is dscomm_tune."""
import argparse
import json
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FIGURE = os.path.join(HERE, 'tuner_links.svg')
CODECS = ('none', 'int8', 'int4:signed', 'topk:0.01,fp8')
GBIT = [25 * 2 ** (i / 2) for i in range(18)]

# One GPU per node, whose NIC's rate is what changes.
MACHINE = 'gpu a numa 0 bus 0000:01:00.0 sm 90\nnic mlx5_0 numa 0 bus 0000:02:00.0 gbit %.3f\n'


def totals(program, gbit, overlap):
    """Cheapest time of each codec in ms."""
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as handle:
        handle.write(MACHINE % gbit)
        handle.flush()
        out = subprocess.run(
            [program, '--topo', handle.name, '--nodes', '8', '--memory', '4300', '--size', '32M',
             '--dtype', 'bf16', '--budget', 'aggressive', '--overlap', overlap, '--json'],
            check=True, stdout=subprocess.PIPE, timeout=60).stdout
    best = {}
    for option in json.loads(out)[0]['options']:
        if option['total_ns'] is not None:
            best.setdefault(option['codec'], option['total_ns'] / 1e6)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('program')
    args = parser.parse_args()
    import matplotlib
    matplotlib.use('svg')
    matplotlib.rcParams.update({'svg.hashsalt': 'dscomm', 'font.size': 8})
    import matplotlib.pyplot as plt
    figure, both = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
    for axes, overlap in zip(both, ('off', 'on')):
        points = [totals(args.program, gbit, overlap) for gbit in GBIT]
        for codec in CODECS:
            axes.plot([g / 8 for g in GBIT], [p[codec] for p in points], label=codec)
        axes.set_xscale('log')
        axes.set_yscale('log')
        axes.set_xlabel('link, GB/s')
        axes.set_title('stages overlap' if overlap == 'on' else 'stages one after another')
        axes.grid(alpha=0.3)
    both[0].set_ylabel('ms per call, 32 MiB of bf16, 8 nodes')
    both[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={'Date': None})


if __name__ == '__main__':
    main()

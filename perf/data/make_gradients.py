#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make, or check, the frozen slices of real gradients that tests and benchmarks use.

    make_gradients.py --check          verify the files beside this script; numpy only, < 1 s
    make_gradients.py --out DIR        train both models again, write fresh slices into DIR
    make_gradients.py --layout         say which parameters each slice covers

Exit status: 0 good, 1 a check failed, 2 wrong usage. See docs/gradient_data.md.
"""

import argparse
import os
import sys
from typing import NamedTuple

import numpy as np

import grad_format
import grad_stats

HERE = os.path.dirname(os.path.abspath(__file__))
N_RANKS = 4


class Slice(NamedTuple):
    """Which part of which gradient is frozen."""

    step: int
    offset: int
    elems: int


# Fixed BEFORE any gradient was measured, from the parameter layout alone; do not tune them to
# what a codec likes. 64 Ki elements a rank keep a file at 1 MiB. Step 50: the first transient is
# over, and training to it takes minutes at most.
#   lm:  starts 352 rows before the end of the word embedding, which gives the embedding the share
#        it has in the whole model (a third), and runs through the position embedding and
#        the first block: layer norm, attention, layer norm, MLP (the second MLP matrix in part).
#   cnn: starts at 0: both convolutions and batch norms, then the first dense layer in part.
SLICES = {
    "cnn": Slice(step=50, offset=0, elems=65536),
    "lm": Slice(step=50, offset=(1792 - 352) * 64, elems=65536),
}

# What makes the data worth having, as loose ranges: a retrained slice on any machine must lie
# inside them, whatever its bits. name -> statistic -> (low, high).
EXPECTED = {
    "cnn": {"zeros": (0.02, 0.5), "kurtosis": (20, 20000)},
    "lm": {"zeros": (0.2, 0.6), "kurtosis": (5, 2000)},
}


def file_name(name):
    """Return the file name of the slice of model `name`."""
    return name + ".grad"


def check_content(name, grad_file):
    """Return (summary, problems) of one decoded slice."""
    want = SLICES[name]
    problems = []
    if (grad_file.step, grad_file.offset) != (want.step, want.offset):
        problems.append(f"{name}: step {grad_file.step} offset {grad_file.offset}, want {want}")
    if grad_file.grads.shape != (N_RANKS, want.elems):
        problems.append(f"{name}: shape {grad_file.grads.shape}, want {(N_RANKS, want.elems)}")
    if not np.isfinite(grad_file.grads).all():
        return None, problems + [f"{name}: not finite"]
    summary = grad_stats.summarize(grad_file.grads)
    for statistic, (low, high) in EXPECTED[name].items():
        if not low <= summary[statistic] <= high:
            problems.append(f"{name}: {statistic} {summary[statistic]:g} not in {low}..{high}")
    return summary, problems


def check(folder):
    """Verify every slice in folder, print the statistics; return the exit status."""
    summaries, problems = {}, []
    for name in SLICES:
        try:
            grad_format.verify_checksum(folder, file_name(name))
            grad_file = grad_format.read_grad(os.path.join(folder, file_name(name)))
            summary, found = check_content(name, grad_file)
        except (OSError, grad_format.FormatError) as error:
            summary, found = None, [str(error)]
        problems += found
        if summary is not None:
            summaries[file_name(name)] = summary
    print(grad_stats.format_table(summaries))
    for problem in problems:
        print(f"make_gradients: {problem}", file=sys.stderr)
    print("FAIL" if problems else "ok")
    return 1 if problems else 0


def make(folder):
    """Train, write the slices and CHECKSUMS into folder, then check them."""
    import grad_models  # here, because --check must not need torch

    os.makedirs(folder, exist_ok=True)
    whole = {}
    for name, want in SLICES.items():
        grads = grad_models.gradients_at(name, want.step, N_RANKS)
        whole[f"{name}, all {grads.shape[1]} parameters"] = grad_stats.summarize(grads)
        part = grads[:, want.offset:want.offset + want.elems]
        grad_format.write_grad(
            os.path.join(folder, file_name(name)),
            grad_format.GradFile(want.step, want.offset, part),
        )
    grad_format.write_checksums(folder, [file_name(name) for name in SLICES])
    print(grad_stats.format_table(whole))
    return check(folder)


def print_layout():
    """Print, per slice, how many elements come from which parameter."""
    import grad_models

    for name, want in SLICES.items():
        for parameter_name, first, end in grad_models.layout(name):
            covered = min(end, want.offset + want.elems) - max(first, want.offset)
            if covered > 0:
                print(f"{name}  {parameter_name:32}  {covered:6} of {end - first}")
    return 0


def main(argv):
    """Parse the arguments and run one mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="verify the frozen files")
    mode.add_argument("--out", metavar="DIR", help="train again and write into DIR")
    mode.add_argument("--layout", action="store_true", help="list the parameters of each slice")
    args = parser.parse_args(argv)
    if args.check:
        return check(HERE)
    if args.layout:
        return print_layout()
    return make(args.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

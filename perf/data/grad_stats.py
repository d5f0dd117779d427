# SPDX-License-Identifier: Apache-2.0
"""Statistics that say whether a gradient set is hard for a lossy codec, and how hard.

All of them run on a (n_ranks, elems) float32 array and use the whole array unless the name says
otherwise. The two codec errors are computed here, in numpy, independently of the C library: a
codec test can therefore compare its own error with a number it had no part in.

Needs numpy only.
"""

import numpy as np

BLOCK_ELEMS = 256
INT8_MAX = 127.0
FP16_MIN_NORMAL = 2.0**-14


def blocks_of(grads):
    """Cut every rank into rows of BLOCK_ELEMS; a tail shorter than a block is left out."""
    usable = grads.shape[1] // BLOCK_ELEMS * BLOCK_ELEMS
    return grads[:, :usable].reshape(-1, BLOCK_ELEMS)


def int8_block_round_trip(blocks):
    """Symmetric absmax/127 per block, ties to even, fp32 scale; all-zero blocks stay zero."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(INT8_MAX)
    safe = np.where(scale > 0, scale, np.float32(1))
    codes = np.clip(np.rint(blocks / safe), -INT8_MAX, INT8_MAX)
    return codes.astype(np.float32) * safe


def bf16_round_trip(x):
    """Round fp32 to bf16, ties to even, and widen again; finite input only."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def relative_l2(approx, exact):
    """||approx - exact|| / ||exact|| in float64."""
    exact = exact.astype(np.float64)
    return float(np.linalg.norm(approx.astype(np.float64) - exact) / np.linalg.norm(exact))


def kurtosis(x):
    """Fourth central moment over squared variance (a normal distribution gives 3)."""
    centred = x.astype(np.float64) - x.mean(dtype=np.float64)
    variance = np.mean(centred**2)
    return float(np.mean(centred**4) / variance**2)


def rank_correlations(grads):
    """Correlation of every further rank with rank 0, as a list."""
    return [float(c) for c in np.corrcoef(grads.astype(np.float64))[0, 1:]]


def sum_norm_ratio(grads):
    """Norm of the sum over ranks divided by the mean norm of one rank (n if all are equal)."""
    wide = grads.astype(np.float64)
    return float(np.linalg.norm(wide.sum(axis=0)) / np.linalg.norm(wide, axis=1).mean())


def summarize(grads):
    """Return the statistics as an ordered dict of name to number (or list of numbers)."""
    blocks = blocks_of(grads)
    nonzero = np.abs(grads[grads != 0])
    return {
        "zeros": float(np.mean(grads == 0)),
        "all_zero_blocks": float(np.mean(~blocks.any(axis=1))),
        "max_over_median": float(nonzero.max() / np.median(nonzero)),
        "kurtosis": kurtosis(grads),
        "below_fp16_normal": float(np.mean(nonzero < FP16_MIN_NORMAL)),
        "int8_block_error": relative_l2(int8_block_round_trip(blocks), blocks),
        "bf16_error": relative_l2(bf16_round_trip(grads), grads),
        "rank_correlation": rank_correlations(grads),
        "sum_norm_ratio": sum_norm_ratio(grads),
    }


ROWS = (
    ("zeros", "zeros", "{:.1%}"),
    ("all_zero_blocks", "all-zero blocks of 256", "{:.1%}"),
    ("max_over_median", "max / median of the non-zero magnitudes", "{:.0f}"),
    ("kurtosis", "kurtosis (normal = 3)", "{:.0f}"),
    ("below_fp16_normal", "non-zeros below the smallest normal fp16", "{:.1%}"),
    ("int8_block_error", "relative L2 error, int8 block 256", "{:.5f}"),
    ("bf16_error", "relative L2 error, bf16", "{:.5f}"),
    ("rank_correlation", "correlation of ranks 1, 2, 3 with rank 0", "{:.2f}"),
    ("sum_norm_ratio", "norm of the rank sum / norm of one rank", "{:.2f}"),
)


def format_table(columns):
    """Render {title: summary} as a Markdown table, one statistic a row."""
    lines = ["| statistic | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for key, label, spec in ROWS:
        cells = []
        for summary in columns.values():
            value = summary[key]
            values = value if isinstance(value, list) else [value]
            cells.append(", ".join(spec.format(v) for v in values))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

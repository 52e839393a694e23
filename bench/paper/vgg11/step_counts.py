"""Flops of a scan over sparse transposed Jacobians, counted from patterns: nothing is multiplied.

A product takes two flops for each pair of numbers that meet, a matrix-vector product two for each
number. Patterns are followed exactly: between positions where blocks of channels are full (dense
weights), entry by entry elsewhere. Only a product with more pairs of positions than a limit is not
followed: from there on it counts as full on its rows and columns that are not empty.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.paper.vgg11.schedules import APPLY, Span, Step, critical
from parscan_bp.operators import Convolution, Diagonal, Operator, Selection
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.windows import window_pattern

LARGEST = 3e8
"""Pairs of positions above which the pattern of a product is not followed."""

FULL_WEIGHTS, STATIC, SELECTED, DYNAMIC = "full weights", "static", "selection", "dynamic"
ZEROS = {
    FULL_WEIGHTS: "no weight is zero; zeros that the layers guarantee",
    STATIC: "pruned weights; zeros that are known before training",
    SELECTED: "the same, and max-pooling as one source per output",
    DYNAMIC: "the same, and the zeros of ReLU for one image",
}
"""Which zeros are known: the conventions of a count."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """Where a matrix has numbers.

    Attributes:
        rows: (rows,), numbers of each row.
        cols: (cols,), numbers of each column.
        positions: the pattern, a CSR matrix of booleans: of entries, or of blocks of channels;
            ``None`` where it was not followed.
        block: (rows, columns) of the blocks; (1, 1) for a pattern of entries.
        diagonal: whether blocks have numbers on their diagonal only.
    """

    rows: np.ndarray
    cols: np.ndarray
    positions: sp.csr_array | None
    block: tuple[int, int] = (1, 1)
    diagonal: bool = False

    @property
    def nnz(self) -> float:
        return float(self.rows.sum())

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.cols)

    def pairs(self, right: "Factor") -> float:
        """Multiplications of the product with another factor."""
        return float(self.cols.astype(np.float64) @ right.rows)


def blocks(positions: sp.csr_array, block: tuple[int, int], diagonal: bool = False) -> Factor:
    """A factor with a block, full or diagonal, at each position; (1, 1) for entries."""
    high, wide = (1, 1) if diagonal else block
    rows = np.diff(positions.indptr).repeat(block[0]) * wide
    counts = np.bincount(positions.indices, minlength=positions.shape[1])
    return Factor(rows, counts.repeat(block[1]) * high, positions, block, diagonal)


def product(left: Factor, right: Factor) -> Factor:
    """The pattern of ``left @ right``."""
    if left.positions is None or right.positions is None:
        return _full(left, right)
    # Blocks may be large: what is listed are the pairs of positions.
    met = np.bincount(left.positions.indices, minlength=left.positions.shape[1])
    if met @ np.diff(right.positions.indptr) > LARGEST:
        return _full(left, right)
    positions = sp.csr_array(left.positions @ right.positions)
    block = (left.block[0], right.block[1])
    return blocks(positions, block, left.diagonal and right.diagonal)


def _full(left: Factor, right: Factor) -> Factor:
    alive = (left.cols > 0) & (right.rows > 0)
    rows = _touched(left, alive) if alive.any() else np.zeros(len(left.rows), bool)
    cols = _touched(_transposed(right), alive) if alive.any() else np.zeros(len(right.cols), bool)
    return Factor(rows * cols.sum(), cols * rows.sum(), None)


def _touched(factor: Factor, alive: np.ndarray) -> np.ndarray:
    """Rows with a number in one of the columns."""
    if factor.positions is None:
        return factor.rows > 0
    if factor.diagonal:
        channels = factor.block[0]
        return (factor.positions @ alive.reshape(-1, channels)).ravel()
    inside = alive.reshape(-1, factor.block[1]).any(axis=1)
    return (factor.positions @ inside).repeat(factor.block[0])


def _transposed(factor: Factor) -> Factor:
    positions = None if factor.positions is None else sp.csr_array(factor.positions.T)
    return Factor(factor.cols, factor.rows, positions, factor.block[::-1], factor.diagonal)


def factor(operator: Operator, channels: int, zeros: str) -> Factor:
    """The pattern of a transposed Jacobian of one image, under one of the conventions `ZEROS`.

    Args:
        operator: of one image, no stack axes.
        channels: of the layer's input; they are the last axis.
        zeros: the convention.

    Raises:
        TypeError: its structure has no pattern here.
    """
    whole = _factor(operator, channels, zeros)
    return whole if zeros == FULL_WEIGHTS else entries(whole)


def _factor(operator: Operator, channels: int, zeros: str) -> Factor:
    square = (channels, channels)
    if isinstance(operator, Diagonal):
        if zeros == DYNAMIC:
            at = np.flatnonzero(np.asarray(operator.diagonal))
            return blocks(_csr(at, at, operator.shape), (1, 1))
        positions = sp.eye_array(operator.shape[0] // channels, dtype=bool, format="csr")
        return blocks(positions, square, diagonal=True)
    if isinstance(operator, Selection) and not operator.transposed:
        if zeros in (FULL_WEIGHTS, STATIC):
            return blocks(_boolean(operator.pattern), square, diagonal=True)
        source = np.asarray(operator.source)
        output, channel = np.indices(source.shape)
        rows, cols = (at * channels + channel for at in (source, output))
        return blocks(_csr(rows.ravel(), cols.ravel(), operator.shape), (1, 1))
    if isinstance(operator, Convolution) and operator.transposed and operator.groups == 1:
        pattern, entry = window_pattern(operator.axes)
        kernel = np.asarray(operator.kernel).reshape(-1, *operator.kernel.shape[-2:])
        if zeros == FULL_WEIGHTS:
            return blocks(_boolean(pattern), kernel.shape[1:])
        return blocks(_convolution(pattern, entry, kernel != 0), (1, 1))
    raise TypeError(
        f"operator: got {type(operator).__name__}; a Diagonal, a Selection or a transposed "
        "Convolution of one group is wanted"
    )


def entries(whole: Factor) -> Factor:
    """The same pattern entry by entry."""
    if whole.block == (1, 1) or whole.positions is None:
        return whole
    part = (
        sp.eye_array(whole.block[0], dtype=bool) if whole.diagonal else np.ones(whole.block, bool)
    )
    return blocks(sp.csr_array(sp.kron(whole.positions, part, format="csr")), (1, 1))


def _convolution(pattern: Pattern, entry: np.ndarray, kept: np.ndarray) -> sp.csr_array:
    """Entries of a convolution's transposed Jacobian whose weight ``kept[window entry]`` is."""
    ci, co = kept.shape[1:]
    rows, cols = [], []
    for at, mask in enumerate(kept):
        here, (i, o) = entry == at, np.nonzero(mask)
        rows.append((pattern.rows[here].astype(np.int64)[:, None] * ci + i).ravel())
        cols.append((pattern.indices[here].astype(np.int64)[:, None] * co + o).ravel())
    shape = (pattern.shape[0] * ci, pattern.shape[1] * co)
    return _csr(np.concatenate(rows), np.concatenate(cols), shape)


def _csr(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array(sp.coo_array((np.ones(rows.size, bool), (rows, cols)), shape=shape))


def _boolean(pattern: Pattern) -> sp.csr_array:
    numbers = np.ones(pattern.nnz, bool)
    return sp.csr_array((numbers, pattern.indices, pattern.indptr), shape=pattern.shape)


class Products:
    """The patterns of all spans of a chain, each made once.

    Args:
        factors: M_1..M_n, from the last layer to the first.
    """

    def __init__(self, factors: Sequence[Factor]) -> None:
        self._spans: dict[Span, Factor] = {(k, k): f for k, f in enumerate(factors, 1)}

    def __getitem__(self, span: Span) -> Factor:
        return self._spans[span]

    def count(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """What each step takes, in order, the steps on the critical path marked.

        Returns:
            For each step its ``flops``; ``dense``, the multiplications if no number were zero;
            ``nnz`` of the operands, left before right; ``product_nnz`` and ``sparsity`` of a
            product;
            ``exact``, whether all patterns were followed; ``critical``.
        """
        costs: dict[Step, float] = {}
        counted = []
        for step in steps:
            parts = [self._spans[span] for span in step.operands]
            if step.kind == APPLY:
                pairs, dense = parts[0].nnz, math.prod(parts[0].shape)
                made = None
            else:
                left, right = parts
                pairs, dense = left.pairs(right), math.prod(left.shape) * right.shape[1]
                if step.span not in self._spans:
                    self._spans[step.span] = product(left, right)
                made = self._spans[step.span]
            costs[step] = 2 * pairs
            counted.append(
                {
                    "flops": 2 * pairs,
                    "dense": float(dense),
                    "nnz": [part.nnz for part in parts],
                    "product_nnz": None if made is None else made.nnz,
                    "sparsity": None if made is None else 1 - made.nnz / math.prod(made.shape),
                    "exact": all(part.positions is not None for part in parts),
                }
            )
        longest = critical(list(steps), costs)
        return [{**c, "critical": s in longest} for s, c in zip(steps, counted, strict=True)]


def path_length(steps: Sequence[Step], flops: Sequence[float], workers: int | None = None) -> float:
    """Flops on the critical path: levels one after the other, the largest step of a level first.

    Args:
        steps: the scan.
        flops: of each step.
        workers: how many steps run at once; ``None`` is all of a level.
    """
    levels: dict[int, list[float]] = {}
    for step, cost in zip(steps, flops, strict=True):
        levels.setdefault(step.level, []).append(cost)
    total = 0.0
    for costs in levels.values():
        load = np.zeros(workers or len(costs))
        for cost in sorted(costs, reverse=True):
            load[load.argmin()] += cost
        total += load.max()
    return float(total)

"""Figures 6 to 10: seconds of one iteration on process grids, by the equations and our programs."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.paper.grids.machine import EQUATIONS, PROGRAM
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.grids.weights import weight_layers
from parscan_bp.layers import Flatten, Layer
from parscan_bp.parallel import Grid, divide

SCALING = (8, 32, 128, 512)
"""P of figures 6, 7 and 9."""
BATCH = 2048
"""B of figures 6 to 8."""
IMAGES = 1_200_000
"""N of an epoch, Table 1."""
WEAK = 4
"""B / P of figure 9. The text does not say the paper's; this is that of figure 6d."""
BEYOND, LIMIT = (512, 1024, 2048, 4096), 512
"""P and B of figure 10."""

SAME, MIXED, DOMAIN = "same grid", "convolutions batch only", "convolutions by domain"
OVERLAPPED = 2 / 3
"""The share of an iteration that is the backward pass, which all-reduces overlap with."""

PAPER = {
    ("figure 6", 512, "16 x 32"): {"communication": 5.0, "total": 2.1},
    ("figure 7", 512, "16 x 32"): {"communication": 9.7, "total": 2.5},
    ("figure 8", 512, "16 x 32"): {"total": 2.0},
}
"""Speedups over 1 x P that the text states; figure 7's are of its best grid, which is not named."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """One grid of a figure; seconds of an iteration.

    Attributes:
        figure: "figure 6" and so on.
        processes: P.
        batch: B.
        grid: "16 x 32", P_r and P_c.
        equation: communication by eq. 8 or 9.
        weights: of it, all-reduces of weights, the hatched part.
        program: what our program sends; ``None`` where it has no such grid.
        compute: on each process, by the measured curve.
        total: of compute and the equation; in figure 8 with the overlap.
    """

    figure: str
    processes: int
    batch: int
    grid: str
    equation: float
    weights: float
    program: float | None
    compute: float
    total: float

    @property
    def paper(self) -> Mapping[str, float]:
        """The speedups that the paper states."""
        return PAPER.get((self.figure, self.processes, self.grid), {})


class Curve:
    """Figure 4: seconds of an iteration on one process by its batch, between what was measured.

    Beyond the largest batch an entry takes what it takes in that one; below the smallest, too.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._points = sorted(measured.items())

    def __call__(self, batch: float) -> float:
        (least, _), (most, _) = self._points[0], self._points[-1]
        at = min(max(batch, least), most)
        low = max(p for p in self._points if p[0] <= at)
        high = min(p for p in self._points if p[0] >= at)
        if low == high:
            return low[1] * batch / low[0]
        share = math.log(at / low[0]) / math.log(high[0] / low[0])
        return low[1] * (high[1] / low[1]) ** share


@functools.cache
def _layers() -> tuple[Any, ...]:
    return tuple(weight_layers(alexnet(), IMAGE))


def convolutions() -> set[int]:
    """Positions of AlexNet's convolutions."""
    return {row.position for row in _layers() if not row.connected}


def equation(kind: str, batch: int, rows: int, columns: int) -> Any:
    """Eq. 8 or 9 for AlexNet."""
    how = {SAME: {}, MIXED: {"batch_only": convolutions()}, DOMAIN: {"domain": convolutions()}}
    return EQUATIONS.integrated(_layers(), batch, rows, columns, **how[kind])


@functools.cache
def program(kind: str, batch: int, rows: int, columns: int) -> float | None:
    """Seconds for which our program sends; ``None`` where a layer has no such form."""
    layers = alexnet()
    count = head(layers)
    model = Grid(data=columns, model=rows)
    first = {
        SAME: model,
        MIXED: Grid(data=rows * columns),
        DOMAIN: Grid(data=columns, height=rows),
    }[kind]
    try:
        stack = divide(layers, IMAGE, [first] * count + [model] * (len(layers) - count))
        return PROGRAM.seconds(PROGRAM.rows(stack, batch))
    except (NotImplementedError, ValueError):
        return None


def head(layers: Sequence[Layer]) -> int:
    """How many layers come before the linear maps."""
    return next(k for k, layer in enumerate(layers) if isinstance(layer, Flatten))


def bars(curve: Curve) -> list[Bar]:
    """Every bar of figures 6 to 10."""
    found = []
    for processes in SCALING:
        for figure, kind, batch in (
            ("figure 6", SAME, BATCH),
            ("figure 7", MIXED, BATCH),
            ("figure 8", MIXED, BATCH),
            ("figure 9", SAME, WEAK * processes),
        ):
            rows = [2**k for k in range(processes.bit_length())]
            found += [bar(figure, kind, batch, r, processes // r, curve) for r in rows]
    for processes in BEYOND:
        rows = processes // LIMIT
        found.append(bar("figure 10", DOMAIN, LIMIT, rows, LIMIT, curve))
    return found


def bar(figure: str, kind: str, batch: int, rows: int, columns: int, curve: Curve) -> Bar:
    """One bar. P_r processes share the work of a batch of B / P_c."""
    terms, compute = equation(kind, batch, rows, columns), curve(batch / columns) / rows
    total = compute + terms.total
    if figure == "figure 8":
        hidden = min(terms.backward, OVERLAPPED * compute)
        total -= hidden
    return Bar(
        figure,
        rows * columns,
        batch,
        f"{rows} x {columns}",
        terms.total,
        terms.weights,
        program(kind, batch, rows, columns),
        compute,
        total,
    )


def grouped(found: Sequence[Bar], key: Callable[[Bar], Any]) -> dict[Any, list[Bar]]:
    """Bars by what they share."""
    groups: dict[Any, list[Bar]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def compute_that_explains(communication: float, speedups: Mapping[str, float]) -> float:
    """Compute time C with which a communication speedup gives the total one.

    (T + C) / (T / c + C) = t, for communication T of the 1 x P grid.
    """
    c, t = speedups["communication"], speedups["total"]
    return communication * (1 - t / c) / (t - 1)


def domain_to_batch() -> str:
    """Eq. 7 over eq. 4, by P."""
    paper, layers = EQUATIONS, _layers()
    found = []
    for processes in SCALING:
        ratio = paper.domain(layers, BATCH, processes).total / paper.batch(layers, processes).total
        found.append(f"P={processes} {ratio:.1f}")
    return ", ".join(found)

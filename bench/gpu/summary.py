"""The ratios that the suite is about, over the whole grid, and what they were to be."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.gpu import cudnn, grid
from bench.gpu.contenders import AUTO, FUSED, KERNELS, PALLAS, PLAIN, PURE, SEQUENTIAL, SOLVE, STEP
from bench.shared import stats, timing

Result = dict[str, Any]

FLOOR = "floor"
MINIMUM, MAXIMUM = "minimum", "maximum"


class Region(NamedTuple):
    """Points of the grid, in words and as a rule."""

    words: str
    holds: Callable[[grid.Shape], bool]


GRID = Region("", lambda shape: True)
LONG = Region(", RNN of B=16, T >= 1000", lambda s: s in grid.LONG)
MAIN = Region(f", {grid.MAIN}", lambda shape: shape == grid.MAIN)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times faster the fastest of `ours` is than the fastest of `theirs`, by medians.

    Against the floor it is floor / time: 0.4 is within 2.5 times of it.

    Attributes:
        ours, theirs: contenders; the fastest is taken at each point.
        quantity: of both, such as `BACKWARD`, `STEP` or `SOLVE`.
        wanted: the extreme that is asked for and the least that it should be.
        region: at which points.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    quantity: str
    wanted: tuple[str, float] | None = None
    region: Region = GRID

    @property
    def name(self) -> str:
        ours, theirs = (_NAMES.get(side, " or ".join(side)) for side in (self.ours, self.theirs))
        return f"{self.quantity}, {ours} over {theirs}{self.region.words}"


_BOTH_FUSED = (FUSED, SEQUENTIAL)
_NAMES = {_BOTH_FUSED: "best fused", PURE: "best pure JAX"}
_CUDNN = ((cudnn.EAGER,), (cudnn.GRAPH,))
RATIOS = (
    *(
        Ratio((ours,), (cudnn.EAGER,), timing.BACKWARD, (MAXIMUM, 108))
        for ours in (PALLAS, FUSED, SEQUENTIAL)
    ),
    *(Ratio((ours,), (cudnn.GRAPH,), timing.BACKWARD) for ours in (PALLAS, FUSED, SEQUENTIAL)),
    Ratio((PALLAS,), PURE, timing.BACKWARD, (MINIMUM, 1)),
    Ratio((PALLAS,), ("associative",), timing.BACKWARD, (MINIMUM, 5), LONG),
    Ratio((PALLAS,), (PLAIN,), timing.BACKWARD),
    Ratio((AUTO,), (PLAIN,), timing.BACKWARD),
    Ratio((AUTO,), (PLAIN,), timing.VALUE_AND_GRAD, (MINIMUM, 1)),
    Ratio((KERNELS,), (FLOOR,), SOLVE, (MINIMUM, 0.4)),
    Ratio((PALLAS,), (FLOOR,), timing.BACKWARD),
    *(Ratio(_BOTH_FUSED, theirs, STEP, (MINIMUM, 2.75), MAIN) for theirs in _CUDNN),
    *(Ratio(_BOTH_FUSED, theirs, STEP, (MINIMUM, 1)) for theirs in _CUDNN),
    Ratio(_BOTH_FUSED, (PLAIN,), STEP),
    *(Ratio((PALLAS,), theirs, STEP) for theirs in _CUDNN),
)


def shape_of(point: Result) -> grid.Shape:
    """The point of the grid that an entry of the file is about."""
    names = (field.name for field in dataclasses.fields(grid.Shape))
    # Older records say nothing of the dtype.
    return grid.Shape(**{name: point[name] for name in names if name in point})


def seconds(point: Result, name: str, quantity: str) -> list[float] | None:
    """Samples of a contender at a point; of the floor, one number; `None` where there are none."""
    if name == FLOOR:
        return [point["floor"]["seconds"]]
    times = point["contenders"].get(name, {"times": {}})["times"]
    return times[quantity]["seconds"] if quantity in times else None


def summary(points: Sequence[Result], not_run: Sequence[grid.Shape]) -> list[Result]:
    """Every ratio over the points that have it, and the names of those that have not."""
    return [_over(ratio, points, not_run) for ratio in RATIOS]


def compare(ratio: Ratio, point: Result) -> Result | None:
    """The ratio at one point with its interval.

    A backward pass is a difference of two times; where noise makes one negative, there is no
    ratio.
    """
    ours, theirs = (_fastest(point, names, ratio.quantity) for names in (ratio.ours, ratio.theirs))
    if ours is None or theirs is None or min(np.median(ours), np.median(theirs)) <= 0:
        return None
    # The floor is one number; an interval needs a sample of each round.
    theirs = theirs * (len(ours) // len(theirs))
    low, high = stats.ratio_interval(theirs, ours)
    faster = stats.ratio_of_medians(theirs, ours)
    return {"point": str(shape_of(point)), "ratio": faster, "low": low, "high": high}


def _fastest(point: Result, names: Sequence[str], quantity: str) -> list[float] | None:
    found = [s for name in names if (s := seconds(point, name, quantity)) is not None]
    return min(found, key=np.median, default=None)


def _over(ratio: Ratio, points: Sequence[Result], not_run: Sequence[grid.Shape]) -> Result:
    own = [point for point in points if ratio.region.holds(shape_of(point))]
    found = [(shape_of(point), compare(ratio, point)) for point in own]
    entries = [entry for _, entry in found if entry is not None]
    missing = [shape for shape, entry in found if entry is None]
    missing += [shape for shape in not_run if ratio.region.holds(shape)]
    said: Result = {"ratio": ratio.name, "points": entries, "missing": list(map(str, missing))}
    if entries:
        ratios = [entry["ratio"] for entry in entries]
        said[MINIMUM], said[MAXIMUM] = min(ratios), max(ratios)
        said["geometric_mean"] = float(np.exp(np.mean(np.log(ratios))))
        said["best"] = entries[ratios.index(max(ratios))]["point"]
    if ratio.wanted is not None:
        extreme, least = ratio.wanted
        said["wanted"] = f"{extreme} >= {least:g}"
        said["met"] = _met(said.get(extreme), ratio.wanted, whole=not missing)
    return said


def _met(value: float | None, wanted: tuple[str, float], whole: bool) -> bool | None:
    """Whether the extreme is what it should be; `None`: too few points to say."""
    if value is None:
        return None
    extreme, least = wanted
    reached = value >= least
    # A missing point can only raise a maximum and only lower a minimum.
    certain = reached == (extreme == MAXIMUM)
    return reached if whole or certain else None

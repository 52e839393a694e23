"""One point of the grid: build all contenders, check their gradients, race who is right."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from bench.gpu import contenders, cudnn, floor, grid
from bench.shared import programs, record, timing

_TORCH = (cudnn.EAGER, cudnn.GRAPH)
NAMES = (*_TORCH, *contenders.SCANS, contenders.KERNELS)
MEASURED, REFUSED, WRONG = "measured", "refused", "wrong"

_TORCH_PROGRAMS = (timing.FORWARD, timing.BACKWARD, timing.VALUE_AND_GRAD, contenders.STEP)
# Timed at some points only; `lax.scan` is built at all, as what results are checked with.
_TABLED = (contenders.PLAIN, contenders.AUTO, contenders.PALLAS, contenders.LEVELS)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How every point is measured.

    Attributes:
        names: the contenders.
        unrolls: of `jax.lax.scan`, the fastest is taken.
        rounds: at most.
        min_rounds: at least.
        race_seconds: what the rounds may take beyond the least.
        min_sample: seconds of one sample.
        seed: of parameters and data.
        simulate: whether kernels are simulated, on any device.
    """

    names: tuple[str, ...]
    unrolls: tuple[int, ...]
    rounds: int
    min_rounds: int
    race_seconds: float
    min_sample: float
    seed: int
    simulate: bool = False


@dataclasses.dataclass(frozen=True)
class Side:
    """A contender at one point.

    Attributes:
        lanes: its programs that are timed.
        dense: value and gradient of a loss that reads every step, which is only checked.
        status: whether it is timed, and if not, whether it refused or is wrong.
        reasons: why programs are not timed, by program.
        error: the largest difference of its gradients from `jax.lax.scan`'s, relative to the
            leaf's largest entry.
    """

    lanes: Mapping[str, contenders.Lane]
    status: str = MEASURED
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    error: float | None = None
    dense: contenders.Lane | None = None

    def without_times(self, status: str, reason: str) -> "Side":
        """None of its programs is timed, for one reason."""
        return Side({}, status, {**self.reasons, **dict.fromkeys(self.lanes, reason)})

    def to_json(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        """Status, reasons, and the times of the programs that have any."""
        times = {name: taken.tolist() for name, taken in samples.items()}
        return {
            "status": self.status,
            "reasons": dict(self.reasons),
            "error": self.error,
            "programs": {name: lane.to_json() for name, lane in self.lanes.items()},
            "times": {n: timing.Measurement(tuple(t)).with_samples() for n, t in times.items()},
        }


def measure(
    shape: grid.Shape, settings: Settings, peaks: floor.Peaks, unroll: int | None
) -> dict[str, Any]:
    """Times all contenders in forward, backward, value_and_grad and a training step.

    Args:
        shape: the point.
        settings: how it is measured.
        peaks: of the device, for the floor.
        unroll: of `jax.lax.scan` and every scan like it; `None` finds the fastest.

    Returns:
        An entry of the result file. A contender that cannot run is there with its reason.
    """
    work = grid.make(shape, settings.seed)
    make, _ = contenders.SCANS[contenders.PLAIN]

    def plain(unroll: int, program: str = timing.VALUE_AND_GRAD) -> contenders.Compiled:
        return contenders.scan_lane(program, work, make, unroll)

    options = settings.unrolls if unroll is None else (unroll,)
    lanes = dict(zip(options, _in_parallel(plain, options), strict=True))
    if unroll is None:
        unroll = min(options, key=lambda u: timing.seconds_per_call(lanes[u], _sample))
    wanted = Wanted.by(lanes[unroll], work, shape)
    dense = Wanted.by(plain(unroll, program=contenders.DENSE), work, shape)

    names = [name for name in settings.names if _is_timed(name, shape)]
    sides = _sides(shape, work, names, unroll, settings.simulate)
    sides = {name: _checked(name, side, wanted, dense) for name, side in sides.items()}
    if contenders.KERNELS in sides:
        sides[contenders.KERNELS] = _trusted(sides)
    outcome = timing.race(
        {},
        {name: side.lanes for name, side in sides.items()},
        rounds=settings.rounds,
        min_rounds=min(settings.min_rounds, settings.rounds),
        budget=settings.race_seconds,
        min_sample=settings.min_sample,
        sample=_sample,
    )
    return {
        **dataclasses.asdict(shape),
        "unroll": unroll,
        "tolerance": wanted.allowed,
        "floor": _floor(shape, peaks),
        "contenders": {
            name: side.to_json(outcome.candidates[name]) for name, side in sides.items()
        },
        "load": record.load_average(),
    }


def _is_timed(name: str, shape: grid.Shape) -> bool:
    """Whether a contender is timed at a point: not all are at all of them."""
    if shape in (*grid.ALL_SIDES, *grid.REHEARSAL):
        return True
    return name not in contenders.PURE and (name not in _TABLED or shape in grid.TABLED)


def _sides(
    shape: grid.Shape, work: grid.Workload, names: Sequence[str], unroll: int, simulate: bool
) -> dict[str, Side]:
    """Builds everything: JAX in parallel, then PyTorch, whose graphs want a quiet device."""
    builders = {name: _builders(name, shape, work, unroll, simulate) for name in names}
    tasks = [(name, program) for name, own in builders.items() for program in own]

    def attempt(task: tuple[str, str]) -> contenders.Lane | Exception:
        name, program = task
        try:
            return builders[name][program]()
        # A library may refuse with any error; it is recorded beside the point, never dropped.
        except Exception as error:
            return error

    of_jax = [task for task in tasks if task[0] not in _TORCH]
    made = dict(zip(of_jax, _in_parallel(attempt, of_jax), strict=True))
    made |= {task: attempt(task) for task in tasks if task[0] in _TORCH}
    return {name: _side({p: made[name, p] for p in own}) for name, own in builders.items()}


def _builders(
    name: str, shape: grid.Shape, work: grid.Workload, unroll: int, simulate: bool
) -> contenders.Builders:
    if name in contenders.SCANS:
        return contenders.of_scan(name, work, unroll, simulate)
    if name == contenders.KERNELS:
        return {contenders.SOLVE: partial(contenders.kernel_lane, shape, work)}
    graph = name == cudnn.GRAPH
    return {p: partial(cudnn.lane, p, shape, work, graph) for p in _TORCH_PROGRAMS}


SHORT = 10 * 2.0**-7
"""By how much gradients may differ in bfloat16: ten roundings."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What gradients are compared with.

    Attributes:
        result: value and gradient by `jax.lax.scan`.
        allowed: by how much others may differ, relative to a leaf's largest entry.
    """

    result: Any
    allowed: float

    @classmethod
    def by(cls, lane: contenders.Compiled, work: grid.Workload, shape: grid.Shape) -> "Wanted":
        result = lane()
        moved = lane.program.run(programs.one_ulp_up(work.point), None, work.batch.labels)
        allowed = programs.tolerance(result, moved, shape.length * shape.batch)
        return cls(result, allowed if shape.dtype == "float32" else SHORT)

    def check(self, result: Any, what: str) -> float:
        """The largest difference; `FloatingPointError` where that is too large."""
        return programs.check_equal(self.result, result, self.allowed, what)


def _side(made: Mapping[str, contenders.Lane | Exception]) -> Side:
    reasons = {p: record.reason_of(lane) for p, lane in made.items() if isinstance(lane, Exception)}
    lanes = {p: lane for p, lane in made.items() if p not in reasons}
    dense = lanes.pop(contenders.DENSE, None)
    side = Side(lanes, MEASURED, reasons, dense=dense)
    if timing.VALUE_AND_GRAD in reasons:
        return side.without_times(REFUSED, "no gradients to check")
    return side if side.lanes else dataclasses.replace(side, status=REFUSED)


def _checked(name: str, side: Side, wanted: Wanted, dense: Wanted) -> Side:
    """The side without lanes if its gradients are wrong; every lane has run once after this."""
    try:
        results = {program: lane() for program, lane in side.lanes.items()}
        every = None if side.dense is None else side.dense()
        jax.block_until_ready((results, every))
    # A kernel may fail when it runs; that too is recorded beside the point.
    except Exception as error:
        return side.without_times(REFUSED, f"running: {record.reason_of(error)}")
    if timing.VALUE_AND_GRAD not in results:
        return side
    try:
        error = wanted.check(results[timing.VALUE_AND_GRAD], name)
        if timing.BACKWARD in results:
            gradient = results[timing.BACKWARD]
            error = max(error, wanted.check((wanted.result[0], gradient), f"{name}, backward"))
        if every is not None:
            dense.check(every, f"{name}, of every step")
    except FloatingPointError as problem:
        return side.without_times(WRONG, record.reason_of(problem))
    return dataclasses.replace(side, error=error)


def _trusted(sides: Mapping[str, Side]) -> Side:
    """The kernels alone are timed only if the gradients that they are part of are right."""
    own, whole = sides[contenders.KERNELS], sides.get(contenders.PALLAS)
    if own.status != MEASURED or (whole is not None and whole.status == MEASURED):
        return own
    return own.without_times(REFUSED, f"{contenders.PALLAS}, which checks them, has no gradients")


def _floor(shape: grid.Shape, peaks: floor.Peaks) -> dict[str, Any]:
    system, radices = contenders.system_of(shape), contenders.radices_of(shape)
    return {
        "bytes": floor.moved_bytes(system),
        "flops": floor.flops(system),
        "seconds": floor.seconds(system, peaks),
        "radices": radices,
        "phases": [
            {**dataclasses.asdict(phase), "least_seconds": phase.seconds(peaks)}
            for phase in floor.phases(system, radices)
        ],
    }


def _in_parallel(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Results in order; XLA compiles outside of Python's lock."""
    with concurrent.futures.ThreadPoolExecutor(record.core_count()) as pool:
        return list(pool.map(function, items))


def _sample(lane: contenders.Lane, repeats: int) -> float:
    return lane.seconds(repeats)

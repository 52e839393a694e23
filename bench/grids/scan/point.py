"""One point of the grid: build, check, race."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import parscan_bp
from bench.grids import workloads
from bench.shared import candidates, programs, record, timing
from bench.shared.bench import Options, Result, effort

PROGRAMS_OF = {
    timing.FORWARD: (timing.FORWARD,),
    timing.VALUE_AND_GRAD: (timing.VALUE_AND_GRAD,),
    # The forward program shares the unroll factor of the whole it is subtracted from.
    timing.BACKWARD: timing.REST[timing.BACKWARD],
    "jvp": ("jvp",),
    "hvp": ("hvp",),
}
MODES = tuple(PROGRAMS_OF)


@dataclasses.dataclass(frozen=True)
class Task:
    """A point of the grid, the solvers that are compared there, and in which modes."""

    size: workloads.Size
    solvers: Sequence[str]
    modes: Sequence[str]

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for mode in self.modes for name in PROGRAMS_OF[mode]))


@dataclasses.dataclass(frozen=True)
class Built:
    """The programs of one side that fit, and why others don't."""

    programs: dict[str, programs.Program]
    refused: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"programs": programs.to_json(self.programs), "refused": self.refused}


def measure(task: Task, options: Options) -> Result:
    """Times `parscan_bp.scan` against the tuned `jax.lax.scan` at one point of the grid.

    Raises:
        FloatingPointError: a derivative differs from lax.scan's.
    """
    load, size = record.load_average(), task.size
    work = workloads.make(size, options.seed, options.wrt)
    # The program that needs least gives the direction for jvp and hvp; a point that even it does
    # not fit is left out.
    lean = _checkpointed(work)
    if lean.peak_bytes > options.memory_limit:
        return _skipped(size, f"checkpointed jax.lax.scan needs {lean.peak_bytes} bytes")
    _, gradient = lean.call()
    arguments = (work.point, programs.ascent(gradient), work.data)
    tuned, unrolls = _tuned(work, arguments, task, options)
    if not tuned.programs:
        return _skipped(size, *tuned.refused.values())
    moved = (programs.one_ulp_up(work.point), *arguments[1:])
    wanted, terms = _results(tuned, arguments), size.length * size.batch
    allowed = {
        name: programs.tolerance(wanted[name], result, terms)
        for name, result in _results(tuned, moved).items()
    }
    rivals, errors = {}, {}
    for solver in task.solvers:
        rivals[solver] = _built(solver, size, work, arguments, unrolls, options.memory_limit)
        errors[solver] = {
            name: programs.check_equal(wanted[name], result, allowed[name], f"{name} of {solver}")
            for name, result in _results(rivals[solver], arguments).items()
        }
    lanes = {solver: programs.calls(rival.programs) for solver, rival in rivals.items()}
    outcome = timing.race(programs.calls(tuned.programs), lanes, **effort(options))
    unroll = unrolls.get(timing.VALUE_AND_GRAD, 1)
    return {
        **dataclasses.asdict(size),
        "status": "measured",
        "choice": _choice(work),
        "baseline": {**tuned.to_json(), "unroll": unrolls},
        "tolerances": allowed,
        "checkpointed": (lean if unroll == 1 else _checkpointed(work, unroll)).to_json(),
        "solvers": {
            solver: {
                **rival.to_json(),
                "errors": errors[solver],
                "modes": outcome.to_json(solver, _possible(task.modes, rival)),
            }
            for solver, rival in rivals.items()
        },
        "load": {"start": load, "end": record.load_average()},
    }


def _checkpointed(work: workloads.Workload, unroll: int = 1) -> programs.Program:
    """Value and gradient through the checkpointed `jax.lax.scan`."""
    scan = candidates.rival(candidates.CHECKPOINTED, unroll)
    function = _function(timing.VALUE_AND_GRAD, work, scan)
    return programs.build(function, work.point, work.point, work.data)


def _tuned(
    work: workloads.Workload, arguments: tuple[Any, ...], task: Task, options: Options
) -> tuple[Built, dict[str, int]]:
    """`jax.lax.scan` at its best unroll factor, chosen for each program by a quick measurement."""
    made, refused, unrolls = {}, {}, {}
    for name in task.programs:
        if name == timing.FORWARD and timing.VALUE_AND_GRAD in task.programs:
            continue
        built = {
            unroll: programs.build(_function(name, work, candidates.baseline(unroll)), *arguments)
            for unroll in options.unrolls
        }
        fitting = {u: p for u, p in built.items() if p.peak_bytes <= options.memory_limit}
        if not fitting:
            least = min(program.peak_bytes for program in built.values())
            refused[name] = f"jax.lax.scan needs {least} bytes"
            continue
        unrolls[name] = min(fitting, key=lambda u: timing.seconds_per_call(fitting[u].call))
        made[name] = fitting[unrolls[name]]
    if timing.FORWARD in task.programs and timing.VALUE_AND_GRAD in made:
        unroll = unrolls[timing.FORWARD] = unrolls[timing.VALUE_AND_GRAD]
        forward = _function(timing.FORWARD, work, candidates.baseline(unroll))
        made[timing.FORWARD] = programs.build(forward, *arguments)
    return Built(made, refused), unrolls


def _built(
    solver: str,
    size: workloads.Size,
    work: workloads.Workload,
    arguments: tuple[Any, ...],
    unrolls: dict[str, int],
    limit: float,
) -> Built:
    """A candidate's programs, for every program that the baseline has.

    They have the unroll factors of the baseline: what swapping one import in tuned code gives.
    """
    jacobians = candidates.jacobian_bytes(solver, size.length, size.batch, work.state)
    made, refused = {}, {}
    for name, unroll in unrolls.items():
        if jacobians > limit:
            refused[name] = f"Jacobians of about {jacobians} bytes exceed {limit:g}"
            continue
        try:
            function = _function(name, work, candidates.rival(solver, unroll))
            program = programs.build(function, *arguments)
        except candidates.REFUSALS as refusal:
            if solver == candidates.AUTO:
                raise
            refused[name] = f"{type(refusal).__name__}: {refusal}"
            continue
        if program.peak_bytes > limit:
            refused[name] = f"the compiled program needs {program.peak_bytes} bytes"
            continue
        made[name] = program
    return Built(made, refused)


def _results(side: Built, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What is compared. Residuals are each side's own affair: of forward, only its value."""
    results = {}
    for name, program in side.programs.items():
        result = program.run(*arguments)
        results[name] = result[0] if name == timing.FORWARD else result
    return results


def _possible(modes: Sequence[str], rival: Built) -> list[str]:
    return [mode for mode in modes if set(PROGRAMS_OF[mode]) <= set(rival.programs)]


def _skipped(size: workloads.Size, *reasons: str) -> dict[str, Any]:
    return {**dataclasses.asdict(size), "status": "skipped", "reason": "; ".join(reasons)}


def _choice(work: workloads.Workload) -> str:
    values = {**work.data, **work.point}
    plan = parscan_bp.explain(work.step(values["params"]), values["carry"], values["xs"])
    return str(plan.choice)


def _function(name: str, work: workloads.Workload, scan: candidates.Scan) -> Any:
    return programs.derivatives(work.loss(scan))[name]

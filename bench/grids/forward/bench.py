"""Forward passes by chunks, Newton's method and fixed points over the tuned jax.lax.scan.

Systems from contracting to chaotic, each method certified by its estimate, and with the sequential
pass behind it. Told are its passes, the speedup of the whole with its certificate, the estimate
beside the true error of the method's own trajectory, and how often it fell back, of several draws.

    python -m bench forward --only gru
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import parscan_bp as pb
from bench.grids.forward import report
from bench.grids.forward.systems import UPDATES, Size, System, exponent, make
from bench.shared import candidates, programs, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result, effort, racing
from parscan_bp.scan.api import loop_options, plan_of

METHODS: Mapping[str, Any] = {
    "chunks": pb.Chunks(),
    "newton": pb.Newton(),
    "diagonal": pb.Newton("diagonal"),
    "damped": pb.Newton(damping="residual"),
    "fixed": pb.FixedPoint(),
    "frozen": pb.FrozenActivations(),
}


def points(options: Options) -> dict[str, Size]:
    """The grid; the flow, which always has three numbers, is there with one width."""
    axes = itertools.product(options.T, options.B, options.H, options.strengths, options.systems)
    sizes = [Size(name, 3 if name == "lorenz" else h, b, t, s) for t, b, h, s, name in axes]
    return {str(size): size for size in sizes}


def measure(size: Size, options: Options) -> Result:
    """Compares each method with the sequential pass for all draws, and times it for the first."""
    keys = jax.random.split(jax.random.key(options.seed), options.draws)
    systems = [make(size, key) for key in keys]
    built = {u: _program(candidates.baseline(u), systems[0], size) for u in options.unrolls}
    unroll = min(built, key=lambda u: timing.seconds_per_call(built[u].call))
    told, timed = {}, {}
    for name in options.methods:
        try:
            timed[name], told[name] = _method(name, systems, built[unroll], size)
        except candidates.REFUSALS as refusal:
            told[name] = {"refused": f"{type(refusal).__name__}: {refusal}"}
    lanes = {name: {timing.VALUE: program.call} for name, program in timed.items()}
    outcome = timing.race({timing.VALUE: built[unroll].call}, lanes, **effort(options))
    for name, program in timed.items():
        told[name] |= {**program.to_json(), **outcome.to_json(name, [timing.VALUE])}
    return {
        **dataclasses.asdict(size),
        "unroll": unroll,
        "exponents": [_finite(exponent(system, size.length)) for system in systems],
        "facts": _facts(systems[0], size),
        "baseline": built[unroll].to_json(),
        "methods": told,
    }


def _method(
    name: str, systems: list[System], baseline: programs.Program, size: Size
) -> tuple[programs.Program, Result]:
    """The program that is timed, and how the method did for each draw."""

    def scan(*args: Any, **how: Any) -> Any:
        return pb.scan(*args, forward=METHODS[name], **how)

    def alone(*args: Any, **how: Any) -> Any:
        method = dataclasses.replace(METHODS[name], fallback=False)
        return pb.scan(*args, forward=method, report=True, **how)

    reported = _program(alone, systems[0], size)
    trials = []
    for system in systems:
        _, wanted = baseline.run(*system.arguments)
        _, made, told = reported.run(*system.arguments)
        trials.append(_trial(wanted, made, told))
    return _program(scan, systems[0], size), {"trials": trials}


def _finite(value: float) -> float | None:
    """A file has no infinities: of a system that leaves the range there is no exponent."""
    return timing.rounded(value) if math.isfinite(value) else None


def _facts(system: System, size: Size) -> Result:
    """By which `forward="auto"` finds the point again."""

    def facts(scan: Any) -> Any:
        return system.run(scan, size.length)(*system.arguments)

    found: list[Any] = []

    def plan(f: Any, init: Any, xs: Any, length: int) -> Any:
        found.append(plan_of(f, init, xs, loop_options(length, False, 1), None, "auto")[0])
        return init, xs

    facts(plan)
    known, work = found[0].facts, found[0].step.work
    names = ("platform", "jax_version", "structure", "leaves", "equations", "features", "batch")
    return {name: getattr(known, name) for name in names} | {"products": work.rows > 0}


def _program(scan: candidates.Scan, system: System, size: Size) -> programs.Program:
    return programs.build(system.run(scan, size.length), *system.arguments)


def _trial(wanted: Any, made: Any, told: pb.Report) -> Result:
    """What is recorded of one draw; errors are relative to 1 + the largest number."""
    pairs = list(zip(jax.tree.leaves(wanted), jax.tree.leaves(made), strict=True))
    largest = max(float(jnp.max(jnp.abs(a))) for a, _ in pairs)
    apart = max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)
    forward = told.forward
    numbers = {"estimate": forward.error, "floor": forward.floor, "error": apart / (1 + largest)}
    return {
        "passes": int(forward.iterations),
        "converged": bool(forward.converged),
        "certified": int(forward.status) == pb.Status.OK,
        # A file has no infinities: None is an estimate that was refused, or no trajectory at all.
        **{k: float(v) if math.isfinite(v) else None for k, v in numbers.items()},
    }


BENCH = Bench(
    "forward",
    __doc__,
    baseline="jitted jax.lax.scan with its best unroll factor",
    points=points,
    measure=measure,
    rows=Listed("points", lambda entry: str(Size.of(entry))),
    text=report.text,
    draw=report.draw,
    options=(
        Option("systems", list(UPDATES), choices=list(UPDATES)),
        *(Option("H", [8, 32]), Option("B", [1, 16]), Option("T", [1024, 16384])),
        Option("strengths", [0.5, 1.0, 2.0, 4.0], "what the exponent depends on"),
        Option("methods", list(METHODS), choices=list(METHODS)),
        Option("draws", 5, "systems of each point; the first is timed"),
        Option("unrolls", [1, 4, 8, 16], "of lax.scan, the fastest is taken"),
        Option("seed", 0),
        *racing(15, 7, 10.0),
    ),
    quick={
        "H": [2],
        "B": [2],
        "T": [12],
        "strengths": [0.5],
        "systems": ["elman", "random-walk"],
        "draws": 2,
        "unrolls": [1],
    },
    fixed=("seed", "draws", "methods"),
)

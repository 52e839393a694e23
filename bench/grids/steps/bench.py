"""Value and gradient of scans that people write, by `solver=None`, by the sweep, by lax.scan.

A sweep evaluates every step a second time. For a recurrent cell that pays, for a step that is
mostly work it does not, and `solver=None` has to tell them apart (`choice.work`). Each program is
measured twice, as chosen and by the sweep, so that the choice is seen to be right; and once more as
chosen after `pb.autotune_calls`, which begins with nothing remembered, where it may take some time.

    python -m bench steps --record
    python -m bench steps --record --autotune 2     seconds for the race of a program
"""

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax

import parscan_bp
from bench.grids import workloads
from bench.grids.steps import networks, rollouts
from bench.shared import candidates, programs, tables, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result, effort, racing

PROGRAMS = rollouts.ROLLOUTS | networks.NETWORKS
SIDES = (candidates.AUTO, "sweep")
TUNED = "tuned"
# What the interval of a speedup by the choice has to reach.
WANTED = 0.95


def measure(make: Callable[[], rollouts.Rollout], options: Options) -> Result:
    """Checks and times one program.

    Raises:
        FloatingPointError: a derivative differs from that of lax.scan.
    """
    rollout = make()
    explained: list[Any] = []
    outputs = jax.eval_shape(
        lambda point: rollout.run(_explaining(explained), point), rollout.point
    )
    weights = workloads.draw_weights(jax.random.key(1), outputs)

    def loss(scan: candidates.Scan, point: Any) -> jax.Array:
        return workloads.weigh(weights, rollout.run(scan, point))

    def program(scan: candidates.Scan) -> programs.Program:
        return programs.build(jax.value_and_grad(functools.partial(loss, scan)), rollout.point)

    baseline = program(candidates.baseline())
    wanted = baseline.call()
    allowed = programs.tolerance(wanted, baseline.run(programs.one_ulp_up(rollout.point)), 1000)
    sides = {name: program(candidates.candidate(name)) for name in SIDES}
    remembered = {}
    if options.autotune:
        chosen = candidates.candidate(candidates.AUTO)
        with _nothing_remembered():
            remembered = _tuned(functools.partial(loss, chosen), rollout.point, options.autotune)
            sides[TUNED] = program(chosen)
    errors = {
        name: programs.check_equal(wanted, side.call(), allowed, f"{name}: ")
        for name, side in sides.items()
    }
    whole = timing.VALUE_AND_GRAD
    rivals = {name: {whole: side.call} for name, side in sides.items()}
    outcome = timing.race({whole: baseline.call}, rivals, **effort(options))
    return {
        "choice": explained[0].choice,
        "reason": explained[0].reason,
        **remembered,
        "tolerance": allowed,
        "baseline": baseline.to_json(),
        "solvers": {
            name: {
                "error": errors[name],
                "program": side.to_json(),
                **outcome.to_json(name, [whole]),
            }
            for name, side in sides.items()
        },
    }


@contextlib.contextmanager
def _nothing_remembered() -> Iterator[None]:
    """A store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, PARSCAN_BP_WISDOM=folder):
            yield


def _tuned(loss: Callable[[Any], jax.Array], point: Any, seconds: float) -> Result:
    """Races the solvers of a program's scan; what won, or that there is nothing to choose."""
    try:
        found = parscan_bp.autotune_calls(loss, point, budget_s=seconds, progress=False)
    except ValueError as error:
        return {"tuned": None, "untuned": str(error)}
    return {"tuned": ", ".join(tuning.winner for tuning in found)}


def _explaining(explained: list[Any]) -> candidates.Scan:
    """`lax.scan` that also says what ours would do."""

    @functools.wraps(jax.lax.scan)
    def scan(*args: Any, **kwargs: Any) -> Any:
        explained.append(parscan_bp.explain(*args, **kwargs))
        return jax.lax.scan(*args, **kwargs)

    return scan


def text(result: Result) -> str:
    """A line for each program; then those in which the choice is too slow."""
    header = ["program", "as chosen", "by the sweep", "temp sweep/lax.scan", "chosen"]
    header.append("because the step")
    tuned = any(TUNED in point["solvers"] for point in result["points"])
    header += ["tuned", "to"] if tuned else []
    rows, missed = [], []
    for point in result["points"]:
        chosen, swept = (point["solvers"][name][timing.VALUE_AND_GRAD] for name in SIDES)
        ours = tables.size(point["solvers"]["sweep"]["program"]["temp_bytes"])
        memory = f"{ours}/{tables.size(point['baseline']['temp_bytes'])}"
        left = point["choice"] == "lax.scan"
        reason = point["reason"].removeprefix("the step ") if left else ""
        ranges = [tables.resolved(comparison) for comparison in (chosen, swept)]
        row = [point["name"], *ranges, memory, point["choice"].split("(")[0], reason]
        rows.append([*row, *_of_tuned(point)] if tuned else row)
        if chosen["high"] < WANTED:
            missed.append(f"  {point['name']}: {ranges[0]}")
    count = f"{len(missed)} programs whose whole interval is below {WANTED} as chosen"
    return "\n".join([tables.table(header, rows), "", count, *missed])


def _of_tuned(point: Result) -> list[str]:
    """Its speedup, and what won."""
    if TUNED not in point["solvers"]:
        return ["", ""]
    compared = point["solvers"][TUNED][timing.VALUE_AND_GRAD]
    return [tables.resolved(compared), point["tuned"] or "nothing to choose"]


BENCH = Bench(
    "steps",
    __doc__,
    baseline="jitted jax.lax.scan, unroll=1",
    points=lambda options: PROGRAMS,
    measure=measure,
    rows=Listed("points"),
    text=text,
    options=(
        Option("autotune", 0.0, "seconds to race each program's solvers; 0: none"),
        *racing(seconds=3.0),
    ),
    quick={"only": ["cart-poles, 16", "bodies, 3"]},
)

"""Value and gradient of scans that people write, by `solver=None`, by the sweep, by lax.scan.

A sweep evaluates every step a second time. For a recurrent cell that pays, for a step that is
mostly work it does not, and `solver=None` has to tell them apart (`choice.work`). Each program is
measured twice, as chosen and by the sweep, so that the choice is seen to be right.

    python -m bench steps --record
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

import parscan_bp
from bench.grids import workloads
from bench.grids.steps import networks, rollouts
from bench.shared import candidates, programs, tables, timing
from bench.shared.bench import Bench, Listed, Options, Result, effort, racing

PROGRAMS = rollouts.ROLLOUTS | networks.NETWORKS
SIDES = (candidates.AUTO, "sweep")
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

    def program(scan: candidates.Scan) -> programs.Program:
        loss = lambda point: workloads.weigh(weights, rollout.run(scan, point))  # noqa: E731
        return programs.build(jax.value_and_grad(loss), rollout.point)

    baseline = program(candidates.baseline())
    wanted = baseline.call()
    allowed = programs.tolerance(wanted, baseline.run(programs.one_ulp_up(rollout.point)), 1000)
    sides, errors = {}, {}
    for name in SIDES:
        sides[name] = program(candidates.candidate(name))
        errors[name] = programs.check_equal(wanted, sides[name].call(), allowed, f"{name}: ")
    whole = timing.VALUE_AND_GRAD
    rivals = {name: {whole: side.call} for name, side in sides.items()}
    outcome = timing.race({whole: baseline.call}, rivals, **effort(options))
    return {
        "choice": explained[0].choice,
        "reason": explained[0].reason,
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
    rows, missed = [], []
    for point in result["points"]:
        chosen, swept = (point["solvers"][name][timing.VALUE_AND_GRAD] for name in SIDES)
        ours = tables.size(point["solvers"]["sweep"]["program"]["temp_bytes"])
        memory = f"{ours}/{tables.size(point['baseline']['temp_bytes'])}"
        left = point["choice"] == "lax.scan"
        reason = point["reason"].removeprefix("the step ") if left else ""
        ranges = [tables.resolved(comparison) for comparison in (chosen, swept)]
        rows.append([point["name"], *ranges, memory, point["choice"].split("(")[0], reason])
        if chosen["high"] < WANTED:
            missed.append(f"  {point['name']}: {ranges[0]}")
    count = f"{len(missed)} programs whose whole interval is below {WANTED} as chosen"
    return "\n".join([tables.table(header, rows), "", count, *missed])


BENCH = Bench(
    "steps",
    __doc__,
    baseline="jitted jax.lax.scan, unroll=1",
    points=lambda options: PROGRAMS,
    measure=measure,
    rows=Listed("points"),
    text=text,
    options=racing(seconds=3.0),
    quick={"only": ["cart-poles, 16", "bodies, 3"]},
)

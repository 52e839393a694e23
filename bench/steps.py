"""Value and gradient of scans that people write, by `solver=None`, by the sweep, by lax.scan.

A sweep evaluates every step a second time. For a recurrent cell that pays, for a step that is
mostly work it does not, and `solver=None` has to tell them apart (`structure.work_of`). Each
program is measured twice, as chosen and by the sweep, so that the choice is seen to be right.

    python -m bench steps --record
"""

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import jax
from tqdm import tqdm

import parscan_bp
from bench import (
    candidates,
    handwritten,
    programs,
    record,
    rollouts,
    scan_report,
    tables,
    timing,
    workloads,
)

PROGRAMS = rollouts.ROLLOUTS | handwritten.NETWORKS
SIDES = (candidates.AUTO, "sweep")
# What the interval of a speedup by the choice has to reach.
WANTED = 0.95


def main(argv: Sequence[str]) -> None:
    """Measures every program, writes JSON, prints a table and where the choice is too slow.

    Raises:
        FloatingPointError: a derivative differs from that of lax.scan.
    """
    options = _parser().parse_args(argv)
    path = record.result_path(options)
    names = [name for name in PROGRAMS if options.only in name]
    result: dict[str, Any] = {"runs": [record.environment(argv)], "points": []}
    for name in tqdm(names, desc="programs", unit="program"):
        result["points"].append({"name": name, **measure(PROGRAMS[name](), options)})
        result["runs"][-1]["load_end"] = record.load_average()
        record.write(path, result)
    print(text(result))


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("steps")
    parser = argparse.ArgumentParser("python -m bench steps", parents=[shared])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--rounds", type=int, default=25, help="at most, for each program")
    parser.add_argument("--min-rounds", type=int, default=15, help="at least, whatever the budget")
    parser.add_argument("--budget-seconds", type=float, default=3.0, help="for its rounds")
    return parser


def measure(rollout: rollouts.Rollout, options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one program.

    Raises:
        FloatingPointError: a derivative differs from that of lax.scan.
    """
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
    outcome = timing.race(
        {timing.VALUE_AND_GRAD: baseline.call},
        {name: {timing.VALUE_AND_GRAD: side.call} for name, side in sides.items()},
        rounds=options.rounds,
        min_rounds=min(options.min_rounds, options.rounds),
        budget=options.budget_seconds,
    )
    return {
        "choice": explained[0].choice,
        "reason": explained[0].reason,
        "tolerance": allowed,
        "baseline": baseline.to_json(),
        "solvers": {
            name: {
                "error": errors[name],
                "program": side.to_json(),
                timing.VALUE_AND_GRAD: outcome.compare(name, timing.VALUE_AND_GRAD).to_json(),
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


def text(result: dict[str, Any]) -> str:
    """A line for each program; then those in which the choice is too slow."""
    header = [
        "program",
        "as chosen",
        "by the sweep",
        "temp sweep/lax.scan",
        "chosen",
        "because the step",
    ]
    rows, missed = [], []
    for point in result["points"]:
        chosen, swept = (point["solvers"][name][timing.VALUE_AND_GRAD] for name in SIDES)
        ours = tables.size(point["solvers"]["sweep"]["program"]["temp_bytes"])
        memory = f"{ours}/{tables.size(point['baseline']['temp_bytes'])}"
        left = point["choice"] == "lax.scan"
        reason = point["reason"].removeprefix("the step ") if left else ""
        ranges = [scan_report.range_of(comparison) for comparison in (chosen, swept)]
        rows.append([point["name"], *ranges, memory, point["choice"].split("(")[0], reason])
        if chosen["high"] < WANTED:
            missed.append(f"  {point['name']}: {ranges[0]}")
    count = f"{len(missed)} programs whose whole interval is below {WANTED} as chosen"
    return "\n".join([tables.table(header, rows), "", count, *missed])

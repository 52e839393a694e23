"""Speedup of parscan_bp.scan over the tuned jax.lax.scan on a grid of cells and sizes.

The baseline is jitted `jax.lax.scan` with its best unroll factor, found for every program by a
quick measurement; parscan_bp.scan takes the same factor. A speedup above 1 says that parscan_bp
is faster.

    python -m bench scan --record                       the whole grid
    python -m bench scan --record --resume              goes on where it stopped
    python -m bench scan --confirm FILE.json --record   measures again what was too slow
    python -m bench scan --report FILE.json [SECOND.json]
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import traceback
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from bench import candidates, record, scan_figures, scan_point, scan_report, timing, workloads

Result = dict[str, Any]
Task = tuple[workloads.Size, scan_point.Settings]


def main(argv: Sequence[str]) -> None:
    """Measures the grid, or reports on one that was measured.

    Raises:
        RuntimeError: at some points derivatives differ or the library fails; all other points
            are measured and written first.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.report:
        if len(options.report) > 2:
            parser.error("--report takes a file and at most one confirmation of it")
        _report(*map(_read, options.report), path=options.report[0])
        return
    path = record.result_path(options)
    if options.confirm:
        previous = _read(options.confirm)
        path = path.with_name(f"{options.confirm.stem}_confirm.json")
        tasks = _again(previous, _settings(options, wrt=previous["settings"]["wrt"]))
    else:
        tasks = _grid(options, _settings(options, wrt=options.wrt))
    if not tasks:
        print("nothing to measure")
        return
    result = _start(argv, options, path, tasks[0][1])
    _measure(result, tasks, path)
    _report(result, path=path)
    failures = [point for point in result["points"] if point["status"] == "failed"]
    if failures:
        listed = "\n".join(f"{scan_report.size_of(p)}: {p['reason']}" for p in failures)
        raise RuntimeError(f"{len(failures)} points failed:\n{listed}")


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("scan")
    parser = argparse.ArgumentParser("python -m bench scan", parents=[shared])
    axes = parser.add_argument_group("grid")
    axes.add_argument("--cells", nargs="+", choices=workloads.CELLS, default=workloads.CELLS)
    axes.add_argument("--H", nargs="+", type=int, default=[1, 4, 20, 64, 256])
    axes.add_argument("--B", nargs="+", type=int, default=[1, 16])
    axes.add_argument("--T", nargs="+", type=int, default=[100, 1000, 10000])
    modes = (timing.VALUE_AND_GRAD, timing.BACKWARD, "jvp", "hvp")
    axes.add_argument("--modes", nargs="+", choices=scan_point.MODES, default=modes)
    axes.add_argument(
        "--solvers",
        nargs="+",
        choices=candidates.RIVALS,
        default=[candidates.AUTO],
        help="ours by name; or lax.scan with a checkpointed body, which is never judged",
    )
    axes.add_argument(
        "--wrt",
        choices=(workloads.PARAMETERS, workloads.EVERYTHING),
        default=workloads.PARAMETERS,
        help="differentiate parameters only, or the first carry and the inputs too",
    )
    effort = parser.add_argument_group("effort")
    effort.add_argument("--rounds", type=int, default=25, help="at most, for each point")
    effort.add_argument("--min-rounds", type=int, default=15, help="at least, whatever the budget")
    effort.add_argument("--budget-seconds", type=float, default=60.0, help="for one point's rounds")
    effort.add_argument("--unrolls", nargs="+", type=int, default=[1, 2, 4, 8])
    effort.add_argument("--memory-limit", type=float, default=2e9, help="bytes of one program")
    effort.add_argument("--seed", type=int, default=0)
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--resume", action="store_true", help="keep the points the file has")
    files.add_argument("--confirm", type=pathlib.Path, help="measure again what was too slow in it")
    files.add_argument(
        "--report", nargs="+", type=pathlib.Path, help="a file, and its confirmation"
    )
    return parser


def _settings(options: argparse.Namespace, wrt: str) -> scan_point.Settings:
    return scan_point.Settings(
        modes=tuple(options.modes),
        solvers=tuple(options.solvers),
        unrolls=tuple(options.unrolls),
        rounds=options.rounds,
        min_rounds=min(options.min_rounds, options.rounds),
        budget_seconds=options.budget_seconds,
        memory_limit=int(options.memory_limit),
        wrt=wrt,
        seed=options.seed,
    )


def _grid(options: argparse.Namespace, settings: scan_point.Settings) -> list[Task]:
    # Small points first: an interrupted run has seen every cell.
    axes = itertools.product(options.T, options.B, options.H, options.cells)
    return [(workloads.Size(cell, h, b, t), settings) for t, b, h, cell in axes]


def _again(previous: Result, settings: scan_point.Settings) -> list[Task]:
    """The points of a file that were too slow, with only the solvers and modes that were."""
    slow = scan_report.too_slow(previous)
    tasks = []
    for size in sorted({lane.size for lane in slow}):
        own = [lane for lane in slow if lane.size == size]
        solvers = tuple(dict.fromkeys(lane.solver for lane in own))
        modes = tuple(dict.fromkeys(lane.mode for lane in own))
        tasks.append((size, dataclasses.replace(settings, solvers=solvers, modes=modes)))
    return tasks


def _start(
    argv: Sequence[str],
    options: argparse.Namespace,
    path: pathlib.Path,
    settings: scan_point.Settings,
) -> Result:
    """An empty result, or with `--resume` the one that is there, opened for another run."""
    run = record.environment(argv)
    fresh: Result = {"runs": [run], "settings": dataclasses.asdict(settings), "points": []}
    if not (options.resume and path.exists()):
        return fresh
    result = _read(path)
    for name in ("device", "cpu", "versions", "x64"):
        if result["runs"][-1][name] != run[name]:
            raise ValueError(
                f"{path.name} was measured with {name} {result['runs'][-1][name]}, this is "
                f"{run[name]}: choose another --name"
            )
    for name in ("wrt", "seed"):
        if result["settings"][name] != fresh["settings"][name]:
            raise ValueError(f"{path.name} has --{name} {result['settings'][name]}")
    result["runs"].append(run)
    return result


def _measure(result: Result, tasks: Sequence[Task], path: pathlib.Path) -> None:
    """Measures what the result lacks and writes the file after every point."""
    for size, settings in tqdm(tasks, desc="points", unit="point"):
        asked = {"solvers": list(settings.solvers), "modes": list(settings.modes)}
        if any(_covers(point, size, asked) for point in result["points"]):
            continue
        try:
            point = scan_point.measure(size, settings)
        except Exception as problem:
            # One bad point must not end a long run; `main` raises when all are done. The
            # traceback goes to the terminal only: it holds paths.
            traceback.print_exc()
            ours = isinstance(problem, FloatingPointError)
            reason = str(problem) if ours else type(problem).__name__
            point = {**dataclasses.asdict(size), "status": "failed", "reason": reason}
        kept = [other for other in result["points"] if scan_report.size_of(other) != size]
        result["points"] = [*kept, {**point, "asked": asked}]
        result["runs"][-1]["load_end"] = record.load_average()
        record.write(path, result)


def _covers(point: Result, size: workloads.Size, asked: dict[str, list[str]]) -> bool:
    if scan_report.size_of(point) != size or point["status"] == "failed":
        return False
    return all(set(names) <= set(point["asked"][axis]) for axis, names in asked.items())


def _read(path: pathlib.Path) -> Result:
    return json.loads(path.read_text())


def _report(result: Result, confirmation: Result | None = None, *, path: pathlib.Path) -> None:
    print(scan_report.overview(result))
    print(scan_report.verdicts(result, confirmation))
    for drawn in scan_figures.draw(result, path):
        print(f"drew {drawn.name}")

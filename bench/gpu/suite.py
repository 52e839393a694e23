"""The command: the grid within a time budget, one file, two figures."""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from tqdm import tqdm

from bench.gpu import contenders, cudnn, first_run, floor, grid, plots, point, report, summary
from bench.shared import record, timing

Result = dict[str, Any]

UNROLLS = (16,)


def main(argv: Sequence[str]) -> None:
    """Measures what the budget allows, prints the tables, writes JSON and the figures.

    Raises:
        SystemExit: there is no GPU.
        RuntimeError: a contender has wrong gradients, or a point failed as a whole; everything
            else is measured first.
    """
    options = _parser().parse_args(argv)
    if options.first_run:
        return first_run.main(options)
    clock = timing.Stopwatch()
    backend = jax.default_backend()
    if backend != "gpu" and not options.rehearse:
        raise SystemExit(
            f"python -m bench gpu needs a CUDA GPU; JAX finds {backend} only. "
            "With --rehearse it runs a tiny grid on any device, to try the code and not the speed."
        )
    path = record.result_path(options)
    result = _start(argv, options)
    if options.resume and path.exists():
        result = _continued(json.loads(path.read_text()), result)
    _measure(result, options, path, clock)
    print(report.text(result))
    for drawn in plots.draw(result, path):
        print(f"drew {drawn.name}")
    bad = [*report.lines_of(result, point.WRONG), *report.failures(result)]
    if bad:
        raise RuntimeError("\n".join(["not all is right:", *bad]))


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("gpu")
    parser = argparse.ArgumentParser("python -m bench gpu", parents=[shared])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="four points")
    size.add_argument("--rehearse", action="store_true", help="two tiny points, on any device")
    parser.add_argument(
        "--simulate", action="store_true", help="kernels in JAX's simulation of a GPU, slowly"
    )
    parser.add_argument(
        "--cheap-first", action="store_true", help="README's rows, then the others, by their cost"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="only points that the file lacks",
    )
    parser.add_argument(
        "--first-run",
        action="store_true",
        help="tests, grid and racecheck, each with its own end; goes on where it was stopped",
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="for all; no point starts that would end later"
    )
    parser.add_argument("--contenders", nargs="+", choices=point.NAMES, default=point.NAMES)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _settings(options: argparse.Namespace) -> point.Settings:
    tiny = options.rehearse
    return point.Settings(
        names=tuple(options.contenders),
        unrolls=UNROLLS[:1] if tiny else UNROLLS,
        rounds=2 if tiny else 15,
        min_rounds=2 if tiny else 3,
        race_seconds=0.0 if tiny else 2.0,
        min_sample=0.0 if tiny else 3e-3,
        seed=options.seed,
        simulate=options.simulate,
    )


def _shapes(options: argparse.Namespace) -> tuple[grid.Shape, ...]:
    if options.rehearse:
        return grid.REHEARSAL
    if options.quick:
        return grid.QUICK
    return grid.CHEAP_FIRST if options.cheap_first else grid.FULL


def _start(argv: Sequence[str], options: argparse.Namespace) -> Result:
    """The result before its points: where it was measured, how, and what the device reaches."""
    numbers, order = (2**16, 64) if options.rehearse else (2**28, 8192)
    return {
        "runs": [record.environment(argv)],
        "torch": cudnn.versions(),
        "settings": {
            "precision": contenders.PRECISION,
            "minutes": options.minutes,
            **vars(_settings(options)),
        },
        "peaks": vars(floor.measured_peaks(numbers, order)),
        "points": [],
        "failed": {},
    }


def _continued(before: Result, result: Result) -> Result:
    """With the points of a file, if they are of this device and these versions."""
    last, now = before["runs"][-1], result["runs"][-1]
    if any(last[key] != now[key] for key in ("device", "versions")):
        return result
    return {**result, "points": before["points"], "runs": [*before["runs"], *result["runs"]]}


def _measure(
    result: Result, options: argparse.Namespace, path: pathlib.Path, clock: timing.Stopwatch
) -> None:
    """Measures point after point and writes the file after each; what does not fit is named."""
    settings, peaks = _settings(options), floor.Peaks(**result["peaks"])
    measured = {summary.shape_of(entry): entry for entry in result["points"]}
    not_run = [shape for shape in _shapes(options) if shape not in measured]
    unrolls = {shape.cell: entry["unroll"] for shape, entry in measured.items()}
    taken: dict[grid.Shape, float] = {}
    spent = clock.lap()
    _write(result, not_run, path)
    for shape in tqdm(list(not_run), desc="points", unit="point"):
        if spent + _expected(shape, taken) > 60 * options.minutes:
            continue
        try:
            # The fastest unroll factor is a matter of the cell: it is found once.
            entry = point.measure(shape, settings, peaks, unrolls.get(shape.cell))
        # One bad point must not end the run; `main` raises when all are done.
        except Exception as error:
            result["failed"][str(shape)] = record.reason_of(error)
            spent += clock.lap()
        else:
            unrolls[shape.cell] = entry["unroll"]
            taken[shape] = clock.lap()
            spent += taken[shape]
            not_run.remove(shape)
            result["points"].append({**entry, "seconds": taken[shape]})
        _write(result, not_run, path)


def _write(result: Result, not_run: Sequence[grid.Shape], path: pathlib.Path) -> None:
    result["not_run"] = list(map(str, not_run))
    result["summary"] = summary.summary(result["points"], not_run)
    result["runs"][-1]["load_end"] = record.load_average()
    record.write(path, result)


def _expected(shape: grid.Shape, taken: dict[grid.Shape, float]) -> float:
    """Seconds that a point may need: those of the slowest one that was no longer."""
    return max((s for other, s in taken.items() if other.length <= shape.length), default=0.0)

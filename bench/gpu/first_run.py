"""``--first-run``: what a few minutes on a GPU are for, one after another, each with its end.

Tests of the compiled kernels, then the grid, then races. A stage runs in processes of its own,
which are ended with all that they started when its time is over; time that it leaves goes to the
next. What it printed lies beside the result, which is written after each stage (and the grid's
after each point). Called again, stages that ended well are left out, and the grid goes on where it
was.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench.shared import record, timing

Result = dict[str, Any]

PASSED, FAILED, STOPPED, MISSING = "passed", "failed", "stopped at its end", "not there"
_ROOT = pathlib.Path(__file__).parents[2]
_TAIL = 80
"""Lines of a stage's output that are shown."""
_GRACE = 5
"""Seconds in which a stage may write what it has."""
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_ON_GPU = ("test_gpu.py", "test_recurrence.py")
_SIDES = "cudnn cudnn_graph lax.scan auto pallas pallas_blelloch fused fused_sequential kernels"


@dataclasses.dataclass(frozen=True)
class Stage:
    """One thing to run.

    Attributes:
        name: of its file and in the result.
        command: what is run, in the repository's folder.
        share: of the time that is left, beside those of the stages that follow.
        environment: beside the process's own.
    """

    name: str
    command: Sequence[str]
    share: float
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def stages(options: argparse.Namespace) -> list[Stage]:
    """In the order of what they are worth."""
    return _rehearsal(options) if options.rehearse else _on_gpu(options)


def _on_gpu(options: argparse.Namespace) -> list[Stage]:
    kernels = [f"tests/kernels/{name}" for name in _ON_GPU]
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    workers = str(max(1, min(12, record.core_count() - 2)))
    tests = (*_PYTEST, "-n", workers, "--dist", "worksteal", "-m", "gpu and not slow")
    sanitizer = "compute-sanitizer --tool racecheck --racecheck-report analysis --print-limit 20"
    only = "--error-exitcode 9 --kernel-regex kns=mosaic_gpu_kernel"
    racecheck = (*sanitizer.split(), *only.split())
    # H = 20, T = 33, B = 3 of recurrences, and of scans.
    raced = ("-x", "-m", "gpu", "-k", "(20-33-3 or 33-3-20) and True", *reversed(kernels))
    return [
        Stage("tests", (*tests, *kernels, "tests/scan/test_on_gpu.py"), 0.25, shared),
        Stage("grid", (*_grid(options), "--cheap-first", "--contenders", *_SIDES.split()), 0.55),
        Stage("racecheck", (*racecheck, *_PYTEST, *raced), 0.2, shared),
    ]


def _rehearsal(options: argparse.Namespace) -> list[Stage]:
    """The same on any device: kernels simulated, and executed from what they are compiled to."""
    simulated = ("tests/kernels/test_recurrence.py", "tests/kernels/test_tiles.py")
    executed = ("-m", "slow", "-k", "7-3-1-float32 or forward-1-1-1", "tests/kernels/ptx")
    sides = ["--contenders", *_SIDES.split()]
    return [
        Stage("tests", (*_PYTEST, "-k", "kernels and elman", *simulated), 0.25),
        Stage("grid", (*_grid(options), "--rehearse", "--simulate", *sides), 0.55),
        Stage("racecheck", (*_PYTEST, *executed), 0.2, {"JAX_PLATFORMS": "cpu"}),
    ]


def _grid(options: argparse.Namespace) -> tuple[str, ...]:
    folder = record.result_path(options).parent
    place = ("--out", str(folder.resolve()), "--name", options.name)
    return (sys.executable, "-m", "bench", "gpu", "--resume", *place)


def main(options: argparse.Namespace) -> None:
    """Runs the stages that have not ended well, and prints the end of what each said.

    Raises:
        RuntimeError: one failed; the others are run first.
    """
    clock = timing.Stopwatch()
    if options.rehearse:
        options.name += "_rehearsal"
    path = record.result_path(options, "_first_run.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    result: Result = json.loads(path.read_text()) if path.exists() else {"stages": {}}
    left, planned = 60 * options.minutes, stages(options)
    for number, stage in enumerate(planned):
        before = result["stages"].get(stage.name, {})
        if before.get("status") == PASSED and not before.get("rest"):
            print(f"== {stage.name}: {PASSED} before")
            continue
        limit = left * stage.share / sum(s.share for s in planned[number:])
        told = path.with_name(f"{path.stem}_{stage.name}.txt")
        entry = run(stage, limit, told)
        entry["rest"] = _not_run(options) if stage.name == "grid" else []
        result["stages"][stage.name] = entry
        path.write_text(json.dumps(result, indent=1))
        left -= clock.lap()
        print(f"== {stage.name}: {entry['status']} after {entry['seconds']:.0f} s, see {told.name}")
        print("\n".join(told.read_text().splitlines()[-_TAIL:]), flush=True)
    failed = [n for n, entry in result["stages"].items() if entry["status"] in (FAILED, MISSING)]
    if failed:
        raise RuntimeError(
            f"not all is right: {', '.join(failed)}; see the files beside {path.name}"
        )


def _not_run(options: argparse.Namespace) -> list[str]:
    """The points that the grid had no time for."""
    path = record.result_path(options)
    return json.loads(path.read_text())["not_run"] if path.exists() else ["all"]


def run(stage: Stage, limit: float, told: pathlib.Path) -> Result:
    """Runs a stage for so many seconds at most; what it says goes to a file.

    Returns:
        How it ended, its exit code and its seconds.
    """
    clock = timing.Stopwatch()
    command = list(stage.command)
    if shutil.which(command[0]) is None:
        told.write_text(f"{command[0]} is not there\n")
        return {"status": MISSING, "code": None, "seconds": clock.lap(), "limit": limit}
    if stage.name == "grid":
        # It ends by itself before it is ended: a point that is begun is worth its time.
        command += ["--minutes", f"{max(0.0, limit - 15) / 60:.2f}"]
    own = {"PARSCAN_BP_WISDOM": "off", "PYTHONUNBUFFERED": "1", **stage.environment}
    with told.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=os.environ | own,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    status = STOPPED if code is None else PASSED if code == 0 else FAILED
    return {"status": status, "code": code, "seconds": clock.lap(), "limit": limit}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process with all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue

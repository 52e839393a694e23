"""Tries cases that are drawn from a seed, in processes of their own, and goes on where it was left.

    python -m tests.fuzz_pipelines --count 200 --seed 0 --state pipelines.jsonl
    python -m tests.fuzz_pipelines --seed 0 --only 17

So do `tests.fuzz_grids`, `tests.axes` and `tests.extrema`.

The state is one line of JSON for each case. A process takes `BATCH` cases and ends, so that what
was compiled takes no memory; one that dies or hangs costs the case at which it did so.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.optimisation import LITTLE

BATCH = 10
PATIENCE = 600
"""Seconds for a process."""

FLAGS = f"{LITTLE} --xla_force_host_platform_device_count=4"

Try = Callable[[int, int], tuple[str, str]]
"""Of a seed and an index the case as text, and how it fails; nothing if it does not."""


def main(name: str, attempt: Try) -> None:
    """What a module of cases runs.

    Args:
      name: of the module, ``python -m name``.
      attempt: draws a case and tries it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path(f"{name}.jsonl"))
    parser.add_argument("--only", type=int, help="tries this case alone, and prints a traceback")
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        sys.exit(_process(name, args.seed, [args.only]).returncode)
    if args.batch:
        for index in map(int, args.batch.split(",")):
            print(json.dumps(tried(attempt, args.seed, index, loud=True)), flush=True)
        return
    sys.exit(run(name, args.seed, args.count, args.state))


def tried(attempt: Try, seed: int, index: int, *, loud: bool = False) -> dict[str, Any]:
    """The record of a case."""
    begun = time.monotonic()
    try:
        text, message = attempt(seed, index)
    except Exception as error:
        if loud:
            traceback.print_exc()
        text, message = "", f"raises {type(error).__name__}: {str(error)[:300]}"
    record = {"seed": seed, "index": index, "text": text, "message": message}
    return {**record, "seconds": round(time.monotonic() - begun, 2)}


def run(name: str, seed: int, count: int, state: pathlib.Path) -> int:
    """Tries all cases that the state does not have yet; 0 if none fails."""
    lines = state.read_text().splitlines() if state.exists() else []
    done = {record["index"]: record for record in map(json.loads, lines)}
    if any(record["seed"] != seed for record in done.values()):
        raise SystemExit(f"--state: {state} holds cases of another seed than {seed}")
    print(f"{len(done)} of {count} cases done before", flush=True)
    while todo := [k for k in range(count) if k not in done][:BATCH]:
        ended = _process(name, seed, todo, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith(b"{")]
        if len(found) < len(todo):
            lost = {"seed": seed, "index": todo[len(found)], "text": "", "seconds": 0.0}
            found.append({**lost, "message": f"the process ends with {ended.returncode}"})
        with state.open("a") as file:
            for record in found:
                done[record["index"]] = record
                file.write(json.dumps(record) + "\n")
                if record["message"]:
                    print(f"FAILS --only {record['index']} | {_line(record)}", flush=True)
    records = [done[k] for k in range(count)]
    failures = sum(bool(record["message"]) for record in records)
    seconds = sum(record["seconds"] for record in records)
    print(f"{count} cases of seed {seed}, {failures} failures, {seconds:.0f} s")
    return int(failures > 0)


def _line(record: dict[str, Any]) -> str:
    return f"{record['text']} | {record['message']}"


def _process(name: str, seed: int, indices: list[int], **options: Any) -> Any:
    env = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    env["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    which = ",".join(map(str, indices))
    command = [sys.executable, "-m", name, "--seed", str(seed), "--batch", which]
    try:
        return subprocess.run(command, env=env, timeout=PATIENCE, check=False, **options)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -1, late.stdout or b"")

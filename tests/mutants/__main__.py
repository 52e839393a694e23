"""Which mutants of the package its tests find; goes on where it was left.

    python -m tests.mutants --state mutants.jsonl
    python -m tests.mutants --only scan-first-state-of-a-reversed-scan

Each is put into a copy of the tree, where the tests run that ``pytest --changed`` picks, those next
to the changed file first, up to the first that fails. The state is one line of JSON a mutant.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.compiler_cache import FOLDER
from tests.mutants.mutants import MUTANTS, Mutant

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 1800
"""Seconds that the tests of a mutant may take."""
GIT = ("git", "-c", "user.name=mutants", "-c", "user.email=", "-c", "commit.gpgsign=false")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", choices=[m.name for m in MUTANTS], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("mutants.jsonl"))
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for a mutant")
    args = parser.parse_args()
    if args.only is not None:
        (mutant,) = (m for m in MUTANTS if m.name == args.only)
        with tempfile.TemporaryDirectory() as folder:
            record = tried(mutant, copy_of_tree(pathlib.Path(folder)), args.patience)
        print(record.pop("said"), line_of(record), sep="\n")
        sys.exit(record["outcome"] != "found")
    sys.exit(run(args.state, args.jobs, args.patience))


def run(state: pathlib.Path, jobs: int, patience: float) -> int:
    """Tries all that the state does not have yet; 0 if each is found."""
    lines = state.read_text().splitlines() if state.exists() else []
    records = {record["name"]: record for record in map(json.loads, lines)}
    todo = [m for m in MUTANTS if m.name not in records]
    print(f"{len(MUTANTS) - len(todo)} of {len(MUTANTS)} mutants tried before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        free: queue.Queue[pathlib.Path] = queue.Queue()
        for k in range(min(jobs, len(todo))):
            free.put(copy_of_tree(pathlib.Path(folder) / str(k)))

        def attempt(mutant: Mutant) -> dict[str, Any]:
            copy = free.get()
            try:
                return tried(mutant, copy, patience)
            finally:
                free.put(copy)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for record in pool.map(attempt, todo):
                del record["said"]
                records[record["name"]] = record
                with state.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(line_of(record), flush=True)
    outcomes = collections.Counter(records[m.name]["outcome"] for m in MUTANTS)
    print(f"{len(MUTANTS)} mutants: " + ", ".join(f"{n} {what}" for what, n in outcomes.items()))
    return int(outcomes["found"] < len(MUTANTS))


def copy_of_tree(folder: pathlib.Path) -> pathlib.Path:
    """What git knows of the tree, and has not been told to ignore: as a repository of its own."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "as it is"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def tried(mutant: Mutant, copy: pathlib.Path, patience: float) -> dict[str, Any]:
    """The record of a mutant, whose copy is then as it was."""
    file, begun = copy / "parscan_bp" / mutant.file, time.monotonic()
    text = file.read_text()
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        said, code = _tests(mutant, copy, patience)
    finally:
        file.write_text(text)
    failed = [line.split()[1] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    outcome = {0: "survived", None: "ran out of time"}.get(code, "found" if failed else "broken")
    record = {"name": mutant.name, "outcome": outcome, "test": failed[0] if failed else ""}
    return {**record, "seconds": round(time.monotonic() - begun), "said": said}


def line_of(record: dict[str, Any]) -> str:
    return f"{record['outcome']:10} {record['seconds']:5} s  {record['name']}  {record['test']}"


def _tests(mutant: Mutant, copy: pathlib.Path, patience: float) -> tuple[str, int | None]:
    """What pytest says, and its exit code."""
    picked = ["--changed", "HEAD", "--ignore", "tests/mutants"]
    nearest = ["-p", "tests.mutants.nearest", "--nearest", mutant.file]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", *picked, *nearest]
    # The editable install is of another tree.
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(FOLDER), "PYTHONPATH": str(copy)}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=patience)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


if __name__ == "__main__":
    main()

"""Runs many words, in processes of their own, and goes on where it was left.

    python -m tests.words --count 2000 --seed 0 --state words.jsonl --jobs 2
    python -m tests.words --seed 0 --only 17
    python -m tests.words --within --count 300 --state within.jsonl
    python -m tests.words --front-end while_loop --count 300 --state loops.jsonl
    python -m tests.words --front-end "native scan" --count 300 --state native.jsonl
    python -m tests.words --front-end custom_vjp_scan --count 300 --state reverse.jsonl

The state is one line of JSON for each word. A process takes `BATCH` words and ends, so that what
was compiled takes no memory; one that dies or hangs costs the word at which it did so.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from tests.optimisation import LITTLE

BATCH = 60
PATIENCE = 300
"""Seconds after which a process without a new result is taken to hang."""

LEAST_THAT_RUN = 0.8
# Compilation is most of the time. Two devices, so that shard_map has something to divide.
XLA_FLAGS = f"{LITTLE} --xla_force_host_platform_device_count=2"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("words.jsonl"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="tries this word alone, and prints tracebacks")
    parser.add_argument("--within", action="store_true", help="by replace_scans, see Word.within")
    parser.add_argument("--front-end", help="programs of this one only, such as while_loop")
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        sys.exit(_in_double("only", args.seed, [args.only], _kind(args)).wait())
    if args.batch:
        _work(args)
        return
    sys.exit(run(args.seed, args.count, args.state, args.jobs, _kind(args)))


def _kind(args: argparse.Namespace) -> list[str]:
    """The options that say which words are drawn."""
    kind = ["--within"] if args.within else []
    return kind if args.front_end is None else [*kind, "--front-end", args.front_end]


def run(seed: int, count: int, state: pathlib.Path, jobs: int, kind: list[str]) -> int:
    """Tries all words that the state does not have yet; 0 if none fails and enough run."""
    begun = time.monotonic()
    done = _read(state, seed)
    todo = [k for k in range(count) if k not in done]
    print(f"{len(done)} of {count} words done before", flush=True)
    running: list[_Process] = []
    while todo or running:
        while todo and len(running) < jobs:
            running.append(_Process(seed, todo[:BATCH], kind))
            todo = todo[BATCH:]
        time.sleep(0.2)
        for process in list(running):
            for record in process.records():
                done[record["index"]] = record
                with state.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                if record["message"]:
                    print(_line(record), flush=True)
            if process.over:
                running.remove(process)
                todo = process.left + todo
    return _report([done[k] for k in sorted(done) if k < count], count, time.monotonic() - begun)


def _read(state: pathlib.Path, seed: int) -> dict[int, dict[str, Any]]:
    lines = state.read_text().splitlines() if state.exists() else []
    records = [json.loads(line) for line in lines]
    if any(record["seed"] != seed for record in records):
        raise SystemExit(f"--state: {state} holds words of another seed than {seed}")
    return {record["index"]: record for record in records}


def _line(record: dict[str, Any]) -> str:
    where = f"--seed {record['seed']} --only {record['index']}"
    return f"FAILS {where} | {record['text']} | {record['message']}"


def _report(records: list[dict[str, Any]], count: int, seconds: float) -> int:
    failures = [record for record in records if record["message"]]
    for record in failures:
        print(_line(record))
    share = sum(record["ran"] for record in records) / max(len(records), 1)
    busy = sum(record["seconds"] for record in records)
    print(
        f"{len(records)} words of {count}, {len(failures)} failures, {share:.1%} run by the "
        f"reference (at least {LEAST_THAT_RUN:.0%} wanted), {seconds:.0f} s now, "
        f"{busy:.0f} s in all processes"
    )
    return int(bool(failures) or share < LEAST_THAT_RUN)


class _Process:
    """A process at work on some words, and what it has printed."""

    def __init__(self, seed: int, indices: list[int], kind: list[str]):
        self.seed, self.left = seed, list(indices)
        self.process = _in_double("batch", seed, indices, kind, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest, self.heard, self.over = "", time.monotonic(), False

    def records(self) -> list[dict[str, Any]]:
        ended = self.process.poll() is not None
        self.rest += (self.process.stdout.read() or b"").decode()
        *lines, self.rest = self.rest.split("\n")
        found = [json.loads(line) for line in lines if line.startswith("{")]
        for record in found:
            self.left.remove(record["index"])
            self.heard = time.monotonic()
        hangs = time.monotonic() - self.heard > PATIENCE
        if (ended or hangs) and self.left:
            what = f"hangs for {PATIENCE} s" if hangs else f"ends with {self.process.returncode}"
            found.append(_lost(self.seed, self.left.pop(0), f"the process {what}"))
        if hangs:
            self.process.kill()
        self.over = ended or hangs
        return found


def _lost(seed: int, index: int, message: str) -> dict[str, Any]:
    record = {"seed": seed, "index": index, "text": "", "ran": False, "message": message}
    return {**record, "seconds": 0.0}


def _in_double(
    mode: str, seed: int, indices: list[int], kind: list[str], **options
) -> subprocess.Popen:
    """A process of this runner in double precision."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"
    env = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    which = f"{mode}:{','.join(map(str, indices))}"
    command = [sys.executable, "-m", "tests.words", "--seed", str(seed), "--batch", which, *kind]
    return subprocess.Popen(command, env=env, **options)


def _work(args: argparse.Namespace) -> None:
    """What a process does: tries words, and prints a record of each."""
    from tests.words.words import draw_word, shortened, try_word

    mode, indices = args.batch.split(":")
    for index in map(int, indices.split(",")):
        begun = time.monotonic()
        word = draw_word(args.seed, index, within=args.within, front_end=args.front_end)
        outcome = try_word(word, loud=mode == "only")
        record = {"seed": args.seed, "index": index, "text": outcome.text, "ran": outcome.ran}
        if outcome.message:
            outcome = shortened(outcome)
            record["text"] = outcome.text
        record |= {"message": outcome.message, "seconds": round(time.monotonic() - begun, 2)}
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

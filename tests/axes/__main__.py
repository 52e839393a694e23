"""Tries many operators with parts of different axes, and goes on where it was left.

    python -m tests.axes --count 200 --seed 0 --state axes.jsonl
    python -m tests.axes --seed 0 --only solve:17

Of each kind so many: `solve` with its report and derivatives, `layers` of a ragged system, and
`given` Jacobians of a scan. The state is one line of JSON for each case.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import jax

from tests.axes.axes_trials import KINDS, try_case

FRESH = 40
"""Cases after which what was compiled is let go."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.axes", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("axes.jsonl"))
    parser.add_argument("--kind", choices=sorted(KINDS), help="this kind alone")
    parser.add_argument("--only", help="this case alone, as solve:17")
    args = parser.parse_args()
    if args.only:
        kind, index = args.only.split(":")
        outcome = try_case(kind, args.seed, int(index))
        print(outcome.text, outcome.message, sep="\n")
        sys.exit(bool(outcome.message))
    kinds = [args.kind] if args.kind else sorted(KINDS)
    sys.exit(run(args.seed, [(k, i) for i in range(args.count) for k in kinds], args.state))


def run(seed: int, cases: list[tuple[str, int]], state: pathlib.Path) -> int:
    """Tries all cases that the state does not have yet; 1 if one fails."""
    lines = state.read_text().splitlines() if state.exists() else []
    records = [json.loads(line) for line in lines]
    if any(record["seed"] != seed for record in records):
        raise SystemExit(f"--state: {state} holds cases of another seed than {seed}")
    done = {(r["kind"], r["index"]): r for r in records}
    print(f"{sum(case in done for case in cases)} of {len(cases)} cases done before", flush=True)
    for tried, (kind, index) in enumerate(case for case in cases if case not in done):
        outcome = try_case(kind, seed, index)
        record = {"seed": seed, "kind": kind, "index": index, "text": outcome.text}
        done[kind, index] = record | {"message": outcome.message}
        with state.open("a") as file:
            file.write(json.dumps(done[kind, index]) + "\n")
        if outcome.message:
            print(_line(done[kind, index]), flush=True)
        if tried % FRESH == FRESH - 1:
            jax.clear_caches()
    failures = [done[case] for case in cases if done[case]["message"]]
    print(f"{len(cases)} cases, {len(failures)} failures")
    return int(bool(failures))


def _line(record: dict) -> str:
    where = f"--seed {record['seed']} --only {record['kind']}:{record['index']}"
    return f"FAILS {where} | {record['text']} | {record['message']}"


if __name__ == "__main__":
    main()

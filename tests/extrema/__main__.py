"""Tries many drawn cases, and goes on where it was left.

    JAX_ENABLE_X64=1 python -m tests.extrema --count 200 --seed 0 --state extrema.jsonl

The state is one line of JSON for each case. In double precision single is judged, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys

import jax

from tests.extrema.extrema_compared import TOLERANCE, tried
from tests.extrema.extrema_steps import Case

FRESH = 20
"""Cases after which compiled programs are dropped."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.extrema", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("extrema.jsonl"))
    args = parser.parse_args()
    lines = args.state.read_text().splitlines() if args.state.exists() else []
    done = {r["index"]: r for r in map(json.loads, lines) if r["seed"] == args.seed}
    for index in range(args.count):
        if index in done:
            continue
        case = Case.drawn(args.seed, index)
        try:
            (error,), message = tried(case), ""
        except Exception as raised:
            error, message = None, f"{type(raised).__name__}: {str(raised)[:300]}"
        bad = bool(message) or (error is not None and not error <= TOLERANCE[case.dtype])
        case_of = dataclasses.asdict(case)
        record = {"seed": args.seed, "index": index, "bad": bad, "error": error, "why": message}
        done[index] = record | case_of
        with args.state.open("a") as file:
            file.write(json.dumps(done[index]) + "\n")
        if bad:
            print(done[index], flush=True)
        if index % FRESH == FRESH - 1:
            jax.clear_caches()
    found = [done[k] for k in range(args.count)]
    edge = sum(r["error"] is None and not r["why"] for r in found)
    bad = sum(r["bad"] for r in found)
    print(f"{len(found)} cases: {bad} bad, {edge} where rounding moves lax.scan itself as far")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

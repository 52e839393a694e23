"""Certificates of many random systems, a third of them piecewise linear; goes on where it was left.

    python -m tests.forward --count 10000 --seed 0 --state systems.jsonl
    python -m tests.forward --kinds piecewise --methods chunks newton --dtypes float32

The state is one line of JSON for `AT_ONCE` systems by one method. It ends with the counts, and with
1 if any system was certified whose true error exceeds the tolerance.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import pathlib
import sys
import time

import jax

from tests.forward import outcomes as made
from tests.forward.methods import METHODS
from tests.forward.piecewise import PIECEWISE
from tests.forward.systems import FAMILIES, TRAINED

AT_ONCE = 100
LENGTH = 200
DTYPES = ("float32", "float64")
KINDS = {"smooth": FAMILIES | TRAINED, "piecewise": PIECEWISE}
SHARES = {"smooth": 2, "piecewise": 1}
KEYS = ("seed", "family", "method", "dtype", "turn")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.forward", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("systems.jsonl"))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS)[::-1])
    parser.add_argument("--families", nargs="*", help="these alone")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=DTYPES)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    done = _read(args.state)
    for kind in args.kinds:
        names = args.families or list(KINDS[kind])
        share = args.count * SHARES[kind] / sum(SHARES[k] for k in args.kinds)
        turns = range(math.ceil(share / (AT_ONCE * len(names))))
        for family, method, dtype in itertools.product(names, args.methods, args.dtypes):
            if family in KINDS[kind]:
                _try(args, done, family, method, dtype, turns)
    sys.exit(_report(done.values()))


def _try(args, done, family, method, dtype, turns) -> None:
    for turn in turns:
        key = (args.seed, family, method, dtype, turn)
        if key in done:
            continue
        begun, seed = time.monotonic(), 1000 * args.seed + turn + 1
        how = {"seed": seed, "count": AT_ONCE, "length": LENGTH, "jit": jax.jit}
        counts = made.counts_of(made.outcomes(family, method, "estimate", dtype, **how))
        done[key] = dict(zip(KEYS, key, strict=True)) | {"systems": AT_ONCE} | counts
        with args.state.open("a") as file:
            file.write(json.dumps(done[key]) + "\n")
        print(f"{done[key]} {time.monotonic() - begun:.0f} s", flush=True)
    made.forget()
    jax.clear_caches()


def _read(state: pathlib.Path):
    lines = state.read_text().splitlines() if state.exists() else []
    records = map(json.loads, lines)
    return {tuple(record[k] for k in KEYS): record for record in records}


def _report(records) -> int:
    total: collections.Counter = collections.Counter()
    for record in records:
        total.update({k: v for k, v in record.items() if k not in KEYS})
    print(f"in all: {dict(total)}")
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    main()

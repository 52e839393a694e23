"""The map that ``forward="auto"`` goes by, made of recorded races.

    python -m bench.grids.forward.map FILE ... > parscan_bp/choice/data/forward.json

A point has the methods that were certified for every draw: how many times as fast as the sequential
pass each was, and the median of its iterations.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

MARGIN = 1.1
"""How many times as fast a method has to be expected: races on other machines, and other steps of
the same sizes, differ by about as much."""

NAMES = {"chunks": "chunks", "newton": "newton", "fixed": "fixed_point"}
"""The bench's names of the methods that are candidates, and the package's."""


def points(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of one record."""
    found = []
    for point in result["points"]:
        methods = {}
        for name, known in NAMES.items():
            entry = point["methods"].get(name, {})
            trials = entry.get("trials", [])
            if trials and all(trial["certified"] for trial in trials):
                passes = round(statistics.median(trial["passes"] for trial in trials))
                methods[known] = [entry["value"]["speedup"], passes]
        found.append({**point["facts"], "length": point["length"], "methods": methods})
    return found


def main(paths: Sequence[str]) -> None:
    """Prints the map of some records."""
    held, machines = [], []
    for path in paths:
        with open(path) as file:
            result = json.load(file)
        for run in result["runs"]:
            model = (run.get("cpu") or {}).get("model", run["device"]["kind"])
            machines.append(f"{model}, jax {run['versions']['jax']}")
        held += points(result)
    lines = ",\n".join(f"  {json.dumps(point)}" for point in held)
    told = json.dumps(f"{'; '.join(dict.fromkeys(machines))}; bench forward")
    print(f'{{\n "measured": {told},\n "margin": {MARGIN},\n "points": [\n{lines}\n ]\n}}')


if __name__ == "__main__":
    main(sys.argv[1:])

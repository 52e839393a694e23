"""A scan over the processes of this machine: times, memory and collectives of each method.

Processes are real, with one CPU device each, and share this machine's cores; a speedup is not what
it shows. Memory and collectives are those of one device, read off the compiled program. What more
devices would take is modelled: steps of the time that one takes here on one process, and the
collectives by a latency and a bandwidth (`parscan_bp.parallel.Link`), those of Cori KNL.
"""

import json
import math

import numpy as np

from bench.paper.grids.machine import CORI_KNL
from bench.shared import tables
from bench.shared.bench import Bench, Listed, Option, Options, Result
from parscan_bp.devices import METHODS
from parscan_bp.parallel import launch
from parscan_bp.solvers.sharded import OF_VECTORS

MODELLED = (16, 64, 256)


def points(options: Options) -> dict[str, int]:
    """Numbers of processes."""
    return {f"P={p}": p for p in options.processes}


def measure(processes: int, options: Options) -> Result:
    """Runs so many processes; the slowest one counts.

    Raises:
        LaunchError: one of them failed, or found a gradient that is wrong.
    """
    names = ("length", "batch", "hidden", "methods", "rounds")
    settings = json.dumps({name: getattr(options, name) for name in names})
    target = "bench.grids.mesh.worker:measure"
    found = launch(target, processes, arguments=[settings], timeout=options.timeout)
    entry: Result = {"processes": processes, "methods": {}}
    for name, first in found[0].items():
        slowest = np.max([each[name]["seconds"] for each in found], axis=0)
        own = {key: first[key] for key in ("error", "bytes", "collectives")}
        median = float(np.median(slowest))
        entry["methods"][name] = {**own, "median": median, "seconds": slowest.tolist()}
    return entry


def modelled(result: Result) -> list[list[str]]:
    """Rows of what the model says of more devices, from the time of one."""
    alone = [entry for entry in result["points"] if entry["processes"] == 1]
    settings, link = result["settings"], CORI_KNL
    if not alone:
        return []
    vector = 4 * settings["batch"] * settings["hidden"]
    pair = vector * (settings["hidden"] + 1)
    rows = []
    for p in MODELLED:
        for name, traffic in METHODS.items():
            if name not in alone[0]["methods"]:
                continue
            step = alone[0]["methods"][name]["median"] / (2 * settings["length"])
            # Exact forward: T steps in turn; backward: the products of a device, and its sweep.
            backward = 2 * math.ceil(settings["length"] / p) + math.ceil(math.log2(p))
            steps = settings["length"] + backward
            sent = link.seconds(traffic(p, pair, vector)) + link.seconds(
                METHODS["chain"](p, pair, vector)
            )
            rows.append([f"P={p} (modelled)", name, tables.seconds(steps * step + sent), "", ""])
    return rows


def text(result: Result) -> str:
    """A line for each number of processes and method."""
    header = ["processes", "method", "gradient", "bytes a device", "collectives a device"]
    rows = []
    for entry in sorted(result["points"], key=lambda entry: entry["processes"]):
        for name, one in entry["methods"].items():
            told = [tables.seconds(one["median"]), tables.size(one["bytes"]), _sent(one)]
            rows.append([entry["name"], name, *told])
    return tables.table(header, [*rows, *modelled(result)])


def _sent(one: Result) -> str:
    if one["collectives"] is None:
        return "in rounds, of the number that it takes"
    return "; ".join(f"{n} {kind} {size} B" for kind, (n, size) in one["collectives"].items())


BENCH = Bench(
    "mesh",
    __doc__,
    baseline="one process, P=1",
    points=points,
    measure=measure,
    rows=Listed("points"),
    text=text,
    options=(
        Option("processes", [1, 2, 4, 8], "how many, one CPU device each"),
        Option("length", 512, "steps"),
        Option("batch", 8, "rows"),
        Option("hidden", 32, "units"),
        Option("methods", [*METHODS, *OF_VECTORS], choices=[*METHODS, *OF_VECTORS]),
        Option("rounds", 15, "timing rounds"),
        Option("timeout", 600.0, "seconds until the processes of a point are ended"),
    ),
    quick={"processes": [2], "length": 8, "hidden": 3, "batch": 2, "methods": ["ppermute"]},
    fixed=("length", "batch", "hidden"),
)

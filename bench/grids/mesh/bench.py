"""A scan over the processes of this machine: times, memory and collectives of each method.

Processes are real, with one CPU device each, and share this machine's cores; a speedup is not what
it shows. Memory and collectives are those of one device, read off the compiled program. What more
devices would take is modelled: steps of the time that one takes here on one process, and the
collectives by a latency and a bandwidth (`parscan_bp.parallel.Link`), those of Cori KNL. "x P=1" is
a time over that of the quickest method in one process: below 1, devices would gain.
"""

import json
import math

import numpy as np

from bench.paper.grids.machine import CORI_KNL
from bench.shared import tables
from bench.shared.bench import Bench, Listed, Option, Options, Result
from parscan_bp.devices import METHODS, Traffic
from parscan_bp.devices.over_mesh import TRAFFIC
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
    alone = _alone(result)
    settings = result["settings"]
    vector = 4 * settings["batch"] * settings["hidden"]
    pair = vector * (settings["hidden"] + 1)
    rows = []
    for p in MODELLED:
        for name, one in alone.items():
            steps, sent = _model(name, p, settings["length"], pair, vector)
            each = one["median"] / (2 * settings["length"])
            took = steps * each + sum(map(CORI_KNL.seconds, sent))
            rows.append(
                [f"P={p} (modelled)", name, tables.seconds(took), _beside(took, alone), "", ""]
            )
    return rows


def _model(
    name: str, devices: int, length: int, pair: int, vector: int
) -> tuple[int, list[Traffic]]:
    """Steps that are made one after the other, forward and backward, and what is sent.

    Values are exact: forward all steps are in turn. Corrections have the one round of a recurrence
    that forgets within the steps of a device.
    """
    own = math.ceil(length / devices)
    backward = {"turns": length, "corrections": 3 * own}
    steps = length + backward.get(name, 2 * own + math.ceil(math.log2(devices)))
    return steps, [TRAFFIC[way](devices, pair, vector) for way in ("turns", name)]


def _alone(result: Result) -> dict[str, Result]:
    """What one process took, by method."""
    found = [entry["methods"] for entry in result["points"] if entry["processes"] == 1]
    return found[0] if found else {}


def _beside(seconds: float, alone: dict[str, Result]) -> str:
    """Times what the quickest method takes in one process."""
    return f"{seconds / min(one['median'] for one in alone.values()):.2f}" if alone else ""


def text(result: Result) -> str:
    """A line for each number of processes and method."""
    header = ["processes", "method", "gradient", "x P=1", "bytes a device", "collectives a device"]
    rows, alone = [], _alone(result)
    for entry in sorted(result["points"], key=lambda entry: entry["processes"]):
        for name, one in entry["methods"].items():
            told = [tables.size(one["bytes"]), _sent(one)]
            took = one["median"]
            rows.append([entry["name"], name, tables.seconds(took), _beside(took, alone), *told])
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

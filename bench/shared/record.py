"""What a result file says besides the numbers: device, versions, date, load; and where it goes.

Nothing in it tells whose machine it was: no path, no host name, no user.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

HERE = pathlib.Path(__file__).parents[1]
_FOLDERS = re.compile(r"(?:/[\w.+-]+)+/")
_LONGEST_REASON = 400


def output_options(name: str) -> argparse.ArgumentParser:
    """The options every measurement shares, as a parent parser."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--name", default=name, help="name of the result files")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--record", action="store_true", help="write to bench/results, not to bench/out"
    )
    place.add_argument("--out", type=pathlib.Path, default=HERE / "out", help="folder for results")
    return parser


def result_path(options: argparse.Namespace, suffix: str = ".json") -> pathlib.Path:
    """Where a result goes: bench/results when it is recorded, else the `--out` folder."""
    folder = HERE / "results" if options.record else options.out
    return folder / f"{options.name}{suffix}"


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """Device, processor, versions, date and load average, as they are now."""
    device = jax.devices()[0]
    return {
        "device": {"platform": device.platform, "kind": device.device_kind},
        "cpu": {"model": cpu_model(), "cores": core_count()},
        "versions": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
        },
        "x64": bool(jax.config.jax_enable_x64),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "argv": [_without_folder(argument) for argument in argv],
        "load_start": load_average(),
    }


def dumps(result: Mapping[str, Any]) -> str:
    """JSON with a line for each point, to be read by people, too."""

    def one(value: Any) -> str:
        return json.dumps(value, allow_nan=False)

    def lines(value: Any) -> str:
        if isinstance(value, list) and value and not isinstance(value[0], int | float):
            return "[\n  " + ",\n  ".join(map(one, value)) + "\n ]"
        return one(value)

    return "{\n " + ",\n ".join(f"{one(k)}: {lines(v)}" for k, v in result.items()) + "\n}"


def write(path: pathlib.Path, result: dict[str, Any]) -> None:
    """Writes JSON in one move, so an interrupted run leaves the last whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = dumps(result)
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n")
    os.replace(part, path)


def reason_of(error: Exception) -> str:
    """An error in one line, without folders of this machine."""
    text = _FOLDERS.sub("", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:_LONGEST_REASON]


def load_average() -> list[float]:
    """Running processes over the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def cpu_model() -> str:
    """The processor's name, as the kernel reports it where it does."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def core_count() -> int:
    """The cores this process may use, where the system says, else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _without_folder(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    return option + equals + pathlib.PurePath(value).name

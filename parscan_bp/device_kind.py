"""What this machine is, as far as it decides which program is the faster."""

from __future__ import annotations

import functools
import os
import pathlib
import platform

import jax


def device_kind() -> str:
    """The model of the default device, and of a CPU the cores that this process may use.

    JAX calls every CPU "cpu".

    Example:
      >>> kind = device_kind()
      >>> isinstance(kind, str) and len(kind) > 0
      True
    """
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    return f"{_cpu_model()}, {_cores()} cores"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.lru_cache
def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # only Linux has it
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

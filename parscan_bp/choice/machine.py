"""The machine that a plan of products is made for: what was measured, or else the default."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Hashable, Mapping
from typing import Any

import jax

from parscan_bp import store
from parscan_bp.device_kind import device_kind
from parscan_bp.planner import CPU, Machine


def known_machine() -> Machine:
    """The rates of this machine, if they were measured (`tuning.measure_machine`); else `CPU`.

    Example:
      >>> from parscan_bp.planner import Machine
      >>> isinstance(known_machine(), Machine)
      True
    """
    return _known(store.folder(), store.generation())


@functools.lru_cache(maxsize=1)
def _known(folder: pathlib.Path | None, generation: Hashable) -> Machine:
    """What the folder has; read once, as an eager call of `chain` would read it every time."""
    known = store.read(_key(), _parsed)
    return CPU if known is None else known


def remember_machine(machine: Machine) -> pathlib.Path | None:
    """Writes it down for this process and later ones; where to, see `store.write`."""
    return store.write(_key(), {"machine": dataclasses.asdict(machine)})


def _key() -> str:
    return "\n".join(["rates of one worker", device_kind(), f"jax {jax.__version__}"])


def _parsed(held: Mapping[str, Any]) -> Machine:
    return Machine(**held["machine"])

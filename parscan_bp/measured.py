"""Numbers that were measured on some machine: data, each file with where they come from."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def measured(name: str) -> dict[str, Any]:
    """What ``choice/data`` holds under a name. Nobody changes it.

    Example:
      >>> measured("cpu")["handful"]
      4
    """
    path = resources.files("parscan_bp").joinpath(f"choice/data/{name}.json")
    return json.loads(path.read_text())

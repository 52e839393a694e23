"""Whether there is what native functions are made by."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def is_available() -> bool:
    """Whether llvmlite is installed."""
    return importlib.util.find_spec("llvmlite") is not None


def check_available() -> None:
    """Raises `ImportError` if it is not."""
    if not is_available():
        raise ImportError(
            "native: llvmlite is not installed, which makes native functions; "
            "pip install 'parscan_bp[cpu]' has it"
        )

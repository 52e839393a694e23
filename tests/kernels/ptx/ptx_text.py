"""The PTX that a kernel is compiled to, without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO
from unittest import mock

from tests import compiler_cache
from tests.kernels import sm90

PLUGIN = "jax_cuda13_plugin"


def missing() -> str | None:
    """Why nothing can be compiled here; ``None`` if it can."""
    if importlib.util.find_spec(PLUGIN) is None:
        return f"{PLUGIN} is not installed: pip install 'parscan_bp[cuda]'"
    return None


def ptx(function: Callable, shapes: Sequence[Any]) -> str:
    """Of the only kernel in a function of arrays."""
    with tempfile.TemporaryFile() as file:
        dumping = mock.patch.dict(os.environ, {"MOSAIC_GPU_DUMP_PTX": "1"})
        with dumping, _written_to(file), compiler_cache.switched_off():
            sm90.compiled(function, shapes)
        file.seek(0)
        text = file.read().decode()
    assert text.count(".entry ") == 1, text[:1000]
    return text


@contextlib.contextmanager
def _written_to(file: BinaryIO) -> Iterator[None]:
    """What goes to the standard output, that of the compiler too, which is not Python's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)

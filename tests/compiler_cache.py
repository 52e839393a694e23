"""What JAX compiled for tests is kept in the checkout, and read by the next run.

An entry is of one machine, jaxlib, program and set of flags: its name is a hash of them. An entry
that another process is about to write can't be read; it is then compiled, see `filterwarnings`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

FOLDER = pathlib.Path(__file__).parents[1] / ".jax_cache"
MOST_BYTES = 2**30
SETTINGS = {
    "jax_compilation_cache_dir": str(FOLDER),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def switch_on() -> None:
    """In this process, and in those that it starts."""
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """For what reads the text, memory or costs of a compiled program: those that XLA makes now."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # JAX asks once whether there is one
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()


def remove_oldest(folder: pathlib.Path = FOLDER, most: int = MOST_BYTES) -> None:
    """Until half of what it may hold is left, once it holds more.

    JAX's own bound reads the times of all entries under a lock whenever it writes one. Entries that
    another run removes meanwhile are none.
    """
    entries = []
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            entries.append((about.st_mtime, about.st_size, path))
    held = sum(size for _, size, _ in entries)
    if held <= most:
        return
    for _, size, path in sorted(entries):
        if held <= most // 2:
            break
        held -= size
        path.unlink(missing_ok=True)

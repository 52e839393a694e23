"""A line on the terminal that says how far a run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

WIDTH = 24
"""Of the bar, in letters."""
EVERY = 0.1
"""Seconds between two lines."""


class Progress:
    """Counts what is iterated over; shows it, with the last loss, if it is to.

    Args:
      items: what is iterated over.
      shown: whether anything is.
      to: where; ``None`` is `sys.stderr`.

    Example:
      >>> import io
      >>> from parscan_bp.pipeline.progress import Progress
      >>> out = io.StringIO()
      >>> bar = Progress([1, 2], shown=True, to=out)
      >>> for _ in bar:
      ...     bar.loss = 0.25
      >>> "2/2" in out.getvalue() and "loss 0.25" in out.getvalue()
      True
    """

    def __init__(self, items: Any, *, shown: bool, to: TextIO | None = None):
        self._items, self._shown = items, shown
        self._to = sys.stderr if to is None else to
        self._total = len(items) if hasattr(items, "__len__") else None
        self.loss: Any = None

    def __iter__(self) -> Iterator[Any]:
        start = written = time.monotonic()
        done = 0
        for item in self._items:
            yield item
            done += 1
            now = time.monotonic()
            if self._shown and now - written > EVERY:
                written = now
                self._write(done, now - start)
        if self._shown:
            self._write(done, time.monotonic() - start)
            self._to.write("\n")

    def _write(self, done: int, seconds: float) -> None:
        if self._total:
            full = WIDTH * done // self._total
            bar = f"|{'#' * full}{' ' * (WIDTH - full)}| {done}/{self._total}"
        else:
            bar = f"{done} batches"
        loss = "" if self.loss is None else f"  loss {float(self.loss):.4g}"
        self._to.write(f"\r{bar}  {1e3 * seconds / done if done else 0:.1f} ms a batch{loss}")
        self._to.flush()

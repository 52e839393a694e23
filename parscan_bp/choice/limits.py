"""The numbers of the rules: what races on some machines said, shipped as data."""

from __future__ import annotations

import dataclasses
import functools

from parscan_bp.measured import measured


@dataclasses.dataclass(frozen=True)
class Limits:
    """Where one program begins to be faster than another.

    Attributes:
      handful: steps up to which a solver costs more around them than it saves.
      short: equations times numbers times steps, likewise.
      rows: rows of a product above which it takes most of a step's time.
      wide: numbers that are carried from which rows matter.
      tiny: numbers that are carried up to which XLA makes one kernel of a loop.
      tiny_bytes: bytes that such a step reads and makes.
      one_kernel: numbers that are carried up to which, from jax 0.12 on, XLA makes one kernel of a
        loop whose step multiplies no matrices.
      gates: parts of a product from which on they are the gates of a cell.
      widening: largest value of a light step over its carry; an LSTM's joint gates are twice it.
      narrow: numbers up to which any value is small.
      changing: multiplications up to which a product of matrices that change, or a solve by one,
        is light.
      indexed: numbers that a step makes for each one that it reads or writes at an index.
    """

    handful: int
    short: int
    rows: int
    wide: int
    tiny: int
    tiny_bytes: int
    one_kernel: int
    gates: int
    widening: int
    narrow: int
    changing: int
    indexed: int


@functools.lru_cache
def cpu_limits() -> Limits:
    """Those of CPUs; `parscan_bp.autotune` replaces them by a measurement.

    Example:
      >>> cpu_limits().handful
      4
    """
    numbers = measured("cpu")
    return Limits(**{field.name: numbers[field.name] for field in dataclasses.fields(Limits)})

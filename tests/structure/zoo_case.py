"""What a member of the zoo is, and the names that the files of the zoo share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

B, H, S, K = 2, 3, 4, 5  # batch, features, space, a second feature size
_numbers = np.random.default_rng(0)


def const(*shape: int) -> np.ndarray:
    return _numbers.normal(size=shape) / np.sqrt(shape[-1])


W, U, WB = const(H, H), const(H, H), const(B, B)
W_GATES, CONV, DEPTHWISE = const(H, 4 * H), const(3, H, H), const(3, 1, H)
W_CAT, W_HK, W_KH = const(2 * H, H), const(H, K), const(K, H)


def array(*shape: int, dtype: Any = float) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))


BH = partial(array, B, H)


@dataclass(frozen=True)
class Case:
    """A step `(carry, x) -> (carry, y)`; what is expected of it.

    `batch`, `depends`: as in CarryStructure (`depends` None: everything on everything).
    `loose`: the true Jacobian has more structure than what is claimed, and we know it.
    `unsupported`: the primitives that `unsupported` names. `derivative` False: it has none.
    """

    step: Callable
    carry: Any
    x: Any
    batch: tuple[tuple[int, ...], ...]
    diagonal: bool = False
    depends: tuple[tuple[bool, ...], ...] | None = None
    loose: bool = False
    unsupported: tuple[str, ...] = ()
    derivative: bool = True


ZOO: dict[str, Case] = {}


def zoo(batch, carry=None, x=None, **expected) -> Callable[[Callable], Callable]:
    """Registers a step; by default both carry and x are one (B, H) array."""

    def register(step: Callable) -> Callable:
        default = BH()
        assert step.__name__ not in ZOO, step.__name__
        ZOO[step.__name__] = Case(
            step,
            default if carry is None else carry,
            default if x is None else x,
            batch,
            **expected,
        )
        return step

    return register


def map_carry(name: str, f: Callable, batch, carry=None, x=None, **expected) -> None:
    """Registers h' = f(h) + 0.5 x."""

    def step(h, x):
        return f(h) + 0.5 * x, None

    step.__name__ = name
    zoo(batch, carry, carry if x is None else x, **expected)(step)


ROWS, COLUMNS, BOTH, NONE = ((0,),), ((1,),), ((0, 1),), ((),)

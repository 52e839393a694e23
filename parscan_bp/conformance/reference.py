"""What a scan is compared with: `jax.lax.scan`, or the same steps one after the other in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.originals import lax_scan
from parscan_bp.types import PyTree


def python_loop(
    f: Callable,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` as a loop in Python, whose derivatives are those of its steps.

    The types are those of `jax.lax.scan`: it promotes Python numbers in ``init``. Without steps
    it is `jax.lax.scan`, as there is nothing to loop over.

    Example:
      >>> import jax.numpy as jnp
      >>> python_loop(lambda c, x: (c + x, c), 0.0, jnp.arange(3.0), reverse=True)[1].tolist()
      [3.0, 2.0, 0.0]
    """
    leaves = jax.tree.leaves(xs)
    n = len(leaves[0]) if leaves else length
    if not n:
        return lax_scan(f, init, xs, length=length, reverse=reverse)
    types = jax.eval_shape(lambda: lax_scan(f, init, xs, length=length))[0]
    carry = jax.tree.map(_promoted, init, types)
    ys = []
    for t in reversed(range(n)) if reverse else range(n):
        carry, y = f(carry, jax.tree.map(lambda x, t=t: x[t], xs))
        ys.append(y)
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *(ys[::-1] if reverse else ys))


def _promoted(value: Any, wanted: Any) -> Any:
    """The value as an array, in the type that the loop has it in."""
    is_one = jax.typeof(value).dtype == wanted.dtype
    return jnp.asarray(value) if is_one else jnp.asarray(value).astype(wanted.dtype)


REFERENCES: dict[str, Callable[..., tuple[PyTree, PyTree]]] = {
    "lax": lax_scan,
    "loop": python_loop,
}

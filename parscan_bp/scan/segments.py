"""Sequences of different lengths, and steps that start afresh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import as_array
from parscan_bp.types import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """The inputs of one step, or of all of them, and what becomes of each entry of the batch.

    Attributes:
      inputs: what the step takes.
      valid: whether an entry takes part in the step; ``None`` for all.
      reset: whether it starts afresh at it; ``None`` for none.
    """

    inputs: PyTree
    valid: Array | None
    reset: Array | None


@dataclasses.dataclass(frozen=True, eq=False)
class Segmented:
    """A step over `Rows`, of which an entry of the batch that takes no part sees nothing:

        c = state where reset_t, else c_{t-1}
        c_t, y_t = step(c, x_t) where valid_t, else (c, 0)

    Its transposed Jacobian is the identity where valid_t is false, and zero where reset_t is true.
    Where valid_t is false the step itself is given ones in place of x_t and c: whatever stands
    there, a NaN included, reaches neither values nor derivatives.

    Attributes:
      step: ``(carry, x) -> (carry, y)``.
      state: what a reset entry begins with, as the carry.
      name: of the argument that says who takes part, for errors.
    """

    step: Callable
    state: PyTree
    name: str = "seq_lengths"

    def __call__(self, carry: PyTree, rows: Rows) -> tuple[PyTree, PyTree]:
        if rows.reset is not None:
            carry = _select("reset", rows.reset, self.state, carry)
        valid, name = rows.valid, self.name
        if valid is None:
            return self.step(carry, rows.inputs)

        def seen(v: Array) -> Array:
            # A scalar input is what all entries of the batch share, such as the time.
            shared = valid.ndim and not jnp.ndim(v)
            return v if shared else _select(name, valid, v, _harmless(v))

        new, y = self.step(
            _select(name, valid, carry, jax.tree.map(_harmless, carry)),
            jax.tree.map(seen, rows.inputs),
        )
        zeros = jax.tree.map(jnp.zeros_like, y)
        return _select(name, valid, new, carry), _select(name, valid, y, zeros)


def segmented(
    f: Callable, init: PyTree, xs: PyTree, length: int | None, reset: Any, seq_lengths: Any
) -> tuple[Segmented, Rows]:
    """The step and the inputs of a `scan` with resets or lengths.

    Args:
      f, init, xs, length, reset, seq_lengths: as in `scan`.

    Raises:
      TypeError, ValueError: if they do not fit.
    """
    steps = _steps(xs, length)
    state = init
    if isinstance(reset, tuple):
        if len(reset) != 2:
            raise ValueError(
                f"reset: got a tuple of {len(reset)}; booleans, or a pair of them and of a state, "
                "is wanted"
            )
        reset, state = reset
        _check_state(state, init)
    reset = None if reset is None else _flags(reset, steps)
    valid = None
    if seq_lengths is not None:
        lengths = _lengths(seq_lengths, steps)
        valid = jnp.arange(steps).reshape((steps,) + (1,) * lengths.ndim) < lengths
    if reset is not None and valid is not None:
        if reset.shape != valid.shape:
            raise ValueError(
                f"reset: got bool{list(reset.shape)}; with seq_lengths of {list(valid.shape[1:])} "
                f"bool{list(valid.shape)} is wanted, the steps first"
            )
        reset = reset & valid  # one in the padding is none
    return Segmented(f, state), Rows(xs, valid, reset)


def _steps(xs: PyTree, length: int | None) -> int:
    leaves = jax.tree.leaves(xs)
    if leaves and jnp.ndim(leaves[0]):
        return jnp.shape(leaves[0])[0]
    if length is None:
        raise ValueError("length: got None; without xs, the number of steps is wanted")
    return length


def _flags(reset: Any, steps: int) -> Array:
    flags = as_array("reset", reset)
    if flags.dtype != bool or flags.ndim == 0 or flags.shape[0] != steps:
        raise ValueError(
            f"reset: got {flags.dtype}{list(flags.shape)}; bool[{steps}, ...] is wanted: the steps "
            "and then the batch axes of the carry"
        )
    return flags


def _lengths(seq_lengths: Any, steps: int) -> Array:
    lengths = as_array("seq_lengths", seq_lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(
            f"seq_lengths: got {lengths.dtype}{list(lengths.shape)}; integers are wanted, one for "
            "each entry of the batch axes of the carry"
        )
    if not isinstance(lengths, jax.core.Tracer):
        wrong = np.asarray(lengths)[(np.asarray(lengths) < 0) | (np.asarray(lengths) > steps)]
        if wrong.size:
            raise ValueError(f"seq_lengths: got {wrong[0]}; 0 to {steps}, the steps, are wanted")
    return lengths


def _check_state(state: PyTree, init: PyTree) -> None:
    state = jax.tree.map(lambda v: as_array("reset: the state", v), state)
    have, want = (
        jax.tree.map(lambda v: f"{jnp.result_type(v)}{list(jnp.shape(v))}", tree)
        for tree in (state, init)
    )
    if have != want:
        raise ValueError(
            f"reset: got (booleans, state) with a state of {have}; one as init is wanted, {want}"
        )


def _harmless(a: Array) -> Array:
    """Numbers that a step may be given in place of any others.

    Zero is outside the domain of the logarithm, the inverse and the derivative of a norm; one
    is not. Integers may be indices, of which zero always exists.
    """
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.ones_like(a)
    return jnp.zeros_like(a) if jnp.issubdtype(a.dtype, jnp.number) else a


def _select(name: str, rows: Array, yes: PyTree, no: PyTree) -> PyTree:
    """``yes`` where ``rows``, else ``no``, the rows being the leading axes of every leaf."""

    def leaf(a, b):
        a, b = jnp.asarray(a), jnp.asarray(b)
        if a.shape[: rows.ndim] != rows.shape:
            raise ValueError(
                f"{name}: a value of shape {list(a.shape)} in the carry, inputs or outputs does "
                f"not begin with the batch axes {list(rows.shape)}, so it has no rows to choose"
            )
        return jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - rows.ndim)), a, b)

    return jax.tree.map(leaf, yes, no)

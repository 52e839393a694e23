"""Sequences with steps that do nothing and steps that start afresh, for the layers of Flax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_array
from parscan_bp.scan.segments import Rows, Segmented
from parscan_bp.types import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Masked:
    """An input sequence with a mask and resets; to what only asks its shape, the input.

    A step with mask m_t and reset r_t (booleans, one for each batch entry) does

        c = 0 where r_t, else c_{t-1}
        c_t, y_t = step(c, x_t) where m_t, else (c, 0)

    so that its transposed Jacobian is the identity where m_t is false, and zero where r_t is
    true. Where m_t is false the step itself sees ones instead of x_t and c: whatever stands
    there, a NaN included, reaches neither values nor derivatives.

    Attributes:
      inputs: (*batch, time, *features), or (time, *batch, *features); of one step, without time.
      mask: booleans of the axes before the features, or ``None``: all true.
      reset: the same, or ``None``: all false.
    """

    inputs: Array
    mask: Array | None
    reset: Array | None

    @property
    def shape(self):
        return self.inputs.shape

    @property
    def ndim(self):
        return self.inputs.ndim

    def directed(
        self,
        feature_axes: int,
        *,
        time_major: bool,
        reverse: bool,
        seq_lengths: Array | None = None,
    ) -> Masked:
        """For one direction: in reverse, a segment is entered at its last step.

        The last of the first ``seq_lengths`` steps is entered by the first carry, whatever stands
        in the padding after it.

        Raises:
          ValueError: if a mask or a reset does not fit inputs of so many feature axes.
        """
        want = self.shape[: self.ndim - feature_axes]
        for name, value in (("mask", self.mask), ("reset", self.reset)):
            if value is not None and (value.shape, value.dtype) != (want, bool):
                raise ValueError(
                    f"{name}: got {value.dtype}{list(value.shape)}; bool{list(want)} is wanted, "
                    "the axes of the inputs without their features"
                )
        if self.reset is None or not reverse:
            return self
        axis = 0 if time_major else len(want) - 1
        none = jnp.zeros_like(jax.lax.slice_in_dim(self.reset, 0, 1, axis=axis))
        following = jax.lax.slice_in_dim(self.reset, 1, None, axis=axis)
        entered = jnp.concatenate([following, none], axis=axis)
        if seq_lengths is not None:
            time = jnp.arange(entered.shape[axis])
            time = time.reshape(-1, *[1] * (entered.ndim - 1 - axis))
            entered &= time != jnp.expand_dims(jnp.asarray(seq_lengths), axis) - 1
        return dataclasses.replace(self, reset=entered)

    def step(self, step: Callable, carry: PyTree) -> tuple[PyTree, PyTree]:
        """The masked step from ``carry``, where ``self`` is one step's input."""
        zeros = jax.tree.map(jnp.zeros_like, carry)
        rows = Rows(self.inputs, self.mask, self.reset)
        return Segmented(step, zeros, name="mask")(carry, rows)


def with_mask(inputs: PyTree, mask: PyTree, reset: PyTree) -> PyTree:
    """``inputs`` with a mask and resets; as they are, without any."""
    if mask is None and reset is None:
        return inputs
    given = ("mask", mask), ("reset", reset)
    return Masked(inputs, *(None if v is None else as_array(name, v) for name, v in given))


def masked_for(kind: type, inputs: PyTree, mask: PyTree, reset: PyTree, **layers: Any) -> PyTree:
    """`with_mask` for a layer over others.

    Raises:
      TypeError: if there are any, and a layer is not of the kind that takes `Masked` inputs.
      NotImplementedError: if a layer returns a report beside its outputs.
    """
    for name, layer in layers.items():
        if getattr(layer, "report", False) is True:
            raise NotImplementedError(f"{name}: got report=True; only a layer by itself reports")
        if not isinstance(layer, kind) and not (mask is None and reset is None):
            raise TypeError(
                f"{name}: got a {type(layer).__module__}.{type(layer).__qualname__}; for a mask or "
                f"resets a {kind.__module__}.{kind.__qualname__} is wanted"
            )
    return with_mask(inputs, mask, reset)

"""A convolution's Jacobian, kept as its kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.operators.arithmetic import PRECISION, accumulation_dtype
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.sparse import Sparse, from_numbers
from parscan_bp.sparsity import Pattern
from parscan_bp.sparsity.pattern import on_device
from parscan_bp.sparsity.plan import pick
from parscan_bp.sparsity.windows import Axis, masked_windows, window_pattern
from parscan_bp.trees import struct_like
from parscan_bp.types import Array

_STATIC = {"static": True}


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(Operator):
    """A v = kernel * v, a cross-correlation of any number of spatial axes, or its transpose.

    Vectors are flattened feature maps, channels last: (*spatial, channels). As a matrix the map
    has in / groups * out numbers for every pair of an input and an output position that the
    window connects; it is never formed. The transpose is the transposed Jacobian of a
    convolution layer.

    Args:
      kernel: (..., *window, in channels / groups, out channels). Without stack axes it is shared
        by a whole batch.
      spatial: spatial sizes of the input, one for each axis of the window.
      strides: step of the window along each axis; ``None`` is 1.
      padding: (low, high) zeros around each axis; ``None`` is none.
      dilation: distance of the window's entries along each axis; ``None`` is 1.
      input_dilation: distance at which the input's entries are spread, as in a transposed
        convolution; ``None`` is 1.
      groups: number of groups into which channels are divided.
      transposed: whether the operator is the transpose of the above.
      mask: where a pruned kernel is kept, (window entries * in / groups, out), its columns being
        the last axis of the kernel; elsewhere the kernel has to be zero. ``None`` is everywhere.

    Raises:
      ValueError: if the geometry has another number of axes than ``spatial``; if the channels,
        the window or the mask do not fit, when the `shape` is first needed.

    Source: BPPSA section 3.3 and appendix D.1 (there as CSR, for a 3x3 window and padding 1).

    Example:
      >>> import jax.numpy as jnp
      >>> from parscan_bp.operators import Convolution
      >>> op = Convolution(jnp.array([1.0, 10.0]).reshape(2, 1, 1), spatial=(3,))
      >>> op.as_dense().tolist()
      [[1.0, 10.0, 0.0], [0.0, 1.0, 10.0]]
      >>> op.transpose().matvec(jnp.ones(2)).tolist()
      [1.0, 11.0, 10.0]
    """

    kernel: Array
    spatial: tuple[int, ...] = dataclasses.field(metadata=_STATIC)
    strides: tuple[int, ...] | None = dataclasses.field(default=None, metadata=_STATIC)
    padding: tuple[tuple[int, int], ...] | None = dataclasses.field(default=None, metadata=_STATIC)
    dilation: tuple[int, ...] | None = dataclasses.field(default=None, metadata=_STATIC)
    input_dilation: tuple[int, ...] | None = dataclasses.field(default=None, metadata=_STATIC)
    groups: int = dataclasses.field(default=1, metadata=_STATIC)
    transposed: bool = dataclasses.field(default=False, metadata=_STATIC)
    mask: Pattern | None = dataclasses.field(default=None, metadata=_STATIC)

    multilinear: ClassVar = True
    held_by: ClassVar = {ChannelDense: lambda op: op.blocks(), Sparse: lambda op: op.entries()}

    @property
    def core_ndims(self) -> Mapping[str, int]:  # type: ignore[override]
        return {"kernel": len(self.spatial) + 2}

    def __post_init__(self):
        defaults = {"strides": 1, "padding": (0, 0), "dilation": 1, "input_dilation": 1}
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, (default,) * len(self.spatial))
            elif len(getattr(self, name)) != len(self.spatial):
                raise ValueError(
                    f"{name}: got {getattr(self, name)}; one for each of the {len(self.spatial)} "
                    f"axes of spatial={self.spatial} is wanted"
                )
        super().__post_init__()

    @property
    def window(self) -> tuple[int, ...]:
        """Sizes of the kernel along the spatial axes."""
        return tuple(self.kernel.shape[-len(self.spatial) - 2 : -2])

    @property
    def in_shape(self) -> tuple[int, ...]:
        """(*spatial, channels) of the convolution's input."""
        return (*self.spatial, self.kernel.shape[-2] * self.groups)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """(*spatial, channels) of the convolution's output."""
        sizes = (len(axis.sources) for axis in self.axes)
        return (*sizes, self.kernel.shape[-1])

    @property
    def shape(self):
        self.leaves()
        if self.kernel.shape[-1] % self.groups:
            raise ValueError(
                f"kernel: got {self.kernel.shape[-1]} output channels for {self.groups} groups; "
                "a multiple is wanted"
            )
        flat = (math.prod(self.window) * self.kernel.shape[-2], self.kernel.shape[-1])
        if self.mask is not None and self.mask.shape != flat:
            raise ValueError(
                f"mask: got shape {self.mask.shape}; that of the kernel, {flat}, is wanted"
            )
        sizes = (math.prod(self.out_shape), math.prod(self.in_shape))
        return sizes[::-1] if self.transposed else sizes

    @property
    def nnz(self) -> int:
        """Numbers that are not zero by construction, in one matrix."""
        pairs = (int((axis.sources >= 0).sum()) for axis in self.axes)
        return math.prod(pairs) * self.kernel.shape[-2] * self.kernel.shape[-1]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The windows along each spatial axis."""
        geometry = (self.strides, self.padding, self.dilation, self.input_dilation)
        rows = zip(self.spatial, self.window, *(field or () for field in geometry), strict=True)
        return tuple(Axis(*row) for row in rows)

    def matvec(self, v):
        self.check_vector(v)
        dtype = jnp.result_type(self.kernel, v)
        wide = accumulation_dtype(dtype)
        kernel, v, stack = self.kernel.astype(wide), v.astype(wide), self.stack_shape
        lead = np.broadcast_shapes(v.shape[:-1], stack)
        inner = len(stack)
        # One convolution for all vectors that share a kernel.
        many = (math.prod(lead[: len(lead) - inner]), math.prod(lead[len(lead) - inner :]))
        v = jnp.broadcast_to(v, (*lead, v.shape[-1])).reshape(*many, v.shape[-1])
        if inner:
            core = kernel.shape[inner:]
            kernel = jnp.broadcast_to(kernel, (*lead[len(lead) - inner :], *core))
            kernel = jnp.reshape(kernel, (many[1], *core))
            out = jax.vmap(self._on_vectors, in_axes=(0, 1), out_axes=1)(kernel, v)
        else:
            out = self._on_vectors(kernel, v[:, 0])
        return out.reshape(*lead, out.shape[-1]).astype(dtype)

    def _on_vectors(self, kernel: Array, v: Array) -> Array:
        """One kernel on vectors (k, cols)."""
        op = dataclasses.replace(self, kernel=kernel)
        if self.transposed:
            x = struct_like(v, (v.shape[0], *self.in_shape), v.dtype)
            (out,) = jax.linear_transpose(op.convolve, x)(v.reshape(v.shape[0], *self.out_shape))
        else:
            out = op.convolve(v.reshape(v.shape[0], *self.in_shape))
        return out.reshape(v.shape[0], math.prod(out.shape[1:]))

    def convolve(self, x: Array, precision: lax.PrecisionLike = PRECISION) -> Array:
        """The convolution itself, not its transpose, of images with a kernel that they share.

        Args:
          x: (k, *spatial, channels), of the kernel's dtype.
          precision: as in `jax.lax.conv_general_dilated`.

        Returns:
          (k, *spatial, channels) of the output.
        """
        rank = len(self.spatial)
        image = (0, rank + 1, *range(1, rank + 1))
        return lax.conv_general_dilated(
            x,
            self.kernel,
            self.strides or (),
            self.padding or (),
            lhs_dilation=self.input_dilation,
            rhs_dilation=self.dilation,
            dimension_numbers=lax.ConvDimensionNumbers(
                image, (rank + 1, rank, *range(rank)), image
            ),
            feature_group_count=self.groups,
            precision=precision,
        )

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        cols = self.shape[1]
        basis = jnp.eye(cols, dtype=self.dtype)
        basis = basis.reshape(cols, *(1 for _ in self.stack_shape), cols)
        return jnp.moveaxis(self.matvec(basis), 0, -1)

    def cost(self) -> Cost:
        return self.cost_of(2 * self.nnz)

    def rate(self, vectors):
        return "convolution"

    @property
    def entry_pattern(self):
        if self.mask is None:
            return None
        pattern, _ = masked_windows(self.axes, self.mask, self.groups)
        return pattern if self.transposed else pattern.transposed[0]

    def unpacked(self) -> ChannelDense | Sparse:
        """The matrix whose products are made: a pruned kernel gives numbers one by one, the others
        blocks of channels."""
        return self.blocks() if self.mask is None else self.entries()

    def blocks(self) -> ChannelDense:
        """One copy of the window's entry for each pair of positions that it connects.

        Groups of channels become blocks with zeros between them.
        """
        pattern, entry = window_pattern(self.axes)
        inner, out = self.kernel.shape[-2:]
        stack, count = self.stack_shape, math.prod(self.window)
        kernel = self.kernel.reshape(*stack, count, 1, inner, self.groups, out // self.groups)
        own = jnp.eye(self.groups, dtype=bool)[:, None, :, None]
        full = jnp.where(own, kernel, 0).reshape(*stack, count, self.groups * inner, out)
        blocks = ChannelDense(pick(full, on_device(entry.astype(np.int32)), axis=-3), pattern)
        return blocks if self.transposed else blocks.transpose()

    def entries(self) -> Sparse:
        """Number by number; of a pruned kernel those that it keeps."""
        if self.mask is None:
            return self.blocks().entries()
        pattern, order = masked_windows(self.axes, self.mask, self.groups)
        kept = from_numbers(self.kernel, len(self.spatial) + 2, pattern, order)
        return kept if self.transposed else kept.transpose()

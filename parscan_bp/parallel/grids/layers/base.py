"""What layers whose work is divided over mesh axes have in common."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
from jax import lax

from parscan_bp.devices import is_bound
from parscan_bp.jaxprs.replay import vary_alike
from parscan_bp.layers import Function, Layer
from parscan_bp.parallel.grids.layout import Layout
from parscan_bp.parallel.grids.traffic import LayerTraffic, reduced
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class ParallelLayer(Layer):
    """A layer as one device of a mesh runs it, on its own part; inside `jax.shard_map`.

    Attributes:
      entries_apart: whether the entries of the batch are independent, as `parscan_bp.chain` wants.
    """

    entries_apart: ClassVar[bool] = True

    @abc.abstractmethod
    def traffic(self, params: PyTree, x: jax.ShapeDtypeStruct) -> LayerTraffic:
        """What is sent for this input.

        Args:
          params: types of the parameters as one device holds them.
          x: type of the input as one device holds it.
        """


@dataclasses.dataclass(frozen=True)
class Divided(ParallelLayer):
    """A layer whose work is divided.

    Its derivatives are JAX's own of the collectives: what lies the same on all devices along an
    axis (parameters along that of the batch, inputs along that of the model) has its cotangent
    summed over it. That takes the types of ``check_vma=True``, which is the default of
    `jax.shard_map`; without them gradients would be wrong, and the layer raises.

    For `parscan_bp.chain` the transposed Jacobian is a `MatrixFree`: its products communicate.

    Args:
      layer: the layer that is divided.
      layout: how its input, its output and its parameters lie.
    """

    layer: Layer
    layout: Layout

    def init(self, key, features, dtype=float):
        """Parameters of the whole layer, for whole inputs."""
        return self.layer.init(key, features, dtype)

    def adjoint_operator(self, params, x, y):
        return Function(self._one).adjoint_operator(params, x, y)

    def _one(self, params, x):
        """The value of one entry of the batch, varying over as many axes as what it is made of."""
        y = self.apply(params, x[None])[0]
        return vary_alike((y, x, params))[0]

    def pullback(self, params, x, y, ct):
        def value(params):
            return vary_alike((self.apply(params, x), x, params))[0]

        (cts,) = jax.vjp(value, params)[1](ct)
        return cts

    def placed(self, params: PyTree) -> PyTree:
        """The parameters of the whole layer, with padding where they cannot be divided evenly."""
        return params

    def collected(self, params: PyTree) -> PyTree:
        """Parameters, or their cotangents, without the padding of `placed`."""
        return params

    def spec(self, leaf: Any) -> jax.sharding.PartitionSpec:
        """How a leaf of the parameters is divided."""
        del leaf
        return jax.sharding.PartitionSpec()

    def _weights(self, params: PyTree):
        """The sum of the parameters' cotangents over batch and domain."""
        return reduced(params, self.layout.samples.parts)


@dataclasses.dataclass(frozen=True)
class DataParallel(Divided):
    """A layer on its part of the batch: nothing is sent for its value.

    The layer's own transposed Jacobian serves `parscan_bp.chain`; cotangents of the parameters are
    summed over the batch's devices.

    Args:
      layer, layout: see `Divided`.

    Source: Gholami et al. 2018, figure 2 and eq. 4.
    """

    def apply(self, params, x):
        return self.layer.apply(params, x)

    def adjoint_operator(self, params, x, y):
        return self.layer.adjoint_operator(params, x, y)

    def pullback(self, params, x, y, ct):
        return self.layer.pullback(params, x, y, ct)

    def traffic(self, params, x):
        return LayerTraffic(to_params=self._weights(params))


class Divisible(abc.ABC):
    """A layer that has a parallel form of its own."""

    @abc.abstractmethod
    def divided(self, layout: Layout, spatial: tuple[int, ...]) -> Divided:
        """The layer on inputs of these spatial sizes that lie so."""


def check_types_vary(what: str, axes: tuple[str, ...]) -> None:
    """Raises unless types tell over which mesh axes a value varies.

    Raises:
      ValueError: where the program does not run along these axes.
      NotImplementedError: inside ``jax.shard_map(check_vma=False)`` or `jax.pmap`.
    """
    if missing := [axis for axis in axes if not is_bound(axis)]:
        raise ValueError(
            f"{what}: the program does not run along the mesh axes {missing}; inside of "
            "jax.shard_map on a mesh with them is wanted"
        )
    if not jax.typeof(lax.axis_index(axes)).manual_axis_type.varying:
        raise NotImplementedError(
            f"{what}: its gradients take types that say over which mesh axes a value varies; use "
            "jax.shard_map with check_vma=True, not check_vma=False or jax.pmap"
        )

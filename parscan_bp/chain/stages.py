"""A chain of layers over devices, each of which holds a stretch of them: model parallelism.

With the layers cut into P stages, x_k the activations between them and theta_k the parameters of
stage k, a chain is a scan of P steps, one on each device,

    x_k = stage_k(x_{k-1}; theta_k),    lambda_{k-1} = A_k lambda_k,

whose inputs are the parameters: each device has its own, its activations and its Jacobian A_k, and
the scan over devices is that of `parscan_bp.Sharded`. Devices run one program, and what goes from
one to another has one shape: activations are padded to the widest between two stages, parameters to
those of the largest stage.

Source: BPPSA (Wang, Bai, Pekhimenko, MLSys 2020), section 2.2 and figures 1 to 3.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.devices import Traffic
from parscan_bp.layers import Layer, activations, adjoint_operators
from parscan_bp.layers.base import flat
from parscan_bp.planner.balanced import balanced
from parscan_bp.scan import scan
from parscan_bp.solvers import Solver
from parscan_bp.system import Ragged
from parscan_bp.types import Array, PyTree


def run_in_stages(
    layers: tuple[Layer, ...], params: Sequence[PyTree], x: Array, solver: Solver, count: int
) -> Array:
    """The value of a chain, of which each of ``count`` devices holds a stretch.

    Raises:
      ValueError: if there are fewer layers than devices.
    """
    chain, cuts = in_stages(layers, params, x, solver, count)
    rows = packed([jax.tree.leaves(params[i:j]) for i, j in itertools.pairwise(cuts)])
    last = chain.solver.place.on_each(chain.on_each, chain.entering(x), rows)
    return chain.leaving(last)


def in_stages(
    layers: tuple[Layer, ...], params: Sequence[PyTree], x: Array, solver: Solver, count: int
) -> tuple[Stages, list[int]]:
    """A chain cut into ``count`` stretches, and where; arrays may be their types.

    Raises:
      ValueError: if there are fewer layers than devices.
    """
    if len(layers) < count:
        raise ValueError(
            f"layers: got {len(layers)} for {count} devices; at least one for each is wanted"
        )
    xs = jax.eval_shape(functools.partial(activations, layers), params, x)
    operators = jax.eval_shape(functools.partial(adjoint_operators, layers), params, xs)
    cuts = balanced([a.cost().flops for a in operators], count)
    stages = tuple(
        DeviceStage(layers[i:j], _types(params[i:j]), xs[i], xs[j])
        for i, j in itertools.pairwise(cuts)
    )
    g = [None] * len(layers) + [jax.eval_shape(flat, xs[-1])]
    return Stages(stages, solver.for_stages(Ragged(operators, g))), cuts


@dataclasses.dataclass(frozen=True)
class DeviceStage:
    """The layers of one device.

    Attributes:
      layers: in their order.
      params: types of their parameters.
      x, y: the types of what enters and leaves.
    """

    layers: tuple[Layer, ...]
    params: list[PyTree]
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Stages:
    """A chain as the steps of a scan over devices.

    Attributes:
      stages: what each device has.
      solver: the solver over the devices.
    """

    stages: tuple[DeviceStage, ...]
    solver: Solver

    @property
    def width(self) -> int:
        """Entries of the widest activations between two stages, for one row."""
        return max(math.prod(v.shape[1:]) for s in self.stages for v in (s.x, s.y))

    @property
    def dtype(self):
        return jnp.result_type(*[v.dtype for s in self.stages for v in (s.x, s.y)])

    @property
    def depth(self) -> int:
        """Layers that cotangents pass one after the other, products between devices among them.

        A device whose Jacobian is multiplied passes its layers twice, once to make it.
        """
        counts = [len(stage.layers) for stage in self.stages]
        steps = self.solver.complexity(len(counts)).steps
        if self.solver.needs == "operators":
            return 2 * max(counts) + steps - 1
        return min(max(counts) * steps, sum(counts))

    def traffic(self) -> dict[str, Traffic]:
        """What a device takes part in, by its purpose."""
        rows = self.stages[0].x.shape[0] * self.dtype.itemsize
        vector = rows * self.width
        return self.solver.place.traffic(vector + vector * self.width, vector, len(self.stages))

    def __str__(self):
        count = sum(len(s.layers) for s in self.stages)
        lines = [f"{count} layers on {len(self.stages)} devices by {self.solver!r}"]
        for k, stage in enumerate(self.stages):
            names = ", ".join(layer.label for layer in stage.layers)
            lines.append(f"  {k}: {names}")
        lines.append(
            f"backward: {self.depth} layers and products one after the other, of {count} in "
            "back-propagation"
        )
        lines += [
            f"{name}: {sent.collectives} collectives, {sent.bytes:,} bytes"
            for name, sent in self.traffic().items()
        ]
        return "\n".join(lines)

    def entering(self, x: Array) -> Array:
        """Activations as what goes from one device to the next, (batch, width)."""
        v = flat(x).astype(self.dtype)
        return jnp.pad(v, ((0, 0), (0, self.width - v.shape[1])))

    def leaving(self, v: Array) -> Array:
        """The value of the chain."""
        return _activations(v, self.stages[-1].y)

    def on_each(self, index: Array, x: Array, rows: list[Array]) -> Array:
        """On the device of a stage: the scan of which it makes one step."""
        branches = [functools.partial(self._run, k) for k in range(len(self.stages))]

        def step(v, row):
            return lax.switch(index, branches, v, row), None

        return scan(step, x, rows, solver=self.solver)[0]

    def _run(self, k: int, v: Array, row: list[Array]) -> Array:
        stage = self.stages[k]
        params = unpacked(row, stage.params)
        return self.entering(activations(stage.layers, params, _activations(v, stage.x))[-1])


def packed(stages: Sequence[Sequence[Array]]) -> list[Array]:
    """The leaves of each stage side by side in one row, an array (P, numbers) for each dtype."""
    dtypes = sorted({a.dtype for leaves in stages for a in leaves}, key=str)
    return [_rows(dtype, stages) for dtype in dtypes]


def _rows(dtype: Any, stages: Sequence[Sequence[Array]]) -> Array:
    none = jnp.zeros(0, dtype)
    rows = [
        jnp.concatenate([none, *(jnp.ravel(a) for a in leaves if a.dtype == dtype)])
        for leaves in stages
    ]
    widest = max(map(len, rows))
    return jnp.stack([jnp.pad(row, (0, widest - len(row))) for row in rows])


def unpacked(row: Sequence[Array], types: PyTree) -> PyTree:
    """The leaves of one stage from its row."""
    of_dtype = {part.dtype: part for part in row}
    at = dict.fromkeys(of_dtype, 0)
    leaves, tree = jax.tree.flatten(types)
    found = []
    for leaf in leaves:
        start, size = at[leaf.dtype], math.prod(leaf.shape)
        found.append(of_dtype[leaf.dtype][start : start + size].reshape(leaf.shape))
        at[leaf.dtype] += size
    return jax.tree.unflatten(tree, found)


def _types(params: Sequence[PyTree]) -> list[PyTree]:
    return jax.eval_shape(lambda: list(params))


def _activations(v: Array, like: Any) -> Array:
    size = math.prod(like.shape[1:])
    return v[:, :size].reshape(v.shape[0], *like.shape[1:]).astype(like.dtype)

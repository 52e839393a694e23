"""The backward chain of VGG-11 for given activations: by XLA's VJP, and by any schedule.

Computed are the cotangents that the weights' gradients need, those of every convolution's output.
The first convolution's Jacobian is never needed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.paper.vgg11.schedules import APPLY, Span, Step
from parscan_bp.layers import Conv, Layer, activations, adjoint_operators
from parscan_bp.operators import Convolution, Operator
from parscan_bp.planner import Plan, ProductOrder, run_order
from parscan_bp.solvers import Planned
from parscan_bp.sparsity import Pattern
from parscan_bp.system import Ragged


@dataclasses.dataclass(frozen=True)
class Chain:
    """The backward chain of some layers for given activations.

    Attributes:
        layers: the first is not differentiated.
        params: of these layers.
        xs: activations, the input first.
        system: of the layers after the first, convolutions of pruned kernels with their masks.
        ct: cotangent of the last activation.
    """

    layers: Sequence[Layer]
    params: Any
    xs: list[jax.Array]
    system: Ragged
    ct: jax.Array

    @property
    def convolutions(self) -> list[int]:
        """Positions of convolutions among the operators."""
        found = enumerate(self.system.operators)
        return [t for t, op in found if isinstance(op, Convolution)]


def chain(layers: Sequence[Layer], params: Any, images: jax.Array, *, masked: bool) -> Chain:
    """The chain for a batch of images.

    Args:
        layers: the convolutional part, or the first layers of it.
        params: of these layers.
        images: (B, size, size, 3).
        masked: whether zeros of the kernels are known.
    """

    @jax.jit
    def make(params: Any, images: jax.Array) -> tuple[list[jax.Array], list[Operator]]:
        xs = activations(layers, params, images)
        return xs, adjoint_operators(layers, params, xs)

    xs, operators = make(params, images)
    ct = jax.random.normal(jax.random.key(0), xs[-1].shape, xs[-1].dtype)
    if masked:
        operators = [_masked(op) for op in operators]
    g = [None] * (len(layers) - 1) + [ct.reshape(len(ct), -1)]
    wanted = [k for k, layer in enumerate(layers) if isinstance(layer, Conv)]
    return Chain(layers, params, xs, Ragged(operators[1:], g, wanted), ct)


def xla_vjp(of: Chain) -> tuple[Callable[..., list[jax.Array]], Any]:
    """JAX's own pullback to the output of every convolution, and the residuals it takes."""

    def forward(outputs: list[jax.Array]) -> jax.Array:
        x, moved = of.xs[0], iter(outputs)
        for layer, own in zip(of.layers, of.params, strict=True):
            x = layer.apply(own, x)
            x = x + next(moved) if isinstance(layer, Conv) else x
        return x

    rows = zip(of.layers, of.xs[1:], strict=True)
    zeros = [jnp.zeros_like(y) for layer, y in rows if isinstance(layer, Conv)]
    _, pullback = jax.vjp(forward, zeros)
    return lambda pullback, ct: pullback(ct)[0], pullback


def scan(
    of: Chain, schedule: ProductOrder, unpacking: Sequence[int]
) -> Callable[..., list[jax.Array]]:
    """The same vectors by a schedule."""
    wanted = of.system.wanted or ()

    def cotangents(operators: list[Operator], ct: jax.Array) -> list[jax.Array]:
        g = [None] * len(operators) + [ct]
        found = run_order(schedule, operators, g, unpacking)
        return [_vector(found[t]) for t in wanted]

    return cotangents


def paper_schedule(steps: Sequence[Step], n: int) -> ProductOrder:
    """Steps of Algorithm 1 over n operators and the first layer's, as the planner writes them."""
    # Factor k of the scan is operator n - k; products are written first layers left.
    trees: dict[Span, Any] = {(k, k): n - k for k in range(1, n + 1)}
    for step in steps:
        if step.split is not None:
            left, right = step.operands
            trees[step.span] = (trees[left], trees[right])
    return ProductOrder(n, tuple(trees[step.span] for step in steps if step.kind == APPLY))


def plan_of(of: Chain, memory_limit: int | None = None) -> Plan:
    """The planner's schedule for a chain."""
    return Planned(memory_limit=memory_limit).plan(of.system)


def _masked(operator: Operator) -> Operator:
    if not isinstance(operator, Convolution):
        return operator
    kernel = np.asarray(operator.kernel)
    return dataclasses.replace(
        operator, mask=Pattern.from_mask(kernel.reshape(-1, kernel.shape[-1]) != 0)
    )


def _vector(v: jax.Array | None) -> jax.Array:
    assert v is not None
    return v

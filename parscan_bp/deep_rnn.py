"""Recurrent layers in a row as one recurrence: the doubly bi-diagonal system of a deep RNN.

Layer i at step t takes h_i from the step before and x_i = y_{i-1} from the layer below, in the same
step. The cotangents of all h obey

    lambda_{i,t} = g_{i,t} + (d h_i / d h_i)^T lambda_{i,t+1} + (d x_{i+1} / d h_i)^T mu_{i+1,t+1},

with mu those of the inputs, bi-diagonal in time and, within a step, in the layers (Naumov,
equations 24 and 26). The layers of a step are eliminated first, side by side for all steps: with
the slopes of y_m by x_m, a path from h_i to h_j is a product of those of layers between, and
all paths are made in log2 k levels. What is left is bi-diagonal in time, with block-triangular
maps, and a tree over it has log2 of the steps in levels, each a product whose sums over layers have
log2 k steps: O(log k log tau), as section 3.1 claims and does not write down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import described
from parscan_bp.jaxprs.batching import batched
from parscan_bp.operators import BlockTriangular, Dense, Operator, compose
from parscan_bp.types import Array, PyTree

LayerStep = Callable[[PyTree, Array], tuple[PyTree, Array]]


def deep_rnn(steps: Sequence[LayerStep]) -> tuple[Callable, Callable]:
    """k recurrent layers in a row as one step of `scan`, and its transposed Jacobian.

    Args:
      steps: k functions ``(h, x) -> (new h, y)`` of arrays (*batch, features), whose rows are
        independent. ``y`` is the next one's ``x``. ``h`` may be a pytree of such arrays, as the two
        of an LSTM; all h have the same number of features.

    Returns:
      ``(step, jacobian)``: the step of the tuple of all h, whose output is the last y, and the
      ``jacobian`` of `scan`, which makes `operators.BlockTriangular` maps.

    Raises:
      TypeError: if ``steps`` is no sequence of functions.
      ValueError: if it is empty; when used, if h have other sizes or are not one for each step.

    Source: M. Naumov, 2017, sections 2.2 and 3.1.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> layer = lambda h, x: 2 * (jnp.tanh(h / 2 + x),)
      >>> step, jacobian = pb.deep_rnn([layer, layer])
      >>> run = lambda xs, **how: pb.scan(step, (jnp.zeros(1),) * 2, xs, **how)[1].sum()
      >>> xs = jnp.ones((5, 1))
      >>> got = jax.grad(run)(xs)
      >>> tree = lambda xs: run(xs, solver=pb.CyclicReduction(), jacobian=jacobian)
      >>> bool(jnp.allclose(jax.grad(tree)(xs), got))
      True
    """
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise TypeError(f"steps: got {described(steps)}; a list or tuple of functions is wanted")
    for k, own in enumerate(steps):
        if not callable(own):
            raise TypeError(f"steps[{k}]: got {described(own)}; a function (h, x) is wanted")
    if not steps:
        raise ValueError("steps: got none; at least 1 is wanted")

    def step(carry, x):
        check_carries("carry", carry, len(steps))
        new = []
        for own, h in zip(steps, carry, strict=True):
            after, x = own(h, x)
            new.append(after)
        return tuple(new), x

    def jacobian(carry, x, new_carry):
        del new_carry
        check_carries("carry", carry, len(steps))
        slopes = []
        for own, h in zip(steps, carry, strict=True):
            slopes.append(_slopes(own, h, x))
            _, x = own(h, x)
        return _paths(slopes)

    return step, jacobian


def check_carries(name: str, carry: PyTree, count: int) -> None:
    """Raises `ValueError` unless they are the carries of so many layers, of as many features each.

    Args:
      name: of the argument that they are, or come from.
      carry: of all layers.
      count: of layers.
    """
    if not isinstance(carry, Sequence) or len(carry) != count:
        raise ValueError(
            f"{name}: got {described(carry)}; a tuple of {count} carries, one for each layer, is "
            "wanted"
        )
    shapes = [[jnp.shape(a) for a in jax.tree.leaves(h)] for h in carry]
    features = {sum(shape[-1] for shape in own if shape) for own in shapes}
    if len(features) != 1 or any(() in own for own in shapes):
        raise ValueError(
            f"{name}: got carries of shapes {shapes}; as many features in each layer are wanted, "
            "as the Jacobians of all are blocks of one matrix. Layers one after the other, each a "
            "scan or an RNN of its own, may have any"
        )


def _slopes(own: LayerStep, h: PyTree, x: Array) -> dict[str, Dense]:
    """The transposed Jacobians of a layer, (*batch, of, by), ``"hx"`` being d new h / d x."""

    def columns(f, at):
        """d (new h, y) by an array or several, whose features are joined."""
        leaves, tree = jax.tree.flatten(at)
        sizes = [a.shape[-1] for a in leaves]

        def push(v):
            parts = jnp.split(v, np.cumsum(sizes)[:-1])
            spread = [
                jnp.broadcast_to(part.astype(a.dtype), a.shape)
                for part, a in zip(parts, leaves, strict=True)
            ]
            new, y = jax.jvp(f, (at,), (jax.tree.unflatten(tree, spread),))[1]
            return jnp.concatenate(jax.tree.leaves(new), axis=-1), y

        # One direction in each row at once: rows are independent. (by, *batch, of) -> transposed.
        slopes = batched(push)(jnp.eye(sum(sizes), dtype=jnp.result_type(*leaves)))
        return [Dense(jnp.moveaxis(a, 0, -2)) for a in slopes]

    hh, yh = columns(lambda h: own(h, x), h)
    hx, yx = columns(lambda x: own(h, x), x)
    return {"hh": hh, "yh": yh, "hx": hx, "yx": yx}


def _paths(slopes: Sequence[dict[str, Dense]]) -> Operator:
    """All transposed Jacobians of new h_j by h_i, i <= j."""
    k = len(slopes)
    # between[i, j]: cotangents of x_j become those of y_i, through the layers i+1..j-1.
    between: dict[tuple[int, int], Operator | None] = {(i, i + 1): None for i in range(k - 1)}
    reach = 1
    while reach < k - 1:
        # Paths over twice as many layers, all of them at once: i -> m, layer m, m -> j.
        for i in range(k - 1):
            for j in range(i + reach + 1, min(i + 2 * reach, k - 1) + 1):
                m = i + reach
                between[i, j] = _chained(between[m, j], slopes[m]["yx"], between[i, m])
        reach *= 2
    blocks: list[Operator] = []
    for i in range(k):
        blocks.append(slopes[i]["hh"])
        for j in range(i + 1, k):
            blocks.append(_chained(slopes[j]["hx"], between[i, j], slopes[i]["yh"]))
    return BlockTriangular(jnp.stack([a.as_dense() for a in blocks], axis=-3))


def _chained(*maps: Operator | None) -> Operator:
    """One after the other; ``None`` is the identity."""
    found = [a for a in maps if a is not None]
    product = found[0]
    for a in found[1:]:
        product = compose(product, a)
    return product

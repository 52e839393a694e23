"""Residual blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import jax

from parscan_bp.arguments import described
from parscan_bp.layers.base import Layer, check_params, flat
from parscan_bp.layers.stack import activations, adjoint_operators, checked_params, init_stack
from parscan_bp.operators import Identity, Operator, Product, Sum
from parscan_bp.types import Array, PyTree


@final
@dataclasses.dataclass(frozen=True)
class Residual(Layer):
    """y = branch(x) + shortcut(x), both stacks of layers; a shortcut without layers is x itself.

    Parameters are ``{"branch": [...], "shortcut": [...]}``, one entry per layer. The transposed
    Jacobian is the `Sum` of two `Product` s, nothing multiplied out. Activations inside the block
    are computed again where they are needed.

    Args:
      branch: layers.
      shortcut: layers.

    Raises:
      ValueError: by `apply`, if the two do not end in one shape.

    Source: He et al., 2016, eq. 1 and 2.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.layers import Linear, ReLU, Residual
      >>> layer = Residual((Linear(3), ReLU()))
      >>> params = layer.init(jax.random.key(0), (3,))
      >>> layer.apply(params, jnp.zeros((1, 3))).tolist()
      [[0.0, 0.0, 0.0]]
    """

    branch: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def __post_init__(self):
        for name in ("branch", "shortcut"):
            layers = getattr(self, name)
            if not isinstance(layers, Sequence) or not all(isinstance(a, Layer) for a in layers):
                raise TypeError(
                    f"{name}: got {described(layers)}; a sequence of Layers is wanted, such as "
                    "(Linear(8), ReLU())"
                )
            object.__setattr__(self, name, tuple(layers))

    def init(self, key, features, dtype=float):
        first, second = jax.random.split(key)
        return {
            "branch": init_stack(self.branch, first, features, dtype),
            "shortcut": init_stack(self.shortcut, second, features, dtype),
        }

    def apply(self, params, x):
        ends = [activations(layers, p, x)[-1] for layers, p in self._paths(params)]
        if ends[0].shape != ends[1].shape:
            raise ValueError(
                f"branch: makes {tuple(ends[0].shape)} and the shortcut {tuple(ends[1].shape)} of "
                f"x of shape {tuple(x.shape)}; the same is wanted"
            )
        return ends[0] + ends[1]

    def _paths(self, params):
        check_params(self, params, ("branch", "shortcut"), arrays=False)
        paths = {"branch": self.branch, "shortcut": self.shortcut}
        return [(own, checked_params(own, params[name], name)) for name, own in paths.items()]

    def adjoint_operator(self, params, x, y):
        return Sum(tuple(_adjoint(layers, p, x) for layers, p in self._paths(params)))

    def pullback(self, params, x, y, ct):
        branch, shortcut = (_pullback(layers, p, x, ct) for layers, p in self._paths(params))
        return {"branch": branch, "shortcut": shortcut}


def _adjoint(layers: tuple[Layer, ...], params: list[PyTree], x: Array) -> Operator:
    if not layers:
        return Identity(flat(x).shape[-1], x.dtype)
    return Product(tuple(adjoint_operators(layers, params, activations(layers, params, x))))


def _pullback(layers: tuple[Layer, ...], params: list[PyTree], x: Array, ct: Array) -> list[PyTree]:
    xs = activations(layers, params, x)
    cts = []
    for k, a in reversed(list(enumerate(adjoint_operators(layers, params, xs)))):
        cts.append(layers[k].pullback(params[k], xs[k], xs[k + 1], ct))
        ct = a.matvec(flat(ct)).reshape(xs[k].shape)
    return cts[::-1]

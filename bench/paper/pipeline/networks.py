"""A small ResNet and a plain deep net, cut into any number of blocks."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parscan_bp.pipeline import Block

_MOMENTUM = 0.9
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Piece:
    """A layer or a unit of several.

    Attributes:
        init: random generator to (params, state).
        apply: (params, state, x, train) to (y, state).
    """

    init: Callable[[np.random.Generator], tuple[Any, Any]]
    apply: Callable[[Any, Any, jax.Array, bool], tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True)
class Network:
    """Pieces, one after the other, in K blocks.

    Attributes:
        cuts: for each block its pieces.
        blocks: in training, for `parscan_bp.pipeline.run`.
    """

    cuts: tuple[tuple[Piece, ...], ...]
    blocks: tuple[Block, ...]

    def init(self, seed: int) -> tuple[list[Any], list[Any]]:
        """Params and states of all blocks; the same numbers however the pieces are cut."""
        rng = np.random.default_rng(seed)
        made = [[piece.init(rng) for piece in cut] for cut in self.cuts]
        return [[p for p, _ in own] for own in made], [[s for _, s in own] for own in made]

    def score(self, params: Any, states: Any, x: jax.Array) -> jax.Array:
        """The outputs, not in training."""
        for cut, own, state in zip(self.cuts, params, states, strict=True):
            x, _ = _through(cut, own, state, x, train=False)
        return x


def _through(cut: Sequence[Piece], params: Any, state: Any, x: jax.Array, train: bool) -> Any:
    states = []
    for piece, own, before in zip(cut, params, state, strict=True):
        x, after = piece.apply(own, before, x, train)
        states.append(after)
    return x, states


@functools.cache
def cut(kind: str, blocks: int, features: tuple[int, ...], classes: int, width: int) -> Network:
    """A network of one of the `KINDS`.

    Args:
        kind: "resnet" for images (size, size, channels), "plain" for vectors of any shape.
        blocks: K.
        features: of an input.
        classes: of the output.
        width: channels of the first unit, or units of a hidden layer.
    """
    pieces = KINDS[kind](features, classes, width)
    at = np.linspace(0, len(pieces), blocks + 1).round().astype(int)
    cuts = tuple(tuple(pieces[a:b]) for a, b in itertools.pairwise(at))

    def block(own: tuple[Piece, ...]) -> Block:
        return Block(lambda params, state, x, key: _through(own, params, state, x, train=True))

    return Network(cuts, tuple(map(block, cuts)))


def loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean softmax cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def _resnet(features: tuple[int, ...], classes: int, width: int) -> list[Piece]:
    """A convolution, six residual units in three stages, and a linear map of the mean.

    Source: He et al., Deep Residual Learning (2016), section 4.2, with n = 1 and pre-activation.
    """
    channels = [width, width, 2 * width, 2 * width, 4 * width, 4 * width]
    pieces, before = [_stem(features[-1], width)], width
    for own in channels:
        pieces.append(_unit(before, own, stride=own // before))
        before = own
    return [*pieces, _pooled_head(before, classes)]


def _plain(features: tuple[int, ...], classes: int, width: int, layers: int = 9) -> list[Piece]:
    """Eight layers with ReLU and a linear map: no shortcuts, no normalisation."""
    sizes = [math.prod(features), *[width] * (layers - 1), classes]
    pairs = list(itertools.pairwise(sizes))
    return [_dense(a, b, last=k == layers - 1) for k, (a, b) in enumerate(pairs)]


KINDS = {"resnet": _resnet, "plain": _plain}


def _dense(inputs: int, outputs: int, last: bool) -> Piece:
    def apply(params, state, x, train):
        x = x.reshape(len(x), -1) @ params["kernel"] + params["bias"]
        return (x if last else jax.nn.relu(x)), state

    def init(rng):
        return {
            "kernel": _normal(rng, (inputs, outputs)),
            "bias": jnp.zeros(outputs, jnp.float32),
        }, ()

    return Piece(init, apply)


def _stem(inputs: int, channels: int) -> Piece:
    def apply(params, state, x, train):
        return _conv(x, params, 1), state

    return Piece(lambda rng: (_normal(rng, (3, 3, inputs, channels)), ()), apply)


def _unit(inputs: int, channels: int, stride: int) -> Piece:
    def init(rng):
        params = {
            "first": _normal(rng, (3, 3, inputs, channels)),
            "second": _normal(rng, (3, 3, channels, channels)),
            "norms": [_scale(inputs), _scale(channels)],
        }
        if inputs != channels:
            params["shortcut"] = _normal(rng, (1, 1, inputs, channels))
        return params, [_statistics(inputs), _statistics(channels)]

    def apply(params, state, x, train):
        first, before = _norm(params["norms"][0], state[0], x, train)
        first = jax.nn.relu(first)
        short = _conv(first, params["shortcut"], stride) if "shortcut" in params else x
        second, after = _norm(
            params["norms"][1], state[1], _conv(first, params["first"], stride), train
        )
        return short + _conv(jax.nn.relu(second), params["second"], 1), [before, after]

    return Piece(init, apply)


def _pooled_head(channels: int, classes: int) -> Piece:
    def init(rng):
        return {
            "norm": _scale(channels),
            "kernel": _normal(rng, (channels, classes)) / 2,
            "bias": jnp.zeros(classes, jnp.float32),
        }, _statistics(channels)

    def apply(params, state, x, train):
        x, state = _norm(params["norm"], state, x, train)
        return jax.nn.relu(x).mean((1, 2)) @ params["kernel"] + params["bias"], state

    return Piece(init, apply)


def _norm(params, state, x, train):
    """Batch norm: with the batch's statistics in training, which then move the running ones."""
    mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (state["mean"], state["var"])
    y = (x - mean) * jax.lax.rsqrt(var + _EPSILON) * params["scale"] + params["bias"]
    if not train:
        return y, state
    moved = lambda old, new: _MOMENTUM * old + (1 - _MOMENTUM) * jax.lax.stop_gradient(new)  # noqa: E731
    return y, {"mean": moved(state["mean"], mean), "var": moved(state["var"], var)}


def _scale(channels: int) -> dict[str, jax.Array]:
    return {"scale": jnp.ones(channels, jnp.float32), "bias": jnp.zeros(channels, jnp.float32)}


def _statistics(channels: int) -> dict[str, jax.Array]:
    return {"mean": jnp.zeros(channels, jnp.float32), "var": jnp.ones(channels, jnp.float32)}


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> jax.Array:
    """Of variance 2 / fan-in."""
    scale = math.sqrt(2 / math.prod(shape[:-1]))
    return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)


def _conv(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=numbers)

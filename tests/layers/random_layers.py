"""Seeded random layers: of every class, with inputs of any rank, batch, geometry and dtype."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.layers import (
    LAYERS,
    AveragePool,
    BatchNorm,
    Coloured,
    Conv,
    ConvTranspose,
    Dropout,
    Elementwise,
    Flatten,
    Function,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    Sigmoid,
    Softmax,
    Tanh,
    init,
)

BATCHES = (0, 1, 2, 5)
DTYPES = ("float32", "float64", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Case:
    """Layers, their parameters, and an input."""

    layers: list[Layer]
    params: list[Any]
    x: jax.Array


def random_case(seed: int) -> Case:
    """A layer of the class number ``seed``, modulo their number, and what may follow it."""
    rng = np.random.default_rng(seed)
    kind = LAYERS[seed % len(LAYERS)]
    # Both in other orders than the classes, so that all of them meet.
    batch = BATCHES[(seed + seed // len(LAYERS)) % len(BATCHES)]
    dtype = DTYPES[seed // len(LAYERS) % len(DTYPES) if seed % 3 else seed // 3 % len(DTYPES)]
    for _ in range(1000):
        features = tuple(rng.integers(1, 5, rng.integers(1, 5)).tolist())
        try:
            layers = [DRAWN[kind](rng, features), *_rest(rng)]
            shapes = _shapes(layers, features)
            break
        except ValueError:  # such a window does not fit, or so many axes
            continue
    params = [
        _positive(jax.tree.map(lambda a: _numbers(rng, a.shape, dtype), own)) for own in shapes
    ]
    if kind is Dropout:
        params[0] = jnp.asarray(rng.random((rng.choice([1, batch]), *features)) < 0.5)
    return Case(layers, params, _numbers(rng, (batch, *features), dtype))


def _shapes(layers, features):
    """Of the parameters; a mask is drawn for the batch that it meets, and changes no shape."""
    masked = type(layers[0]) is Dropout
    found = jax.eval_shape(lambda: init(layers[masked:], jax.random.key(0), features))
    return [None, *found] if masked else found


def _numbers(rng, shape, dtype):
    # In single precision there is no float64.
    return jnp.asarray(rng.normal(size=shape), jax.dtypes.canonicalize_dtype(dtype))


def _positive(params):
    """Parameters whose variance is none of zero or less."""
    if isinstance(params, dict) and "var" in params:
        return params | {"var": 0.5 + jnp.abs(params["var"])}
    return params


def _rest(rng) -> list[Layer]:
    """Layers for any input, which a plan may multiply with the one before."""
    after = [ReLU(), Tanh(), Elementwise(jax.nn.gelu), Flatten(), Linear(2), Softmax()]
    return [after[k] for k in rng.integers(0, len(after), rng.integers(0, 3))]


def _geometry(rng, features) -> tuple:
    rank = len(features) - 1
    if not 1 <= rank <= 3:
        raise ValueError("no spatial axes, or more than are worth their time")
    window = tuple(rng.integers(1, 5, rank).tolist())
    strides = rng.integers(1, 4, rank).tolist() if rng.random() < 0.5 else int(rng.integers(1, 3))
    pads = [
        "SAME",
        "SAME_LOWER",
        "VALID",
        int(rng.integers(0, 3)),
        tuple(map(tuple, rng.integers(0, 4, (rank, 2)).tolist())),
    ]
    padding = pads[rng.integers(len(pads))]
    dilation = rng.integers(1, 3, rank).tolist() if rng.random() < 0.3 else 1
    return window, strides, padding, dilation


def _conv(kind):
    def draw(rng, features):
        window, strides, padding, dilation = _geometry(rng, features)
        groups = features[-1] if rng.random() < 0.3 else 1
        mask, out = None, groups * int(rng.integers(1, 3))
        if rng.random() < 0.2:
            mask = rng.random((*window, features[-1] // groups, out)) < 0.5
        bias = bool(rng.random() < 0.7)
        return kind(out, window, strides, padding, dilation, groups, bias=bias, mask=mask)

    return draw


def _max_pool(rng, features):
    # Without dilation, of which JAX has no second derivative, nor a first in reverse.
    window, strides, padding, _ = _geometry(rng, features)
    return MaxPool(window, None if rng.random() < 0.3 else strides, padding)


def _average_pool(rng, features):
    return AveragePool(*_geometry(rng, features), count_padding=bool(rng.random() < 0.5))


FUNCTIONS = [
    jnp.sin,
    jnp.abs,
    jax.nn.silu,
    lambda v: jnp.where(v > 0, v, v * v.shape[0]),
    lambda v: v * jnp.arange(v.shape[-1], dtype=v.dtype),
    lambda v: v**2 - v,
]
ONES_OWN = [
    lambda p, v: jnp.cumsum(v) * jnp.sin(v).sum(),
    lambda p, v: v.sum(0) * v.mean(),
    lambda p, v: jnp.sort(v, axis=-1) ** 2,
]


def _elementwise(rng, features):
    return [ReLU(), Tanh(), Sigmoid(), *map(Elementwise, FUNCTIONS)][rng.integers(3, 9)]


def _coloured(rng, features):
    size = int(np.prod(features))
    at = np.arange(max(size - 1, 0))
    return Coloured(lambda p, v: v.ravel()[1:] * v.ravel()[:-1] ** 2, [*at, *at], [*at, *(at + 1)])


def _residual(rng, features):
    inner = [Linear(features[-1]), Tanh()] if rng.random() < 0.5 else [LayerNorm(), Linear(3)]
    ends = [] if len(inner) == 2 and type(inner[0]) is Linear else [Linear(3)]
    return Residual(inner, ends)


DRAWN = {
    AveragePool: _average_pool,
    BatchNorm: lambda rng, features: BatchNorm(0.1),
    Coloured: _coloured,
    Conv: _conv(Conv),
    ConvTranspose: _conv(ConvTranspose),
    Dropout: lambda rng, features: Dropout(0.25),
    Elementwise: _elementwise,
    Flatten: lambda rng, features: Flatten(),
    Function: lambda rng, features: Function(ONES_OWN[rng.integers(len(ONES_OWN))]),
    LayerNorm: lambda rng, features: LayerNorm(0.1),
    Linear: lambda rng, features: Linear(int(rng.integers(1, 4)), bias=bool(rng.random() < 0.7)),
    MaxPool: _max_pool,
    Residual: _residual,
    Softmax: lambda rng, features: Softmax(),
}

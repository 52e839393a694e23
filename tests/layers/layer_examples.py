"""One row for each layer and geometry: what it takes, and how exact its Jacobian has to be.

Names of the form *_examples.py are data for the tests beside them.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.layers import (
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
)

X64 = jnp.result_type(float) == jnp.float64
BATCH = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """A row.

    Attributes:
      layer: the layer.
      features: shape of one input.
      exact: whether the Jacobian's entries are copies of numbers.
      ties: whether inputs are drawn from few values, so that maxima tie.
      name: in the test's id.
    """

    layer: Layer
    features: tuple[int, ...]
    exact: bool = False
    ties: bool = False
    name: str = ""

    def __repr__(self) -> str:
        return self.name or f"{self.layer}{self.features}".replace(" ", "")

    def draw(self, seed: int = 0):
        """Parameters and a batch of inputs; no parameter is left at 0 or 1."""
        rng = np.random.default_rng(seed)
        params = self.layer.init(jax.random.key(seed), self.features)
        move = lambda a: np.asarray(a) + 0.1 * rng.uniform(0.5, 1, a.shape).astype(a.dtype)  # noqa: E731
        params = jax.tree.map(jnp.asarray, jax.tree.map(move, params))
        if isinstance(self.layer, Dropout):
            params = jnp.asarray(rng.random((BATCH, *self.features)) < 0.5)
        shape = (BATCH, *self.features)
        x = rng.integers(-1, 2, shape) if self.ties else rng.normal(size=shape)
        return params, jnp.asarray(x, float)


CONV_2D = [
    Example(Conv(4, window, strides, padding, dilation, groups), (5, 4, 4), exact=True)
    for window, strides, padding, dilation, groups in itertools.product(
        [(1, 1), (3, 3), (2, 3), (3, 1)],
        [1, (2, 1), 3],
        ["SAME", "VALID", ((1, 0), (0, 2))],
        [1, (2, 1)],
        [1, 2],
    )
    if not (padding == "VALID" and dilation != 1 and window[0] == 3 and strides == 3)
]
DEPTHWISE = [
    Example(Conv(channels, (2, 2), strides, padding, groups=3), (4, 3, 3), exact=True)
    for channels, strides, padding in itertools.product([3, 6], [1, 2], ["SAME", "SAME_LOWER", 1])
]
CONV_1D = [
    Example(Conv(4, (window,), strides, padding, dilation, groups), (7, 2), exact=True)
    for window, strides, padding, dilation, groups in itertools.product(
        [1, 2, 3], [1, 2], ["SAME", "VALID", ((2, 1),)], [1, 2], [1, 2]
    )
]
CONV_3D = [Example(Conv(2, (2, 1, 2), (1, 1, 2), 1), (2, 2, 3, 1), exact=True)]
TRANSPOSED = [
    Example(ConvTranspose(2, (window,), strides, padding, dilation, groups), (4, 2), exact=True)
    for window, strides, padding, dilation, groups in itertools.product(
        [1, 2, 3], [1, 2, 3], ["SAME", "VALID", 2], [1, 2], [1, 2]
    )
    if (dilation == 1 or groups == 1) and (strides != 3 or groups == 2)
] + [
    Example(ConvTranspose(2, window, (2, 1), padding), (2, 3, 2), exact=True)
    for window, padding in itertools.product([(2, 2), (3, 1)], ["SAME", "VALID"])
]
MAX_POOL = [
    Example(MaxPool(window, strides, padding), (5, 4, 2), exact=True, ties=ties)
    for window, strides, padding, ties in itertools.product(
        [(2, 2), (3, 2)], [None, 1], ["VALID", "SAME", ((1, 1), (1, 0))], [False, True]
    )
] + [
    Example(MaxPool((3,), strides, padding), (8, 1), exact=True, ties=True)
    for strides, padding in itertools.product([1, 2, 3], ["SAME", "VALID"])
]
# Without ties: the reference is forward-mode, which breaks them in an order of its own.
DILATED_POOLS = [
    Example(MaxPool(window, strides, padding, (1, 2)), (4, 4, 1))
    for window, strides, padding in itertools.product(
        [(2, 2), (3, 2)], [None, 1], ["VALID", "SAME"]
    )
]
AVERAGE_POOL = [
    Example(AveragePool(window, strides, padding, count_padding=count), (5, 4, 2))
    for window, strides, padding, count in itertools.product(
        [(2, 2), (3, 1)], [None, 1], ["VALID", "SAME", ((1, 0), (0, 0))], [True, False]
    )
]
ELEMENTWISE = [
    Example(ReLU(), (3, 2), exact=True, ties=True, name="relu-at-0"),
    Example(Tanh(), (5,), name="tanh"),
    Example(Sigmoid(), (5,), name="sigmoid"),
    *[
        Example(Elementwise(f), (4,), name=f.__name__)
        for f in (jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.elu, jnp.sin, jnp.abs)
    ],
    Example(Elementwise(lambda x: jnp.where(x > 0, x, 0.01 * x)), (4,), name="leaky"),
]
OTHERS = [
    Example(Linear(3), (4,), exact=True),
    Example(Linear(2, bias=False), (2, 3, 4), exact=True),
    Example(Flatten(), (2, 3, 2), exact=True),
    Example(BatchNorm(), (3, 2, 2)),
    Example(BatchNorm(epsilon=0.1), (4,)),
    Example(LayerNorm(), (5,)),
    Example(LayerNorm(epsilon=0.01), (2, 3, 4)),
    Example(Softmax(), (5,)),
    Example(Softmax(), (2, 2, 3)),
    Example(Dropout(0.25), (3, 2), exact=True),
    Example(Residual((Conv(2, (3,)), Tanh(), Conv(2, (3,)))), (4, 2), name="residual"),
    Example(
        Residual((Conv(3, (3,), 2), ReLU(), LayerNorm()), (Conv(3, (1,), 2),)),
        (4, 2),
        name="residual-with-shortcut",
    ),
    Example(Function(lambda p, x: jnp.cumsum(x) * x[0]), (4,), name="function"),
    Example(
        Coloured(
            lambda p, x: x[1:] * x[:-1] ** 2,
            np.repeat(np.arange(5), 2),
            (np.arange(5)[:, None] + np.arange(2)).ravel(),
        ),
        (6,),
        name="coloured",
    ),
]
WINDOWS = [*CONV_2D, *DEPTHWISE, *CONV_1D, *TRANSPOSED, *MAX_POOL, *AVERAGE_POOL]
# Compiling a case takes a quarter of a second: by default one geometry in 13, all others slow.
THINNED = [
    example if k % 13 == 0 else pytest.param(example, marks=pytest.mark.slow)
    for k, example in enumerate(WINDOWS)
]
REST = [*CONV_3D, *ELEMENTWISE, *OTHERS]
EXAMPLES = [*WINDOWS, *REST]

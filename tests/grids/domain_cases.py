"""Generated stacks on a divided domain, compared with one device; numbers are small integers.

Names of the form *_cases.py are data for the tests beside them. Sums of small integers are exact in
whatever order, so that values and gradients have to be equal to the last bit; of those with a mean
over a number of entries that is no power of two, up to rounding.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.layers import AveragePool, Conv, ConvTranspose, MaxPool, ReLU, activations

ROUNDING = 3e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """A stack of layers, the shape of an input, a grid."""

    seed: int
    layers: tuple
    features: tuple
    grid: pb.parallel.Grid
    batch: int

    @property
    def exact(self) -> bool:
        return not any(isinstance(layer, AveragePool) for layer in self.layers)


def cases(first: int = 0):
    """An endless row of them; those whose windows do not fit, or reach too far, are left out."""
    for seed in itertools.count(first):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 3))
        pick = functools.partial(_pick, rng)
        height = pick(2, 3, 4, 8)
        width = pick(1, 2) if rank == 2 and height <= 4 else 1
        data = pick(1, 2) if height * width <= 4 else 1
        grid = pb.parallel.Grid(data=data, height=height, width=width)
        layers = [_layer(rng, rank) for _ in range(pick(1, 1, 2))]
        layers = [part for layer in layers for part in (layer, *([ReLU()] * pick(0, 1)))]
        if any(isinstance(layer, AveragePool) for layer in layers):
            # Rounding would decide which side of its kink a value is on.
            layers = [layer for layer in layers if layer != ReLU()]
        features = (*rng.integers(1, 18, rank).tolist(), 2)
        try:
            pb.parallel.divide(layers, features, grid, devices=jax.devices()[: grid.processes])
        except ValueError as error:
            assert "does not fit" in str(error) or "reaches further" in str(error), error
            continue
        yield Case(seed, tuple(layers), features, grid, data * pick(1, 2))


def _pick(rng, *values):
    return values[rng.integers(len(values))]


def _layer(rng, rank):
    pick = functools.partial(_pick, rng)
    window = tuple(pick(1, 2, 3, 4, 5, 7) for _ in range(rank))
    strides = tuple(pick(1, 1, 2, 3) for _ in range(rank))
    dilation = tuple(pick(1, 1, 2) for _ in range(rank))
    sides = tuple((pick(0, 1, 2), pick(0, 1, 3)) for _ in range(rank))
    padding = pick("SAME", "SAME", "SAME_LOWER", "VALID", sides)
    kind = pick(Conv, Conv, ConvTranspose, MaxPool, AveragePool)
    if kind in (MaxPool, AveragePool):
        counts = {"count_padding": pick(True, False)} if kind is AveragePool else {}
        return kind(window, strides, padding, dilation, **counts)
    if kind is ConvTranspose and padding == "SAME_LOWER":
        padding = "SAME"
    groups = pick(1, 1, 2)
    return kind(2, window, strides, padding, dilation, groups=groups, bias=pick(True, False))


def _integers(rng, like):
    return rng.integers(-2, 3, like.shape).astype(np.float32)


def check(case: Case) -> None:
    """Compares the value and all gradients with those of one device.

    Raises:
      AssertionError: naming the case.
    """
    rng = np.random.default_rng(case.seed)
    devices = jax.devices()[: case.grid.processes]
    stack = pb.parallel.divide(case.layers, case.features, case.grid, devices=devices)
    init = functools.partial(pb.layers.init, case.layers, features=case.features, dtype=jnp.float32)
    params = jax.tree.map(
        functools.partial(_integers, rng), jax.eval_shape(init, jax.random.key(0))
    )
    x = _integers(rng, np.zeros((case.batch, *case.features)))

    def one(params, x):
        return activations(case.layers, params, x)[-1]

    ct = _integers(rng, jax.eval_shape(one, params, x))

    def all_of(f, params, x, ct):
        y, pull = jax.vjp(f, params, x)
        return y, *pull(ct)

    want = jax.device_get(jax.jit(functools.partial(all_of, one))(params, x, ct))
    placed = stack.place(params)
    got = jax.device_get(jax.jit(functools.partial(all_of, stack))(placed, x, ct))
    got = (got[0], stack.collect(got[1]), got[2])
    if not np.isfinite(want[0]).all():  # a window of padding alone: there are no derivatives
        want, got = want[:1], got[:1]
    names = jax.tree_util.tree_leaves_with_path(want)
    for (path, b), a in zip(names, jax.tree.leaves(got), strict=True):
        what = f"{case} {jax.tree_util.keystr(path)}"
        if case.exact:
            np.testing.assert_array_equal(a, b, err_msg=what)
        else:
            scale = ROUNDING * float(np.nanmax(np.abs(b), initial=1.0))
            np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=scale, err_msg=what)

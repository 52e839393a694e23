"""Stacks of layers divided by drawn grids over four devices, against one device, in float64.

    python -m tests.fuzz_grids --count 200 --seed 0

Convolutions, pools and norms of drawn windows, strides and paddings, then affine layers; one grid
for all layers or one for each, by data, domain and model; values and all gradients. The options are
those of `tests.fuzz`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.layers import (
    AveragePool,
    Conv,
    ConvTranspose,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool,
    activations,
    as_layer,
)
from parscan_bp.parallel import Grid, SyncBatchNorm
from tests.fuzz import main

DEVICES = 4
MODEL = [Grid(data=4), Grid(data=2, model=2), Grid(model=4)]
HEIGHT = [Grid(data=4), Grid(data=2, height=2), Grid(height=4)]
BOTH = [*HEIGHT, Grid(height=2, width=2), Grid(data=2, width=2)]
TRIES = 50
"""Draws of which one has a divided form: windows may not fit, or reach too far."""

ROUNDING = 1e-9


def attempt(seed: int, index: int) -> tuple[str, str]:
    """A divided stack and how it fails."""
    rng = np.random.default_rng((seed, index))
    for _ in range(TRIES):
        layers, features, grids = _draw(rng)
        overlap = bool(rng.integers(2))
        text = f"{' '.join(map(_name, layers))} {features} | {_grids(grids)} | overlap {overlap}"
        try:
            devices = jax.devices()[:DEVICES]
            stack = pb.parallel.divide(layers, features, grids, overlap=overlap, devices=devices)
        except (NotImplementedError, ValueError) as error:
            if "layers[" not in str(error) and "does not fit" not in str(error):
                return text, f"is refused without a layer: {error}"
            continue
        if set(grids) == {Grid(data=DEVICES)} and rng.random() < 0.9:
            continue  # what is left of most draws
        solver = [None, None, pb.Sweep()][rng.integers(3)]
        return f"{text} | {solver}", _difference(rng, stack, layers, features, solver)
    return "", "no draw has a divided form"


def _draw(rng: np.random.Generator) -> tuple[list[Any], tuple[int, ...], Any]:
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    rank = pick(1, 1, 2, 2, 0)
    channels = pick(2, 4)
    features = (*(int(n) for n in rng.integers(4, 15, rank)), channels if rank else 6)
    layers: list[Any] = [_layer(rng, rank) for _ in range(pick(1, 2, 3))] if rank else []
    grids = [pick(*(BOTH if rank == 2 else HEIGHT)) for _ in layers]
    if not rank or rng.random() < 0.5:
        layers, grids = [*layers, Flatten()], [*grids, grids[-1] if grids else pick(*MODEL)]
        for _ in range(pick(1, 2)):
            layers += [Linear(int(rng.integers(1, 9))), pick(jnp.tanh, jax.nn.relu, jax.nn.silu)]
            grids += [pick(*MODEL)] * 2
    elif rng.random() < 0.3:
        grids = [pick(*MODEL) for _ in layers]
    if rng.random() < 0.5 and len({id(each) for each in layers}) > 1:
        grids = [grids[0]] * len(layers)
    return layers, features, grids


def _layer(rng: np.random.Generator, rank: int) -> Any:
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    window = tuple(pick(1, 2, 3, 3, 4, 5) for _ in range(rank))
    strides = tuple(pick(1, 1, 2, 3) for _ in range(rank))
    dilation = tuple(pick(1, 1, 2) for _ in range(rank))
    sides = tuple((pick(0, 1, 2), pick(0, 1, 2)) for _ in range(rank))
    padding = pick("SAME", "SAME", "VALID", sides)
    kind = pick(Conv, Conv, ConvTranspose, MaxPool, AveragePool, LayerNorm, SyncBatchNorm, "f")
    if kind == "f":
        return pick(jnp.tanh, jax.nn.relu, jax.nn.gelu)
    if kind in (LayerNorm, SyncBatchNorm):
        return kind()
    if kind in (MaxPool, AveragePool):
        return kind(window, strides, padding, dilation)
    how = {"groups": pick(1, 1, 2), "bias": pick(True, False)}
    return kind(pick(2, 4), window, strides, padding, dilation, **how)


def _difference(
    rng: np.random.Generator, stack: Any, layers: Sequence[Any], features: Any, solver: Any
) -> str:
    whole = tuple(map(as_layer, layers))
    init = functools.partial(pb.layers.init, layers, features=features, dtype=jnp.float64)
    shapes = jax.eval_shape(init, jax.random.key(0))
    params = jax.tree.map(lambda a: 0.5 * rng.normal(size=a.shape), shapes)
    x = rng.normal(size=(DEVICES * int(rng.integers(1, 3)), *features))

    def one(params, x):
        return activations(whole, params, x)[-1]

    ct = rng.normal(size=jax.eval_shape(one, params, x).shape)

    def all_of(f, params, x):
        y, pull = jax.vjp(f, params, x)
        return y, *pull(ct)

    want = jax.device_get(jax.jit(functools.partial(all_of, one))(params, x))
    ours = functools.partial(stack, solver=solver)
    got = jax.device_get(jax.jit(functools.partial(all_of, ours))(stack.place(params), x))
    got = (got[0], stack.collect(got[1]), got[2])
    if not np.isfinite(want[0]).all():  # a window of padding alone: there are no derivatives
        want, got = want[:1], got[:1]
    paths = jax.tree_util.tree_leaves_with_path(want)
    for (path, b), a in zip(paths, jax.tree.leaves(got), strict=True):
        finite = np.where(np.isfinite(b), np.abs(b), 0)
        scale = ROUNDING * max(1.0, float(finite.max(initial=0.0)))
        same = a.dtype == b.dtype and a.shape == b.shape
        if not same or not np.allclose(a, b, rtol=0, atol=scale, equal_nan=True):
            error = np.nanmax(np.abs(a - b)) if same else f"{a.dtype}{a.shape}"
            return f"{jax.tree_util.keystr(path)} differs by {error} of {finite.max():.2g}"
    return ""


def _name(layer: Any) -> str:
    return getattr(layer, "__name__", None) or repr(layer)


def _grids(grids: Any) -> str:
    texts = list(map(str, grids))
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


if __name__ == "__main__":
    main("tests.fuzz_grids", attempt)

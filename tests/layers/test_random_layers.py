"""Random layers against plain automatic differentiation of the same layers on the same input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_layers import DRAWN, random_case

import parscan_bp as pb
from parscan_bp.layers import (
    LAYERS,
    Conv,
    Flatten,
    Function,
    Linear,
    MaxPool,
    activations,
    init,
)
from tests.family import together

# Relative to the largest entry of a leaf, or to this.
LEAST = 0.5
RTOL = {"float32": 1e-4, "float64": 1e-11, "bfloat16": 0.03}
SOLVERS = [None, pb.Sweep(), pb.Blelloch()]
FAST = len(LAYERS)
SEEDS = [
    pytest.param(seed, marks=[] if seed < FAST else pytest.mark.slow) for seed in range(40 * FAST)
]


def plain(layers, params, x):
    return activations(layers, params, x)[-1]


def derivatives(run, params, x):
    """Value, gradients of parameters and input, and how these change along a direction."""

    def loss(floats, x):
        y = run([mask if own is None else own for mask, own in zip(params, floats, strict=True)], x)
        wide = jnp.where(jnp.isfinite(y), y, 0)
        return jnp.sum(jnp.sin(wide) * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    floats = [None if isinstance(own, jax.Array) else own for own in params]
    along = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size).reshape(a.shape) + 0.5), (floats, x))
    along = jax.tree.map(lambda t, a: t.astype(a.dtype), along, (floats, x))
    grads, hvp = jax.jvp(jax.grad(loss, (0, 1)), (floats, x), along)
    return run(params, x), grads, hvp


def assert_close(got, want, exact):
    """As close to exact results as automatic differentiation in the same dtype, or closer."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    leaves = (jax.tree.leaves(tree) for tree in (got, want, exact))
    for a, b, c in zip(*leaves, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        rtol, (a, b, c) = RTOL[str(b.dtype)], (np.asarray(v, float) for v in (a, b, c))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        a, b, c = (np.where(np.isfinite(b), v, 0) for v in (a, b, c))
        scale = max(np.abs(c).max(initial=0), LEAST)
        theirs = np.abs(b - c).max(initial=0)
        np.testing.assert_allclose(a, c, rtol=0, atol=rtol * scale + 4 * theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_layer_equals_automatic_differentiation(seed, request):
    got, want, *exact = together(request, ours_and_theirs)
    assert_close(got, want, *(exact or [want]))


def ours_and_theirs(seed):
    """A function to derivatives by a solver, by JAX, and of bfloat16 those of single precision."""
    case = random_case(seed)
    solver = SOLVERS[seed // 2 % 3]
    if any(type(layer) is Function for layer in case.layers) and solver == pb.Blelloch():
        solver = None  # it takes no matrix-free operators
    runs, at = [functools.partial(pb.chain, solver=solver), plain], (case.params, case.x)
    ats = [at, at]
    if case.x.dtype == jnp.bfloat16:
        runs.append(plain)
        ats.append(jax.tree.map(_widened, at))
    runs = [functools.partial(run, case.layers) for run in runs]
    each = lambda *ats: [derivatives(f, *own) for f, own in zip(runs, ats, strict=True)]  # noqa: E731
    return each, ats


def _widened(leaf):
    return leaf if leaf.dtype == bool else leaf.astype(jnp.float32)


@pytest.mark.parametrize("solver", SOLVERS, ids=["none", "sweep", "tree"])
def test_an_empty_batch_has_zero_gradients(solver):
    layers = [Conv(2, (2,)), jax.nn.relu, MaxPool((2,)), Flatten(), Linear(2)]
    params, x = init(layers, jax.random.key(0), (4, 1), jnp.float32), jnp.ones((0, 4, 1))
    loss = lambda params, x: pb.chain(layers, params, x, solver=solver).sum()  # noqa: E731
    grads, ct = jax.grad(loss, (0, 1))(params, x)
    assert ct.shape == x.shape and not any(leaf.any() for leaf in jax.tree.leaves(grads))
    assert pb.explain_chain(layers, params, x).outlook.flops == 0


def test_every_layer_is_drawn():
    assert set(DRAWN) == set(LAYERS)

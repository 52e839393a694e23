"""The steps of Algorithm 1 and the count of their flops, against dense matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.paper.images import networks
from bench.paper.vgg11 import schedules, step_counts
from parscan_bp.layers import AveragePool, MaxPool, activations, adjoint_operators, init
from parscan_bp.operators import Convolution, Dense, Diagonal, Selection


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9, 21])
@pytest.mark.parametrize("up_levels", range(6))
def test_the_steps_make_every_cotangent(n, up_levels):
    rng = np.random.default_rng(n)
    sizes = rng.integers(1, 4, size=n + 1)
    matrices = {(k, k): rng.normal(size=(sizes[k], sizes[k - 1])) for k in range(1, n + 1)}
    vectors = {0: rng.normal(size=sizes[0])}
    wanted = [vectors[0]]
    for k in range(1, n):
        wanted.append(matrices[k, k] @ wanted[-1])
    for step in schedules.truncated(n, up_levels):
        if step.kind == schedules.PRODUCT:
            left, right = step.operands
            assert right[0] == step.span[0] and left[1] == step.span[1] < n
            matrices[step.span] = matrices[left] @ matrices[right]
        else:
            vectors[step.span[1]] = matrices[step.span] @ vectors[step.span[0] - 1]
    assert sorted(vectors) == list(range(n))
    for k, vector in enumerate(wanted):
        np.testing.assert_allclose(vectors[k], vector, rtol=1e-10)


def test_the_numbers_of_steps_are_the_papers():
    """Figure 3 of the paper has 21 transposed Jacobians."""
    scans = [schedules.truncated(21, levels) for levels in range(5)]
    products = [sum(step.kind == schedules.PRODUCT for step in steps) for steps in scans]
    assert [len(steps) for steps in scans] == [20, 29, 33, 34, 34]
    assert products == [0, 9, 13, 14, 14]
    assert schedules.depth(21) == 4


def test_the_critical_path_is_the_costliest_step_of_each_level():
    steps = schedules.truncated(7, 1)
    costs = {step: float(k) for k, step in enumerate(steps)}
    path = schedules.critical(steps, costs)
    assert len(path) == len({step.level for step in steps})
    flops = list(costs.values())
    assert step_counts.path_length(steps, flops) == sum(costs[step] for step in path)
    assert step_counts.path_length(steps, flops, workers=1) == sum(flops)


@functools.cache
def _tiny():
    layers = networks.vgg11(size=8, divisor=32)[:9]

    @jax.jit
    def make():
        params = init(layers, jax.random.key(0), (8, 8, 3), np.float32)
        params = jax.tree.map(lambda w: w * (jnp.abs(w) > 0.2) if w.ndim > 1 else w, params)
        xs = activations(layers, params, jax.random.normal(jax.random.key(1), (1, 8, 8, 3)))
        operators = adjoint_operators(layers, params, xs)
        return [op.take(0) for op in operators], xs

    operators, xs = make()
    return layers, operators, [x.shape[-1] for x in xs], xs


def _convolution_mask(kernel, size):
    """(inputs, outputs) of a convolution with padding "SAME" on size x size images."""
    mask = np.zeros((size, size, kernel.shape[2], size, size, kernel.shape[3]), bool)
    for y, x, i, j in np.ndindex(size, size, *kernel.shape[:2]):
        at, beside = y + i - 1, x + j - 1
        if 0 <= at < size and 0 <= beside < size:
            mask[at, beside, :, y, x, :] = kernel[i, j]
    return mask.reshape(size**2 * kernel.shape[2], size**2 * kernel.shape[3])


def _mask(layer, operator, x, zeros):
    """Where the dense matrix has numbers, by another route than patterns."""
    if isinstance(operator, Convolution):
        kernel = np.asarray(operator.kernel) != 0
        full = zeros == step_counts.FULL_WEIGHTS
        return _convolution_mask(np.ones_like(kernel) if full else kernel, x.shape[1])
    if isinstance(operator, Diagonal) and zeros != step_counts.DYNAMIC:
        return np.eye(operator.shape[0], dtype=bool)
    if isinstance(operator, Selection) and zeros in (step_counts.FULL_WEIGHTS, step_counts.STATIC):
        assert isinstance(layer, MaxPool)
        mean = AveragePool(layer.window)
        operator = mean.adjoint_operator(None, x, mean.apply(None, x))
    return np.asarray(operator.as_dense()) != 0


@pytest.mark.parametrize("zeros", step_counts.ZEROS)
def test_counts_are_those_of_dense_masks(zeros):
    layers, operators, channels, xs = _tiny()
    order = range(len(layers) - 1, -1, -1)
    products = step_counts.Products(
        [step_counts.factor(operators[k], channels[k], zeros) for k in order]
    )
    masks = {
        (j, j): _mask(layers[k], operators[k], xs[k], zeros).astype(float)
        for j, k in enumerate(order, 1)
    }
    for levels in range(4):
        steps = schedules.truncated(len(layers), levels)
        for step, counted in zip(steps, products.count(steps), strict=True):
            parts = [masks[span] for span in step.operands]
            assert counted["nnz"] == [part.sum() for part in parts] and counted["exact"]
            if step.kind == schedules.APPLY:
                assert counted["flops"] == 2 * parts[0].sum()
                continue
            meetings = parts[0] @ parts[1]
            assert counted["flops"] == 2 * meetings.sum()
            assert counted["product_nnz"] == (meetings > 0).sum()
            masks[step.span] = (meetings > 0).astype(float)


def test_a_product_too_large_to_follow_is_taken_as_full(monkeypatch):
    _, operators, channels, _ = _tiny()
    last, before = (
        step_counts.factor(operators[k], channels[k], step_counts.STATIC) for k in (8, 6)
    )
    exact = step_counts.product(before, last)
    monkeypatch.setattr(step_counts, "LARGEST", 0)
    full = step_counts.product(before, last)
    assert full.positions is None and full.shape == exact.shape
    assert (full.rows >= exact.rows).all() and (full.cols >= exact.cols).all()
    assert full.nnz == (exact.rows > 0).sum() * (exact.cols > 0).sum()


def test_an_operator_without_a_pattern_is_refused():
    with pytest.raises(TypeError, match="got Dense"):
        step_counts.factor(Dense(jnp.eye(2)), 1, step_counts.STATIC)

"""Gholami et al.: eqs. 2 to 9 for AlexNet and the 1.5D products of their appendix, in NumPy."""

import math

import pytest

from bench.paper.grids import simulate
from bench.paper.grids.machine import EQUATIONS
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.grids.weights import weight_layers

ALPHA, BETA, BATCH = 2e-6, 4 / 6e9, 2048
"""Latency, and seconds a number of four bytes: the paper's Table 1."""
LAYERS = [
    # inputs and outputs (height, width, channels), window, weights: two convolutions have groups
    ((227, 227, 3), (55, 55, 96), 11, 11 * 11 * 3 * 96),
    ((27, 27, 96), (27, 27, 256), 5, 5 * 5 * 48 * 256),
    ((13, 13, 256), (13, 13, 384), 3, 9 * 256 * 384),
    ((13, 13, 384), (13, 13, 384), 3, 9 * 192 * 384),
    ((13, 13, 384), (13, 13, 256), 3, 9 * 192 * 256),
    ((6, 6, 256), (1, 1, 4096), 6, 9216 * 4096),
    ((1, 1, 4096), (1, 1, 4096), 1, 4096**2),
    ((1, 1, 4096), (1, 1, 1000), 1, 4096 * 1000),
]
CONVOLUTIONS = range(5)


def collective(processes, numbers):
    """An all-gather, or half of an all-reduce."""
    if processes == 1:
        return 0.0
    latency = ALPHA * math.ceil(math.log2(processes))
    return latency + BETA * (processes - 1) / processes * numbers


def halo(numbers, window):
    return 0.0 if window == 1 else ALPHA + BETA * numbers * (window // 2)


def model_step(k, batch, rows, columns):
    """A layer of eq. 8: outputs gathered, cotangents and weights reduced."""
    inputs, outputs, _, weights = LAYERS[k]
    here = batch / columns
    gathered = collective(rows, here * math.prod(outputs))
    cotangents = 2 * collective(rows, here * math.prod(inputs)) if k else 0.0
    return gathered + cotangents + 2 * collective(columns, weights / rows)


def domain_step(k, batch, rows, columns):
    """A layer of eq. 9: halos of inputs, and of outputs' cotangents; all weights reduced."""
    inputs, _, window, weights = LAYERS[k]
    # As printed, cotangents are those of what the next layer takes: a pooling may be between.
    sides = (inputs, LAYERS[k + 1][0])
    numbers = [batch / columns * math.prod(side[1:]) for side in sides]
    exchanged = sum(halo(n, window) for n in numbers) if rows > 1 else 0.0
    return exchanged + 2 * collective(rows * columns, weights)


def equation_4(processes):
    return sum(2 * collective(processes, weights) for *_, weights in LAYERS)


def equation_8(batch, rows, columns, batch_only=()):
    processes = rows * columns
    return sum(
        2 * collective(processes, LAYERS[k][3])
        if k in batch_only
        else model_step(k, batch, rows, columns)
        for k in range(len(LAYERS))
    )


def equation_9(batch, rows, columns):
    return sum(
        (domain_step if k in CONVOLUTIONS else model_step)(k, batch, rows, columns)
        for k in range(len(LAYERS))
    )


def test_layers_are_those_of_the_bench():
    rows = weight_layers(alexnet(), IMAGE)
    found = [(row.inputs, row.outputs, row.window[0], row.weights) for row in rows]
    assert found == LAYERS


@pytest.mark.parametrize("processes", [1, 8, 32, 128, 512])
def test_the_library_s_equations_are_these(processes):
    rows, paper = weight_layers(alexnet(), IMAGE), EQUATIONS
    close = lambda seconds, want: seconds.total == pytest.approx(want, rel=1e-12)  # noqa: E731
    assert close(paper.batch(rows, processes), equation_4(processes))
    assert close(paper.model(rows, BATCH, processes), equation_8(BATCH, processes, 1))
    convolutions = simulate.convolutions()
    for k in range(processes.bit_length()):
        r, c = 2**k, processes // 2**k
        assert close(paper.integrated(rows, BATCH, r, c), equation_8(BATCH, r, c))
        mixed = paper.integrated(rows, BATCH, r, c, batch_only=convolutions)
        assert close(mixed, equation_8(BATCH, r, c, CONVOLUTIONS))
        domain = paper.integrated(rows, BATCH, r, c, domain=convolutions)
        assert close(domain, equation_9(BATCH, r, c))


def test_beyond_the_batch_the_equations_favour_the_model():
    """Figure 10, of which the paper says the contrary."""
    for processes, model, domain in ((1024, 41.3, 42.5), (2048, 21.2, 23.1), (4096, 11.2, 13.3)):
        by_model, by_domain = (
            1e3 * equation(512, processes // 512, 512) for equation in (equation_8, equation_9)
        )
        assert (round(by_model, 1), round(by_domain, 1)) == (model, domain)


def test_the_speedups_of_16_x_32_do_not_follow():
    """The paper has 5.0 in figure 6 and 9.7 in figure 7."""
    base = equation_4(512)
    assert round(base / equation_8(BATCH, 16, 32), 2) == 1.55
    assert round(base / equation_8(BATCH, 16, 32, CONVOLUTIONS), 2) == 8.21


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from parscan_bp.layers import Conv, Flatten, Linear
from parscan_bp.parallel import Grid, divide

rng = np.random.default_rng(0)
B, S, C, O = 4, 6, 3, 4
x, kernel = rng.normal(size=(B, S, S, C)), rng.normal(size=(3, 3, C, O)) / 5
w1, w2 = rng.normal(size=(S * S * O, 8)) / 12, rng.normal(size=(8, 2))

# Y = W X, dW = dY X^T, dX = W^T dY; the convolution by windows; the loss is the sum of cubes.
padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
windows = np.stack([padded[:, a : a + S, b : b + S] for a in range(3) for b in range(3)], 3)
y = np.einsum("bhwkc,kco->bhwo", windows, kernel.reshape(9, C, O))
flat = np.maximum(y, 0).reshape(B, -1)
hidden = flat @ w1
out = np.maximum(hidden, 0) @ w2
ct = 3 * out**2
d_hidden = (ct @ w2.T) * (hidden > 0)
d_y = (d_hidden @ w1.T).reshape(y.shape) * (y > 0)
want = [
    np.einsum("bhwkc,bhwo->kco", windows, d_y).reshape(kernel.shape),
    flat.T @ d_hidden,
    np.maximum(hidden, 0).T @ ct,
]

layers = [
    Conv(O, (3, 3), bias=False), jax.nn.relu, Flatten(), Linear(8, bias=False), jax.nn.relu,
    Linear(2, bias=False),
]
params = [None] * 6
for at, value in zip((0, 3, 5), (kernel, w1, w2)):
    params[at] = {"kernel": jnp.asarray(value, jnp.float32)}
images = jnp.asarray(x, jnp.float32)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


model, domain, batch = Grid(data=2, model=2), Grid(data=2, height=2), Grid(data=4)
for grids, how in (
    ([model] * 6, {}),
    ([domain] * 2 + [model] * 4, {}),
    ([domain] * 2 + [model] * 4, {"overlap": True}),
    ([batch] * 2 + [model] * 4, {}),
):
    stack = divide(layers, (S, S, C), grids, **how)
    own = stack.place(params)
    close(jax.jit(stack)(own, images), out)
    loss = lambda own: (stack(own, images) ** 3).sum()
    got = stack.collect(jax.jit(jax.grad(loss))(own))
    for at, right in zip((0, 3, 5), want):
        close(got[at]["kernel"], right)
"""


def test_divided_products_are_those_of_numpy(run_on_devices):
    """Grids of eq. 8, of eq. 9 with halos that overlap or not, and of figure 7."""
    run_on_devices(PROGRAM, 4)

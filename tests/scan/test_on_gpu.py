"""`scan` on a GPU: the kernels are chosen for cells, and every derivative is that of `lax.scan`.

``pytest -m "gpu and not slow"``
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
import parscan_bp.nnx
from parscan_bp import kernels
from parscan_bp.choice.rules import ON_CHIP

REASON = kernels.unusable(interpret=False)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.skipif(jax.device_count() > 1, reason="several GPUs: no kernel is chosen"),
]

B, H, T = 3, 20, 50
CELLS = {"elman": pb.cells.Elman(), "gru": pb.cells.GRU(), "lstm": pb.cells.LSTM()}
SCANS = {
    "chosen": pb.scan,
    "named": functools.partial(pb.scan, solver=pb.Pallas()),
    "fused": functools.partial(pb.scan, forward="fused"),
    "fused and named": functools.partial(pb.scan, forward="fused", solver=pb.Pallas()),
}


def _args(cell, hidden=H):
    params = CELLS[cell].init(jax.random.key(0), 2, hidden, jnp.float32)
    carry = CELLS[cell].initial_carry((B,), hidden, jnp.float32)
    carry = jax.tree.map(lambda c: c + 0.1, carry)
    return params, carry, jax.random.normal(jax.random.key(1), (T, B, 2), jnp.float32)


def _loss(cell, scan, params, carry, xs):
    carry, ys = scan(functools.partial(CELLS[cell], params), carry, xs)
    return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(c**2) for c in jax.tree.leaves(carry))


def _along(loss, args):
    """The loss along a line through the arguments."""
    return lambda s: loss(*jax.tree.map(lambda a: a + s * jnp.cos(a), args))


TRANSFORMS = {
    "grad": lambda loss, args: jax.grad(loss, (0, 1, 2))(*args),
    "jvp": lambda loss, args: jax.jvp(_along(loss, args), (0.0,), (1.0,)),
    "forward over reverse": lambda loss, args: jax.jvp(
        jax.grad(loss), args, jax.tree.map(jnp.cos, args)
    )[1],
    "reverse over reverse": lambda loss, args: jax.grad(
        lambda xs: sum(
            jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss, (0, 1))(*args[:2], xs))
        )
    )(args[2]),
    "vmap over weights": lambda loss, args: jax.vmap(
        lambda s: jax.grad(loss)(jax.tree.map(lambda p: s * p, args[0]), *args[1:])
    )(jnp.array([0.5, 1.0])),
    "vmap over inputs": lambda loss, args: jax.vmap(jax.grad(loss, (0, 2)), (None, None, 0))(
        *args[:2], jnp.stack([args[2], -args[2]])
    ),
    "checkpoint": lambda loss, args: jax.grad(jax.checkpoint(loss))(*args),
}


def _compare(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tolerance)


# Every transformation of what is chosen; of the others, the gradient.
DERIVATIVES = [
    pytest.param(s, t, marks=() if s == "chosen" or t == "grad" else pytest.mark.slow)
    for s, t in itertools.product(SCANS, TRANSFORMS)
]


@pytest.mark.parametrize(("scan", "transform"), DERIVATIVES)
@pytest.mark.parametrize("cell", CELLS)
def test_derivatives(cell, scan, transform):
    args = _args(cell)
    with jax.default_matmul_precision("highest"):
        got, want = (
            jax.jit(lambda args: TRANSFORMS[transform](functools.partial(_loss, cell, s), args))(
                args
            )
            for s in (SCANS[scan], lax.scan)
        )
    _compare(got, want, 2e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_the_kernels_are_chosen_and_values_are_those_of_lax_scan(cell):
    params, carry, xs = _args(cell)
    step = functools.partial(CELLS[cell], params)
    assert pb.explain(step, carry, xs).choice == str(ON_CHIP)
    program = jax.jit(jax.grad(functools.partial(_loss, cell, pb.scan))).lower(params, carry, xs)
    assert program.as_text().count("custom_call @mosaic_gpu_v2") == 1
    got, want = (jax.jit(functools.partial(s, step))(carry, xs) for s in (pb.scan, lax.scan))
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("kind", ["SimpleCell", "GRUCell", "OptimizedLSTMCell"])
def test_the_layers_of_flax(kind):
    nnx = pytest.importorskip("flax.nnx")
    cell = getattr(nnx, kind)(2, H, rngs=nnx.Rngs(0))
    inputs = jax.random.normal(jax.random.key(1), (B, T, 2), jnp.float32)

    @nnx.jit
    def value_and_grads(layer, inputs):
        loss = lambda layer, inputs: jnp.sum(jnp.sin(layer(inputs)))  # noqa: E731
        return nnx.value_and_grad(loss, argnums=(0, 1))(layer, inputs)

    with jax.default_matmul_precision("highest"):
        got, want = (value_and_grads(layers.RNN(cell), inputs) for layers in (pb.nnx, nnx))
    _compare(got, want, 2e-5)


def test_what_no_kernel_takes_is_left_to_lax_scan():
    params, carry, xs = _args("gru", hidden=160)
    assert pb.explain(functools.partial(CELLS["gru"], params), carry, xs).choice == "lax.scan"
    own = lambda h, x: (jnp.sin(h) + jnp.sum(x), h)  # noqa: E731
    assert pb.explain(own, carry, xs).choice == "lax.scan"
    with jax.enable_x64(True):
        params, carry, xs = jax.tree.map(lambda a: a.astype(float), _args("gru"))
        assert pb.explain(functools.partial(CELLS["gru"], params), carry, xs).choice == "lax.scan"


def test_arrays_on_another_device():
    """Such a program is compiled for the CPU, where there is no kernel."""
    args = jax.device_put(_args("elman"), jax.devices("cpu")[0])
    got, want = (
        jax.jit(jax.grad(functools.partial(_loss, "elman", s)))(*args) for s in (pb.scan, lax.scan)
    )
    _compare(got, want, 2e-5)

"""``forward="fused"`` on a CPU, and `Sweep(native=True)`: one native function for all steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import parscan_bp as pb
from parscan_bp import native

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="no CPU")

T, B, H = 7, 3, 5
DRAW = np.random.default_rng(0)
PARAMS = {
    "w": DRAW.normal(size=(H, 2 * H)).astype(np.float32) / 3,
    "b": DRAW.normal(size=H).astype(np.float32),
}
CARRY = tuple(DRAW.normal(size=(B, H)).astype(np.float32) for _ in range(2))
XS = DRAW.normal(size=(T, B, H)).astype(np.float32)


def _step(params, carry, x):
    """A gate and a candidate, and a second carry that is only added to."""
    h, c = carry
    z, n = jnp.split(h @ params["w"], 2, axis=-1)
    z = jax.nn.sigmoid(z + params["b"])
    h = (1 - z) * h + z * jnp.tanh(n + x)
    return (h, 0.9 * c + h), jnp.sin(h)


def _loss(scan, params, carry, xs):
    (h, c), ys = scan(functools.partial(_step, params), carry, xs)
    return jnp.sum(h * c) + jnp.sum(ys**2)


FUSED = functools.partial(pb.scan, forward="fused")
MODES = {
    "value": lambda f: f,
    "gradient": lambda f: jax.value_and_grad(f, (0, 1, 2)),
    "forward": lambda f: lambda *args: jax.jvp(f, args, jax.tree.map(jnp.cos, args)),
    "of the gradient": lambda f: (
        lambda *args: jax.jvp(jax.grad(f, (0, 1, 2)), args, jax.tree.map(jnp.cos, args))
    ),
    "of each batch entry": lambda f: jax.vmap(jax.grad(f, (0, 1, 2)), (None, 0, 1)),
}


def _equal(got, want, tolerance=2e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, 0, tolerance * (1 + np.abs(b).max()))


@pytest.mark.parametrize("mode", MODES)
def test_any_step_in_every_mode(mode):
    got, want = (
        jax.jit(MODES[mode](functools.partial(_loss, scan)))(PARAMS, CARRY, XS)
        for scan in (FUSED, lax.scan)
    )
    _equal(got, want)


OPTIONS = {
    "in reverse": {"reverse": True},
    "a limit": {"memory_limit": 10_000},
    "a tree": {"solver": pb.Blelloch()},
    "a report": {"report": True},
}


@pytest.mark.parametrize("which", OPTIONS)
def test_options_beside_it(which):
    options = OPTIONS[which]
    fused = lambda *args: FUSED(*args, **options)[:2]  # noqa: E731
    plain = functools.partial(lax.scan, reverse=options.get("reverse", False))
    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(_loss, scan), (0, 1, 2)))(PARAMS, CARRY, XS)
        for scan in (fused, plain)
    )
    _equal(got, want)


def test_what_is_linear_and_only_transposed():
    scan = lambda by, h: by(lambda h, _: (2 * h, h), h, None, length=3)  # noqa: E731
    h, cts = CARRY[0], (CARRY[1], XS[:3])
    got, want = (
        jax.linear_transpose(functools.partial(scan, by), h)(cts) for by in (FUSED, lax.scan)
    )
    _equal(got, want)


def test_no_steps():
    got, want = (_loss(scan, PARAMS, CARRY, XS[:0]) for scan in (FUSED, lax.scan))
    _equal(got, want)


def _natives(f, *args):
    return jax.jit(f).lower(*args).as_text().count("custom_call @parscan_bp_")


def test_both_passes_are_native():
    f = functools.partial(_loss, FUSED)
    assert _natives(f, PARAMS, CARRY, XS) == 1
    assert _natives(jax.grad(f), PARAMS, CARRY, XS) == 2
    exact = functools.partial(_loss, functools.partial(pb.scan, solver=pb.Sweep(native=True)))
    assert _natives(exact, PARAMS, CARRY, XS) == 0
    assert _natives(jax.grad(exact), PARAMS, CARRY, XS) == 1
    plain = functools.partial(_loss, functools.partial(pb.scan, solver=pb.Sweep()))
    assert _natives(jax.grad(plain), PARAMS, CARRY, XS) == 0


def _outside(f, *args):
    """The functions that are slow and that no native function has taken."""
    text = jax.jit(f).lower(*args).compile().as_text()
    return sum(text.count(f" {name}(") for name in ("tanh", "logistic", "exponential"))


def test_nothing_slow_is_made_twice():
    """What the backward pass reads is kept by the native function, or made again if asked."""
    cell = pb.cells.GRU()
    params, carry = cell.init(jax.random.key(0), H, H), CARRY[0]

    def gradient(**options):
        def loss(params, carry, xs):
            step = lambda c, x: cell(params, c, x)  # noqa: E731
            return jnp.sum(pb.scan(step, carry, xs, **options)[1] ** 2)

        return jax.grad(loss, (0, 1, 2))

    assert _outside(gradient(forward="fused"), params, carry, XS) == 0
    again = gradient(forward="fused", solver=pb.Sweep(native=True))
    assert _outside(again, params, carry, XS) > 0


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("options", [{}, {"forward": "fused"}])
def test_kept_values_and_a_native_sweep(options, chunk):
    scan = functools.partial(
        pb.scan, **options, solver=pb.Sweep(chunk, native=True, recompute=False)
    )
    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(_loss, scan), (0, 1, 2)))(PARAMS, CARRY, XS)
        for scan in (scan, lax.scan)
    )
    _equal(got, want)


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_exact_values_and_a_native_sweep(chunk):
    scan = functools.partial(pb.scan, solver=pb.Sweep(chunk, native=True))
    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(_loss, scan), (0, 1, 2)))(PARAMS, CARRY, XS)
        for scan in (scan, lax.scan)
    )
    np.testing.assert_array_equal(got[0], want[0])
    _equal(got, want)


@pytest.mark.parametrize("cell", [nnx.SimpleCell, nnx.GRUCell, nnx.OptimizedLSTMCell])
def test_cells_of_flax(cell):
    graph, params = nnx.split(cell(2, H, rngs=nnx.Rngs(0)))
    xs = jnp.asarray(XS[..., :2]).swapaxes(0, 1)

    def loss(rnn, params, xs):
        return jnp.sum(rnn(nnx.merge(graph, params))(xs) ** 2)

    fused = functools.partial(pb.nnx.RNN, forward="fused")
    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(loss, rnn), (0, 1)))(params, xs)
        for rnn in (fused, nnx.RNN)
    )
    _equal(got, want)


def test_what_a_step_has_that_is_not_taken_is_named():
    for scan in (FUSED, functools.partial(pb.explain, forward="fused")):
        with pytest.raises(
            NotImplementedError, match=r"fused.*the step contains sort; forward='ex"
        ):
            scan(lambda c, x: (jnp.sort(c), c), jnp.ones(3), jnp.ones((4, 3)))


def test_without_llvmlite(monkeypatch):
    monkeypatch.setattr(native.available, "is_available", lambda: False)
    with pytest.raises(ImportError, match=r"native: llvmlite is not installed.*parscan_bp\[cpu\]"):
        pb.Sweep(native=True)


def test_the_option_is_a_bool():
    with pytest.raises(TypeError, match="native"):
        pb.Sweep(native=1)

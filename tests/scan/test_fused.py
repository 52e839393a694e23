"""``forward="fused"``: values, derivatives of every kind, and what is refused. Simulated."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp import kernels, native
from parscan_bp.cells.fused import FusedCell
from parscan_bp.cells.gated import Gated

needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
FUSED = pb.Fused(interpret=True)
T, B, H, INPUTS = 5, 3, 6, 2
CELLS = {
    "elman": pb.cells.Elman(),
    "gru": pb.cells.GRU(),
    "gru_one_bias": pb.cells.GRU(recurrent_bias=False),
    "lstm": pb.cells.LSTM(),
}
EPS = float(np.finfo(np.float32).eps)


def _case(cell, dtype=jnp.float32, length=T, batch=(B,)):
    params = CELLS[cell].init(jax.random.key(0), INPUTS, H, jnp.float32)
    keys = iter(jax.random.split(jax.random.key(1), 20))

    def normal(like):
        return jax.random.normal(next(keys), like.shape, jnp.float32).astype(dtype)

    params = {k: (v + 0.1 * normal(v)).astype(dtype) for k, v in params.items()}
    carry = jax.tree.map(normal, CELLS[cell].initial_carry(batch, H, jnp.float32))
    return params, carry, normal(jnp.zeros((length, *batch, INPUTS)))


def _loss(cell, scan, params, carry, xs):
    last, ys = scan(functools.partial(CELLS[cell], params), carry, xs)
    return sum(jnp.sum(a**2) for a in jax.tree.leaves(last)) + jnp.sum(jnp.sin(ys))


def _same(cell, transform, tolerance=1e-5, args=None, **options):
    args = _case(cell) if args is None else args
    fused = functools.partial(pb.scan, forward=FUSED, **options)
    want, got = (
        jax.tree.leaves(transform(functools.partial(_loss, cell, scan), *args))
        for scan in (lax.scan, fused)
    )
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tolerance)


@needs_kernels
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_within_its_bound(cell, reverse):
    params, carry, xs = _case(cell, length=1)
    out = pb.scan(functools.partial(CELLS[cell], params), carry, xs, reverse=reverse, forward=FUSED)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), (params, carry, xs))
        want, y = CELLS[cell](wide[0], wide[1], wide[2][0])
        leaves = jax.tree.leaves(wide[1])
        sums = abs(wide[2][0]) @ abs(wide[0]["wi"]) + abs(leaves[0]) @ abs(wide[0]["wh"])
        biases = sum(abs(wide[0][k]).max() for k in ("b", "bi", "bh") if k in wide[0])
        scale = 1 + sums.max() + biases + max(abs(a).max() for a in leaves)
        bound = float((INPUTS + H + 16) * EPS * scale * (1 + scale))
    for got, exact in zip(jax.tree.leaves(out), jax.tree.leaves((want, y[None])), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(exact), 0, bound)


@needs_kernels
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_by_the_backward_kernel(cell):
    _same(cell, lambda loss, *args: jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*args))


@needs_kernels
@pytest.mark.parametrize(("cell", "reverse"), [("elman", False), ("lstm", True)])
def test_a_loss_of_the_last_carry(cell, reverse, monkeypatch):
    """No cotangents of the others, known to be zero, are read."""

    def gradients(scan):
        def loss(*args):
            last, _ = scan(functools.partial(CELLS[cell], args[0]), *args[1:], reverse=reverse)
            return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(last))

        return jax.jit(jax.grad(loss, (0, 1, 2)))

    args, scans = _case(cell), (functools.partial(pb.scan, forward=FUSED), lax.scan)
    got, want = (jax.tree.leaves(gradients(scan)(*args)) for scan in scans)
    for a, b in zip(got, want, strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-5)
    monkeypatch.setattr(kernels, "unusable", lambda interpret: None)
    traced = gradients(functools.partial(pb.scan, forward="fused")).trace(*args)
    lowered = traced.lower(lowering_platforms=("cuda",)).as_text(debug_info=True)
    assert f"recurrence_{FusedCell(CELLS[cell]).backward_rule_of_last.name}" in lowered


@needs_kernels
@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradients_of_each_argument_in_reverse(which):
    options = {"reverse": True}
    fused = functools.partial(pb.scan, forward=FUSED, **options)
    plain = functools.partial(lax.scan, **options)
    args = _case("lstm")
    want, got = (
        jax.jit(jax.grad(functools.partial(_loss, "lstm", scan), which))(*args)
        for scan in (plain, fused)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max()))


@needs_kernels
def test_gradients_by_a_named_solver():
    _same("gru", lambda loss, *args: jax.grad(loss, (0, 1, 2))(*args), solver=pb.Chunked())


@needs_kernels
def test_bfloat16():
    args = _case("gru", jnp.bfloat16)
    _same("gru", lambda loss, *args: jax.grad(loss, (0, 1, 2))(*args), 0.05, args)


@needs_kernels
def test_no_and_two_batch_axes():
    for batch in [(), (2, 2)]:
        args = _case("elman", batch=batch)
        _same("elman", lambda loss, *args: jax.grad(loss, (0, 1, 2))(*args), args=args)


@needs_kernels
def test_jvp_and_second_derivatives():
    def curvature(loss, params, carry, xs):
        tangent = jax.tree.map(jnp.ones_like, carry)
        slope = lambda c: jax.grad(loss, 1)(params, c, xs)  # noqa: E731
        return jax.jvp(slope, (carry,), (tangent,))

    _same("gru", curvature)


@needs_kernels
def test_vmap():
    def mapped(loss, params, carry, xs):
        return jax.vmap(jax.grad(loss, (0, 1)), (None, 0, None))(
            params, jnp.stack([carry, -carry]), xs
        )

    _same("gru", mapped)


@needs_kernels
@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_one_launch_each_way(cell, monkeypatch):
    monkeypatch.setattr(kernels, "unusable", lambda interpret: None)
    loss = functools.partial(_loss, cell, functools.partial(pb.scan, forward="fused"))
    for call, launches in [(loss, 1), (jax.grad(loss, (0, 1, 2)), 2)]:
        lowered = jax.jit(call).trace(*_case(cell)).lower(lowering_platforms=("cuda",))
        assert lowered.as_text().count("custom_call @mosaic_gpu_v2") == launches


def test_unknown_forward():
    with pytest.raises(ValueError, match="forward: got 'fast'"):
        pb.scan(lambda c, x: (c, x), 0.0, jnp.ones(3), forward="fast")


@pytest.fixture
def without_llvm(monkeypatch):
    monkeypatch.setattr(native, "is_available", lambda: False)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_needs_a_gpu_or_llvm(without_llvm):
    params, carry, xs = _case("gru")
    with pytest.raises(NotImplementedError, match=r"forward: .*llvmlite makes.*parscan_bp\[cpu\]"):
        pb.scan(functools.partial(CELLS["gru"], params), carry, xs, forward="fused")


@pytest.mark.parametrize("scan", [pb.scan, pb.explain])
@pytest.mark.parametrize("carry", [jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.int32)])
def test_a_step_of_ones_own_is_told_before_what_the_device_lacks(scan, carry, without_llvm):
    """No other jax would take it either."""
    with pytest.raises(NotImplementedError, match=r"forward: .*take functools.partial\(cell, par"):
        scan(lambda c, x: (c + x, c), carry, jnp.ones((3, 2), carry.dtype), forward="fused")


@needs_kernels
def test_what_the_kernels_do_not_take():
    params, carry, xs = _case("gru")
    step = functools.partial(CELLS["gru"], params)
    with pytest.raises(NotImplementedError, match=r"forward: .*Elman, GRU, LSTM or another"):
        pb.scan(lambda c, x: step(c, x), carry, xs, forward=FUSED)
    with pytest.raises(NotImplementedError, match=r"forward: .*MinGRU"):
        cell = pb.cells.MinGRU()
        step = functools.partial(cell, cell.init(jax.random.key(0), INPUTS, H, jnp.float32))
        pb.scan(step, carry, xs, forward=FUSED)
    with pytest.raises(NotImplementedError, match="hidden: got 140"):
        params = CELLS["gru"].init(jax.random.key(0), INPUTS, 140, jnp.float32)
        step = functools.partial(CELLS["gru"], params)
        pb.scan(step, jnp.zeros((B, 140), jnp.float32), xs, forward=FUSED)
    with pytest.raises(ValueError, match=r"forward: .*batch axes"):
        step = functools.partial(CELLS["gru"], _case("gru")[0])
        pb.scan(step, carry, xs[:, 0], forward=FUSED)
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match=r"forward: .*float64"):
        step = functools.partial(CELLS["gru"], _case("gru", jnp.float64)[0])
        pb.scan(step, carry.astype(jnp.float64), xs.astype(jnp.float64), forward=FUSED)


@needs_kernels
def test_explain_says_so():
    params, carry, xs = _case("gru")
    step = functools.partial(CELLS["gru"], params)
    assert "fused kernel" in pb.explain(step, carry, xs, forward=FUSED).reason


@dataclasses.dataclass(frozen=True)
class _Linear(Gated):
    """h_t = x_t W_i + h_{t-1} W_h + b."""

    is_value: ClassVar[bool] = True
    parts: ClassVar = 1
    past: ClassVar = ()

    def activate(self, a):
        return [a[0]]

    def update(self, gates, past):
        return gates

    def gates(self, params, carry, x, new_carry):
        return [new_carry]

    def pull(self, gates, past, new, cts):
        return [cts[0]], []


@needs_kernels
def test_a_linear_cell_is_transposed_as_the_program_of_lax_scan():
    params, carry, xs = _case("elman")
    steps = functools.partial(_Linear(), {**params, "b": jnp.zeros(H)})
    ct = jnp.sin(carry), jnp.cos(jnp.ones((T, B, H)))
    got, want = (
        jax.linear_transpose(functools.partial(scan, steps), carry, xs)(ct)
        for scan in (functools.partial(pb.scan, forward=FUSED), lax.scan)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

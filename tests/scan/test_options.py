"""What the caller can state: the Jacobian, its check, the memory limit; and `explain`."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Dense, Factored
from tests.family import jit_once, together

B, H, T = 3, 4, 11
KEY = jax.random.key(3)
W = 0.5 * jax.random.normal(KEY, (H, H))
XS = jax.random.normal(jax.random.key(4), (T, B, H))
H0 = jnp.ones((B, H))


def _plain(h, x):
    return elman(W, h, x)


SOLVERS = [None, pb.Sweep(chunk=5), pb.Associative(), pb.Blelloch(), pb.Chunked(chunks=3)]


def elman(w, h, x):
    h = jnp.tanh(h @ w + x)
    return h, h


def decay(a, h, x):
    h = jnp.exp(-(a**2)) * h + jnp.sin(h) * x
    return h, h


def _gradient(scan, step):
    def loss(p, h0, xs):
        h, ys = scan(functools.partial(step, p), h0, xs)
        return jnp.sum(h) + jnp.sum(ys**2)

    return jax.grad(loss, (0, 1, 2))


def _pair(scan, step, same_as=None):
    """A program of a scan's gradient and the one of `lax.scan`, and its arguments."""
    gradients = _gradient(scan, step), _gradient(lax.scan, same_as or step)
    return lambda *at: [gradient(*at) for gradient in gradients], (PARAMETERS.get(step, W), H0, XS)


PARAMETERS = {elman: W, decay: 0.3}


def _same(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", ["factored", "dense"])
def test_a_given_jacobian_is_used(solver, form, request):
    def scan(solver, form, step, h0, xs):
        (w,) = step.args

        def jacobian(h, x, new):
            if form == "factored":
                return Factored.from_diagonal(w, 1 - new**2)
            return Dense(w * (1 - new**2)[:, None, :])

        return pb.scan(step, h0, xs, solver=solver, jacobian=jacobian)

    case = lambda solver, form: _pair(functools.partial(scan, solver, form), elman)  # noqa: E731
    _same(*together(request, case))


def test_a_wrong_jacobian_is_really_used_and_is_found_by_the_check():
    def jacobian(h, x, new):
        return Factored.from_diagonal(W, 1 - 0.9 * new**2)

    step = functools.partial(elman, W)
    scan = functools.partial(pb.scan, jacobian=jacobian)
    wrong = jax.grad(lambda h: scan(step, h, XS)[0].sum())(H0)
    right = jax.grad(lambda h: lax.scan(step, h, XS)[0].sum())(H0)
    assert np.abs(wrong - right).max() > 1e-3 * np.abs(right).max()
    with pytest.raises(ValueError, match=r"entry \(\d, \d\) of float carry leaf 0"):
        scan(step, H0, XS, check_jacobian=True)


def test_a_stated_jacobian_of_a_custom_vjp_is_checked():
    tame = jax.custom_vjp(lambda a: jnp.clip(a, -1, 1))
    tame.defvjp(lambda a: (tame(a), a), lambda a, ct: (ct * (jnp.abs(a) < 1),))

    def step(h, x):
        h = tame(h @ W + x)
        return h, h

    def jacobian(w):
        return lambda h, x, new: Factored.from_diagonal(w, (jnp.abs(h @ W + x) < 1).astype(h.dtype))

    got = pb.scan(step, H0, XS, jacobian=jacobian(W), check_jacobian=True)
    assert (got[1] == lax.scan(step, H0, XS)[1]).all()
    with pytest.raises(ValueError, match=r"entry \(\d, \d\) of float carry leaf 0"):
        pb.scan(step, H0, XS, jacobian=jacobian(W.T), check_jacobian=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _Matrix(pb.operators.Operator):
    """A structure of one's own: a matrix."""

    matrix: jax.Array

    core_ndims: ClassVar = {"matrix": 2}
    closed: ClassVar = True

    @property
    def shape(self):
        return self.matrix.shape[-2:]

    def matvec(self, v):
        return jnp.einsum("...ij,...j->...i", self.matrix, v)

    def transpose(self):
        return dataclasses.replace(self, matrix=self.matrix.mT)

    def as_dense(self):
        return self.matrix

    def cost(self):
        return self.cost_of(2 * self.matrix.shape[-1] ** 2)

    def after(self, first):
        return dataclasses.replace(self, matrix=self.matrix @ first.matrix)


@jax.tree_util.register_dataclass
class _WrongTranspose(_Matrix):
    def transpose(self):
        return self


@jax.tree_util.register_dataclass
class _WrongDense(_Matrix):
    def as_dense(self):
        return self.matrix.mT


@jax.tree_util.register_dataclass
class _FlatDense(_Matrix):
    def as_dense(self):
        return self.matrix[0]


@jax.tree_util.register_dataclass
class _WrongAfter(_Matrix):
    def after(self, first):
        return dataclasses.replace(self, matrix=first.matrix @ self.matrix)


def _stated_as(kind, length=T, **how):
    jacobian = lambda h, x, new: kind(W * (1 - new**2)[:, None, :])  # noqa: E731
    return pb.scan(_plain, H0, XS[:length], jacobian=jacobian, check_jacobian=True, **how)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (_WrongTranspose, r"_WrongTranspose.transpose\(\).matvec: entry .* gives"),
        (_WrongDense, "_WrongDense.as_dense: entry .* gives"),
        (_FlatDense, r"_FlatDense.as_dense: got shape \(3, 4, 4\); \(2, 3, 4, 4\) is wanted"),
        (_WrongAfter, "_WrongAfter.after: entry .* one operator after the other gives"),
    ],
)
def test_a_wrong_method_of_an_operator_is_found_by_the_check(kind, named):
    with pytest.raises(ValueError, match=named):
        _stated_as(kind)


@pytest.mark.parametrize(("length", "reverse"), [(1, False), (2, True), (T, False), (T, True)])
def test_a_right_operator_passes_the_check(length, reverse):
    got = _stated_as(_Matrix, length, reverse=reverse)
    assert (got[1] == lax.scan(_plain, H0, XS[:length], reverse=reverse)[1]).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["dense", "diagonal"])
def test_a_named_jacobian(solver, name, request):
    def case(solver, name):
        return _pair(functools.partial(pb.scan, solver=solver, jacobian=name), decay)

    _same(*together(request, case))


def test_a_false_claim_is_found_by_the_check():
    step = functools.partial(elman, W)
    with pytest.raises(ValueError):
        pb.scan(step, H0, XS, solver=pb.Sweep(), jacobian="diagonal", check_jacobian=True)
    got = pb.scan(step, H0, XS, check_jacobian=True)
    assert (got[1] == lax.scan(step, H0, XS)[1]).all()


def test_the_check_needs_concrete_values():
    with pytest.raises(ValueError, match="concrete"):
        jax.jit(lambda h: pb.scan(_plain, h, XS, solver=pb.Sweep(), check_jacobian=True))(H0)


def test_a_given_jacobian_lifts_a_custom_vjp():
    @jax.custom_vjp
    def act(a):
        return jnp.tanh(a)

    act.defvjp(lambda a: (jnp.tanh(a), jnp.tanh(a)), lambda t, ct: ((1 - t**2) * ct,))

    def step(w, h, x):
        h = act(h @ w + x)
        return h, h

    with pytest.raises(NotImplementedError, match="custom_vjp_call"):
        pb.scan(functools.partial(step, W), H0, XS, solver=pb.Sweep())
    assert pb.explain(functools.partial(step, W), H0, XS).choice == "lax.scan"

    def scan(f, h0, xs):
        (w,) = f.args
        jacobian = lambda h, x, new: Factored.from_diagonal(w, 1 - new**2)  # noqa: E731
        return pb.scan(f, h0, xs, solver=pb.Blelloch(), jacobian=jacobian)

    program, at = _pair(scan, step, elman)
    _same(*jit_once(program)(*at))


def test_an_operator_that_does_not_fit_is_refused():
    step = functools.partial(elman, W)
    with pytest.raises(ValueError, match="the operator is 4x4 with batch axes"):
        pb.scan(step, H0, XS, jacobian=lambda h, x, new: Dense(W))
    with pytest.raises(TypeError, match="an operator of"):
        pb.scan(step, H0, XS, jacobian=lambda h, x, new: W)


@pytest.mark.parametrize("solver", SOLVERS[2:])
def test_a_memory_limit_refuses_before_running(solver):
    step = functools.partial(elman, W)
    loss = lambda h: pb.scan(step, h, XS, solver=solver, memory_limit=100)[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match=r"memory_limit: got 100 bytes; .* are the least"):
        jax.eval_shape(jax.grad(loss), H0)


def test_explain_says_what_was_found():
    found = pb.explain(functools.partial(elman, W), H0, XS, solver=pb.Blelloch())
    assert found.choice.startswith("Blelloch(")
    assert found.structure == "block"
    assert found.batch_axes == ((0,),)
    assert found.columns == H
    assert "dot_general" in found.mixed_by
    steps = {type(c.solver).__name__: c.steps for c in found.candidates}
    assert steps["Blelloch"] < steps["Sweep"] == T
    assert "Blelloch" in str(found)
    assert pb.explain(functools.partial(decay, 0.3), H0, XS).structure == "diagonal"


def test_explain_takes_shapes_only():
    shapes = jax.eval_shape(lambda: (H0, XS))
    assert pb.explain(functools.partial(elman, W), *shapes).structure == "block"


@pytest.mark.parametrize("solver", SOLVERS)
def test_columns_follow_the_structure(solver):
    """A step with independent rows takes H tangents, not B * H: counted in the traced program."""
    step = functools.partial(elman, W)
    text = str(jax.make_jaxpr(jax.grad(lambda h: pb.scan(step, h, XS, solver=solver)[0].sum()))(H0))
    assert f"f32[{B * H},{B * H}]" not in text
    assert f"{B * H},{B},{H}]" not in text


def test_growing_products_stay_finite_when_scaled():
    """A dead component that grows: its Jacobian products overflow, its cotangent is zero."""

    def step(c, x):
        return c * x, None

    xs = jnp.broadcast_to(jnp.array([1.0, 1e20], jnp.float32), (24, 2))

    def gradient(scan):
        return jax.grad(lambda c: scan(step, c, xs)[0][0])(jnp.array([1.0, 0.0], jnp.float32))

    with np.errstate(all="ignore"):
        plain = gradient(functools.partial(pb.scan, solver=pb.Blelloch()))
        scaled = gradient(functools.partial(pb.scan, solver=pb.Blelloch(scaled=True)))
    assert gradient(lax.scan).tolist() == scaled.tolist() == [1.0, 0.0]
    assert np.isnan(plain[1])


@pytest.mark.parametrize("order", [(1, True), (True, 1)])
def test_a_step_that_came_before_is_unrolled_as_asked(order):
    step = lambda h, x: elman(W, h, x)  # noqa: E731
    for unroll in order:
        call = functools.partial(pb.scan, step, unroll=unroll)
        text = str(jax.make_jaxpr(call)(H0, XS))
        assert f"unroll={T if unroll is True else 1}\n" in text


@pytest.mark.parametrize("solver", SOLVERS)
def test_split_transpose_is_an_argument_of_lax_scan_and_changes_no_derivative(solver, request):
    def case(solver):
        return _pair(functools.partial(pb.scan, solver=solver, _split_transpose=True), elman)

    _same(*together(request, case))

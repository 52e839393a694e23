"""Every analytic cell against automatic differentiation of itself."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from minimal_gated import MinimalGated

import parscan_bp as pb
from parscan_bp.cells.weight_cotangent import product_limits
from parscan_bp.linearise.layout import CarryLayout
from tests.family import jit_once

DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
TOLERANCE = 1e-12 if jax.config.jax_enable_x64 else 2e-5
CELLS = {
    "elman": pb.cells.Elman(),
    "elman_relu": pb.cells.Elman(activation="relu"),
    "gru": pb.cells.GRU(),
    "gru_one_bias": pb.cells.GRU(recurrent_bias=False),
    "lstm": pb.cells.LSTM(),
    "min_gru": pb.cells.MinGRU(),
    "lru": pb.cells.LRU(),
    "minimal_gated": MinimalGated(),
}
B, H, INPUTS, T = 3, 4, 2, 9


def _problem(cell, batch=(B,), inputs=INPUTS, hidden=H):
    keys = jax.random.split(jax.random.key(7), 4)
    params = cell.init(keys[0], inputs, hidden, DTYPE)
    params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(keys[3], p.shape, p.dtype), params)
    carry = cell.initial_carry(batch, hidden, DTYPE)
    carry = jax.tree.map(lambda c: c + jax.random.normal(keys[1], c.shape, c.dtype), carry)
    return params, carry, jax.random.normal(keys[2], (T, *batch, inputs), DTYPE)


def _close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        scale = np.abs(b).max(initial=0) or 1
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=TOLERANCE)


def test_every_cell_is_here():
    classes = {getattr(pb.cells, name) for name in pb.cells.__all__}
    cells = {c for c in classes if issubclass(c, pb.cells.Cell) and not inspect.isabstract(c)}
    assert cells == {type(cell) for cell in CELLS.values()} - {MinimalGated}


@pytest.mark.parametrize("name", CELLS)
def test_the_jacobian_is_the_transposed_derivative(name):
    cell = CELLS[name]
    params, carry, xs = _problem(cell)
    leaves, tree = jax.tree.flatten(carry)
    layout = CarryLayout(
        tuple(a.shape for a in leaves),
        tuple(a.dtype for a in leaves),
        ((0,),) * len(leaves),
        keep_complex=jnp.iscomplexobj(leaves[0]),
    )
    new, _ = cell(params, carry, xs[0])
    operator = cell.jacobian(params, carry, xs[0], new)

    def row(vector, x):
        one = jax.tree.unflatten(tree, jnp.split(vector, len(leaves)))
        return jnp.concatenate(jax.tree.leaves(cell(params, one, x)[0]))

    flat = layout.join(leaves, cotangent=False)
    jac = jax.jacfwd(row, holomorphic=jnp.iscomplexobj(flat))
    want = jnp.stack([jac(flat[b], xs[0, b]) for b in range(B)])
    _close(jnp.broadcast_to(operator.as_dense(), want.shape), jnp.swapaxes(want, -1, -2))


@pytest.mark.parametrize("name", CELLS)
def test_the_pullback_is_the_vector_jacobian_product(name):
    cell = CELLS[name]
    params, carry, xs = _problem(cell)
    new, _ = cell(params, carry, xs[0])
    cts = jax.tree.map(lambda a: jnp.cos(a) + 0.3, new)
    got = cell.pullback(params, carry, xs[0], new, cts)
    want = jax.vjp(lambda *args: cell(*args)[0], params, carry, xs[0])[1](cts)
    _close(got, want)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(
    ("solver", "batch"),
    [
        (None, (2, B)),
        (pb.Sweep(chunk=4), (B,)),
        (pb.Blelloch(), ()),
        pytest.param(pb.Chunked(chunks=2), (B,), marks=pytest.mark.slow),
    ],
)
def test_a_scanned_cell_has_the_gradients_of_lax_scan(name, batch, solver):
    _check_gradients(CELLS[name], _problem(CELLS[name], batch), solver)


@pytest.mark.parametrize("name", ["elman", "gru"])
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Sweep(recompute=False)])
def test_several_rows_of_square_weights(name, solver):
    cell = CELLS[name]
    size = 2 * product_limits()["square"]
    _check_gradients(cell, _problem(cell, (8,), size, size), solver)


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Sweep(recompute=False)])
def test_no_rows_at_all(name, solver):
    _check_gradients(CELLS[name], _problem(CELLS[name], (2, 0)), solver)


def _check_gradients(cell, problem, solver):
    """That the gradients of a scan by ``solver`` are those of `jax.lax.scan`."""

    def gradients(scan, step):
        def loss(params, carry, xs):
            last, ys = scan(step(params), carry, xs)
            weights = jnp.arange(1.0, T + 1).reshape(T, *(1,) * (ys.ndim - 1))
            ends = sum(jnp.sum(jnp.abs(a) ** 2) for a in jax.tree.leaves(last))
            return jnp.sum(jnp.abs(ys) ** 2 * weights).astype(DTYPE) + ends

        return jit_once(jax.grad(loss, (0, 1, 2)))(*problem)

    ours = gradients(
        functools.partial(pb.scan, solver=solver), lambda p: functools.partial(cell, p)
    )
    _close(ours, gradients(lax.scan, lambda p: lambda c, x: cell(p, c, x)))


FEW = product_limits()["few_outer"]
LARGE = 96
"""Units of which every cell has weights above ``product_limits()['small_weights']``."""


@pytest.mark.sampled
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("rows", [1, 2, FEW, FEW + 1, LARGE + 1])
def test_cotangents_of_large_weights_by_few_and_by_many_rows(name, rows):
    cell = CELLS[name]
    params, carry, xs = _problem(cell, (rows,), LARGE, LARGE)
    new, _ = cell(params, carry, xs[0])
    cts = jax.tree.map(lambda a: jnp.cos(a) + 0.3, new)
    pull = jit_once(lambda *args: cell.pullback(*args))
    want = jit_once(lambda *args: jax.vjp(lambda *a: cell(*a)[0], *args[:3])[1](args[3]))
    _close(pull(params, carry, xs[0], new, cts), want(params, carry, xs[0], cts))


@pytest.mark.parametrize("solver", [None, pb.Blelloch()])
def test_parameters_may_hold_more_than_the_cell_uses(solver):
    cell = pb.cells.GRU(recurrent_bias=False)
    params, carry, xs = _problem(cell)
    params["readout"] = jnp.ones((H, 2), DTYPE)

    def loss(params, scan):
        h, ys = scan(functools.partial(cell, params), carry, xs)
        return (h @ params["readout"]).sum() + (ys**2).sum()

    ours = functools.partial(pb.scan, solver=solver)
    _close(jax.grad(loss)(params, ours), jax.grad(loss)(params, lax.scan))


class _Forgetful(pb.cells.Elman):
    """Gives no cotangent of its bias."""

    def pull_params(self, params, carry, x, u):
        grads, x = super().pull_params(params, carry, x, u)
        return {"wi": grads["wi"], "wh": grads["wh"]}, x


def _last(cell, params, carry, xs):
    return pb.scan(functools.partial(cell, params), carry, xs, solver=pb.Sweep())[0].sum()


def test_a_missing_cotangent_is_named():
    cell = _Forgetful()
    params, carry, xs = _problem(cell)
    with pytest.raises(ValueError, match=r"_Forgetful.pull_params: .*\['b'\]"):
        jax.grad(lambda p: _last(cell, p, carry, xs))(params)


def _with_bias(make):
    """A cell that gives another cotangent of its bias."""

    class Wrong(pb.cells.Elman):
        def pull_params(self, params, carry, x, u):
            grads, x = super().pull_params(params, carry, x, u)
            return {**grads, "b": make(grads["b"])}, x

    return Wrong()


class _Twice(pb.cells.Elman):
    """Gives twice what it should by the method that is named."""

    def __init__(self, wrong):
        super().__init__()
        object.__setattr__(self, "wrong", wrong)

    def jacobian(self, params, carry, x, new_carry):
        factor = 2 if self.wrong == "jacobian" else 1
        return super().jacobian(dict(params, wh=factor * params["wh"]), carry, x, new_carry)

    def pull_carry(self, params, carry, gates, new_carry, cts):
        u, carry_cts = super().pull_carry(params, carry, gates, new_carry, cts)
        return u, (2 if self.wrong == "pull_carry" else 1) * carry_cts

    def pull_params(self, params, carry, x, u):
        grads, x = super().pull_params(params, carry, x, u)
        factor = 2 if self.wrong == "pull_params" else 1
        return jax.tree.map(lambda a: factor * a, grads), (1 + (self.wrong == "input")) * x


def _checked(cell, solver=None, **how):
    params, carry, xs = _problem(cell)
    step = functools.partial(cell, params)
    return pb.scan(step, carry, xs, solver=solver, check_jacobian=True, **how)


@pytest.mark.parametrize(
    "make", [lambda b: b.sum(), lambda b: b[None], lambda b: b[:1]], ids=["()", "(1, 4)", "(1,)"]
)
def test_a_cotangent_of_another_shape_is_named(make):
    cell = _with_bias(make)
    params, carry, xs = _problem(cell)
    named = r"Wrong.pull_params: got a cotangent of shape .* \['b'\]; \(4,\)"
    with pytest.raises(ValueError, match=named):
        jax.grad(lambda p: _last(cell, p, carry, xs))(params)
    with pytest.raises(ValueError, match=named):
        _checked(cell)


def test_a_cotangent_of_the_input_of_another_shape_is_named():
    class Narrow(pb.cells.Elman):
        def pull_params(self, params, carry, x, u):
            grads, x = super().pull_params(params, carry, x, u)
            return grads, x[..., :1]

    params, carry, xs = _problem(Narrow())
    with pytest.raises(ValueError, match=r"Narrow.pull_params: .* of the input of shapes"):
        jax.grad(lambda xs: _last(Narrow(), params, carry, xs))(xs)


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()])
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("jacobian", r"_Twice.jacobian: Factored.matvec: entry \(\d, \d\) of float carry leaf 0"),
        ("pull_carry", r"_Twice.pull_carry: entry \(\d, \d\) of float carry leaf 0"),
        ("pull_params", r"_Twice.pull_params: entry .* of the cotangent of parameter \['b'\]"),
        ("input", r"_Twice.pull_params: entry .* of the cotangent of input leaf 0"),
    ],
)
def test_a_wrong_method_of_a_cell_is_found_by_the_check_whichever_solver(wrong, named, solver):
    with pytest.raises(ValueError, match=named):
        _checked(_Twice(wrong), solver)


def test_a_mean_over_the_steps_is_no_sum():
    class Mean(pb.cells.Elman):
        def pull_params(self, params, carry, x, u):
            grads, x = super().pull_params(params, carry, x, u)
            return jax.tree.map(lambda a: a / len(u), grads), x

    with pytest.raises(ValueError, match=r"Mean.pull_params: entry"):
        _checked(Mean())


@pytest.mark.parametrize("name", CELLS)
def test_a_right_cell_passes_the_check(name):
    _checked(CELLS[name], reverse=True)


def test_a_cell_with_outputs_of_its_own_need_not_state_pull_params():
    class Output(pb.cells.Elman):
        def __call__(self, params, carry, x):
            h, _ = super().__call__(params, carry, x)
            return h, jnp.sin(h)

        def pull_params(self, params, carry, x, u):
            raise NotImplementedError

    _checked(Output())


def test_the_check_of_a_cell_needs_values_though_lax_scan_runs():
    params, carry, xs = _problem(pb.cells.Elman())
    step = functools.partial(pb.cells.Elman(), params)
    with pytest.raises(ValueError, match="concrete"):
        jax.jit(lambda h: pb.scan(step, h, xs, check_jacobian=True))(carry)


def test_what_a_cell_closes_over_is_no_parameter():
    params, carry, xs = _problem(pb.cells.Elman())

    def loss(scale):
        class Scaled(pb.cells.Elman):
            def __call__(self, params, carry, x):
                return super().__call__(params, carry, x * scale)

        return _last(Scaled(), params, carry, xs)

    with pytest.raises(ValueError, match=r"Scaled: .*closes over"):
        jax.grad(loss)(jnp.asarray(2.0, DTYPE))


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="'tanh' or 'relu'"):
        pb.cells.Elman(activation="gelu")


def test_cotangents_have_the_dtypes_of_their_primals():
    """Half-precision parameters beside a carry of full precision."""
    cell = pb.cells.Elman()
    params, carry, xs = _problem(cell)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)

    def loss(scan, params):
        return jnp.sum(scan(functools.partial(cell, params), carry, xs)[1])

    grads = jax.jit(
        jax.grad(functools.partial(loss, functools.partial(pb.scan, solver=pb.Sweep())))
    )
    got, want = grads(params), jax.grad(functools.partial(loss, lax.scan))(params)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max())

"""Forward-mode under ``solver=None``: one loop, until something is transposed."""

import functools
import gc
import re
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.scan.api import plans_of
from tests.family import assert_derivatives_close, jit_once

BATCH, HIDDEN, STEPS = 16, 20, 64
CELL = pb.cells.GRU()
PARAMS = CELL.init(jax.random.key(0), 3, HIDDEN, jnp.result_type(float))
XS = jax.random.normal(jax.random.key(1), (STEPS, BATCH, 3))
DIRECTION = jax.tree.map(
    lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), PARAMS
)
ROUNDING = 1e-10 if jnp.result_type(float) == jnp.float64 else 1e-5


def _outputs(scan, params, xs=XS):
    carry = CELL.initial_carry((BATCH,), HIDDEN, jnp.result_type(float))
    return scan(functools.partial(CELL, params), carry, xs)


def _loss(scan):
    return lambda params: (_outputs(scan, params)[1] ** 2).mean()


def _slope(scan):
    return lambda params: jax.jvp(_loss(scan), (params,), (DIRECTION,))[1]


def _twice(scan):
    """Two scans in a row, by an outer loop."""

    def loss(params):
        def body(h, _):
            h, _ = scan(functools.partial(CELL, params), h, XS)
            return h, h.sum()

        return lax.scan(body, jnp.zeros((BATCH, HIDDEN), XS.dtype), None, length=2)[1].sum()

    return loss


def _in_cond(scan):
    return lambda params: lax.cond(params["bi"][0] > -1, _loss(scan), lambda _: 0.0, params)


LOSSES = {
    "plain": _loss,
    "jit": lambda scan: jax.jit(_loss(scan)),
    "checkpoint": lambda scan: jax.checkpoint(_loss(scan)),
    "checkpoint with a policy": lambda scan: jax.checkpoint(
        _loss(scan), policy=jax.checkpoint_policies.dots_saveable
    ),
    "scan": _twice,
    "cond": _in_cond,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_goes_through_the_solver(loss):
    """However the forward pass is wrapped, no trace of the one loop is left to be transposed."""
    program = str(jax.make_jaxpr(jax.grad(LOSSES[loss](pb.scan)))(PARAMS))
    assert "linear_solve" in program
    assert "pushforward" not in program


@pytest.mark.parametrize("loss", LOSSES)
def test_forward_mode_stays_one_loop(loss):
    def slope(params):
        return jax.jvp(LOSSES[loss](pb.scan), (params,), (DIRECTION,))[1]

    program = str(jax.make_jaxpr(slope)(PARAMS))
    assert "linear_solve" not in program
    assert "pushforward" in program


@pytest.mark.reads_compiled
def test_one_loop_keeps_nothing():
    def slope(scan):
        compiled = jax.jit(lambda p: jax.jvp(lambda p: _outputs(scan, p)[0], (p,), (DIRECTION,)))
        return compiled.lower(PARAMS).compile()

    got, want = slope(pb.scan), slope(lax.scan)
    assert len(re.findall(r" while\(", got.as_text())) == 1
    got, want = (c.memory_analysis().temp_size_in_bytes for c in (got, want))
    assert got <= 1.1 * want < STEPS * BATCH * HIDDEN * PARAMS["bi"].itemsize


def test_a_named_solver_is_used_in_forward_mode():
    named = functools.partial(pb.scan, solver=pb.Sweep())
    program = str(jax.make_jaxpr(_slope(named))(PARAMS))
    assert "pushforward" not in program


ROWS = jnp.stack([XS, 0.5 * XS])
DERIVATIVES = {
    "jvp": lambda scan: jax.jvp(_loss(scan), (PARAMS,), (DIRECTION,)),
    "gradient of a slope": lambda scan: jax.grad(_slope(scan))(PARAMS),
    "gradient of a jitted slope": lambda scan: jax.grad(jax.jit(_slope(scan)))(PARAMS),
    "gradient of a slope made twice": lambda scan: jax.grad(jax.checkpoint(_slope(scan)))(PARAMS),
    "slope of a slope": lambda scan: jax.jvp(_slope(scan), (PARAMS,), (DIRECTION,)),
    "slope of a gradient": lambda scan: jax.jvp(jax.grad(_loss(scan)), (PARAMS,), (DIRECTION,)),
    "transpose": lambda scan: jax.linear_transpose(
        lambda t: jax.jvp(_loss(scan), (PARAMS,), (t,))[1], PARAMS
    )(1.0),
    "linearize": lambda scan: jax.linearize(_loss(scan), PARAMS)[1](DIRECTION),
    "rows of inputs": lambda scan: jax.vmap(
        jax.jit(lambda xs: jax.jvp(lambda xs: _outputs(scan, PARAMS, xs), (xs,), (XS,)))
    )(ROWS),
}


@pytest.mark.sampled
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives(derivative, eager):
    by = DERIVATIVES[derivative]
    if eager:
        got, want = by(pb.scan), jit_once(lambda: by(lax.scan))()
    else:
        got, want = jit_once(lambda: [by(scan) for scan in (pb.scan, lax.scan)])()
    assert_derivatives_close(got, want, ROUNDING, mode=derivative)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_values_have_no_axis_where_only_tangents_are_mapped(wrap):
    def derivatives(scan):
        run = wrap(lambda t: jax.jvp(lambda xs: _outputs(scan, PARAMS, xs), (XS,), (t,)))
        return jax.vmap(run, out_axes=(None, 0))(ROWS)

    assert_derivatives_close(derivatives(pb.scan), derivatives(lax.scan), ROUNDING)


def test_one_loop_stays_where_nothing_is_mapped():
    def run(weight):
        return weight * _slope(pb.scan)(PARAMS)

    program = str(jax.make_jaxpr(jax.vmap(run))(jnp.ones(3, XS.dtype)))
    assert "pushforward" in program
    assert "linear_solve" not in program


def test_a_step_may_name_the_mapped_axis():
    def step(h, x):
        h = jnp.tanh(0.5 * h + x + 0.1 * lax.psum(h, "rows"))
        return h, h

    def derivatives(scan):
        run = jax.jit(lambda xs: jax.jvp(lambda xs: scan(step, 0.1 * xs[0], xs), (xs,), (xs,)))
        return jax.vmap(run, axis_name="rows")(ROWS)

    assert_derivatives_close(derivatives(pb.scan), derivatives(lax.scan), ROUNDING)


def _rules_of_a_step_that_is_gone():
    def step(h, x):
        return jnp.tanh(0.5 * h @ jnp.eye(HIDDEN, dtype=h.dtype) + x), h

    def last(h):
        return pb.scan(step, h, jnp.ones((STEPS, BATCH, HIDDEN), h.dtype))[0].sum()

    h = jnp.ones((BATCH, HIDDEN), XS.dtype)
    jax.grad(last)(h)
    jax.jvp(last, (h,), (h,))
    return [weakref.ref(plan.rule) for plan in plans_of(step)]


def test_a_rule_lives_as_long_as_its_step():
    rules = _rules_of_a_step_that_is_gone()
    gc.collect()
    assert rules
    assert all(rule() is None for rule in rules)

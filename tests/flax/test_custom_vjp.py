"""Layers of Flax that are asked for a `jax.custom_vjp`: equal gradients, reverse mode only."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.read import walk
from tests.family import assert_derivatives_close

XS = jax.random.normal(jax.random.key(0), (2, 6, 3), jnp.float32)
TOLERANCE = 1e-5


def _cell(size):
    return nnx.GRUCell(size, 4, rngs=nnx.Rngs(size))


def _of_nnx(make):
    def losses(custom_vjp):
        graphdef, params, rest = nnx.split(make(custom_vjp), nnx.Param, ...)
        return lambda params: jnp.sum(nnx.merge(graphdef, params, rest, copy=True)(XS) ** 2), params

    return losses


def _of_linen(make):
    def losses(custom_vjp):
        layer = make(custom_vjp)
        variables = layer.init(jax.random.key(1), XS)
        return lambda variables: jnp.sum(layer.apply(variables, XS) ** 2), variables

    return losses


def _blocks():
    return nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 2, rngs=nnx.Rngs(1))


SOLVER = pb.Blelloch()
LAYERS = {
    "nnx.RNN": _of_nnx(lambda c: parscan_bp.nnx.RNN(_cell(3), solver=SOLVER, custom_vjp=c)),
    "nnx.RNN, planned": _of_nnx(lambda c: parscan_bp.nnx.RNN(_cell(3), custom_vjp=c)),
    "nnx.DeepRNN": _of_nnx(
        lambda c: parscan_bp.nnx.DeepRNN([_cell(3), _cell(4)], solver=SOLVER, custom_vjp=c)
    ),
    "nnx.Sequential": _of_nnx(
        lambda c: parscan_bp.nnx.Sequential(*_blocks(), solver=SOLVER, custom_vjp=c)
    ),
    "linen.RNN": _of_linen(
        lambda c: parscan_bp.linen.RNN(nn.GRUCell(4), solver=SOLVER, custom_vjp=c)
    ),
    "linen.Sequential": _of_linen(
        lambda c: parscan_bp.linen.Sequential(
            [nn.Dense(4), nn.relu, nn.Dense(2)], solver=SOLVER, custom_vjp=c
        )
    ),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_gradients_are_equal_and_the_form_is_in_the_program(make):
    (plain, at), (asked, _) = make(False), make(True)
    both = jax.jit(lambda at: [jax.value_and_grad(loss)(at) for loss in (plain, asked)])
    want, got = both(at)
    assert_derivatives_close(got, want, TOLERANCE)
    programs = [walk(jax.make_jaxpr(loss)(at).jaxpr) for loss in (plain, asked)]
    assert ["custom_vjp_call" in map(kind_of, eqns) for eqns in programs] == [False, True]
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(asked, (at,), (at,))


def test_a_report_comes_beside_the_result():
    rnn = parscan_bp.nnx.RNN(_cell(3), solver=SOLVER, report=True, custom_vjp=True)
    _, told = rnn(XS)
    assert int(told.status) == pb.Status.OK


def test_what_is_no_flag_is_refused():
    with pytest.raises(TypeError, match="custom_vjp: got"):
        parscan_bp.nnx.RNN(_cell(3), custom_vjp="yes")


def test_parameters_that_are_shared_stay_so_under_vmap():
    xs = jnp.stack([XS, 2 * XS, 3 * XS])

    def loss(model):
        ys = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(model, xs)
        return jnp.sum(ys**2)

    models = [parscan_bp.nnx.RNN(_cell(3), solver=SOLVER, custom_vjp=c) for c in (True, False)]
    got, want = nnx.jit(lambda models: [nnx.grad(loss)(model) for model in models])(models)
    assert_derivatives_close(*(jax.tree.leaves(nnx.state(g)) for g in (got, want)), TOLERANCE)

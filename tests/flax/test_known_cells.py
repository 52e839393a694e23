"""Known cells of Flax use the analytic Jacobians; whatever is not quite one of them does not."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax_cases import FLOAT, HIDDEN, INPUTS, assert_close, inputs, nnx_jit_once, scalar

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp.adapters import flax_cells
from parscan_bp.scan import within
from tests.family import compare_outputs, jit_once

KNOWN = [(library, name) for library in (nnx, nn) for name in flax_cells.NNX]
IDS = [f"{library.__name__}-{name}" for library, name in KNOWN]


@pytest.fixture
def plans(monkeypatch):
    """The plans of the scans of a test, in order."""
    made, make = [], within.make_plan

    def record(*args, **kwargs):
        plan = make(*args, **kwargs)
        made.append(plan)
        return plan

    monkeypatch.setattr(within, "make_plan", record)
    return made


def _gradients(library, cell, x, **keywords):
    """Of the layer around the cell, by its parameters and inputs."""
    if library in (nnx, pb.nnx):
        loss = lambda model, x: scalar(model(x, return_carry=True))  # noqa: E731
        return nnx_jit_once(nnx.grad(loss, argnums=(0, 1)))(library.RNN(cell, **keywords), x)
    model = library.RNN(cell, return_carry=True, **keywords)
    grad = jax.grad(lambda v, x: scalar(model.apply(v, x)), (0, 1))
    return jit_once(lambda x: grad(model.init(jax.random.key(0), x), x))(x)


@functools.cache
def _flax_gradients(library, name):
    return _gradients(library, _cell(library, name), inputs())


def _cell(library, name, inputs=INPUTS, hidden=HIDDEN, **how):
    how = {"dtype": FLOAT, "param_dtype": FLOAT, **how}
    if library is nnx:
        return getattr(nnx, name)(inputs, hidden, rngs=nnx.Rngs(0), **how)
    return getattr(nn, name)(hidden, **how)


def _ours(library):
    return pb.nnx if library is nnx else pb.linen


def _compare(library, name, solver):
    got = _gradients(_ours(library), _cell(library, name), inputs(), solver=solver)
    assert_close(got, _flax_gradients(library, name), case=name)


KEPT = pb.Sweep(recompute=False)


@pytest.mark.sampled(of=(KEPT,))
@pytest.mark.parametrize("solver", [pb.Sweep(chunk=4), KEPT], ids=str)
@pytest.mark.parametrize(("library", "name"), KNOWN, ids=IDS)
def test_a_known_cell_is_linearised_by_its_own_jacobian(plans, library, name, solver):
    _compare(library, name, solver)
    assert [plan.facts.linearisation for plan in plans] == ["analytic"]


X = jax.random.normal(jax.random.key(1), (2, 9, 40), FLOAT)


def _layer(library, cell, **keywords):
    """The layer around the cell as a function of its parameters; these."""
    model = library.RNN(cell, **keywords)
    if library in (nnx, pb.nnx):
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        carry = cell.initialize_carry((2, 40), nnx.Rngs(0))
        return lambda p: nnx.merge(graph, p, rest)(X, initial_carry=carry), params
    return lambda p: model.apply(p, X), jit_once(model.init)(jax.random.key(0), X)


def _forward(library, cell, **keywords):
    """The outputs under differentiation, and the number of products of matrices as compiled."""
    run, params = _layer(library, cell, **keywords)
    forward = jax.jit(lambda p: jax.vjp(run, p)).lower(params).compile()
    return forward(params)[0], forward.as_text().count(" dot(")


@pytest.mark.reads_compiled
@pytest.mark.parametrize(("library", "name"), KNOWN, ids=IDS)
def test_what_is_kept_of_a_step_is_what_it_makes_itself(library, name):
    cell = _cell(library, name, 40, 40)
    want, products = _forward(library, cell)
    got, count = _forward(_ours(library), cell, solver=KEPT)
    compare_outputs(got, want, case=name)
    # What joins its weights in every step, XLA moves out of the loop, and sees no more that the
    # products with them are the same.
    assert count == (2 if (library, name) == (nn, "OptimizedLSTMCell") else 1) * products > 0


IN_A_TREE = [
    pytest.param(*known, marks=() if known == (nnx, "OptimizedLSTMCell") else pytest.mark.slow)
    for known in KNOWN
]


@pytest.mark.parametrize(("library", "name"), IN_A_TREE, ids=IDS)
def test_a_known_cell_in_a_tree_has_its_carry_in_our_order(plans, library, name):
    _compare(library, name, pb.Blelloch())
    assert [plan.facts.linearisation for plan in plans] == ["analytic"]


class Doubled(nnx.Linear):
    """A linear map that somebody put into a cell in place of Flax's."""

    def __call__(self, inputs):
        return 2 * super().__call__(inputs)


def _tied():
    cell = nnx.SimpleCell(HIDDEN, HIDDEN, dtype=FLOAT, param_dtype=FLOAT, rngs=nnx.Rngs(0))
    cell.dense_i.kernel = cell.dense_h.kernel
    return cell


def _changed():
    cell = _cell(nnx, "GRUCell")
    cell.dense_h = Doubled(HIDDEN, 3 * HIDDEN, use_bias=False, param_dtype=FLOAT, rngs=nnx.Rngs(1))
    return cell


OTHERS = {
    "another gate": lambda: _cell(nnx, "GRUCell", gate_fn=nnx.hard_sigmoid),
    "gate and activation exchanged": lambda: _cell(
        nnx, "GRUCell", gate_fn=nnx.tanh, activation_fn=nnx.sigmoid
    ),
    "a residual": lambda: _cell(nnx, "SimpleCell", residual=True),
    "another linear map": _changed,
    "one kernel twice": _tied,
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_a_cell_that_was_changed_is_linearised_as_it_is(plans, make):
    x = jnp.tile(inputs(), (1, 1, HIDDEN // INPUTS)) if make is _tied else inputs()
    cell = make()
    got = _gradients(pb.nnx, cell, x, solver=pb.Sweep(chunk=4))
    assert_close(got, _gradients(nnx, cell, x))
    assert [plan.facts.linearisation for plan in plans] == ["matrix-free"]


def test_an_interceptor_that_changes_a_linen_cell_is_seen(plans):
    def double(next_fun, args, kwargs, context):
        out = next_fun(*args, **kwargs)
        return 2 * out if isinstance(context.module, nn.Dense) else out

    with nn.intercept_methods(double):
        cell, x = _cell(nn, "GRUCell"), inputs()
        got = _gradients(pb.linen, cell, x, solver=pb.Sweep(chunk=4))
        assert_close(got, _gradients(nn, cell, x))
    assert [plan.facts.linearisation for plan in plans] == ["matrix-free"]

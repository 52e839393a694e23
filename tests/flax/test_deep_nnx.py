"""Layers of nnx in a row as one recurrence, against Flax's own layers one after the other."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax_cases import FLOAT, HIDDEN, INPUTS, TOLERANCE, assert_close, inputs, scalar

import parscan_bp as pb
import parscan_bp.nnx
from tests.family import jit_once

SLOW = pytest.mark.slow


def cells_of(*kinds, hidden=HIDDEN):
    sizes = (INPUTS, *[hidden] * len(kinds))
    how = {"dtype": FLOAT, "param_dtype": FLOAT}
    return [
        kind(size, hidden, **how, rngs=nnx.Rngs(k))
        for k, (kind, size) in enumerate(zip(kinds, sizes, strict=False))
    ]


def in_a_row(cells, x):
    carries = []
    for cell in cells:
        carry, x = nnx.RNN(cell, return_carry=True)(x)
        carries.append(carry)
    return tuple(carries), x


@pytest.mark.parametrize(
    ("kinds", "solver"),
    [
        ((nnx.SimpleCell,) * 2, pb.CyclicReduction()),
        pytest.param((nnx.GRUCell,) * 2, pb.CyclicReduction(), marks=SLOW),
        pytest.param((nnx.SimpleCell,) * 3, pb.Blelloch(), marks=SLOW),
        pytest.param((nnx.LSTMCell, nnx.OptimizedLSTMCell), pb.Blelloch(), marks=SLOW),
        pytest.param((nnx.SimpleCell, nnx.GRUCell), pb.Jacobi(), marks=SLOW),
        pytest.param((nnx.SimpleCell, nnx.GRUCell), None, marks=SLOW),
        pytest.param((nnx.LSTMCell,) * 2, pb.Sweep(), marks=SLOW),
    ],
    ids=lambda v: "-".join(k.__name__ for k in v) if isinstance(v, tuple) else str(v),
)
def test_derivatives_are_those_of_layers_of_flax(kinds, solver):
    cells, x = cells_of(*kinds), inputs()
    graph, state = nnx.split(pb.nnx.DeepRNN(cells, return_carry=True, solver=solver))

    def everything(apply):
        loss = lambda state, x: scalar(apply(nnx.merge(graph, state, copy=True), x))  # noqa: E731
        slopes = jax.grad(loss, (0, 1))
        at = (state, x)
        along = jax.tree.map(jnp.cos, at)
        return {
            "values": apply(nnx.merge(graph, state, copy=True), x),
            "grad": slopes(*at),
            "jvp": jax.jvp(loss, at, along)[1],
            "hvp": jax.jvp(slopes, at, along)[1],
        }

    run = jit_once(
        lambda: (
            everything(lambda model, x: model(x)),
            everything(lambda model, x: in_a_row(model.cells, x)),
        )
    )
    got, want = run()
    for mode in want:
        assert_close(got[mode], want[mode], 20 * TOLERANCE, mode)


def test_options():
    cells, x = cells_of(nnx.LSTMCell, nnx.GRUCell, hidden=2)[:1], inputs()
    want = nnx.RNN(cells[0], return_carry=True)(x)
    how = {"return_carry": True, "report": True}
    (carries, ys), told = pb.nnx.DeepRNN(cells, time_major=True, unroll=2, **how)(
        jnp.swapaxes(x, 0, 1)
    )
    assert_close((carries[0], jnp.swapaxes(ys, 0, 1)), want)
    assert told.status == pb.Status.OK
    from_there = pb.nnx.DeepRNN(cells)(x, initial_carry=carries)
    assert_close(from_there, nnx.RNN(cells[0])(x, initial_carry=carries[0]))


@SLOW
def test_jit_and_grad_of_nnx():
    model, x = pb.nnx.DeepRNN(cells_of(nnx.SimpleCell, nnx.SimpleCell)), inputs()
    loss = lambda model, x: scalar(model(x))  # noqa: E731
    got = nnx.jit(nnx.grad(loss))(model, x)
    want = nnx.grad(lambda model, x: scalar(in_a_row(model.cells, x)[1]))(model, x)
    assert_close(got, want)


class Counting(nnx.SimpleCell):
    """A cell that changes a variable."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = nnx.Variable(jnp.zeros(()))

    def __call__(self, carry, inputs):
        self.count[...] += 1
        return super().__call__(carry, inputs)


def test_mistakes_are_named():
    cell = cells_of(nnx.GRUCell)[0]
    with pytest.raises(TypeError, match="cells: got"):
        pb.nnx.DeepRNN(cell)
    with pytest.raises(TypeError, match=r"cells\[1\]: got 3"):
        pb.nnx.DeepRNN([cell, 3])
    with pytest.raises(ValueError, match="at least 1 is wanted"):
        pb.nnx.DeepRNN([])
    with pytest.raises(TypeError, match="solver: Blelloch is a class"):
        pb.nnx.DeepRNN([cell], solver=pb.Blelloch)
    with pytest.raises(TypeError, match="report: got 1"):
        pb.nnx.DeepRNN([cell], report=1)
    narrow = nnx.GRUCell(HIDDEN, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"cells: got carries of shapes .*as many features"):
        pb.nnx.DeepRNN([cell, narrow])(inputs())
    with pytest.raises(ValueError, match=r"cells\[1\]: GRUCell does not take the outputs of cells"):
        pb.nnx.DeepRNN([narrow, narrow])(jnp.ones((2, 5, HIDDEN)))
    with pytest.raises(ValueError, match=r"cells\[0\]: GRUCell does not take inputs of a step"):
        pb.nnx.DeepRNN([cell])(jnp.ones((2, 5, INPUTS + 1)))
    with pytest.raises(ValueError, match=r"initial_carry: got .*a tuple of 1 carries"):
        pb.nnx.DeepRNN([cell])(inputs(), initial_carry=())
    with pytest.raises(NotImplementedError, match=r"cells\[0\]: Counting changes its variables"):
        pb.nnx.DeepRNN([Counting(INPUTS, HIDDEN, rngs=nnx.Rngs(0))])(inputs())
    convolutional = nnx.RNNCellBase.__new__(TwoAxes)
    with pytest.raises(NotImplementedError, match="2 axes of features; 1 is wanted"):
        pb.nnx.DeepRNN([convolutional])(inputs())


class TwoAxes(nnx.RNNCellBase):
    """As a convolutional cell has them."""

    num_feature_axes = 2


def test_no_steps():
    model = pb.nnx.DeepRNN(cells_of(nnx.GRUCell, nnx.GRUCell))
    x = inputs()[..., :0, :]
    assert model(x).shape == (*x.shape[:-1], model(inputs()).shape[-1])

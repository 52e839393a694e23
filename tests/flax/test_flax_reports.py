"""`report=True` of the layers of Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp.explain import explain_calls

X = jax.random.normal(jax.random.key(0), (2, 6, 3))


def _same(got, want):
    for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("solver", [None, pb.Blelloch()], ids=str)
def test_nnx_rnn(solver):
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    plain = parscan_bp.nnx.RNN(cell, solver=solver)
    rnn = parscan_bp.nnx.RNN(cell, solver=solver, report=True)
    out, report = rnn(X)
    _same(out, plain(X))
    assert report.status == pb.Status.OK and not report.fell_back
    (carry, out), report = rnn(X, return_carry=True)
    _same((carry, out), plain(X, return_carry=True))

    @nnx.jit
    def gradient(rnn, x):
        return nnx.grad(lambda rnn: (rnn(x)[0].sum(), rnn(x)[1]), has_aux=True)(rnn)

    grads, report = gradient(rnn, X)
    want = nnx.grad(lambda rnn: rnn(X).sum())(plain)
    for a, b in zip(*map(jax.tree.leaves, (grads, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert report.status == pb.Status.OK


def test_nnx_rnn_of_ones_own_with_a_mask():
    class Own(nnx.GRUCell):
        pass

    rnn = parscan_bp.nnx.RNN(Own(3, 4, rngs=nnx.Rngs(0)), report=True)
    out, report = rnn(X, mask=jnp.ones(X.shape[:2], bool).at[0, 3:].set(False))
    assert out.shape == (2, 6, 4) and report.status == pb.Status.OK
    assert rnn(X * jnp.nan)[1].status == pb.Status.NON_FINITE


@pytest.mark.parametrize("solver", [None, pb.Blelloch()], ids=str)
def test_linen_rnn(solver):
    rnn = parscan_bp.linen.RNN(nn.LSTMCell(4), solver=solver, report=True)
    (_, first), variables = rnn.init_with_output(jax.random.key(0), X)
    out, report = rnn.apply(variables, X)
    _same(out, parscan_bp.linen.RNN(nn.LSTMCell(4), solver=solver).apply(variables, X))
    assert first.status == report.status == pb.Status.OK

    def loss(variables):
        out, report = rnn.apply(variables, X)
        return out.sum(), report

    assert jax.jit(jax.grad(loss, has_aux=True))(variables)[1].status == pb.Status.OK


def test_sequential_of_nnx():
    rngs = nnx.Rngs(0)
    fns = nnx.Linear(3, 4, rngs=rngs), nnx.relu, lambda x: x[:, ::-1], nnx.Linear(4, 2, rngs=rngs)
    x = X[0]
    out, report = parscan_bp.nnx.Sequential(*fns, report=True)(x)
    _same(out, parscan_bp.nnx.Sequential(*fns)(x))
    assert report.status == pb.Status.OK and report.residual < 1e-6
    assert parscan_bp.nnx.Sequential(*fns, report=True)(x * jnp.inf)[1].status == 1
    assert parscan_bp.nnx.Sequential(report=True)(x)[1].status == pb.Status.OK


def test_sequential_of_linen():
    model = parscan_bp.linen.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)], report=True)
    (_, first), variables = model.init_with_output(jax.random.key(0), X[0])
    out, report = model.apply(variables, X[0])
    _same(out, parscan_bp.linen.Sequential(model.layers).apply(variables, X[0]))
    assert first.status == report.status == pb.Status.OK
    assert model.apply(variables, X[0], method="explain")[0] == "Linear"


def test_only_a_layer_by_itself_reports():
    cells = [nnx.GRUCell(3, 4, rngs=nnx.Rngs(k)) for k in range(2)]
    rnns = [parscan_bp.nnx.RNN(cell, report=True) for cell in cells]
    with pytest.raises(NotImplementedError, match="forward_rnn: got report=True"):
        parscan_bp.nnx.Bidirectional(*rnns)(X)
    with pytest.raises(TypeError, match="report: got 2"):
        parscan_bp.nnx.RNN(cells[0], report=2)
    with pytest.raises(TypeError, match="report: got 2"):
        parscan_bp.linen.RNN(nn.GRUCell(4), report=2)


def test_a_layer_explains_itself():
    """As `explain` of its step; masks, flags and types alone are those of a call."""
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    rnn = parscan_bp.nnx.RNN(cell, solver=pb.Blelloch())
    found = rnn.explain(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert (found.choice, found.structure, found.batch_axes) == ("Blelloch()", "block", ((0,),))
    mask = jnp.ones(X.shape[:2], bool)
    left = parscan_bp.nnx.RNN(cell).explain(X, mask=mask, return_carry=True, rngs=nnx.Rngs(1))
    step = lambda h, x: cell(h, x)  # noqa: E731
    assert left.choice == pb.explain(step, jnp.zeros((2, 4)), jnp.swapaxes(X, 0, 1)).choice
    both = parscan_bp.nnx.Bidirectional(rnn, parscan_bp.nnx.RNN(cell, solver=pb.Sweep()))
    graphdef, state = nnx.split(both)
    run = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
    run(state, X)  # what JAX keeps of it is traced anew
    assert [e.choice for e in explain_calls(run, state, X)] == ["Blelloch()", "Sweep()"]

    rnn = parscan_bp.linen.RNN(nn.LSTMCell(4), solver=pb.Chunked(2))
    variables = rnn.init(jax.random.key(0), X)
    found = rnn.apply(variables, X, method="explain")
    assert (found.choice, found.structure) == ("Chunked(chunks=2)", "block")
    (again,) = explain_calls(rnn.apply, variables, X)
    assert again.choice == found.choice


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: pb.explain(parscan_bp.nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))), X),
            ValueError,
            r"xs: got None, without length=; .* Of an RNN its own method explain .*explain_within",
        ),
        (
            lambda: explain_calls(parscan_bp.nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))), X),
            ValueError,
            r"fun: it closes over variables of flax\.nnx, .*nnx\.split\(module\)",
        ),
        (lambda: explain_calls(3, X), TypeError, "fun: got 3, of type int; a function"),
        (lambda: explain_calls(jnp.sin, "x"), TypeError, r"args\[0\]: got 'x', of type str"),
        (lambda: explain_calls(jnp.sin, X), ValueError, r"fun: got .*which runs no scan of par"),
    ],
)
def test_what_cannot_be_explained_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()

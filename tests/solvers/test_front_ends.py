"""Naumov's solvers in `scan` and `chain`: lengths, reports, mistakes."""

import functools
import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from bench.paper.solvers import eliminated
from parscan_bp.layers import Flatten, Linear, MaxPool, init
from tests.family import jit_once, together

X64 = jnp.result_type(float) == jnp.float64
DTYPE = jnp.float64 if X64 else jnp.float32
TOL = 1e-9 if X64 else 1e-4
SOLVERS = [
    pb.CyclicReduction(),
    pb.CyclicReduction(scaled=True),
    pb.Jacobi(),
    pb.Jacobi(tol=1e-2 * TOL),
    pb.Richardson(0.9, tol=1e-2 * TOL),
    pb.BiCGStab(60, tol=1e-2 * TOL),
]


def step(w, c, x):
    h, k = c
    new = jnp.tanh(h @ w + 0.3 * k + x)
    return (new, 0.5 * k + 0.2 * h[..., ::-1]), (new, h * x)


def data(n, rows=2):
    rng = np.random.default_rng(n)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), DTYPE)  # noqa: E731
    return 0.4 * draw(3, 3), (draw(rows, 3), draw(rows, 3)), draw(n, rows, 3)


def loss_of(scan, **how):
    def loss(w, c, xs):
        last, (ys, zs) = scan(functools.partial(step, w), c, xs, **how)
        weights = jnp.arange(1.0, ys.size + 1).reshape(ys.shape) / ys.size
        return sum(jnp.sum(jnp.sin(a)) for a in last) + jnp.sum(weights * ys**2) + jnp.sum(zs)

    return loss


def close(got, want, tol=TOL):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = float(jnp.abs(b).max(initial=0)) or 1.0
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tol)


def everything(loss, args):
    ts = jax.tree.map(jnp.cos, args)
    grads = jax.grad(loss, (0, 1, 2))
    square = lambda *a: sum(jnp.sum(g**2) for g in jax.tree.leaves(grads(*a)))  # noqa: E731
    batch = jax.tree.map(lambda a: jnp.stack([a, 0.3 * a]), args)
    return {
        "grad": grads(*args),
        "jvp": jax.jvp(loss, args, ts)[1],
        "grad of grad": jax.grad(square, (0, 1))(*args),
        "jvp of grad": jax.jvp(grads, args, ts)[1],
        "grad of jvp": jax.grad(lambda *a: jax.jvp(loss, a, ts)[1])(*args),
        "vmap": jax.vmap(grads)(*batch),
        "checkpoint": jax.grad(jax.checkpoint(loss), (0, 2))(*args),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_lengths(n, solver, request):
    def case(n, solver):
        scans = functools.partial(pb.scan, solver=solver), lax.scan
        slopes = [jax.grad(loss_of(scan), (0, 1, 2)) for scan in scans]
        return lambda *args: [slope(*args) for slope in slopes], data(n)

    close(*together(request, case))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_report_of_a_scan(solver):
    w, c, xs = data(9)
    *_, report = jax.jit(
        lambda w: pb.scan(functools.partial(step, w), c, xs, solver=solver, report=True)
    )(w)
    assert report.status == pb.Status.OK
    assert (report.history is None) == (solver.needs == "operators")
    if report.history is not None:
        assert 1 <= report.iterations < report.history.size
        assert np.isnan(report.contraction)  # of products alone nothing is known


def test_dominance_of_a_given_structure_is_known():
    _, c, xs = data(60)
    plain = lambda c, x: (jnp.tanh(0.5 * c + x), c)  # noqa: E731
    how = {"solver": pb.Jacobi(tol=1e-6), "jacobian": "diagonal"}
    *_, report = pb.scan(plain, c[0], xs, report=True, **how)
    assert 0 < report.contraction <= 0.5 and report.iterations < 40


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_report_of_a_chain(solver):
    layers = [Linear(4), jnp.tanh, Linear(6), jax.nn.relu, Linear(2), jax.nn.softmax]
    params = init(layers, jax.random.key(1), (3,), dtype=DTYPE)
    run = lambda params, x: pb.chain(layers, params, x, solver=solver, report=True)[1]  # noqa: E731
    report = jit_once(run)(params, jnp.ones((5, 3), DTYPE))
    assert report.status == pb.Status.OK
    assert (report.history is None) == (solver.needs == "operators")


def test_convolutional_structures_in_a_chain():
    layers = [MaxPool((2,)), Flatten(), Linear(3)]
    params = init(layers, jax.random.key(0), (6, 2), dtype=DTYPE)
    x = jax.random.normal(jax.random.key(1), (2, 6, 2), DTYPE)
    loss = lambda s: lambda x: jnp.sum(pb.chain(layers, params, x, solver=s) ** 2)  # noqa: E731
    solvers = pb.Sweep(), pb.CyclicReduction(), pb.Jacobi(), pb.BiCGStab(tol=1e-6)
    grads = jit_once(lambda x: [jax.grad(loss(s))(x) for s in solvers])(x)
    for other in grads[1:]:
        close(other, grads[0])


def test_what_a_solver_cannot_take_is_refused():
    step = lambda c, x: (c + lax.while_loop(lambda v: v < 1, lambda v: v + 1, x), c)  # noqa: E731
    for solver in (pb.Jacobi(), pb.CyclicReduction()):
        with pytest.raises(NotImplementedError, match="while"):
            pb.scan(step, 0.0, jnp.ones(3), solver=solver)
    free = pb.operators.MatrixFree(jax.linearize(jnp.sin, jnp.ones(3))[1], False, jnp.zeros(3))
    with pytest.raises(NotImplementedError, match="CyclicReduction cannot take a uniform system"):
        pb.solve(pb.Uniform(free.broadcast(2), jnp.ones((3, 3))), pb.CyclicReduction())


DEEP = [pb.CyclicReduction(), pb.Blelloch(), pb.Chunked(2), pb.Sweep(), pb.Jacobi()]
SHORT = [(2, pb.CyclicReduction()), (3, pb.Blelloch())]  # to compile


@pytest.mark.parametrize(
    ("k", "solver"),
    [
        pytest.param(k, s, marks=() if (k, s) in SHORT else pytest.mark.slow)
        for k, s in itertools.product((1, 2, 3, 4), DEEP)
    ],
    ids=str,
)
def test_deep_rnns_are_one_recurrence(k, solver):
    n, rows, units = 9, 2, 3
    rng = np.random.default_rng(k)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), DTYPE)  # noqa: E731
    ws, c, xs = 0.5 * draw(k, 2, units, units), draw(k, rows, units), draw(n, rows, units)

    def layer(w, h, x):
        new = jnp.tanh(h @ w[0] + x @ w[1])
        return new, new + 0.1 * h * x

    def loss(scan, ws, c, xs):
        last, ys = scan(ws, tuple(c), xs)
        return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(h**2) for h in last)

    def joint(ws, c, xs, **how):
        step, jacobian = pb.deep_rnn([functools.partial(layer, w) for w in ws])
        return pb.scan(step, c, xs, jacobian=jacobian, **how)

    def by_layers(ws, c, xs):
        last = []
        for w, h in zip(ws, c, strict=True):
            h, xs = lax.scan(functools.partial(layer, w), h, xs)
            last.append(h)
        return tuple(last), xs

    def derivatives(scan):
        f = functools.partial(loss, scan)
        grads = jax.grad(f, (0, 1, 2))
        return grads(ws, c, xs), jax.jvp(grads, (ws, c, xs), (ws, c, xs))[1]

    scans = (functools.partial(joint, solver=solver), by_layers)
    close(*(jit_once(lambda s=s: derivatives(s))() for s in scans))


def test_a_tree_over_a_deep_rnn_multiplies_triangular_blocks():
    k, n, units = 4, 1000, 2
    layer = lambda h, x: 2 * (jnp.tanh(0.5 * h + 0.3 * x[..., ::-1]),)  # noqa: E731
    step, jacobian = pb.deep_rnn([layer] * k)
    c, xs = (
        tuple(jnp.ones((k, units))),
        jnp.asarray(np.random.default_rng(0).normal(size=(n, units))),
    )

    def loss(scan, c, xs):
        return jnp.sum(scan(step, c, xs)[1] ** 2)

    tree = functools.partial(pb.scan, solver=pb.Blelloch(), jacobian=jacobian)
    got, want = (
        jax.jit(jax.grad(functools.partial(loss, s), (0, 1)))(c, xs) for s in (tree, lax.scan)
    )
    close(got, want)
    one = jax.eval_shape(jacobian, c, xs[0], c)
    assert type(one) is pb.operators.BlockTriangular and one.blocks.shape == (10, units, units)
    assert type(pb.operators.for_trees(one)) is type(one)
    cost = pb.operators.compose_cost(one, one).flops
    dense = pb.operators.Dense(jnp.zeros((k * units, k * units)))
    assert cost == 2 * 20 * units**3 and pb.operators.compose_cost(dense, dense).flops == 2 * 64 * 8


def test_deep_rnn_names_mistakes():
    layer = lambda h, x: (h, x)  # noqa: E731
    with pytest.raises(TypeError, match="steps: got"):
        pb.deep_rnn(layer)
    with pytest.raises(TypeError, match=r"steps\[0\]: got 3"):
        pb.deep_rnn([3])
    with pytest.raises(ValueError, match="at least 1 is wanted"):
        pb.deep_rnn([])
    step, _ = pb.deep_rnn([layer, layer])
    with pytest.raises(ValueError, match=r"carry: got .*a tuple of 2 carries"):
        step((jnp.ones(2),), jnp.ones(2))
    with pytest.raises(ValueError, match=r"carry: got carries of shapes .*; as many"):
        step((jnp.ones(2), jnp.ones(3)), jnp.ones(2))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_products_that_eliminate_the_layers_of_a_step(k, monkeypatch):
    module = importlib.import_module("parscan_bp.deep_rnn")
    made = []
    compose = module.compose
    monkeypatch.setattr(module, "compose", lambda *pair: made.append(pair) or compose(*pair))
    _, jacobian = pb.deep_rnn([lambda h, x: (h + x, h * x)] * k)
    h = (jnp.ones(2),) * k
    jax.eval_shape(jacobian, h, jnp.ones(2), h)
    assert len(made) == eliminated(k)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [pb.Blelloch(), pb.CyclicReduction()], ids=str)
def test_four_layers_and_a_thousand_steps_in_every_mode(solver):
    k, n, units = 4, 1000, 2
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), DTYPE)  # noqa: E731
    args = 0.4 * draw(k, 2, units, units), draw(k, units), draw(n, units)

    def layer(w, h, x):
        return 2 * (jnp.tanh(h @ w[0] + x @ w[1]),)

    def loss(scan, ws, c, xs):
        step, jacobian = pb.deep_rnn([functools.partial(layer, w) for w in ws])
        last, ys = scan(jacobian)(step, tuple(c), xs)
        return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(h**2) for h in last)

    def tree(jacobian):
        return functools.partial(pb.scan, solver=solver, jacobian=jacobian)

    got, want = (
        jit_once(lambda s=s: everything(functools.partial(loss, s), args))()
        for s in (tree, lambda jacobian: lax.scan)
    )
    for mode in want:
        close(got[mode], want[mode], 30 * TOL)

"""Systems whose operators, or parts of them, the batch shares: no axis is taken for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal, MatrixFree, Product
from tests.family import jit_once
from tests.quickly import jit_quickly

N, H = 4, 2
DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
EPS = float(jnp.finfo(DTYPE).eps)


def draw(seed, *shape):
    return jnp.asarray(0.7 * np.random.default_rng(seed).standard_normal(shape), DTYPE)


def substituted(a, g):
    """By NumPy, of matrices with all axes."""
    out = [np.asarray(g[-1], np.float64)]
    for t in reversed(range(len(a))):
        out.append(np.asarray(g[t], np.float64) + np.einsum("...ij,...j->...i", a[t], out[-1]))
    return np.stack(out[::-1])


@pytest.mark.parametrize("batch", [N, pytest.param(3, marks=pytest.mark.slow)])
def test_trees_do_not_take_steps_for_entries_of_the_batch(batch):
    """As many of both, where NumPy's broadcasting says nothing: `Sweep` was right, no tree was."""
    a, d, g = draw(0, N, H, H), draw(1, N, batch, H), draw(2, N + 1, batch, H)
    solvers = [pb.Sweep(), pb.Blelloch(), pb.Associative(), pb.Chunked(2), pb.CyclicReduction()]
    solvers += [pb.Blelloch(scaled=True), pb.Jacobi(), pb.ChunkedCorrections(2, max_rounds=3)]

    def run(a, d, g):
        made = (Dense(a), Product((Dense(a), Diagonal(d))))
        return [[pb.solve(pb.Uniform(op, g), s) for s in solvers] for op in made]

    shared, mixed = jit_once(run)(a, d, g)
    full = np.broadcast_to(np.asarray(a, np.float64)[:, None], (N, batch, H, H))
    for found, maps in ((shared, full), (mixed, full * np.asarray(d, np.float64)[:, :, None])):
        want = substituted(maps, g)
        for solver, got in zip(solvers, found, strict=True):
            assert np.abs(got - want).max() < 100 * EPS * np.abs(want).max(), solver


def test_cut_off_of_maps_that_the_batch_shares():
    """It was 0 for an error of 100, where there are as many steps as entries."""
    a = np.zeros((N, H, H))
    a[1], a[2] = 50 * np.eye(H), 100 * np.eye(H)

    def run(a, g):
        exact = pb.solve(pb.Uniform(Dense(a), g), pb.Sweep())
        return exact, *pb.solve(pb.Uniform(Dense(a), g), pb.Truncated(2), report=True)

    for batch in (N, 3):
        g = np.zeros((N + 1, batch, H))
        g[2:4, 0] = 1
        exact, x, report = jit_quickly(run)(jnp.asarray(a, DTYPE), jnp.asarray(g, DTYPE))
        error = np.abs(x - exact).max() / np.abs(x).max()
        assert error == 100 and report.cut_off >= error * (1 - 1e-5)
        assert report.residual > report.bound


def test_a_system_keeps_operators_with_all_axes_or_none():
    a, d, g = draw(0, N, H, H), draw(1, N, 3, 5, H), draw(2, N + 1, 3, 5, H)
    op = pb.Uniform(Product((Dense(a), Diagonal(d), Dense(draw(3, H, H)))), g).operators
    assert [leaf.shape[: leaf.ndim - n] for leaf, n in op.leaves()] == [(N, 1, 1), (N, 3, 5), ()]
    same = Product((Dense(a[:, None, None]), Diagonal(d)))
    kept = pb.Uniform(same, g).operators
    assert all(x is y for (x, _), (y, _) in zip(kept.leaves(), same.leaves(), strict=True))
    # Batch axes are aligned from the last one, behind the scanned one.
    last = pb.Uniform(Diagonal(d[:, 0]), g).operators
    assert last.stack_shape == (N, 1, 5)
    one = pb.Uniform(Diagonal(draw(1, 1, H)), draw(2, 2, N, H))
    assert one.length == 1 and one.as_dense().shape == (2 * H, 2 * H)


def test_axes_that_do_not_fit_are_named():
    d, g = draw(1, N, 3, H), draw(2, N + 1, 3, H)
    for_the_batch = Product((Dense(draw(0, 3, H, H)), Diagonal(d)))
    with pytest.raises(ValueError, match=r"stack axes \[\(3, 1\), \(4, 3\)\] do not broadcast"):
        pb.Uniform(for_the_batch, g)
    given = pb.Uniform(Product((Dense(draw(0, 1, 3, H, H)), Diagonal(d))), g)
    assert given.operators.stack_shape == (N, 3)
    with pytest.raises(ValueError, match=r"g: got batch axes \(3,\); the operators have \(2,\)"):
        pb.Uniform(Diagonal(d[:, :2]), g)
    with pytest.raises(ValueError, match=r"g: got batch axes \(\); the operators have \(3,\)"):
        pb.Uniform(Diagonal(d), g[:, 0])
    for walk in (lambda op: op.take(0), lambda op: op.slice(0, 2), lambda op: op.unstack()):
        with pytest.raises(ValueError, match=r"Product: the leaves have stack axes .*aligned\(\)"):
            walk(Product((Dense(draw(0, N, H, H)), Diagonal(draw(1, N, N, H)))))


def test_matrix_free_maps_that_the_batch_shares():
    """An array is not repeated along axes of size 1."""
    a = draw(0, N, H, H)
    linear = jax.tree_util.Partial(lambda matrix, v: matrix @ v, a)
    op = MatrixFree(linear, True, jax.ShapeDtypeStruct((H,), DTYPE))
    g = draw(2, N + 1, N, H)
    want = substituted(np.broadcast_to(np.asarray(a)[:, None], (N, N, H, H)), g)
    for solver in (pb.Sweep(), pb.Jacobi()):
        got = pb.solve(pb.Uniform(op, g), solver)
        assert np.abs(got - want).max() < 100 * EPS * np.abs(want).max()
    text = str(jax.make_jaxpr(op.aligned(1).matvec)(g[1:]))
    assert f"[{N},{N},{H},{H}]" not in text.replace(" ", "")

"""Reports: the residual of a solution, and what is called accurate."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal, MatrixFree, to_scaled
from parscan_bp.report import backward_error, error_bound, report_on


def annihilated(n=64):
    """(1, 1) stays, (1, -1) grows by 4 a step and is annihilated by the last: the result is (1, 1).

    Every product with (1, 1) is exact. The product of 16 steps has entries of 4**16 / 2, of which
    float32 does not keep the 1 that their sum is.
    """
    grow, project = [[2.5, -1.5], [-1.5, 2.5]], [[0.5, 0.5], [0.5, 0.5]]
    a = jnp.asarray([project, *[grow] * (n - 1)], jnp.float32)
    return a, jnp.zeros((n + 1, 2), jnp.float32).at[-1].set(1.0)


def solve_with(*solvers, operator=Dense):
    """All of them in one program."""
    return jax.jit(
        lambda a, g: [pb.solve(pb.Uniform(operator(a), g), s, report=True) for s in solvers]
    )


def test_a_tree_that_multiplies_what_is_annihilated_is_reported():
    trees = (pb.Blelloch(), pb.Chunked(chunks=4, scaled=True))
    (swept, good), *others = solve_with(pb.Sweep(), *trees)(*annihilated())
    assert (swept == 1).all() and good.status == pb.Status.OK and good.residual == 0
    for solution, report in others:
        assert report.status == pb.Status.INACCURATE and report.residual > 0.1
        assert float(jnp.abs(solution - swept).max()) > 0.1


def test_a_report_is_alive_under_every_transformation():
    a, g = annihilated()
    solver = pb.Blelloch()

    def loss(a, g):
        solution, report = pb.solve(pb.Uniform(Dense(a), g), solver, report=True)
        return jnp.sum(solution[0]), report

    (_, report), _ = jax.jit(jax.value_and_grad(loss, has_aux=True))(a, g)
    tame = jnp.full_like(a, 0.25)
    _, batch = jax.jit(jax.vmap(loss, (0, None)))(jnp.stack([tame, a, tame * jnp.inf]), g)
    assert report.status == 2 and batch.status.tolist() == [0, 2, 1]
    assert np.isnan(batch.residual[2]) and batch.residual[1] == report.residual
    assert batch.iterations.tolist() == [1, 1, 1] and not batch.fell_back.any()
    tangent = jax.jvp(lambda a: loss(a, g)[1].residual, (a,), (a,))[1]
    assert tangent == 0


def test_the_residual_is_the_componentwise_backward_error():
    a = -jnp.ones((1, 2, 2), jnp.float32)
    solution = jnp.asarray([[-3.3, -3.0], [1.0, 2.0]], jnp.float32)
    system = pb.Uniform(Dense(a), jnp.zeros_like(solution).at[-1].set(solution[-1]))
    report = report_on(system, solution)
    # An error of 0.3, and |lambda_0| + |A| |lambda_1| of 3.3 + 3.
    np.testing.assert_allclose(report.residual, 0.3 / 6.3, rtol=1e-5)
    assert report.status == pb.Status.INACCURATE and report.bound == pytest.approx(1000 * 2.0**-23)
    # What is lost beside a large component is seen.
    system = pb.Uniform(Diagonal(jnp.ones((1, 2))), jnp.asarray([[0.0, 0.0], [1e30, 1.0]]))
    lost = report_on(system, jnp.asarray([[1e30, 0.0], [1e30, 1.0]]))
    assert lost.residual == 1
    assert error_bound(jnp.bfloat16) < 0.1


def test_what_underflow_loses_is_no_error():
    one = Diagonal(jnp.ones(2, jnp.float32))
    v, out = jnp.asarray([[2e-38, 0.0], [3.2e-38, 0.0]], jnp.float32)
    error = lambda v, out: backward_error(one, v, out, None, bound=error_bound(v.dtype))  # noqa: E731
    assert error(v, out) < error_bound(jnp.float32)
    assert error(1e10 * v, 1e10 * out) > 0.1
    assert error(0 * v, 0 * out) == 0
    # Sizes beyond the range are no denominators.
    assert np.isnan(error(*jnp.full((2, 2), 3e38, jnp.float32)))


def test_reports_of_ragged_systems():
    layers = [Dense(jnp.ones((3, 2))), Dense(-jnp.ones((2, 4)))]
    system = pb.Ragged(layers, [None, jnp.ones(2), jnp.ones(4)])
    for solver in (pb.Sweep(), pb.Blelloch(), pb.Blelloch(scaled=True), pb.Planned()):
        solution, report = pb.solve(system, solver, report=True)
        assert [v.tolist() for v in solution] == [[-6.0] * 3, [-3.0] * 2, [1.0] * 4]
        assert report.status == pb.Status.OK and report.residual == 0
    wrong = report_on(system, [jnp.zeros(3), *solution[1:]])
    assert wrong.status == pb.Status.INACCURATE and wrong.residual == 1
    # What a solver does not make is not judged.
    assert report_on(system, [None, *solution[1:]]).status == pb.Status.OK


def test_reports_where_the_magnitude_is_not_known():
    a = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 3)), jnp.float32)
    linear = jax.vmap(lambda a: jax.linearize(lambda v: a @ v, jnp.zeros(3))[1])(a)
    system = pb.Uniform(MatrixFree(linear, True, jnp.zeros(3)), jnp.ones((6, 3)))
    solution, report = pb.solve(system, report=True)
    assert report.status == pb.Status.OK
    assert report_on(system, solution.at[2, 0].add(1.0)).status == pb.Status.INACCURATE


def test_batch_axes_and_exponents():
    a = jnp.full((4, 1, 2), 0.5)
    g = jnp.ones((5, 3, 2))
    operators = to_scaled(Diagonal(a))
    solution = pb.solve(pb.Uniform(operators, g))
    for op in (operators, Diagonal(a)):
        report = report_on(pb.Uniform(op, g), solution)
        assert report.status == pb.Status.OK and report.residual.shape == ()


def test_a_single_cotangent():
    solution, report = pb.solve(
        pb.Uniform(Diagonal(jnp.ones((0, 2))), jnp.ones((1, 2))), report=True
    )
    assert solution.shape == (1, 2) and report.status == pb.Status.OK


@pytest.mark.parametrize(("bad", "name"), [({"report": 1}, "report"), ({"solver": "x"}, "solver")])
def test_arguments_are_checked(bad, name):
    with pytest.raises(TypeError, match=f"{name}: got"):
        pb.solve(pb.Uniform(Diagonal(jnp.ones((1, 2))), jnp.ones((2, 2))), **bad)


def test_derivatives_of_ragged_trees_are_those_of_the_sweep():
    rng = np.random.default_rng(0)
    sizes = (3, 2, 4, 1)
    matrices = [jnp.asarray(rng.normal(size=s)) for s in itertools.pairwise(sizes)]
    g = [None, jnp.ones(2), None, jnp.ones(1)]

    def loss(solver, matrices, last):
        system = pb.Ragged([Dense(m) for m in matrices], [*g[:-1], last])
        return sum(jnp.sum(v**2) for v in pb.solve(system, solver))

    def derivatives(solver):
        f = lambda m, last: loss(solver, [m, *matrices[1:]], last)  # noqa: E731
        slopes = jax.grad(f, (0, 1))(matrices[0], g[-1])
        push = lambda m: jax.jvp(lambda m: f(m, g[-1]), (m,), (jnp.ones_like(m),))[1]  # noqa: E731
        return *slopes, jax.grad(push)(matrices[0])

    for tree in (pb.Blelloch(), pb.Blelloch(scaled=True)):
        got, want = (jax.jit(derivatives, static_argnums=0)(s) for s in (tree, pb.Sweep()))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4)


def test_a_nan_among_many_numbers_is_found():
    """XLA's maximum of many numbers passes over them."""
    v = jnp.ones(5000).at[-1].set(jnp.nan)
    assert np.isnan(backward_error(Diagonal(jnp.ones(5000)), v, v, None, bound=1e-4))
    system = pb.Uniform(Diagonal(jnp.ones((2, 5000)).at[0, -1].set(jnp.nan)), jnp.ones((3, 5000)))
    _, report = pb.solve(system, report=True)
    assert report.status == pb.Status.NON_FINITE and np.isnan(report.residual)

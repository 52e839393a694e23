"""The iterative solvers: what they find, when they stop, and what their report says of it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal, Factored
from tests.family import jit_once, together

H = 4
DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
EPS = float(jnp.finfo(DTYPE).eps)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def contracting(n, q=0.5):
    """Matrices whose largest row sum is q."""
    a = draw(n, n, H, H)
    return a * (q / np.abs(a).sum(-1).max(-1))[:, None, None]


SYSTEMS = {
    "easy": contracting(40),
    "singular": contracting(40) * (np.arange(H) > 1),
    # Nilpotent in each step, and a thousand times the identity beside the diagonal.
    "non-normal": np.broadcast_to(np.eye(H, k=1) * 1e3, (40, H, H)),
    "exploding": 3 * np.linalg.qr(draw(1, 40, H, H))[0],
}


def oracle(a, g):
    out = [g[-1]]
    for t in reversed(range(len(a))):
        out.append(g[t] + a[t] @ out[-1])
    return np.stack(out[::-1])


def system_of(a, g):
    return pb.Uniform(Dense(jnp.asarray(a, DTYPE)), jnp.asarray(g, DTYPE))


def solve(a, g, *solvers):
    """By each solver, all in one program."""
    system = lambda a, g: pb.Uniform(Dense(a), g)  # noqa: E731
    run = jit_once(lambda *at: [pb.solve(system(*at), solver, report=True) for solver in solvers])
    return run(jnp.asarray(a, DTYPE), jnp.asarray(g, DTYPE))


def series(a, g, terms):
    """The first terms of Neumann's series, in float64."""
    out = g.copy()
    for _ in range(terms):
        out = g + np.concatenate([np.einsum("tij,tj->ti", a, out[1:]), np.zeros((1, H))])
    return out


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_sweeps_are_exact_whatever_the_system(name):
    a, g = SYSTEMS[name], draw(0, 41, H)
    want = oracle(a, g)
    for solution, report in solve(a, g, pb.Jacobi(), pb.Richardson(), pb.Jacobi(tol=0.0)):
        scale = np.abs(want).max(-1, keepdims=True)
        np.testing.assert_allclose(solution / scale, want / scale, rtol=0, atol=2000 * EPS)
        assert report.status == pb.Status.OK and report.residual < report.bound
        assert report.iterations <= 40


@pytest.mark.parametrize("sweeps", [1, 2, 7])
def test_so_many_sweeps_are_so_many_terms(sweeps):
    a, g = SYSTEMS["easy"], draw(0, 41, H)
    ((solution, report),) = solve(a, g, pb.Jacobi(sweeps))
    np.testing.assert_allclose(solution, series(a, g, sweeps), atol=50 * EPS)
    assert report.iterations == sweeps
    assert (report.status == pb.Status.OK) == (sweeps == 7 and DTYPE == jnp.float32)


def test_a_tolerance_stops_it_and_the_report_says_where():
    a, g = SYSTEMS["easy"], draw(0, 41, H)
    ((solution, report),) = solve(a, g, pb.Jacobi(tol=1e-3))
    assert report.status == pb.Status.OK and 3 < report.iterations < 15
    history = np.asarray(report.history)
    k = int(report.iterations)
    assert history.shape == (41,) and np.isnan(history[k + 1 :]).all()
    assert history[k] <= 1e-3 < history[k - 1]
    # The largest row sum, and the rate that it promises in the maximum norm.
    np.testing.assert_allclose(report.contraction, 0.5, rtol=1e-6)
    # The history is of what it says: states after 0, 1, ... sweeps.
    for j in range(1, k + 1):
        now, later = series(a, g, j)[:-1], series(a, g, j + 1)[:-1]
        size = np.abs(later - g[:-1]).max(-1)
        want = (np.abs(later - now).max(-1) / size).max()
        np.testing.assert_allclose(history[j], want, rtol=1e-3, atol=10 * EPS)
    np.testing.assert_allclose(solution, series(a, g, k), atol=50 * EPS)


def test_error_shrinks_by_the_contraction_in_every_sweep():
    a, g = SYSTEMS["easy"], draw(0, 41, H)
    want = oracle(a, g)
    errors = [np.abs(series(a, g, k) - want).max() for k in range(6)]
    assert all(b <= 0.5 * a for a, b in itertools.pairwise(errors))
    found = solve(a, g, *(pb.Jacobi(k) for k in (1, 3, 5)))
    ours = [np.abs(solution - want).max() for solution, _ in found]
    np.testing.assert_allclose(ours, errors[1::2], rtol=1e-3, atol=50 * EPS)


@pytest.mark.parametrize("omega", [0.7, 1.0, 1.1])
def test_richardson_is_damped_jacobi(omega):
    a, g = SYSTEMS["easy"][:5], draw(0, 6, H)
    x = np.zeros((5, H))
    shown = lambda x: g[1:] + np.concatenate([x[1:], np.zeros((1, H))])  # noqa: E731
    for _ in range(4):
        x = x + omega * (np.einsum("tij,tj->ti", a, shown(x)) - x)
    few, all_of_them = pb.Richardson(omega, sweeps=4), pb.Richardson(omega, tol=10 * EPS)
    (solution, report), (full, said) = solve(a, g, few, all_of_them)
    np.testing.assert_allclose(solution[:-1], g[:-1] + x, atol=50 * EPS)
    assert report.iterations == 4
    np.testing.assert_allclose(full, oracle(a, g), atol=2000 * EPS)
    assert said.status == pb.Status.OK


def test_richardson_on_the_paper_s_scaling_is_ours_with_another_omega():
    """E v - W^T v = c with Richardson's step, in lambda = E v."""
    w, e = draw(0, 5, H, H) / 4, np.random.default_rng(1).uniform(1, 1.9, (6, H))
    c, omega, v = draw(2, 6, H), 0.7, np.zeros((6, H))
    e[0] = 1
    lam = e * v
    for _ in range(3):
        pushed = np.concatenate([np.einsum("tji,tj->ti", w, v[1:]), np.zeros((1, H))])
        v = v + omega * (c + pushed - e * v)
        a_lam = np.concatenate([np.einsum("tji,tj->ti", w, (lam / e)[1:]), np.zeros((1, H))])
        lam = lam + omega * e * (c + a_lam - lam)
    np.testing.assert_allclose(lam, e * v, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bicgstab_on_a_dominant_system(dtype):
    if dtype == "float64" and DTYPE != jnp.float64:
        pytest.skip("float64 needs JAX_ENABLE_X64")
    a, g = SYSTEMS["easy"], draw(0, 41, H)
    run = jit_once(lambda a, g: pb.solve(pb.Uniform(Dense(a), g), pb.BiCGStab(), report=True))
    solution, report = run(jnp.asarray(a, dtype), jnp.asarray(g, dtype))
    want = oracle(a, g)
    assert report.status == pb.Status.OK and 2 < report.iterations < 40
    tol = 1000 * float(jnp.finfo(dtype).eps)
    assert np.linalg.norm(solution - want) < 10 * tol * np.linalg.norm(want)
    assert report.history[0] == 1 and report.history[int(report.iterations)] <= tol


def test_the_first_residual_is_no_shadow():
    """Only the last cotangent: r_0 has one block, and (r_0, A p) is that of the identity alone."""
    a, g = SYSTEMS["easy"], np.zeros((41, H))
    g[-1] = draw(3, H)

    # Two rounds of the usual method in float64, the shadow being the first residual.
    def product(x):
        pushed = np.einsum("tij,tj->ti", a[:-1], x[1:])
        return x - np.concatenate([pushed, np.zeros((1, H))])

    b = np.concatenate([np.zeros((39, H)), (a[-1] @ g[-1])[None]])
    r = p = shadow = b
    rho, lost = np.vdot(shadow, r), None
    for k in range(2):
        v = product(p)
        alpha = rho / np.vdot(shadow, v)
        s = r - alpha * v
        t = product(s)
        w = np.vdot(t, s) / np.vdot(t, t)
        r = s - w * t
        new = np.vdot(shadow, r)
        if abs(new) < 1e-14 * np.linalg.norm(shadow) * np.linalg.norm(r):
            lost = k
            break
        p, rho = r + new / rho * alpha / w * (p - w * v), new
    assert lost == 0
    ((solution, report),) = solve(a, g, pb.BiCGStab())
    want = oracle(a, g)
    assert report.status == pb.Status.OK
    assert np.linalg.norm(solution - want) < 1e4 * EPS * np.linalg.norm(want)


def test_a_breakdown_is_reported():
    """Products that grow by 1e3 in each of 40 steps leave nothing of an inner product."""
    a, g = SYSTEMS["non-normal"], np.zeros((41, H))
    g[-1] = draw(3, H)
    ((_, report),) = solve(a, g, pb.BiCGStab(restarts=0))
    assert report.status in (pb.Status.BREAKDOWN, pb.Status.NON_FINITE)
    ((_, report),) = solve(SYSTEMS["exploding"], draw(0, 41, H), pb.BiCGStab())
    assert report.status != pb.Status.OK


def test_entries_that_have_ended_stay_as_they_are():
    """To the last bit, whatever the others need."""
    g = jnp.asarray(draw(0, 41, H), DTYPE)
    easy, hard = (jnp.asarray(contracting(40, q), DTYPE) for q in (0.1, 0.95))
    for solver in (pb.Jacobi(tol=1e-4), pb.BiCGStab(tol=1e-4), pb.Richardson(0.9, tol=1e-4)):
        run = jax.jit(
            jax.vmap(lambda a, s=solver: pb.solve(pb.Uniform(Dense(a), g), s, report=True))
        )
        alone, alike = run(jnp.stack([easy, easy]))
        mixed, report = run(jnp.stack([easy, hard]))
        np.testing.assert_array_equal(mixed[0], alone[0])
        assert report.iterations[0] == alike.iterations[0] < report.iterations[1]


def test_statuses_under_vmap_and_an_infinity():
    g = jnp.asarray(draw(0, 41, H), DTYPE)
    a = jnp.asarray(SYSTEMS["easy"], DTYPE)
    run = jit_once(
        jax.vmap(lambda a: pb.solve(pb.Uniform(Dense(a), g), pb.Jacobi(5, tol=1e-3), report=True))
    )
    _, report = run(jnp.stack([0.1 * a, a, a.at[3].set(jnp.inf)]))
    names = [pb.Status(int(s)).name for s in report.status]
    assert names == ["OK", "INACCURATE", "NON_FINITE"]


def test_infinities_are_where_a_sweep_has_them():
    a = SYSTEMS["easy"].copy()
    a[20, 0, 0] = np.inf
    g = draw(0, 41, H)
    got, want = (pb.solve(system_of(a, g), s) for s in (pb.Jacobi(), pb.Sweep()))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


@pytest.mark.parametrize(
    "solver",
    [pb.Jacobi(), pb.Jacobi(tol=10 * EPS), pb.Richardson(0.9, tol=10 * EPS), pb.CyclicReduction()],
    ids=str,
)
def test_every_derivative_of_a_solution(solver, request):
    a, g = jnp.asarray(contracting(7), DTYPE), jnp.asarray(draw(0, 8, H), DTYPE)
    w = jnp.asarray(draw(5, 8, H), DTYPE)

    def everything(solver, a, g):
        loss = lambda a, g: jnp.sum(w * pb.solve(pb.Uniform(Dense(a), g), solver) ** 2)  # noqa: E731
        slopes = jax.grad(loss, (0, 1))
        total = lambda a, g: sum(jnp.sum(jnp.sin(s)) for s in slopes(a, g))  # noqa: E731
        return (
            slopes(a, g),
            jax.jvp(loss, (a, g), (jnp.cos(a), jnp.cos(g))),
            jax.grad(total, (0, 1))(a, g),
            jax.jvp(slopes, (a, g), (jnp.cos(a), jnp.cos(g)))[1],
            jax.grad(jax.checkpoint(loss))(a, g),
        )

    def case(solver):
        return lambda *at: [everything(s, *at) for s in (solver, pb.Sweep())], (a, g)

    got, want = together(request, case)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = float(jnp.abs(y).max())
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=5000 * EPS)


@pytest.mark.reads_compiled
@pytest.mark.parametrize("per_layer", [False, True], ids=["recurrent", "feed-forward"])
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Jacobi(8), pb.BiCGStab(4)], ids=str)
def test_mini_batches_share_what_is_beside_the_diagonal(solver, per_layer):
    """(R + E_i) v = c_i for r samples i: W once, a diagonal per sample, nothing spread."""
    n, rows, features = 16, 32, 48
    shape = (n, 1, features, features) if per_layer else (features, features)
    w = jnp.asarray(draw(0, *shape) / features, jnp.float32)
    d = jnp.asarray(draw(1, n, rows, features), jnp.float32)
    g = jnp.asarray(draw(2, n + 1, rows, features), jnp.float32)
    run = jax.jit(lambda w, d, g: pb.solve(pb.Uniform(Factored.from_diagonal(w, d), g), solver))
    compiled = run.lower(w, d, g).compile()
    vectors, spread = g.nbytes, 4 * n * rows * features**2
    temp = compiled.memory_analysis().temp_size_in_bytes
    # The paper's delta, 2 to 7 vectors of all steps, and what XLA takes beside them.
    assert temp < 9 * vectors < spread / 4
    if not isinstance(solver, pb.BiCGStab):
        one = Factored.from_diagonal(w[:, 0] if per_layer else w, d[:, 3])
        want = jax.jit(lambda one, g: pb.solve(pb.Uniform(one, g)))(one, g[:, 3])
        np.testing.assert_allclose(compiled(w, d, g)[:, 3], want, atol=1e-4)


def test_states_of_several_leaves_and_scalars():
    def step(c, x):
        h, k = c
        return (jnp.tanh(0.5 * h + 0.1 * k + x), 0.5 * k + jnp.sum(h)), h * k

    c0 = (jnp.asarray(draw(0, 3), DTYPE), jnp.asarray(0.3, DTYPE))
    xs = jnp.asarray(draw(1, 9, 3), DTYPE)

    def gradient(scan, c0, xs):
        def loss(c0, xs):
            (h, k), ys = scan(step, c0, xs)
            return jnp.sum(h) + k**2 + jnp.sum(jnp.sin(ys))

        return jax.grad(loss, (0, 1))(c0, xs)

    solvers = pb.Jacobi(), pb.Jacobi(tol=EPS), pb.Richardson(0.9, tol=EPS)
    scans = lax.scan, *(functools.partial(pb.scan, solver=s) for s in solvers)
    want, *each = jit_once(lambda c0, xs: [gradient(scan, c0, xs) for scan in scans])(c0, xs)
    for got in each:
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=2000 * EPS, atol=2000 * EPS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pb.Jacobi(0), "sweeps: got 0; at least 1"),
        (lambda: pb.Jacobi(tol=-1.0), r"tol: got -1\.0; a number of at least 0"),
        (lambda: pb.Jacobi(tol="small"), "tol: got 'small', of type str"),
        (lambda: pb.Richardson(2.0), "omega: got 2.0; a number between 0 and 2"),
        (lambda: pb.Richardson(0), "omega: got 0; a number between 0 and 2"),
        (lambda: pb.BiCGStab(0), "rounds: got 0"),
        (lambda: pb.BiCGStab(restarts=-1), "restarts: got -1; at least 0"),
        (lambda: pb.Truncated(0), "window: got 0"),
        (lambda: pb.Truncated(3, sliding=1), "sliding: got 1"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_the_report_of_a_direct_solver_has_none_of_it():
    _, report = pb.solve(pb.Uniform(Diagonal(jnp.ones((2, 3))), jnp.ones((3, 3))), report=True)
    assert report.history is report.contraction is report.cut_off is None


def products_of(solver, n=12):
    """How often every map is multiplied, counted; and once more to find shapes."""
    calls, matvec = 0, Dense.matvec

    def counted(self, v):
        nonlocal calls
        calls += 1
        return matvec(self, v)

    system = system_of(0.99 * contracting(n, 1.0), draw(0, n + 1, H))
    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(Dense, "matvec", counted)
        solver.run(system, jnp.zeros(H, DTYPE))
    return calls - 1


@pytest.mark.parametrize(
    "solver",
    [
        *(pb.Jacobi(), pb.Jacobi(5), pb.Jacobi(5, tol=0.0), pb.Richardson(0.5, sweeps=7)),
        *(pb.Truncated(4, sliding=True), pb.Truncated(30, sliding=True)),
    ],
    ids=str,
)
def test_products_are_those_that_are_stated(solver):
    stated = solver.complexity(12)
    assert products_of(solver) == stated.steps == stated.vector_products // 12
    assert stated.matrix_products == 0 and stated.operators == 12


def test_a_round_of_bicgstab_is_two_products():
    few, more = pb.BiCGStab(1, tol=0.0), pb.BiCGStab(3, tol=0.0)
    assert products_of(more) - products_of(few) == 4
    assert more.complexity(12).steps - few.complexity(12).steps == 4


def test_the_paper_s_counts():
    """Equations (42) to (47) without their elementwise terms, for equal sizes and batches of r."""
    n, h, r = 1024, 16, 8
    work = lambda c: c.matrix_products * h**3 + c.vector_products * h**2 * r  # noqa: E731
    sequential = n * h**2 * r
    assert work(pb.Sweep().complexity(n)) == sequential
    assert work(pb.Jacobi(5).complexity(n)) == 5 * sequential
    reduced = work(pb.CyclicReduction().complexity(n))
    assert n * h**3 * 8 < reduced <= (n * h**3 + sequential) * np.log2(n)
    # No map of a level outlives the next: double the memory of a sweep's.
    assert pb.CyclicReduction().complexity(n).operators == 2 * n


@pytest.mark.parametrize("solver", [pb.BiCGStab(), pb.Richardson(0.5)], ids=repr)
def test_what_divides_takes_no_integers(solver):
    system = pb.Uniform(Diagonal(jnp.full((3, 1), 2)), jnp.ones((4, 1), int))
    assert pb.solve(system, pb.Jacobi()).ravel().tolist() == [15, 7, 3, 1]
    with pytest.raises(TypeError, match=r"system: got int\d+; \w+\(.*\) divides, and wants floats"):
        pb.solve(system, solver)

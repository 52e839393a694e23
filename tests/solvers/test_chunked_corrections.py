"""Correction rounds: how many there are, what ends them, and what becomes of the rest."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Dense, Diagonal
from parscan_bp.solvers import chunked_corrections
from tests.family import jit_once

DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
H = 3


def draw(seed, *shape, dtype=DTYPE):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def rotations(n, scale=1.0, seed=0):
    """Matrices that do not commute and multiply every length by ``scale``."""
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, H, H)))[0]
    return jnp.asarray(scale * q, DTYPE)


def oracle(a, g):
    """lambda by substitution in float64."""
    a, out = np.asarray(a, np.float64), [np.asarray(g[-1], np.float64)]
    for t in reversed(range(len(a))):
        out.append(np.asarray(g[t], np.float64) + a[t] @ out[-1])
    return np.stack(out[::-1])


@functools.cache
def program(solver, operator):
    return jit_once(lambda a, g: pb.solve(pb.Uniform(operator(a), g), solver, report=True))


def solved(solver, a, g, operator=Dense):
    return program(solver, operator)(a, g)


def told(report):
    return int(report.iterations), bool(report.fell_back)


def close(got, want, ulps):
    """Against the largest number of each step."""
    size = np.abs(want).max(-1, keepdims=True)
    eps = float(jnp.finfo(got.dtype).eps)
    assert (np.abs(np.asarray(got, np.float64) - want) / size).max() < ulps * eps


# (what a step multiplies lengths by, the most rounds) -> (rounds, whether the rest was swept).
COUNTS = {
    "forgotten within a chunk": ((1e-5, None), (1, False)),
    "within a few": ((0.02, 7), (2 if DTYPE == jnp.float32 else 3, False)),
    "neutral": ((1.0, 7), (7, False)),
    "neutral, stopped": ((1.0, None), (2, True)),
    "explodes": ((2.0, 7), (7, False)),
    "explodes, stopped": ((2.0, 3), (3, True)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_rounds_are_as_many_as_the_chunks_that_a_step_reaches(name):
    (scale, most), want = COUNTS[name]
    n = 8 * 4 + 1
    a, g = rotations(n, scale), draw(1, n + 1, H)
    solution, report = solved(pb.ChunkedCorrections(8, max_rounds=most), a, g)
    assert told(report) == want and report.status == pb.Status.OK
    close(solution, oracle(a, g), 64)


def test_chunks_that_are_chosen():
    for n, count in ((1, 1), (127, 1), (128, 2), (1000, 15), (10**6, 64)):
        assert pb.ChunkedCorrections().count(n) == count
    assert pb.ChunkedCorrections(8).count(3) == 3
    swept = pb.ChunkedCorrections(8).complexity(64)
    assert (swept.steps, swept.matrix_products, swept.vector_products) == (16, 0, 64 + 56)
    assert pb.ChunkedCorrections(1).complexity(64).steps == 64


@pytest.mark.parametrize(
    ("n", "chunks"), [*((n, 3) for n in (1, 2, 3, 7, 8, 9)), (9, 1), (31, 2), (31, 8)]
)
def test_any_length(n, chunks):
    a, g = rotations(n), draw(n, n + 1, H)
    solution, report = solved(pb.ChunkedCorrections(chunks, max_rounds=100), a, g)
    assert told(report) == (min(chunks, n) - 1, False)
    close(solution, oracle(a, g), 64)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [3, 17, 24])
def test_what_is_not_finite_is_that_of_a_sweep(bad, at):
    """At the end of the first chunk, within one, and as what enters all of them."""
    a, g = rotations(24).at[:, 0].set(0.0), draw(0, 25, H).at[at, 1].set(bad)
    want = solved(pb.Sweep(), a, g)[0]
    got, report = solved(pb.ChunkedCorrections(4, max_rounds=3), a, g)
    assert report.status == pb.Status.NON_FINITE and report.fell_back
    assert not np.isfinite(want).all() and np.isfinite(want[at + 1 :]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("steps", [3, 30, 1200])
def test_chunks_that_grow_where_the_solution_is_tame(steps):
    """-1 = 1 + 2 (-1), exactly; from zero a chunk grows to 2^steps - 1, and may overflow."""
    a, g = jnp.full((4 * steps, 1), 2.0, DTYPE), jnp.ones((4 * steps + 1, 1), DTYPE).at[-1].set(-1)
    solution, report = solved(pb.ChunkedCorrections(4, max_rounds=3), a, g, Diagonal)
    assert (solution == -1).all() and report.status == pb.Status.OK
    assert told(report)[1] == (steps > 3)


def test_a_component_that_is_small_and_grows_is_not_dropped():
    """Beside one of order 1 it is below rounding at the seam, and larger when the chunk ends."""
    n, growth = 64, 4.0
    a = jnp.stack([jnp.full(n, 0.5, DTYPE), jnp.full(n, growth, DTYPE)], -1)
    g = jnp.zeros((n + 1, 2), DTYPE).at[:, 0].set(1.0).at[-1, 1].set(2.0**-100)
    solution, report = solved(pb.ChunkedCorrections(4, max_rounds=3), a, g, Diagonal)
    want = 2.0**-100 * growth ** np.arange(n, -1.0, -1.0)
    assert (solution[:, 1] == want).all() and not report.fell_back


@pytest.mark.parametrize("seed", range(4))
def test_transients_that_shrink_and_grow_within_a_chunk(seed):
    """Every chunk shrinks lengths by 10^7 (10^15) and then grows them again, along directions that
    are not at right angles: a correction is far below rounding where the growth begins."""
    n, half = 96, 12
    strong = 4.0 if DTYPE == jnp.float32 else 18.0
    skew = jnp.eye(H) + 3 * jnp.triu(jnp.ones((H, H)), 1)
    scale = jnp.where(jnp.arange(n) % (2 * half) < half, strong, 1 / strong)[:, None, None]
    a = jnp.asarray(0.5 * scale * (rotations(n, seed=seed) @ skew), DTYPE)
    g = draw(seed, n + 1, H)
    want, sweep = oracle(a, g), solved(pb.Sweep(), a, g)[0]
    got, report = solved(pb.ChunkedCorrections(4, max_rounds=3), a, g)
    assert report.status == pb.Status.OK
    error = lambda v: np.abs(v - want).max(-1) / np.abs(want).max(-1)  # noqa: E731
    eps = float(jnp.finfo(DTYPE).eps)
    # What a step makes of a rounding is the system's; of it a sweep has a part, and so have rounds.
    assert error(got).max() < 8 * error(sweep).max() + 8 * eps


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, DTYPE], ids=str)
def test_every_dtype(dtype):
    a, g = rotations(40, 0.7).astype(dtype), draw(0, 41, H, dtype=dtype)
    solution, report = solved(pb.ChunkedCorrections(4, max_rounds=3), a, g)
    assert solution.dtype == dtype and report.status == pb.Status.OK
    close(solution, oracle(a, g), 16)


def test_steps_that_no_correction_reaches_are_not_visited(monkeypatch):
    """Blocks that are swept: of corrections, of every chunk at once; and sequentially."""
    counts, swept = {"corrections": 0, "rest": 0}, chunked_corrections._Chunks.swept

    def count(kind):
        counts[kind] += 1

    def count_swept(self, block, states, **how):
        if how:
            jax.debug.callback(functools.partial(count, "corrections"))
        return swept(self, block, states, **how)

    def count_joined(self, values):
        monkeypatch.setattr(chunked_corrections, "sweep_stretch", count_stretch)
        return joined(self, values)

    def count_stretch(*args):
        jax.debug.callback(functools.partial(count, "rest"))
        return sweep(*args)

    joined, sweep = chunked_corrections._Chunks.joined, chunked_corrections.sweep_stretch
    monkeypatch.setattr(chunked_corrections._Chunks, "swept", count_swept)
    monkeypatch.setattr(chunked_corrections._Chunks, "joined", count_joined)
    monkeypatch.setattr(chunked_corrections, "default_chunk", lambda *_: 4)
    g = jnp.ones((33, 1), DTYPE)

    def visited(slope, *options, **more):
        counts.update(corrections=0, rest=0)
        solver = pb.ChunkedCorrections(*options, **more)
        run = lambda a: solver.run(pb.Uniform(Diagonal(a), g), jnp.zeros(1, DTYPE))  # noqa: E731
        monkeypatch.setattr(chunked_corrections, "sweep_stretch", sweep)
        jit_once(run)(jnp.full((32, 1), slope, DTYPE))
        jax.effects_barrier()
        return counts["corrections"], counts["rest"]

    lost = 1 if DTYPE == jnp.float32 else 2  # blocks in which 2^-8 a step becomes less than an ulp
    assert visited(2.0**-8, 2) == (lost, 0)
    assert visited(1.0, 2) == (4, 0)
    assert visited(1.0, 4, max_rounds=1) == (2, 4)


def test_entries_of_a_mapped_axis_do_not_meet():
    """The one that is hard takes all rounds, or falls back; the others stay what they were."""
    n = 64
    slopes, g = jnp.sign(draw(0, 3, n, H)), draw(1, 3, n + 1, H)

    def mapped(solver):
        one = lambda a, g: pb.solve(pb.Uniform(Diagonal(a), g), solver, report=True)  # noqa: E731
        run = jit_once(jax.vmap(one))
        return lambda *scale: run(slopes * jnp.asarray(scale, DTYPE)[:, None, None], g)

    for most in (7, 2):
        run = mapped(pb.ChunkedCorrections(8, max_rounds=most))
        (easy, first), (solution, report) = run(1e-3, 2e-3, 1e-3), run(1e-3, 1.0, 1e-3)
        np.testing.assert_array_equal(solution[::2], easy[::2])
        assert not first.fell_back.any() and (first.iterations <= 2).all()
        assert report.iterations.tolist() == [first.iterations[0], most, first.iterations[2]]
        assert report.fell_back.tolist() == [False, most < 7, False]
        assert report.status.tolist() == [0, 0, 0]


def test_a_loop_that_is_mapped_selects_nothing_that_it_carries():
    """Its condition is one for all entries, or JAX would copy every carry in each iteration."""
    solver = pb.ChunkedCorrections(4)
    one = lambda a, g: solver.run(pb.Uniform(Diagonal(a), g), jnp.zeros(H))  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.vmap(one))(jnp.ones((2, 32, H)), jnp.ones((2, 33, H)))
    loops = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    assert len(loops) >= 2
    for eqn in loops:
        assert eqn.params["cond_jaxpr"].out_avals[0].shape == ()


def test_derivatives_of_a_solution():
    a, g, w = rotations(9), draw(0, 10, H), draw(1, 10, H)

    def derivatives(solver, a, g):
        loss = lambda a, g: jnp.sum(w * pb.solve(pb.Uniform(Dense(a), g), solver) ** 2)  # noqa: E731
        slopes = jax.grad(loss, (0, 1))
        total = lambda a, g: sum(jnp.sum(s**2) for s in slopes(a, g))  # noqa: E731
        return slopes(a, g), jax.jvp(loss, (a, g), (a, g)), jax.grad(total, (0, 1))(a, g)

    solvers = pb.ChunkedCorrections(3), pb.Sweep()
    got, want = jit_once(lambda a, g: [derivatives(s, a, g) for s in solvers])(a, g)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(jnp.abs(other).max()))


def test_the_report_of_a_scan_says_how_many_rounds():
    xs = draw(0, 64, H)
    for most, wants in ((7, [(1, False), (7, False)]), (None, [(1, False), (2, True)])):
        solver = pb.ChunkedCorrections(8, max_rounds=most)

        def run(slope, solver=solver):
            step = lambda c, x: (slope * c + x, None)  # noqa: E731
            return pb.scan(step, jnp.zeros(H, DTYPE), xs, solver=solver, report=True)[2]

        reports = jit_once(lambda *slopes, run=run: [run(slope) for slope in slopes])(1e-3, 1.0)
        for report, want in zip(reports, wants, strict=True):
            assert told(report) == want and report.status == pb.Status.OK


LAYERS = [*[pb.layers.Linear(4), jnp.tanh] * 3, pb.layers.Linear(2)]


@pytest.mark.parametrize(("chunks", "most"), [(3, 6), (7, 1)])
def test_layers_of_different_sizes(chunks, most):
    params, x = pb.layers.init(LAYERS, jax.random.key(0), (3,)), draw(0, 5, 3)
    solver = pb.ChunkedCorrections(chunks, max_rounds=most)

    def derivatives(solver, x):
        loss = lambda p, x: jnp.sum(pb.chain(LAYERS, p, x, solver=solver) ** 2)  # noqa: E731
        slopes = jax.grad(loss, (0, 1))
        return slopes(params, x), jax.jvp(slopes, (params, x), (params, x))[1]

    def run(x):
        report = pb.chain(LAYERS, params, x, solver=solver, report=True)[1]
        return derivatives(solver, x), derivatives(pb.Sweep(), x), report

    got, want, report = jit_once(run)(x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    rounds = min(chunks, 6) - 1  # nothing is wanted of what enters the first layer
    assert told(report) == (min(most, rounds), most < rounds)
    assert report.status == pb.Status.OK


def test_layers_that_are_mapped_or_not_finite():
    sizes = (2, 3, 2, 3, 2)
    matrices = [draw(k, *pair) for k, pair in enumerate(itertools.pairwise(sizes))]
    g = [None, draw(7, 3), None, None, draw(8, 2)]

    def run(solver, g):
        return pb.solve(pb.Ragged([Dense(m) for m in matrices], g), solver, report=True)

    solver = pb.ChunkedCorrections(4, max_rounds=2)
    last = jnp.stack([g[-1], jnp.zeros(2), g[-1] * jnp.nan])
    both = lambda last: [run(s, [*g[:-1], last]) for s in (solver, pb.Sweep())]  # noqa: E731
    (got, report), (want, _) = jit_once(jax.vmap(both))(last)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert report.iterations.tolist()[:2] == [2, 1]  # of the other cotangent alone
    assert report.fell_back.tolist() == [True, False, True]
    assert report.status.tolist() == [0, 0, 1]


def test_a_step_along_a_mapped_axis_is_refused():
    """Entries, and devices, may differ in their rounds, and would wait for one another."""
    along = lambda c, x: (0.5 * c + jax.lax.pmean(x, "i"), None)  # noqa: E731

    def run(solver, xs):
        return jax.vmap(lambda xs: pb.scan(along, 0.0, xs, solver=solver)[0], axis_name="i")(xs)

    xs = jnp.ones((2, 4))
    assert run(pb.Sweep(), xs).shape == (2,)
    with pytest.raises(NotImplementedError, match=r"ChunkedCorrections.*works along a mapped axis"):
        run(pb.ChunkedCorrections(2), xs)


def test_inside_a_mesh():
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(scale, xs):
        step = lambda h, x: (scale[0] * h + x, None)  # noqa: E731
        solver = pb.ChunkedCorrections(4, max_rounds=3)
        return jax.grad(lambda xs: pb.scan(step, 0 * xs[0, 0], xs[0], solver=solver)[0].sum())(xs)

    scale = jnp.linspace(0.1, 1.0, jax.device_count())
    xs = jnp.ones((jax.device_count(), 16, 2))
    spec = jax.sharding.PartitionSpec("i")
    got = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(scale, xs)
    want = scale[:, None, None] ** jnp.arange(15.0, -1, -1)[:, None] * jnp.ones(2)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("options", [{"chunks": 0}, {"max_rounds": 0}, {"max_rounds": -1}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: got .*at least 1"):
        pb.ChunkedCorrections(**options)
    with pytest.raises(TypeError, match=r"max_rounds: got 2\.5"):
        pb.ChunkedCorrections(max_rounds=2.5)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_nothing_is_solved_in_nothing(shape):
    def loss(xs):
        step = lambda h, x: (jnp.tanh(0.5 * h + x), h)  # noqa: E731
        return pb.scan(step, jnp.zeros(shape), xs, solver=pb.ChunkedCorrections(3))[1].sum()

    assert jax.grad(loss)(jnp.ones((9, *shape))).shape == (9, *shape)

"""Native loops: drawn steps and every size against float64, what is not taken, where they run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import parscan_bp as pb
from parscan_bp import native
from tests.native.drawn_steps import Drawn

pytest.importorskip("llvmlite")


def _is_native(f, *args):
    return "parscan_bp_" in jax.jit(f).lower(*args).as_text()


def _against_float64(seed, dtype):
    """The loop, and the same of the same numbers in float64 by `lax.scan`."""
    drawn = Drawn(seed, dtype)

    def run(scan, shared, init, xs):
        step = functools.partial(drawn.step, shared)
        return scan(step, init, xs, length=drawn.length, reverse=drawn.reverse)

    got = jax.jit(functools.partial(run, native.scan))(drawn.shared, drawn.init, drawn.xs)
    assert _is_native(functools.partial(run, native.scan), drawn.shared, drawn.init, drawn.xs)
    args = jax.tree.map(np.asarray, (drawn.shared, drawn.init, drawn.xs))
    with jax.enable_x64(True):
        args = jax.tree.map(lambda a: jnp.asarray(a, np.float64), args)
        want = jax.jit(functools.partial(run, lax.scan))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b)
        bound = 1e3 * np.finfo(np.dtype(dtype)).eps * (1 + np.abs(b).max())
        np.testing.assert_allclose(a, b, 0, bound)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_steps(seed):
    _against_float64(seed, np.float32)


@pytest.mark.parametrize("seed", range(6, 8))
def test_drawn_steps_in_float64(seed):
    with jax.enable_x64(True):
        _against_float64(seed, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_drawn_steps(seed):
    with jax.enable_x64(seed % 2 == 1):
        _against_float64(seed, np.float64 if seed % 2 else np.float32)


SIZES = [(1, 1), (1, 3), (2, 5), (3, 16), (4, 17), (5, 20), (7, 33), (9, 64), (2, 80), (13, 31)]


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_all_sizes(turned):
    """A block of sums may overlap the one before in rows and in columns."""
    draw, runs, wanted = np.random.default_rng(0), [], []
    for rows, columns in SIZES:
        v = draw.normal(size=(rows, 11)).astype(np.float32)
        w = draw.normal(size=(columns, 11) if turned else (11, columns)).astype(np.float32)

        def step(c, x, turned=turned, w=w):
            return c, x @ jnp.asarray(w).T if turned else x @ jnp.asarray(w)

        runs.append(functools.partial(native.scan, step, np.float32(0), v[None], length=1))
        assert _is_native(runs[-1])
        wanted.append(v.astype(np.float64) @ (w.T if turned else w).astype(np.float64))
    for (_, got), want in zip(jax.jit(lambda: [run() for run in runs])(), wanted, strict=True):
        np.testing.assert_allclose(got[0], want, 0, 2e-5)


def _mapped_weights():
    w = jnp.stack([jnp.eye(3), 2 * jnp.eye(3)])
    scan = functools.partial(native.scan, xs=None, length=4)
    return jax.vmap(lambda w: scan(lambda c, _: (c @ w, c), jnp.ones((2, 3)))[0])(w)


def test_what_is_not_taken_is_a_loop_of_xla():
    got = jax.jit(_mapped_weights)()
    np.testing.assert_array_equal(got, np.stack([np.ones((2, 3)), np.full((2, 3), 16.0)]))
    assert not _is_native(_mapped_weights)


REASONS = {
    "contains sort": lambda c, x: (jnp.sort(c), c),
    "multiplies two values that change": lambda c, x: (c @ x, c),
    "contains transpose": lambda c, x: (c.T, c),
    "from the left": lambda c, x: (jnp.ones((3, 3)) @ c, c),
    "an array of 1 axes": lambda c, x: (c, c @ jnp.ones(3)),
    "types float32, int32": lambda c, x: (c * jnp.argmax(x), c),
    "joins values along another axis": lambda c, x: (c, jnp.stack([c, x], 1)),
    "has effects": lambda c, x: (c, jax.debug.print("{}", x)),
    "has values without entries": lambda c, x: (c, x[:0]),
    "another axis than the first or last": lambda c, x: (c, jnp.stack([c, x])[:, 1:2]),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_step_is_not_taken(reason):
    c, x = jnp.ones((3, 3)), jnp.ones((3, 3))
    closed = jax.make_jaxpr(REASONS[reason])(c, x)
    assert reason in native.unsupported(closed, 0, 1, 4, False)


def test_a_carry_that_goes_round_and_one_that_stays():
    """Two places by turns, a carry that is another one's, an output that is an input."""

    def step(carry, x):
        a, b, c = carry
        return (b, a + x, c), (a, x, c)

    init, xs = (jnp.zeros(3), jnp.ones(3), jnp.full(3, 7.0)), jnp.arange(15.0).reshape(5, 3)
    for reverse in (False, True):
        run = [
            jax.jit(functools.partial(scan, step, init, xs, length=5, reverse=reverse))
            for scan in (native.scan, lax.scan)
        ]
        assert _is_native(functools.partial(native.scan, step, init, xs, length=5))
        jax.tree.map(np.testing.assert_array_equal, run[0](), run[1]())


def test_what_is_made_of_shared_values_is_made_ahead():
    w = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)) / 4, jnp.float32)
    keep = jnp.array([[True, False, True], [True, True, False]])

    def step(c, x):
        keep, x = x
        c = jnp.where(keep[:, None], c, 0.0)
        c = jnp.tanh(
            c @ (w @ w.T + jnp.eye(4)) + c[:, :2] @ w[:2] + x @ jnp.concatenate([w, w], 1)[:, 2:6]
        )
        return c, c.reshape(2, 6)[:, ::1] * 2

    init, xs = jnp.ones((3, 4)), (keep, jnp.ones((2, 3, 4)))
    got, want = (
        jax.jit(functools.partial(scan, step, init, xs, length=2))()
        for scan in (native.scan, lax.scan)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), got, want)
    assert _is_native(functools.partial(native.scan, step, init, xs, length=2))


@pytest.mark.parametrize("columns", [3, 8, 21])
def test_bools_are_results_and_parts_of_others(columns):
    """Stored for a gradient, joined, read again behind a product."""
    w = jnp.eye(columns)[::-1]

    def step(c, x):
        low = jnp.concatenate([c[:, :2] > 0.5, x[:, 2:] > 0], 1)
        high = jnp.where(low, c, x) @ w > 1
        return jnp.where(low & high, x, c - 0.25), (low, high, ~low | (x > c), c > 2)

    draw = np.random.default_rng(0).normal(size=(6, 4, columns)).astype(np.float32)
    run = [
        functools.partial(scan, step, draw[0], draw, length=6) for scan in (native.scan, lax.scan)
    ]
    assert _is_native(run[0])
    jax.tree.map(np.testing.assert_array_equal, *(jax.jit(f)() for f in run))


def test_infinities_and_nan_are_those_of_lax():
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 1.0], np.float32)

    def step(c, x):
        y = [c * x, c + x, c / x, jnp.maximum(c, x), jnp.minimum(c, x), jnp.where(c > x, c, x)]
        y += [jnp.tanh(x), jax.nn.sigmoid(x), jnp.exp(x), jnp.abs(x), -x, jnp.sqrt(x)]
        y += [jnp.expm1(x), jnp.log1p(x), lax.rsqrt(x), jnp.sign(x), jnp.floor(x), jnp.ceil(x)]
        y += [jnp.round(x), jnp.round(1.5 * x + 1), lax.round(0.5 * x), jax.nn.softplus(x)]
        y += [jnp.where(jnp.isfinite(x), x, c)]
        return c, y

    init, xs = values, np.stack([np.roll(values, k) for k in range(8)])
    got, want = (
        jax.jit(functools.partial(scan, step, init, xs, length=8))()
        for scan in (native.scan, lax.scan)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(a, b, 1e-6)
        sure = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[sure], np.signbit(b)[sure])


def test_the_name_is_that_of_what_it_does():
    """JAX's persistent cache finds it in another process by its name."""

    def text(scale):
        run = functools.partial(native.scan, lambda c, x: (c * scale, c), jnp.ones(3), None)
        return jax.jit(lambda: run(length=4)).lower().as_text()

    assert text(2.0) == text(2.0)
    names = {t.split("parscan_bp_")[1][:32] for t in (text(2.0), text(3.0))}
    assert len(names) == 2


def test_an_export_has_the_loop_of_xla():
    run = jax.jit(lambda c: native.scan(lambda c, _: (0.5 * c, c), c, None, length=4)[0])
    exported = jax.export.export(run)(jnp.ones(3))
    np.testing.assert_array_equal(exported.call(jnp.ones(3)), np.full(3, 0.0625))


def test_inside_of_shard_map_it_is_native_and_partitioned_by_xla_it_is_not():
    mesh = Mesh(np.array(jax.devices()[:1]), "d")
    run = lambda c: native.scan(lambda c, _: (0.5 * c, c), c, None, length=4)[0]  # noqa: E731
    spec = PartitionSpec("d")
    mapped = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.ones(3)), np.full(3, 0.0625))
    assert _is_native(mapped, jnp.ones(3))


def test_on_several_devices(run_on_devices):
    run_on_devices(_on_two_devices, 2)


def _on_two_devices():
    mesh = Mesh(np.array(jax.devices()), "d")
    run = lambda c: native.scan(lambda c, _: (jnp.tanh(0.5 * c), c), c, None, length=4)[0]  # noqa: E731
    c = jnp.arange(8.0).reshape(4, 2)
    split = jax.device_put(c, NamedSharding(mesh, PartitionSpec("d")))
    how = {"mesh": mesh, "in_specs": PartitionSpec("d"), "out_specs": PartitionSpec("d")}
    mapped = jax.shard_map(run, **how)
    for f in (run, mapped):
        np.testing.assert_allclose(jax.jit(f)(split), jax.jit(run)(c), 1e-6)
    assert _is_native(mapped, split) and not _is_native(run, split)


FUNCTIONS = {
    "exp": (jnp.exp, np.exp),
    "expm1": (jnp.expm1, np.expm1),
    "log1p": (lambda x: jnp.log1p(jnp.abs(x) - 0.5), lambda x: np.log1p(np.abs(x) - 0.5)),
    "log1p, small": (lambda x: jnp.log1p(0.25 * x), lambda x: np.log1p(0.25 * x)),
    "rsqrt": (lambda x: lax.rsqrt(jnp.abs(x)), lambda x: 1 / np.sqrt(np.abs(x))),
    "tanh": (jnp.tanh, np.tanh),
    "logistic": (jax.nn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_to_three_units_in_the_last_place(name, dtype):
    f, exact = FUNCTIONS[name]
    most = 3.9 if name == "log1p, small" else 87.0 if dtype is np.float32 else 700.0
    small = np.logspace(-20, 0, 1000)
    x = np.concatenate([np.linspace(-most, most, 8002), small, -small, np.linspace(-1, 1, 2000)])
    x = np.resize(x, 12016).astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        xs, none = jnp.asarray(x.reshape(-1, 16)), jnp.zeros((), dtype)
        run = functools.partial(native.scan, lambda c, x: (c, f(x)), none, xs, length=751)
        assert _is_native(run)
        got = np.asarray(jax.jit(run)()[1]).ravel()
    wide = x.astype(np.longdouble if dtype is np.float64 else np.float64)
    want = exact(wide)
    told = np.abs(want) > np.finfo(dtype).tiny
    error = np.abs(got - want)[told] / np.spacing(np.abs(want[told]).astype(dtype))
    assert error.max() < 3


def test_donated_arguments():
    run = jax.jit(
        lambda c: native.scan(lambda c, _: (c + 1, c), c, None, length=4)[0], donate_argnums=0
    )
    np.testing.assert_array_equal(run(jnp.zeros(5)), np.full(5, 4.0))


def test_what_is_not_mapped_stays_so():
    def run(x):
        def step(carry, x):
            h, k = carry
            return (jnp.tanh(h + k * x), 0.5 * k), 2 * k

        return native.scan(step, (jnp.zeros(3), jnp.ones(3)), x, length=4)

    mapped = jax.vmap(run, 0, ((0, None), None))
    xs = jnp.ones((5, 4, 3))
    (h, k), ys = mapped(xs)
    assert [a.shape for a in (h, k, ys)] == [(5, 3), (3,), (4, 3)]
    np.testing.assert_allclose(k, np.full(3, 0.0625))
    assert _is_native(mapped, xs)


@pytest.mark.parametrize("how", [{"forward": "fused"}, {"solver": pb.Sweep(native=True)}])
def test_without_jit_and_with_weak_types(how):
    def value(scan, **how):
        return scan(lambda h, x: (h * w, h * x), 1.0, jnp.ones(4), **how)

    w = 2.0
    want, got = value(lax.scan), value(pb.scan, **how)
    with jax.disable_jit():
        plain = value(pb.scan, **how)
    for a, b, c in zip(*map(jax.tree.leaves, (want, got, plain)), strict=True):
        assert float(jnp.sum(a)) == float(jnp.sum(b)) == float(jnp.sum(c))
        assert jax.typeof(a) == jax.typeof(b) == jax.typeof(c)
        assert jax.typeof(a).weak_type == jax.typeof(b).weak_type == jax.typeof(c).weak_type

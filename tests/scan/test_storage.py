"""What derivatives store of a trajectory: stretches of steps that are made again, under a limit."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.scan.storage import Storage, StoredBytes, within_limit
from tests.quickly import jit_quickly

DTYPE = jnp.zeros(()).dtype
CLOSE = 1e-12 if DTYPE == jnp.float64 else 2e-5
H, T = 8, 90


# The planner


def costs(carry=64, step=64, x=0, shared=0, each=0):
    return StoredBytes(carry, step, x, shared, lambda n: each * min(n, 4))


@pytest.mark.parametrize("length", [1, 2, 3, 17, 100, 1023, 4096, 10**6])
@pytest.mark.parametrize("what", [{}, {"x": 8}, {"step": 640}, {"each": 100}, {"shared": 99}])
def test_every_limit_is_met_or_told(length, what):
    of = costs(**what)
    whole = Storage(length, of).bytes
    for limit in np.unique(np.geomspace(1, 2 * whole, 25).astype(int)):
        try:
            found = within_limit(length, of, pb.MemoryLimit(int(limit)))
        except ValueError as error:
            least = int(str(error).split("bytes; ")[1].split(" ")[0].replace(",", ""))
            assert limit < least <= whole
            assert within_limit(length, of, pb.MemoryLimit(least)).bytes == least
            continue
        assert found.bytes <= limit
        assert all(a > b >= 2 for a, b in itertools.pairwise((length + 1, *found.sizes)))
        assert bool(found.sizes) == (limit < whole)


def test_one_level_takes_about_the_square_root():
    """2 sqrt(T) carries are the least of one level, and as many steps are made once more."""
    found = within_limit(10_000, costs(), pb.MemoryLimit(2 * 64 * 110))
    assert len(found.sizes) == 1 and 80 <= found.sizes[0] <= 125


def test_many_levels_take_a_logarithm():
    with pytest.raises(ValueError, match="are the least") as raised:
        within_limit(2**20, costs(), pb.MemoryLimit(1))
    least = int(str(raised.value).split()[4].replace(",", ""))
    assert least <= 64 * 4 * 20


def test_stretches_leave_few_steps_over():
    for length in (1000, 1001, 9973, 65536):
        limit = pb.MemoryLimit(Storage(length, costs()).bytes // 4)
        size = within_limit(length, costs(), limit).sizes[0]
        assert length % size <= length // size


# Values and derivatives


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    h: jax.Array
    count: jax.Array
    key: jax.Array


def step(w, state, x):
    """A carry with a counter and a key, an output beside it."""
    key = jax.random.fold_in(state.key, state.count)
    noise = 0.01 * jax.random.normal(key, (H,), DTYPE)
    h = jnp.tanh(state.h @ w + x + noise)
    return State(h, state.count + 1, state.key), jnp.sin(h[:2]) * state.count


W = jnp.asarray(np.random.default_rng(0).normal(size=(H, H)) / 3, DTYPE)
XS = jnp.asarray(np.random.default_rng(1).normal(size=(T, H)) / 2, DTYPE)
H0 = jnp.linspace(-1, 1, H, dtype=DTYPE)
SIZES = {"one level": 1100, "left over": 1700, "three levels": 900}


def run(w, h, xs, reverse=False, **how):
    scan = lax.scan if how.pop("lax", False) else pb.scan
    first = State(h, jnp.int32(0), jax.random.key(3))
    last, ys = scan(lambda c, x: step(w, c, x), first, xs, reverse=reverse, **how)
    return last.h, ys, last.count


def loss(*args, **how):
    h, ys, _ = run(*args, **how)
    return jnp.sum(h**2) + jnp.sum(jnp.cos(ys))


ARGS = (W, H0, XS)
MODES = {
    "gradient": lambda f: jax.grad(f, (0, 1, 2))(*ARGS),
    "tangent": lambda f: jax.jvp(f, ARGS, ARGS)[1],
    "linearised": lambda f: jax.linearize(f, *ARGS)[1](*ARGS),
    "product": lambda f: jax.jvp(jax.grad(f, (0, 1)), ARGS, ARGS)[1],
    "second": lambda f: jax.grad(lambda w: jnp.sum(jax.grad(f)(w, H0, XS) ** 2))(W),
    "batch": lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None, None))(jnp.stack([W, -W]), H0, XS),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f), (0, 1, 2))(*ARGS),
    "reverse": lambda f: jax.grad(lambda *a: f(*a, reverse=True), (0, 1, 2))(*ARGS),
}


def _least(scan):
    """What is told to be the least limit."""
    with pytest.raises(ValueError, match="are the least") as raised:
        scan(1)
    return int(str(raised.value).split("bytes; ")[1].split(" ")[0].replace(",", ""))


def limited(memory_limit, solver=None):
    how = {"memory_limit": memory_limit, "solver": solver}
    plan = pb.explain(
        lambda c, x: step(W, c, x), State(H0, jnp.int32(0), jax.random.key(3)), XS, **how
    )
    assert "made again" in plan.stored, plan.stored
    return how


def limit_of(scale):
    """A limit in doubles, or in as many singles."""
    return scale * DTYPE.itemsize


@pytest.mark.parametrize("name", SIZES)
def test_values_are_those_of_lax_scan_to_the_last_bit(name):
    how = limited(limit_of(SIZES[name]), pb.Sweep())
    for reverse in (False, True):
        got = jax.jit(lambda: run(*ARGS, reverse=reverse, **how))()
        want = jax.jit(lambda: run(*ARGS, reverse=reverse, lax=True))()
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


SLOW = pytest.mark.slow
CASES = [
    ("left over", None),
    pytest.param("left over", pb.Sweep(recompute=False), marks=SLOW),
    pytest.param("one level", pb.Sweep(), marks=SLOW),
    pytest.param("three levels", pb.Sweep(), marks=SLOW),
    pytest.param("three levels", pb.Sweep(recompute=False), marks=SLOW),
]


@pytest.mark.parametrize("length", [5, 13])
def test_values_without_a_derivative_are_by_the_loop_itself(length):
    """XLA makes other programs of stretches of two and three steps."""
    w, xs = W[:3, :3], XS[:length, :3]
    f = lambda c, x: (c * jax.nn.sigmoid(c @ w + x) + jnp.tanh(x @ w), None)  # noqa: E731
    scan = lambda scan, **how: jax.jit(lambda: scan(f, H0[:3], xs, **how))()[0]  # noqa: E731
    how = {"solver": pb.Sweep()}
    how["memory_limit"] = _least(lambda limit: pb.scan(f, H0[:3], xs, memory_limit=limit, **how))
    assert "made again" in pb.explain(f, H0[:3], xs, **how).stored
    np.testing.assert_array_equal(scan(pb.scan, **how), scan(lax.scan))


@pytest.mark.parametrize(("name", "solver"), CASES, ids=str)
def test_every_mode(name, solver):
    how = limited(limit_of(SIZES[name]), solver)

    @jit_quickly
    def both():
        ours = lambda *args, **more: loss(*args, **more, **how)  # noqa: E731
        theirs = lambda *args, **more: loss(*args, **more, lax=True)  # noqa: E731
        return {mode: (of(ours), of(theirs)) for mode, of in MODES.items()}

    for mode, (got, want) in both().items():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            scale = 1 + np.abs(b).max()
            np.testing.assert_allclose(a / scale, b / scale, atol=50 * CLOSE, err_msg=mode)


def test_cotangents_of_carries_and_inputs_are_those_of_the_whole():
    """They are sums of the same terms in the same order.

    They are not equal bit for bit wherever XLA fuses a product with a sum in one of the programs
    and not in the other, as from jax 0.11 on, or before that on some processors.
    """
    how = limited(limit_of(1100), pb.Sweep())
    got = jax.jit(jax.grad(lambda *a: loss(*a, **how), (0, 1, 2)))(*ARGS)
    want = jax.jit(jax.grad(lambda *a: loss(*a, solver=pb.Sweep()), (0, 1, 2)))(*ARGS)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=CLOSE)


def test_cotangents_of_weak_types_are_weak():
    f = lambda c, x: (jnp.sin(c) * x, None)  # noqa: E731
    limit = _least(lambda limit: pb.scan(f, 1.0, XS[:, 0], solver=pb.Sweep(), memory_limit=limit))
    how = {"solver": pb.Sweep(), "memory_limit": limit}
    last = lambda scan, xs, **how: scan(f, jnp.ones((), DTYPE), xs, **how)[0]  # noqa: E731
    weak = jnp.arange(T) * 0.1
    got = jax.grad(lambda xs: last(pb.scan, xs, **how))(weak)
    want = jax.grad(lambda xs: last(lax.scan, xs))(weak)
    assert jax.typeof(got) == jax.typeof(want) and jax.typeof(weak).weak_type


def test_a_tree_solves_stretch_by_stretch():
    f = lambda c, x: (jnp.tanh(c * 0.5 + x), c)  # noqa: E731
    total = lambda scan, xs: jnp.sum(scan(f, H0, xs)[0] ** 2)  # noqa: E731
    limit = limit_of(2200)
    assert "made again" in pb.explain(f, H0, XS, solver=pb.Blelloch(), memory_limit=limit).stored
    ours = lambda f, c, xs: pb.scan(f, c, xs, solver=pb.Blelloch(), memory_limit=limit)  # noqa: E731
    got, want = (jax.grad(lambda xs, s=s: total(s, xs))(XS) for s in (ours, lax.scan))
    np.testing.assert_allclose(got, want, rtol=1e3 * CLOSE, atol=10 * CLOSE)


def test_what_is_left_to_lax_scan_is_made_again_there():
    """A step of which nothing is linearised."""

    @jax.custom_vjp
    def own(c):
        return jnp.sin(c)

    own.defvjp(lambda c: (own(c), c), lambda c, ct: (3 * ct * jnp.cos(c),))
    f = lambda c, x: (own(0.5 * c + x), None)  # noqa: E731
    limit = limit_of(1500)
    told = pb.explain(f, H0, XS, memory_limit=limit)
    assert told.choice == "lax.scan" and "made again" in told.stored
    total = lambda scan: lambda h, xs: jnp.sum(scan(f, h, xs)[0] ** 2)  # noqa: E731
    ours = lambda f, c, xs: pb.scan(f, c, xs, memory_limit=limit)  # noqa: E731
    got, want = (jax.jit(jax.grad(total(scan), (0, 1)))(H0, XS) for scan in (ours, lax.scan))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_report_is_that_of_all_stretches():
    how = limited(limit_of(1100), pb.Sweep())
    first = State(H0, jnp.int32(0), jax.random.key(3))
    *_, report = pb.scan(lambda c, x: step(W, c, x), first, XS, report=True, **how)
    assert report.status == pb.Status.OK and report.residual < 100 * jnp.finfo(DTYPE).eps


@pytest.mark.reads_compiled
def test_memory_is_what_was_told():
    xs = jnp.zeros((3000,), DTYPE)
    f = lambda c, x: (jnp.tanh(0.5 * c + x), None)  # noqa: E731
    h = jnp.ones(128, DTYPE)
    total = lambda **how: lambda h: jnp.sum(pb.scan(f, h, xs, **how)[0] ** 2)  # noqa: E731
    used = lambda **how: (  # noqa: E731
        jax.jit(jax.grad(total(**how))).lower(h).compile().memory_analysis().temp_size_in_bytes
    )
    all_carries = used(solver=pb.Sweep())
    for limit in (all_carries // 3, all_carries // 8):
        told = pb.explain(f, h, xs, solver=pb.Sweep(), memory_limit=limit)
        assert used(solver=pb.Sweep(), memory_limit=limit) < 1.15 * limit, told


# Mistakes


WRONG = [
    (0, ValueError, "memory_limit: got 0; at least 1"),
    (-5, ValueError, "memory_limit: got -5; at least 1"),
    (1e6, TypeError, r"memory_limit: got 1000000.0, of type float; an int"),
    ("1 MB", TypeError, "memory_limit: got '1 MB', of type str; an int"),
    (True, TypeError, "memory_limit: got True, of type bool; an int"),
    (100, ValueError, r"memory_limit: got 100 bytes; [0-9,]+ are the least"),
]


@pytest.mark.parametrize(("limit", "error", "words"), WRONG, ids=str)
@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=str)
def test_limits_that_are_none(limit, error, words, solver):
    f = lambda c, x: (jnp.tanh(W @ c + x), None)  # noqa: E731
    with pytest.raises(error, match=words):
        pb.scan(f, H0, XS, solver=solver, memory_limit=limit)


def test_a_method_has_all_carries_at_once():
    f = lambda c, x: (jnp.tanh(0.1 * c + x), None)  # noqa: E731
    with pytest.raises(ValueError, match=r"memory_limit: got 1,000 bytes; .* all carries at once"):
        pb.scan(
            f, H0.astype(jnp.float32), XS.astype(jnp.float32), forward="chunks", memory_limit=1000
        )


@pytest.mark.parametrize("solver", [pb.Truncated(5), pb.Truncated(5, sliding=True)], ids=str)
def test_what_is_cut_off_is_that_of_all_steps(solver):
    """A gradient is not another one for the sake of a limit."""
    f = lambda c, x: (jnp.tanh(0.9 * c + x), None)  # noqa: E731
    loss = lambda xs, **how: jnp.sum(pb.scan(f, H0, xs, solver=solver, **how)[0] ** 2)  # noqa: E731
    got, want = jax.grad(loss)(XS, memory_limit=10**6), jax.grad(loss)(XS)
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="by this solver they are not made again"):
        jax.grad(loss)(XS, memory_limit=1000)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, parscan_bp as pb
from jax.sharding import Mesh
mesh = Mesh(np.array(jax.devices()), ("time",))
w = jax.random.normal(jax.random.key(0), (4, 4)) / 2
f = lambda w: lambda c, x: (jnp.tanh(c @ w + x), None)
xs, h = jnp.sin(jnp.arange(43 * 4.0)).reshape(43, 4), jnp.ones(4)
for method in ("turns", "ppermute"):
    how = {"solver": pb.Sharded("time", mesh, method=method)}
    loss = lambda w, **how: jnp.sum(pb.scan(f(w), h, xs, **how)[0] ** 2)
    got = jax.jit(lambda w: jax.grad(loss)(w, memory_limit=10**6, **how))(w)
    want = jax.grad(lambda w: jnp.sum(jax.lax.scan(f(w), h, xs)[0] ** 2))(w)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    try:
        jax.grad(loss)(w, memory_limit=100, **how)
    except ValueError as error:
        assert "by this solver they are not made again" in str(error), error
    else:
        raise AssertionError(method)
"""


def test_steps_of_a_device_are_not_taken_apart(run_on_devices):
    run_on_devices(SHARDED, 4)


def test_effects_are_not_had_twice():
    def f(c, x):
        jax.debug.callback(lambda: None)
        return jnp.tanh(c + x), None

    with pytest.raises(NotImplementedError, match="memory_limit: got 1,000; the step has effects"):
        pb.scan(f, H0, XS, memory_limit=1000)

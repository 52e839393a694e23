"""`while_loop` against `lax.while_loop`: carries of every kind, ends, bounds, mistakes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import parscan_bp as pb
from tests.quickly import jit_quickly

DTYPE = jnp.zeros(()).dtype
CLOSE = 1e-12 if DTYPE == jnp.float64 else 1e-5
W, X = jnp.array([[0.3, 0.5], [-0.4, 0.2]]), jnp.array([0.3, -2.0])
UNTIL = 23


def by_scan(steps):
    """A loop of a known number of steps, in the place of a while loop."""

    def loop(cond, body, init):
        return lax.scan(lambda c, _: (body(c), None), init, None, length=steps)[0]

    return loop


def noisy(loop, w, x):
    """A carry with a counter, a key and a boolean; what is closed over has derivatives."""

    def body(state):
        key, now = jax.random.split(state["key"])
        h = jnp.tanh(state["h"] @ w + x) + 0.1 * jax.random.normal(now, x.shape, x.dtype)
        return {"h": h, "n": state["n"] + 1, "key": key, "stop": h[0] > 5}

    first = {"h": x, "n": jnp.int32(0), "key": jax.random.key(1), "stop": jnp.array(False)}
    last = loop(lambda s: (s["n"] < UNTIL) & ~s["stop"], body, first)
    return jnp.sum(last["h"] ** 2)


def twice(f):
    return pb.scan(lambda c, _: (f(c), 0), 1.0, length=2)[0]


MODES = {
    "gradient": lambda f: jax.grad(f, (0, 1))(W, X),
    "tangent": lambda f: jax.jvp(f, (W, X), (W, X)),
    "linearised": lambda f: jax.linearize(f, W, X)[1](W, X),
    "product": lambda f: jax.jvp(jax.grad(f, (0, 1)), (W, X), (W, X))[1],
    "second": lambda f: jax.grad(lambda w: jnp.sum(jax.grad(f)(w, X) ** 2))(W),
    "batch": lambda f: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(W, jnp.stack([X, -X])),
    "of a batch": lambda f: jax.grad(lambda w: jnp.sum(jax.vmap(f, (0, None))(w, X)))(W[None]),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f), (0, 1))(W, X),
    "inside": lambda f: jax.grad(
        lambda w: pb.scan(lambda c, _: (f(w, c * X), 0), 1.0, length=2)[0]
    )(W),
}
SLOW = pytest.mark.slow
HOW = [
    {"max_steps": 30},
    pytest.param({}, marks=SLOW),
    pytest.param({"max_steps": 30, "memory_limit": 10_000}, marks=SLOW),
    pytest.param({"max_steps": 30, "solver": pb.Sweep()}, marks=SLOW),
    pytest.param({"max_steps": 30, "solver": pb.Sweep(recompute=False)}, marks=SLOW),
    pytest.param({"max_steps": 30, "solver": pb.Blelloch()}, marks=SLOW),
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_every_mode(how):
    daily = how == {"max_steps": 30}
    modes = ("gradient", "product", "batch") if daily else MODES

    @jit_quickly
    def both():
        ours = functools.partial(noisy, functools.partial(pb.while_loop, **how))
        theirs = functools.partial(noisy, by_scan(UNTIL))
        return {mode: (MODES[mode](ours), MODES[mode](theirs)) for mode in modes}

    for mode, (got, want) in both().items():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            scale = 1 + np.abs(b).max()
            np.testing.assert_allclose(a / scale, b / scale, atol=20 * CLOSE, err_msg=mode)


def test_named_solvers_take_keys():
    """jax 0.10 has no zeros of keys for the branch of a condition that makes none."""
    ours = functools.partial(pb.while_loop, max_steps=30, solver=pb.Sweep())
    got, want = jit_quickly(
        lambda: [jax.grad(noisy, 1)(loop, W, X) for loop in (ours, by_scan(UNTIL))]
    )()
    np.testing.assert_allclose(got, want, rtol=20 * CLOSE, atol=CLOSE)


def test_what_has_finished_is_frozen():
    """The root has an infinite slope at the last carry, and is no number behind it."""
    loop = lambda x: pb.while_loop(lambda x: x >= 1, lambda x: jnp.sqrt(x - 1), x, max_steps=9)  # noqa: E731
    xs = np.array([0.0, 2.5, 1.0, 65.0])  # never runs, ends at 0, ...
    got = jit_quickly(jax.vmap(jax.value_and_grad(loop)))(xs)
    with np.errstate(divide="ignore"):
        want = np.transpose(list(map(_roots, xs)))
    assert want[1, 0] == 1 and want[1, 2] == np.inf
    np.testing.assert_allclose(got, want, rtol=20 * CLOSE)


def _roots(x):
    slope = np.float64(1)
    while x >= 1:
        x = np.sqrt(x - 1)
        slope = slope / (2 * x)
    return x, slope


def test_a_loop_of_integers_has_no_tangents():
    loop = lambda a, b: pb.while_loop(  # noqa: E731
        lambda s: s[1] != 0, lambda s: (s[0] * 1.5, s[1] - 1), (a, b), max_steps=4
    )
    zero = np.zeros((), jax.dtypes.float0)
    (x, n), (t, none) = jax.jvp(loop, (2.0, 3), (1.0, zero))
    assert (float(x), int(n), float(t), none.dtype) == (6.75, 0, 3.375, jax.dtypes.float0)


@pytest.mark.parametrize("first", [1.0, 1, np.float32(1), np.ones((), np.int16)], ids=repr)
def test_types_are_those_of_lax(first):
    run = lambda loop: loop(lambda x: x < 10, lambda x: x * 2, first)  # noqa: E731
    told = pb.while_loop(lambda x: x < 10, lambda x: x * 2, first, max_steps=9)
    want = run(lax.while_loop)
    assert jax.typeof(run(pb.while_loop)) == jax.typeof(want) == jax.typeof(told)


# Ends


def half(x, **how):
    return pb.while_loop(lambda x: x > 1, lambda x: x / 2, x, **how)


def test_a_loop_may_end_at_its_bound():
    """Neither one step later nor one earlier."""
    value, report = jax.jit(lambda x: half(x, max_steps=3, report=True))(8.0)
    assert value == 1 and report.finished and report.steps == 3
    assert jax.grad(lambda x: half(x, max_steps=3))(8.0) == 1 / 8
    with pytest.raises(RuntimeError, match="max_steps: got 2, and cond is still true"):
        half(8.0, max_steps=2)


def _waited(f, x):
    jax.block_until_ready(jax.jit(f)(x))
    jax.effects_barrier()


@pytest.mark.parametrize("mode", [lambda f: f, jax.vmap, lambda f: jax.vmap(jax.grad(f))])
def test_a_bound_that_is_reached_raises(mode):
    run = mode(lambda x: half(x, max_steps=3))
    ok, not_ok = jnp.array([2.0, 8.0]), jnp.array([2.0, 9.0])
    if mode(abs) is abs:
        ok, not_ok = 8.0, 9.0
    _waited(run, ok)
    with pytest.raises(RuntimeError, match="max_steps: got 3, and cond is still true"):
        _waited(run, not_ok)


def test_a_report_is_one_of_each_entry():
    value, report = jax.vmap(lambda x: half(x, max_steps=3, report=True))(jnp.array([1.0, 4, 32]))
    assert value.tolist() == [1, 1, 4]
    assert report.steps.tolist() == [0, 2, 3] and report.finished.tolist() == [True, True, False]
    assert str(half(8.0, report=True)[1]) == "LoopReport(steps=3, finished=True)"


def test_loops_in_loops():
    def run(loop, x):
        inner = lambda v: loop(lambda u: u > 1.0, lambda u: u * jnp.sin(x), v * 4)  # noqa: E731
        return loop(lambda s: s[1] < 3, lambda s: (inner(s[0]), s[1] + 1), (x, 0))[0]

    bounded = functools.partial(pb.while_loop, max_steps=40)
    value, slope = jit_quickly(jax.value_and_grad(functools.partial(run, bounded)))(1.2)
    want, tangent = jit_quickly(
        lambda x: jax.jvp(functools.partial(run, lax.while_loop), (x,), (1.0,))
    )(1.2)
    np.testing.assert_array_equal(value, want)
    np.testing.assert_allclose(slope, tangent, rtol=10 * CLOSE)


def test_python_runs_a_loop_that_is_not_to_be_compiled():
    with jax.disable_jit():
        assert jax.grad(lambda x: half(x, max_steps=3))(8.0) == 1 / 8
        with pytest.raises(RuntimeError, match="max_steps: got 2"):
            half(8.0, max_steps=2)


def _entries_of_a_mapped_axis(x):
    """What has finished is seen by the others."""

    def one(x):
        body = lambda s: (jnp.tanh(s[0] + 0.1 * lax.psum(s[0], "i")), s[1] + 1)  # noqa: E731
        return pb.while_loop(lambda s: s[1] < jnp.where(x > 1, 3, 6), body, (x, 0), max_steps=8)[0]

    return jnp.sum(jax.vmap(one, axis_name="i")(x) ** 2)


def test_steps_that_are_coupled_along_a_mapped_axis():
    x = jnp.array([0.5, 2.0])
    got = jit_quickly(jax.grad(_entries_of_a_mapped_axis))(x)
    tangent = jit_quickly(lambda x: jax.jvp(_entries_of_a_mapped_axis, (x,), (x,))[1])(x)
    np.testing.assert_allclose(got @ x, tangent, rtol=20 * CLOSE)


def _on_devices():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("d")

    def loss(loop, w, x):
        cond = lambda h: jnp.sum(h * h) > 0.3  # noqa: E731
        return jnp.sum(loop(cond, lambda h: jnp.tanh(h @ w) + 0.1 * jnp.sin(w[0]), x))

    xs = jnp.stack([X, 3 * X])
    ours = functools.partial(pb.while_loop, max_steps=20)
    for check in (True, False):

        def total(w, loop, check=check):
            how = {"mesh": mesh, "in_specs": (PartitionSpec(), spec), "out_specs": spec}
            run = jax.shard_map(lambda w, x: loss(loop, w, x[0])[None], **how, check_vma=check)
            return jnp.sum(run(w, xs))

        got = jax.jit(jax.grad(functools.partial(total, loop=ours)))(W)
        run = functools.partial(total, loop=lax.while_loop)
        want = jax.jit(lambda w, run=run: jax.jvp(run, (w,), (jnp.cos(w),))[1])(W)
        np.testing.assert_allclose(jnp.vdot(got, jnp.cos(W)), want, rtol=1e-5)


@pytest.mark.slow
def test_loops_of_devices_end_each_by_itself(run_on_devices):
    run_on_devices(_on_devices, 2)


# Mistakes

WRONG = [
    ({"max_steps": 0}, ValueError, "max_steps: got 0; at least 1"),
    ({"max_steps": -3}, ValueError, "max_steps: got -3; at least 1"),
    ({"max_steps": 3.0}, TypeError, "max_steps: got 3.0, of type float; an int of at least 1"),
    ({"max_steps": True}, TypeError, "max_steps: got True, of type bool; an int of at least 1"),
    ({"max_steps": 2**31}, ValueError, "max_steps: got 2,147,483,648; at most 1,073,741,824"),
    ({"memory_limit": 0}, ValueError, "memory_limit: got 0; at least 1"),
    ({"memory_limit": 1e6}, TypeError, "memory_limit: got 1000000.0, of type float; an int"),
    ({"memory_limit": 1}, ValueError, "memory_limit: got 1 bytes; [0-9]+ are the least"),
    ({"solver": "sweep"}, TypeError, "solver: got 'sweep', of type str"),
    ({"solver": pb.Sweep}, TypeError, r"solver: Sweep is a class; Sweep\(\) is wanted"),
    ({"report": 1}, TypeError, "report: got 1, of type int; True or False"),
    ({"cond": lambda x: x}, TypeError, "boolean scalar"),
    ({"cond": lambda x: jnp.ones(2) > x}, TypeError, "boolean scalar"),
    ({"cond": 3}, TypeError, "callable"),
    ({"body": lambda x: (x, x)}, TypeError, "same pytree structure"),
    ({"body": lambda x: jnp.ones(3)}, TypeError, "equal types"),
    ({"init": "one"}, TypeError, "init: got 'one', of type str; a pytree of arrays"),
]


@pytest.mark.parametrize(("how", "error", "words"), WRONG)
def test_mistakes(how, error, words):
    good = {"cond": lambda x: x > 1, "body": lambda x: x / 2, "init": 8.0}
    with pytest.raises(error, match=words):
        pb.while_loop(**{**good, **how})


def test_a_solver_that_cannot_take_the_step_says_so():
    @jax.custom_vjp
    def own(x):
        return x / 2

    own.defvjp(lambda x: (own(x), None), lambda _, ct: (ct,))
    with pytest.raises(NotImplementedError, match="custom_vjp_call"):
        pb.while_loop(lambda x: x > 1, own, 8.0, solver=pb.Sweep())
    assert jax.grad(lambda x: pb.while_loop(lambda x: x > 1, own, x, max_steps=4))(8.0) == 1


def test_an_effect_that_is_not_to_happen_again_is_refused_by_name():
    def body(x):
        io_callback(lambda: None, None)
        return x / 2

    loop = lambda x: pb.while_loop(lambda x: x > 1, body, x)  # noqa: E731
    assert loop(3.0) == 0.75
    with pytest.raises(NotImplementedError, match="body: has the effect"):
        jax.grad(loop)(3.0)


@pytest.mark.parametrize("solver", [None, pb.Sweep()])
def test_an_entry_that_never_runs_is_nothing_to_what_all_share(solver):
    """There the slope by what the body closes over is infinite."""

    def loop(w, a, n):
        step = lambda s: (s[0] + jnp.sqrt(a * w), s[1] + 1)  # noqa: E731
        start = jnp.ones((), DTYPE), jnp.int32(0)
        return pb.while_loop(lambda s: s[1] < n, step, start, max_steps=9, solver=solver)[0]

    a, n = jnp.array([[0.0, 1.0], [4.0, 0.0]], DTYPE), jnp.array([[0, 2], [3, 0]])
    each = jax.vmap(jax.vmap(loop, (None, 0, 0)), (None, 0, 0))
    got = jit_quickly(
        lambda w: (
            jax.grad(lambda w: each(w, a, n).sum())(w),
            jax.grad(lambda a: each(w, a, n).sum())(a),
            jax.vmap(jax.vmap(jax.grad(loop), (None, 0, 0)), (None, 0, 0))(w, a, n),
        )
    )(jnp.ones((), DTYPE))
    np.testing.assert_allclose(got[0], 2 * 0.5 + 3 * 1.0, rtol=CLOSE)
    np.testing.assert_allclose(got[1], [[0, 2 * 0.5], [3 * 0.25, 0]], rtol=CLOSE)
    np.testing.assert_allclose(got[2], [[0, 2 * 0.5], [3 * 1.0, 0]], rtol=CLOSE)

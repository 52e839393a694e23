"""Steps with primitives that look at their batch: every step is linearised as if it were alone."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.cells import Elman
from tests.family import together
from tests.family.outside import INSIDE, STEPS, any_negative, called_back, drawn, halved

H = jnp.array([0.3, 0.2, -0.1])
XS = 0.7 * jnp.asarray(np.random.RandomState(0).randn(11, 3), H.dtype)
WAYS = {
    "None": {},
    "Sweep": {"solver": pb.Sweep()},
    "chunks": {"solver": pb.Sweep(chunk=3, recompute=False)},
    "otherwise": {"solver": pb.Sweep(otherwise="lax")},
    "Blelloch": {"solver": pb.Blelloch()},
    "Chunked": {"solver": pb.Chunked(2)},
    "corrections": {"solver": pb.ChunkedCorrections(3)},
    "report": {"solver": pb.Sweep(), "report": True},
    "Richardson": {"solver": pb.Richardson(), "report": True},
    "auto": {"forward": "auto"},
}
METHODS = {"Chunks": pb.Chunks(3), "Newton": pb.Newton(), "FixedPoint": pb.FixedPoint()}
EVERY = {**STEPS, **INSIDE}


AT = H, XS, jnp.asarray(1.1, H.dtype)


def modes(step, scan):
    """A program of value, gradient, jvp and Hessian-vector product."""

    def loss(h, xs, w):
        outs = scan(lambda h, x: (step(h, w * x),) * 2, h, xs)
        return (outs[1] ** 2).sum() + jnp.sin(outs[0]).sum()

    def run(*at):
        along = jax.tree.map(jnp.ones_like, at)
        tangent = jax.jvp(loss, at, along)[1]
        return jax.jvp(jax.value_and_grad(loss, (0, 1, 2)), at, along), tangent

    return run


def by_both(name, way):
    """A program by a way and by `lax.scan`, and its arguments."""
    each = [modes(EVERY[name], scan) for scan in (functools.partial(pb.scan, **way), lax.scan)]
    return lambda *at: [run(*at) for run in each], AT


def assert_right(got, want):
    rtol = 1e-9 if jax.config.jax_enable_x64 else 2e-4
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", EVERY)
def test_derivatives_are_those_of_lax_scan(name, way, request):
    assert_right(*together(request, by_both))


def in_words(name):
    blamed = name if name in STEPS else "any_negative"
    return rf"the step contains {blamed}.* is not known to commute with jax\.vmap"


@pytest.mark.parametrize("name", EVERY)
def test_it_is_named(name):
    step = lambda h, x: (EVERY[name](h, x),) * 2  # noqa: E731
    for solver, choice, begins in (
        (None, "lax.scan", "the step contains"),
        (pb.Sweep(otherwise="lax"), "lax.scan", "leaves it to lax.scan: the step contains"),
        (pb.Sweep(), "Sweep()", "named by the caller; steps are linearised one by one"),
        (pb.Blelloch(), "Blelloch()", "named by the caller; steps are linearised one by one"),
    ):
        found = pb.explain(step, H, XS, solver=solver)
        assert found.choice == choice
        assert begins in found.reason
        assert re.search(in_words(name), found.reason)
    for method in METHODS.values():
        with pytest.raises(NotImplementedError, match=in_words(name)):
            pb.scan(step, H, XS, forward=method)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_names_it_by_itself(method):
    wave = pb.forward.Recurrence(STEPS["any_negative"], H, XS, len(XS))
    with pytest.raises(NotImplementedError, match=r"any_negative.*not known to commute"):
        method.evaluate(wave, 1e-4)


def test_a_given_jacobian_is_made_step_by_step():
    def jacobian(h, x, new):
        gate = jnp.where(any_negative.bind(h), 0.5, 1.0)
        return pb.operators.Diagonal(1.3 * (1 - (new / gate) ** 2) * gate)

    run, at = by_both("any_negative", {"solver": pb.Blelloch(), "jacobian": jacobian})
    assert_right(*jax.jit(run)(*at))


def test_a_given_jacobian_alone_may_look_at_its_batch():
    def jacobian(h, x, new):
        return pb.operators.Diagonal(2 * halved.bind(1 - new**2))

    run = lambda h, **how: pb.scan(lambda h, x: (jnp.tanh(h + x), h), h, XS, **how)[0].sum()  # noqa: E731
    ways = {}, *({"solver": s, "jacobian": jacobian} for s in (pb.Sweep(), pb.Blelloch()))
    slopes = jax.jit(lambda h: [jax.grad(functools.partial(run, **way))(h) for way in ways])
    want, *each = slopes(H)
    for got in each:
        np.testing.assert_allclose(got, want, rtol=1e-5)


class Proud(Elman):
    """A cell that asks its whole batch, and says the same of many steps."""

    def __call__(self, params, carry, x):
        new, _ = super().__call__(params, carry, x)
        new = new * jnp.where(any_negative.bind(carry), 0.5, 1.0)
        return new, new


def test_a_cell_that_looks_is_linearised_as_any_step():
    cell = Proud()
    params = cell.init(jax.random.key(0), 3, 4)
    xs, h = jnp.cos(jnp.arange(33.0)).reshape(11, 3), jnp.linspace(-0.2, 0.4, 4)

    def grad(scan, params):
        loss = lambda p: (scan(functools.partial(cell, p), h, xs)[1] ** 2).sum()  # noqa: E731
        return jax.tree.leaves(jax.grad(loss)(params))

    ways = [functools.partial(pb.scan, solver=solver) for solver in (pb.Sweep(), pb.Blelloch())]
    want, *each = jax.jit(lambda p: [grad(scan, p) for scan in (lax.scan, *ways)])(params)
    for got in each:
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["centred", "custom_vmap_call"])
def test_an_outer_vmap_is_what_it_is_for_lax_scan(name):
    hs = jnp.stack([H, -H, 2 * H])

    def grad(scan):
        def loss(h):
            return (scan(lambda h, x: (STEPS[name](h, x),) * 2, h, XS)[1] ** 2).sum()

        return jax.grad(loss)

    def run(hs):
        alone = jnp.stack([grad(lax.scan)(h) for h in hs])
        ours = functools.partial(pb.scan, solver=pb.Sweep(chunk=4))
        return alone, *(jax.vmap(grad(scan))(hs) for scan in (lax.scan, ours))

    alone, want, got = jax.jit(run)(hs)
    assert np.abs(want - alone).max() > 1e-3  # else nothing is seen here
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_keys_that_commute_and_callbacks_one_by_one_are_batched():
    steps = {
        "threefry": lambda h, x: jnp.tanh(h + x + drawn(x, "threefry2x32")),
        "sequential": lambda h, x: jnp.tanh(h + called_back(h, "sequential")),
    }
    for step in steps.values():
        found = pb.explain(lambda h, x: (step(h, x), None), H, XS, solver=pb.Sweep())
        assert found.reason == "named by the caller"


def test_a_scan_within_the_step():
    def step(scan, h, x):
        h = scan(lambda h, x: (STEPS["unmapped"](h, x),) * 2, h, jnp.stack([x, -x]))[0]
        return h, h

    inner = functools.partial(pb.scan, solver=pb.Sweep())

    def grad(inner, scan):
        loss = lambda h: (scan(functools.partial(step, inner), h, XS)[1] ** 2).sum()  # noqa: E731
        return jax.jit(jax.grad(loss))(H)

    assert (
        "unmapped, which is not known" in pb.explain(functools.partial(step, inner), H, XS).reason
    )
    got = grad(inner, functools.partial(pb.scan, solver=pb.Sweep()))
    np.testing.assert_allclose(got, grad(lax.scan, lax.scan), rtol=1e-5, atol=1e-6)


def test_what_differs_each_time_is_not_made_again():
    def step(h, x):
        return h * lax.rng_uniform(0.0, 1.0, (3,)).astype(h.dtype) + x, h

    assert "rng_uniform: gives other numbers" in pb.explain(step, H, XS).reason
    with pytest.raises(NotImplementedError, match="rng_uniform: gives other numbers"):
        pb.scan(step, H, XS, solver=pb.Sweep())


def test_a_check_of_the_jacobian_takes_it():
    for solver in (pb.Sweep(), pb.Blelloch()):
        step = lambda h, x: (STEPS["centred"](h, x), None)  # noqa: E731
        pb.scan(step, H, XS, solver=solver, check_jacobian=True)


def test_over_devices(run_on_devices):
    run_on_devices(
        """
import jax, jax.numpy as jnp, numpy as np
import parscan_bp as pb
from tests.family.outside import STEPS

h, xs = jnp.array([0.3, 0.2, -0.1]), jnp.cos(jnp.arange(48.0)).reshape(16, 3)
mesh = jax.make_mesh((4,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))

def grad(name, how):
    scan = jax.lax.scan if how is None else lambda *a: pb.scan(*a, **how)
    loss = lambda h: (scan(lambda h, x: (STEPS[name](h, x),) * 2, h, xs)[1] ** 2).sum()
    return jax.jit(jax.grad(loss))(h)

for name in ("any_negative", "custom_vmap_call"):
    got = grad(name, {"solver": pb.Sharded("time", mesh)})
    np.testing.assert_allclose(got, grad(name, None), rtol=1e-5)
""",
        devices=4,
    )


def test_equinox_asks_the_whole_batch():
    internal = pytest.importorskip("equinox.internal")

    def step(h, x):
        quiet = internal.unvmap_all(h.mean() < 0.0)
        return (jnp.tanh(1.3 * h + x) * jnp.where(quiet, 0.5, 1.0),) * 2

    grad = lambda scan: jax.grad(lambda h: (scan(step, h, XS)[1] ** 2).sum())  # noqa: E731
    ways = [functools.partial(pb.scan, solver=s) for s in (None, pb.Sweep(), pb.Blelloch())]
    want, *each = jax.jit(lambda h: [grad(scan)(h) for scan in (lax.scan, *ways)])(H)
    for got in each:
        np.testing.assert_allclose(got, want, rtol=1e-5)
    reason = pb.explain(step, H, XS).reason
    assert "unvmap_all, which is not known to commute" in reason


@pytest.mark.parametrize("solver", [None, pb.Sweep(otherwise="lax"), pb.Sweep()], ids=repr)
def test_equinox_bounded_loop(solver):
    internal = pytest.importorskip("equinox.internal")

    def grad(scan):
        def step(y, x):
            body = lambda s: (s[0] + 1, jnp.sin(1.3 * s[1]) + 0.1 * x)  # noqa: E731
            more = lambda s: s[0] < 18  # noqa: E731
            return (internal.while_loop(more, body, (0, y), max_steps=20, kind="bounded")[1],) * 2

        return jax.jit(jax.grad(lambda y: scan(step, y, XS[:3])[1].sum()))(H)

    got = grad(functools.partial(pb.scan, solver=solver))
    np.testing.assert_allclose(got, grad(lax.scan), rtol=1e-5, atol=1e-6)

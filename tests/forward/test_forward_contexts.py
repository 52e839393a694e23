"""Methods where little is as usual: settings, empty arrays, several dtypes, `jax.shard_map`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import parscan_bp as pb
from tests.forward.recurrences import draw
from tests.quickly import jit_quickly

W, H, XS = 0.4 * draw(1, 3, 3), draw(2, 2, 3), draw(3, 9, 2, 3)
METHODS = {
    "chunks": pb.Chunks(2),
    "newton": pb.Newton(),
    "newton, damped": pb.Newton(damping="residual"),
    "newton by diagonals": pb.Newton("diagonal"),
    "fixed point": pb.FixedPoint(),
    "frozen": pb.FrozenActivations(),
}
QUICK = ("chunks", "newton, damped")


def by_methods(*names):
    """All but the quick ones are slow."""
    marks = {name: () if name in QUICK else pytest.mark.slow for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in names])


by_method = by_methods(*METHODS)


def step(w, h, x):
    h = jnp.tanh(h @ w + x)
    return h, h


def loss(w, h, xs, scan=lax.scan, **how):
    last, ys = scan(functools.partial(step, w), h, xs, **how)
    return jnp.sum(jnp.sin(last)) + jnp.sum(ys**2)


def check_close(got, want, atol=1e-4):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@by_method
@pytest.mark.parametrize(
    "setting",
    [lambda: jax.numpy_rank_promotion("raise"), lambda: jax.numpy_dtype_promotion("strict")],
    ids=["ranks", "types"],
)
def test_nothing_is_promoted(name, setting):
    ours = functools.partial(loss, scan=pb.scan, forward=METHODS[name])
    with setting():
        got = jit_quickly(jax.value_and_grad(ours, (0, 1, 2)))(W, H, XS)
    check_close(got, jax.value_and_grad(loss, (0, 1, 2))(W, H, XS))


@by_method
def test_a_batch_of_nothing(name):
    how = {"forward": METHODS[name], "report": True}
    ours = functools.partial(pb.scan, functools.partial(step, W), **how)
    last, ys, report = jit_quickly(ours)(H[:0], XS[:, :0])
    assert last.shape == (0, 3) and ys.shape == (9, 0, 3)
    assert report.forward.status == pb.Status.OK and not report.fell_back


def test_a_bound_of_nothing():
    how = {"forward": pb.Chunks(certify="bound"), "report": True}
    *_, report = pb.scan(functools.partial(step, W), H[:0], XS[:, :0], **how)
    assert report.forward.status == pb.Status.OK and report.forward.error == 0


@by_methods(*(n for n in METHODS if n != "frozen"))
def test_leaves_of_two_precisions(name):
    """Each keeps its own; what is allowed goes by the shorter one."""

    def two(carry, x):
        a, b = carry
        a, b = jnp.tanh(0.4 * a + x), jnp.tanh(0.3 * b + a)
        return (a, b.astype(jnp.float64)), (b, a)

    with jax.enable_x64(True):
        init = H.astype(jnp.float32), H.astype(jnp.float64)
        xs = XS.astype(jnp.float32)
        ours = functools.partial(pb.scan, two, report=True, forward=METHODS[name])
        *got, report = jit_quickly(ours)(init, xs)
        check_close(got, lax.scan(two, init, xs))
    assert report.forward.converged and not report.fell_back


@by_method
@pytest.mark.parametrize(
    "types", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["types", "no types"]
)
def test_inside_shard_map(name, types):
    """What the types say of each value, those that count rounds among them."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    specs = {"mesh": mesh, "in_specs": (P(), P("rows"), P(None, "rows")), "check_vma": types}

    def run(*args):
        of_w, of_h, of_xs = jax.grad(
            functools.partial(loss, scan=pb.scan, forward=METHODS[name]), (0, 1, 2)
        )(*args)
        return (of_w if types else lax.psum(of_w, "rows")), of_h, of_xs

    out = (P(), P("rows"), P(None, "rows"))
    got = jit_quickly(jax.shard_map(run, **specs, out_specs=out))(W, H, XS)
    check_close(got, jax.grad(loss, (0, 1, 2))(W, H, XS))


def test_a_leaf_that_is_the_same_on_all_devices_is_named():
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    halved = lambda c, x: ((0.5 * c[0] + x, 0.5 * c[1]), None)  # noqa: E731

    def run(h, xs):
        return pb.scan(halved, (h, jnp.ones(())), xs, forward="chunks")[0]

    specs = {"in_specs": (P("rows"), P(None, "rows")), "out_specs": (P("rows"), P())}
    with pytest.raises(NotImplementedError, match=r"forward=.*the same along the mesh axes"):
        jax.shard_map(run, mesh=mesh, **specs)(H, XS)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "solver",
    [pb.Sweep(), pytest.param(None, marks=SLOW), pytest.param(pb.Blelloch(), marks=SLOW)],
    ids=str,
)
def test_inside_the_step_of_another_scan(solver):
    """It reads off the inner program that the results depend on what they are made of."""

    def run(outer, inner, w, h):
        def one(h, x):
            h, ys = inner(functools.partial(step, w), h, x)
            return h, jnp.sum(ys)

        return sum(map(jnp.sum, outer(one, h, XS.reshape(3, 3, 2, 3))))

    inner = functools.partial(pb.scan, forward=pb.Chunks(2))
    ours = functools.partial(run, functools.partial(pb.scan, solver=solver), inner)
    got = jit_quickly(jax.grad(ours, (0, 1)))(W, H)
    check_close(got, jax.grad(functools.partial(run, lax.scan, lax.scan), (0, 1))(W, H))


@SLOW
def test_inside_the_step_of_another_method():
    def run(scan, h):
        def one(h, x):
            return scan(lambda a, u: (jnp.tanh(0.6 * a + u), None), h, x)[0], h

        return scan(one, h, XS.reshape(3, 3, 2, 3))

    got = jit_quickly(functools.partial(run, functools.partial(pb.scan, forward=pb.Chunks(2))))(H)
    check_close(got, run(lax.scan, H))


@pytest.mark.parametrize("name", ["chunks", "newton", "fixed point"])
def test_numbers_of_python_stay_weak(name):
    """So that they do not widen what they meet. Nothing is computed: types are of the trace."""

    def types(scan):
        call = lambda: scan(lambda c, x: (jnp.tanh(0.5 * c + 1), (c, 2 * c, x)), 0.5, XS)  # noqa: E731
        return [(v.dtype, v.weak_type) for v in jax.tree.leaves(jax.eval_shape(call))]

    assert types(functools.partial(pb.scan, forward=METHODS[name])) == types(lax.scan)


@pytest.mark.parametrize(
    "guess", ["abc", [None, "abc"], object()], ids=["a string", "one in a list", "an object"]
)
def test_a_guess_that_is_no_array_is_named(guess):
    with pytest.raises(TypeError, match=r"guess: got .* a pytree of arrays is wanted"):
        pb.scan(functools.partial(step, W), H, XS, forward=pb.Newton(guess=guess))

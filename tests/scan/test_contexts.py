"""One step function under two settings: what was remembered under the first is not used again."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

import parscan_bp as pb
from tests.quickly import jit_quickly

SOLVERS = {"auto": None, "sweep": pb.Sweep(), "blelloch": pb.Blelloch()}
any_solver = pytest.mark.parametrize("solver", SOLVERS)
few = pytest.mark.sampled
# Large enough for solver=None to take a solver.
LENGTH, ROWS, HIDDEN = 12, 100, 3
W = (np.eye(HIDDEN) / 2 + 0.1).astype(np.float32)
H0 = np.zeros((ROWS, HIDDEN), np.float32)
XS = np.linspace(-1, 1, LENGTH * ROWS * HIDDEN, dtype=np.float32).reshape(LENGTH, ROWS, HIDDEN)
XS[0, 0, 0] = 0.0


@contextlib.contextmanager
def configured(name, value):
    """A setting that has no context manager of its own."""
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _mesh(size):
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * size), tuple("abc"[:size]))


def random_numbers(h, x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, h.shape)
    return jnp.tanh(h @ W + x * kept), h


def different_ranks(h, x):
    return jnp.tanh(h @ W + x + jnp.ones(HIDDEN, h.dtype)), h


def mixed_dtypes(h, x):
    return jnp.tanh(h @ W + x), h * jnp.arange(HIDDEN)


def default_dtype(h, x):
    return jnp.tanh(h @ W + x), h * jnp.linspace(0, 1, HIDDEN)


def zero_by_zero(h, x):
    h = jnp.tanh(h @ W + x)
    return h, x / jnp.where(jnp.abs(x) > 0.0, 1.0, 0.0) + h


def looks_at_values(h, x):
    positive = float(lax.stop_gradient(x).sum()) > 0
    return jnp.tanh(h @ W + x) * (2.0 if positive else 1.0), h


def looks_at_the_mesh(h, x):
    axes = len(jax.sharding.get_abstract_mesh().axis_names)
    return jnp.tanh(h @ W + x * (1 + axes)), h


SETTINGS = {
    "threefry_partitionable": (random_numbers, lambda: jax.threefry_partitionable(False)),
    "default_prng_impl": (random_numbers, lambda: jax.default_prng_impl("rbg")),
    "random_seed_offset": (random_numbers, lambda: configured("jax_random_seed_offset", 1)),
    "numpy_rank_promotion": (different_ranks, lambda: jax.numpy_rank_promotion("raise")),
    "numpy_dtype_promotion": (mixed_dtypes, lambda: jax.numpy_dtype_promotion("strict")),
    "enable_x64": (default_dtype, lambda: jax.enable_x64(not jax.config.jax_enable_x64)),
    "debug_nans": (zero_by_zero, lambda: jax.debug_nans(True)),
    "disable_jit": (looks_at_values, jax.disable_jit),
    "mesh": (looks_at_the_mesh, lambda: jax.set_mesh(_mesh(2))),
}


def _fresh(step):
    """A function object of its own, which nothing was remembered of."""
    return lambda h, x: step(h, x)


def _scan(name):
    return lax.scan if name == "lax" else functools.partial(pb.scan, solver=SOLVERS[name])


def _results(scan, step, context, order):
    """Values and gradients of both, in the order that is asked for, with one step function."""
    step = _fresh(step)

    def run(h0, xs):
        h, ys = scan(step, h0, xs)
        return jnp.sum(h) + jnp.sum(jnp.sin(ys)), ys

    found = {}
    for under in order:
        with context() if under else contextlib.nullcontext():
            found[under] = _result(jit_quickly(jax.value_and_grad(run, (0, 1), has_aux=True)))
    return found


def _result(f):
    try:
        return jax.tree.map(np.asarray, f(jnp.asarray(H0), jnp.asarray(XS)))
    except Exception as error:
        return type(error)


def _assert_alike(got, want):
    if isinstance(want, type) or isinstance(got, type):
        assert got is want
        return
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@functools.cache
def _by_lax(setting, order):
    return _results(lax.scan, *SETTINGS[setting], order)


@few
@any_solver
@pytest.mark.parametrize("order", [(False, True), (True, False)], ids=["then", "first"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_changes_what_it_changes_in_lax_scan(setting, order, solver):
    want = _by_lax(setting, order)
    got = _results(_scan(solver), *SETTINGS[setting], order)
    # A solver that is named wants a step that can be traced, also where Python would run it.
    traced = setting == "disable_jit" and solver != "auto"
    for under in order:
        _assert_alike(got[under], want[under and not traced])


def test_every_setting_changes_lax_scan():
    # JAX itself does not trace anew for another kind of keys.
    for setting in SETTINGS.keys() - {"default_prng_impl"}:
        without, under = _by_lax(setting, (False, True)).values()
        same = without is under or (
            not isinstance(without, type)
            and not isinstance(under, type)
            and all(
                a.dtype == b.dtype and np.array_equal(a, b)
                for a, b in zip(jax.tree.leaves(without), jax.tree.leaves(under), strict=True)
            )
        )
        assert not same, setting


@any_solver
@pytest.mark.parametrize("order", [("highest", None), (None, "highest")])
@pytest.mark.parametrize("around_pull", [False, True])
def test_precision_of_products(solver, order, around_pull):
    """Seen in what is lowered: on a CPU the numbers are the same."""

    def all_highest(scan):
        w = jnp.eye(HIDDEN)
        step = lambda w: lambda h, x: (jnp.tanh(h @ w + x), None)  # noqa: E731
        for precision in order:
            settings = functools.partial(jax.default_matmul_precision, precision)

            def gradient(w, xs, settings=settings):
                with settings():
                    h, pull = jax.vjp(lambda w, xs: scan(step(w), H0, xs)[0], w, xs)
                with settings() if around_pull else contextlib.nullcontext():
                    return pull(h)

            lowered = jax.jit(gradient).lower(w, XS).as_text().splitlines()
            yield all("HIGHEST" in line for line in lowered if "dot_general" in line)

    assert list(all_highest(_scan(solver))) == list(all_highest(lax.scan))
    assert list(all_highest(_scan(solver))) == [precision is not None for precision in order]


# The surroundings: mapped axes that the step asks about.


def size_of_axis(h, x):
    return jnp.tanh(h @ W + x / lax.axis_size("i")), h


def place_on_axis(h, x):
    return jnp.tanh(h @ W + x * lax.axis_index("i")), h


def number_on_axis(h, x):
    return jnp.tanh(h @ W + x / lax.psum(1, "i")), h


def _mapped(scan, step, sizes, names=("i", "i")):
    """Gradients under axes of both sizes; ``i`` is the outer axis where the name is another."""
    step, found = _fresh(step), []
    for size, name in zip(sizes, names, strict=True):

        def loss(x, name=name):
            one = lambda x: scan(step, jnp.asarray(H0), x)[0].sum()  # noqa: E731
            total = lambda x: jax.vmap(one, axis_name=name)(x).sum()  # noqa: E731
            if name == "i":
                return total(x)
            return jax.vmap(total, axis_name="i")(jnp.stack([x, x, 2 * x])).sum()

        found.append(jit_quickly(jax.grad(loss))(jnp.asarray(XS) * jnp.ones((size, 1, 1, 1))))
    return found


@few
@any_solver
@pytest.mark.parametrize("step", [size_of_axis, place_on_axis, number_on_axis])
@pytest.mark.parametrize("names", [("i", "i"), ("i", "j"), ("j", "i")], ids="-".join)
def test_a_step_may_ask_about_the_mapped_axis(step, names, solver):
    if step is place_on_axis and SOLVERS[solver] is not None:
        pytest.skip("whether a named solver takes axis_index is asked elsewhere")
    got = _mapped(_scan(solver), step, (2, 4), names)
    for a, b in zip(got, _mapped(lax.scan, step, (2, 4), names), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_step_that_asks_about_an_axis_raises_outside_of_it():
    step = _fresh(size_of_axis)
    run = lambda x: pb.scan(step, jnp.asarray(H0), x)[0]  # noqa: E731
    jit_quickly(jax.vmap(run, axis_name="i"))(jnp.asarray(XS)[None])
    with pytest.raises(NameError):
        run(jnp.asarray(XS))

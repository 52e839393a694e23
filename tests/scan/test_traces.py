"""What is remembered of a step: a trace that JAX would make anew is planned anew, no other is."""

import contextlib
import dataclasses
import functools
import gc
import logging
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Diagonal
from parscan_bp.scan import traces
from parscan_bp.scan.api import plans_of
from tests.family import compare_outputs

FLOAT = jnp.result_type(float)
H0 = jnp.ones((3, 2), FLOAT)
XS = jnp.ones((4, 3, 2), FLOAT)
AT = H0.astype(jnp.float32), XS.astype(jnp.float32)
SOLVERS = {"auto": None, "sweep": pb.Sweep(), "blelloch": pb.Blelloch()}


def _scan(solver):
    return lax.scan if solver == "lax" else functools.partial(pb.scan, solver=SOLVERS[solver])


# Contexts.


def _random_step():
    """Dropout by a key made in the step, and a row added to all rows."""

    def step(h, x):
        kept = jax.random.bernoulli(jax.random.key(0), 0.5, h.shape)
        return jnp.tanh(0.5 * h + x + jnp.arange(2, dtype=h.dtype)) * kept, h

    return step


def _mixed_step():
    """Integers that are promoted to floats, and floats that are as wide as floats are."""
    return lambda h, x: (jnp.tanh(h + x), (h * jnp.arange(2), jnp.arange(2) / 2))


CONTEXTS = {
    "random numbers by another algorithm": (lambda: jax.threefry_partitionable(False)),
    "another generator": (lambda: jax.default_prng_impl("rbg")),
    "ranks are not promoted": (lambda: jax.numpy_rank_promotion("raise")),
    "dtypes are not promoted": (lambda: jax.numpy_dtype_promotion("strict")),
    "another precision": (lambda: jax.enable_x64(not jax.config.jax_enable_x64)),
}


def _outcome(run):
    try:
        return run()
    except (ValueError, TypeError) as error:
        return type(error).__name__


def _in_turn(scan, step, contexts):
    """Values of one step in contexts that follow each other."""
    found = []
    for context in contexts:
        with context():
            found.append(_outcome(lambda: scan(step, *AT)))
    return found


@pytest.mark.parametrize("first", [False, True], ids=["then", "before"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_settings_that_change_a_trace(context, first):
    make = _mixed_step if "dtype" in context or "precision" in context else _random_step
    order = (CONTEXTS[context], contextlib.nullcontext)[:: 1 if first else -1]
    want = _in_turn(lax.scan, make(), order)
    for solver in ("auto", "sweep"):
        for got, wanted in zip(_in_turn(_scan(solver), make(), order), want, strict=True):
            if isinstance(wanted, str):
                assert got == wanted, (context, solver)
            else:
                compare_outputs(got, wanted, case=context, mode=solver)


@pytest.mark.parametrize("solver", ["auto", "sweep"])
def test_the_size_of_a_mapped_axis_is_that_of_the_call(solver):
    def step(h, x):
        return jnp.tanh(0.5 * h + x / lax.axis_size("rows")), None

    def gradient(scan, rows):
        loss = lambda x: scan(step, H0, x)[0].sum()  # noqa: E731
        return jax.vmap(jax.grad(loss), axis_name="rows")(jnp.stack([XS] * rows))

    for rows in (2, 4):
        np.testing.assert_allclose(
            gradient(_scan(solver), rows), gradient(lax.scan, rows), rtol=1e-5
        )


# What came before.


class _Compilations(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.found = []

    def emit(self, record):
        message = record.getMessage()
        if message.startswith("Finished XLA"):
            self.found.append(message)


@contextlib.contextmanager
def _log_of_compilations():
    handler, logger = _Compilations(), logging.getLogger("jax")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


@pytest.mark.parametrize("solver", ["sweep", "blelloch"])
def test_a_step_that_came_before_is_neither_traced_nor_compiled(solver):
    calls, scan = [], _scan(solver)

    def step(h, x):
        calls.append(None)
        return jnp.tanh(0.5 * h + x), h

    def run():
        scan(step, H0, XS)
        jax.grad(lambda h: scan(step, h, XS)[0].sum())(H0)

    run()
    assert len(calls) == 1
    with _log_of_compilations() as found:
        run()
    assert (len(calls), found) == (1, [])


def test_a_cell_that_came_before_is_neither_traced_nor_compiled():
    params = pb.cells.GRU().init(jax.random.key(0), 2, 2, FLOAT)

    def run():
        return pb.scan(functools.partial(pb.cells.GRU(), params), H0, XS, solver=pb.Sweep())

    run()
    with _log_of_compilations() as found:
        run()
    assert found == []


def test_a_step_is_called_once_even_if_it_raises():
    calls = []

    def step(h, x):
        calls.append(None)
        raise KeyError("of the step itself")

    for solver in SOLVERS:
        with pytest.raises(KeyError, match="of the step itself"):
            _scan(solver)(step, H0, XS)
    assert len(calls) == len(SOLVERS)


# What is forgotten.


def _leave_a_step(scan):
    held = jnp.full(2, 0.5, FLOAT)

    def step(h, x):
        return jnp.tanh(held * h + x), h

    jax.grad(lambda h: scan(step, h, XS)[0].sum())(H0)
    return [weakref.ref(step), weakref.ref(held), *map(weakref.ref, plans_of(step))]


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_of_a_step_that_is_gone_is_kept(solver):
    left = _leave_a_step(_scan(solver))
    gc.collect()
    assert len(left) > 2
    assert [ref() for ref in left] == [None] * len(left)


def test_a_jacobian_that_is_gone_is_not_kept():
    step = lambda h, x: (jnp.tanh(0.5 * h + x), h)  # noqa: E731

    def leave_one(slope):
        held = jnp.asarray(slope, FLOAT)
        jacobian = lambda h, x, new: Diagonal(held * (1 - new**2))  # noqa: E731
        slopes = jax.grad(lambda h: pb.scan(step, h, XS, jacobian=jacobian)[0].sum())(H0)
        return slopes, weakref.ref(jacobian), weakref.ref(held)

    right, *left = leave_one(0.5)
    wrong, *more = leave_one(0.25)  # another function, another Jacobian
    gc.collect()
    assert [ref() for ref in (*left, *more)] == [None] * 4
    want = jax.grad(lambda h: lax.scan(step, h, XS)[0].sum())(H0)
    np.testing.assert_allclose(right, want, rtol=1e-6)
    assert (wrong < 0.5 * right).all()


def test_of_a_step_that_lives_on_a_bounded_number_of_plans_is_kept(monkeypatch):
    monkeypatch.setattr(traces, "MOST", 3)
    step = lambda h, x: (jnp.tanh(0.5 * h + x), h)  # noqa: E731
    plans = []
    for size in range(1, 9):
        pb.explain(step, *(jax.ShapeDtypeStruct(s, FLOAT) for s in ((size,), (4, size))))
        plans.append(weakref.ref(plans_of(step)[-1]))
        assert len(plans_of(step)) <= 3
    gc.collect()
    assert sum(plan() is not None for plan in plans) <= 3


@dataclasses.dataclass
class _Unhashable:
    def __call__(self, h, x):
        return jnp.tanh(0.5 * h + x), h


class _WithoutWeakReferences:
    __slots__ = ()

    def __call__(self, h, x):
        return jnp.tanh(0.5 * h + x), h


@pytest.mark.parametrize("kind", [_Unhashable, _WithoutWeakReferences])
def test_a_step_that_cannot_be_a_key_is_reported_as_by_lax_scan(kind):
    with pytest.raises(TypeError) as want:
        lax.scan(kind(), H0, XS)
    with pytest.raises(TypeError) as got:
        pb.scan(kind(), H0, XS)
    assert str(got.value) == str(want.value)


class _Tunable(pb.cells.Elman):
    """A cell of a user, who may change it."""

    factor = 1.0

    def __call__(self, params, carry, x):
        h, _ = super().__call__(params, self.factor * carry, x)
        return h, h


def test_a_cell_of_ones_own_is_seen_to_change(monkeypatch):
    cell = _Tunable()
    params = cell.init(jax.random.key(0), 2, 2, FLOAT)
    for factor in (1.0, 2.0, 1.0):
        monkeypatch.setattr(_Tunable, "factor", factor)
        got, want = (scan(functools.partial(cell, params), H0, XS) for scan in (pb.scan, lax.scan))
        compare_outputs(got, want, case=f"factor {factor}")


def test_values_that_a_trace_around_holds_are_not_kept():
    def loss(scan, w):
        step = lambda h, x: (jnp.tanh(w * h + x), h)  # noqa: E731
        first = scan(step, H0, XS)[0]
        return scan(step, first, XS)[0].sum()

    for w in (0.5, 0.25):
        got, want = (
            jax.jit(jax.grad(lambda w, s=s: loss(s, w)))(w)
            for s in (functools.partial(pb.scan, solver=pb.Sweep()), lax.scan)
        )
        np.testing.assert_allclose(got, want, rtol=1e-5)

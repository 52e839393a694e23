"""Mistakes: those of `jax.lax.scan`'s contract fail alike, those in our own arguments say how."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp
from tests.family import compare_outputs

SOLVER_NAMES = ("Sweep", "Associative", "Blelloch", "Chunked")


def _step(c, x):
    return 0.5 * c + x, c


def _count(c, _):
    return c + 1.0, c


def _grow(c, x):
    return jnp.concatenate([c, x]), c


def _wrong_arity(c):
    return c, c


def _raises(c, x):
    raise KeyError("of the body itself")


XS = np.arange(6.0, dtype=np.float32).reshape(3, 2)
INIT = np.zeros(2, np.float32)

# What a caller may do, sensible or not: lax.scan decides which it is.
CALLS = {
    "body returns one value": lambda scan: scan(lambda c, x: c, INIT, XS),
    "body returns a triple": lambda scan: scan(lambda c, x: (c, x, x), INIT, XS),
    "body returns a list": lambda scan: scan(lambda c, x: [c, x], INIT, XS),
    "body returns None": lambda scan: scan(lambda c, x: None, INIT, XS),
    "body takes one argument": lambda scan: scan(_wrong_arity, INIT, XS),
    "body raises": lambda scan: scan(_raises, INIT, XS),
    "body returns a string": lambda scan: scan(lambda c, x: (c, "y"), INIT, XS),
    "carry becomes a tuple": lambda scan: scan(lambda c, x: ((c, c), x), INIT, XS),
    "carry loses a key": lambda scan: scan(
        lambda c, x: ({"a": c["a"]}, x), {"a": INIT, "b": INIT}, XS
    ),
    "carry becomes None": lambda scan: scan(lambda c, x: (None, x), INIT, XS),
    "carry changes dtype": lambda scan: scan(lambda c, x: (c.astype(jnp.bfloat16), x), INIT, XS),
    "carry becomes float": lambda scan: scan(_count, np.int32(0), XS),
    "weak carry is promoted": lambda scan: scan(_count, 0, XS),
    "carry changes shape": lambda scan: scan(_grow, INIT, XS),
    "two carries change": lambda scan: scan(lambda c, x: ((c[0].sum(), 1), x), (INIT, INIT), XS),
    "length disagrees": lambda scan: scan(_step, INIT, XS, length=4),
    "length is zero": lambda scan: scan(_step, INIT, XS, length=0),
    "length is negative": lambda scan: scan(_step, INIT, XS, length=-3),
    "length is negative without xs": lambda scan: scan(_count, 0.0, length=-3),
    "length is a float": lambda scan: scan(_step, INIT, XS, length=3.0),
    "length is a string": lambda scan: scan(_step, INIT, XS, length="long"),
    "no xs and no length": lambda scan: scan(_step, INIT, None),
    "empty xs and no length": lambda scan: scan(_step, INIT, {"a": (), "b": None}),
    "nothing after init": lambda scan: scan(_step, INIT),
    "no init": lambda scan: scan(_step),
    "xs of different lengths": lambda scan: scan(
        lambda c, x: (c, x["a"]), INIT, {"a": XS, "b": XS[:2]}
    ),
    "xs is a number": lambda scan: scan(_step, INIT, 3.0),
    "xs is a scalar array": lambda scan: scan(_step, INIT, jnp.float32(3.0)),
    "xs is a list of numbers": lambda scan: scan(_step, INIT, [1.0, 2.0]),
    "xs is a string": lambda scan: scan(_step, INIT, "xs"),
    "init is a string": lambda scan: scan(_step, "init", XS),
    "init is an object": lambda scan: scan(_step, object(), XS),
    "f is None": lambda scan: scan(None, INIT, XS),
    "f is an array": lambda scan: scan(INIT, INIT, XS),
    "unroll is negative": lambda scan: scan(_step, INIT, XS, unroll=-1),
    "unroll is a string": lambda scan: scan(_step, INIT, XS, unroll="all"),
    "unroll is traced": lambda scan: jax.jit(lambda u: scan(_step, INIT, XS, unroll=u))(2),
    "length is traced": lambda scan: jax.jit(lambda n: scan(_step, INIT, None, length=n))(3),
    "reverse is a number": lambda scan: scan(_step, INIT, XS, reverse=1),
    "shapes do not broadcast": lambda scan: scan(_step, np.zeros(3, np.float32), XS),
    "unknown argument": lambda scan: scan(_step, INIT, XS, backwards=True),
    "too few steps to unroll": lambda scan: scan(_step, INIT, XS, unroll=100),
}


def _behaviour(call, scan):
    try:
        return call(scan), None
    except Exception as error:
        return None, error


def _message(error):
    """The message without addresses and without where in the source a tracer was made."""
    text = str(error).split("The error occurred while tracing")[0].split("This Tracer was")[0]
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize("mistake", CALLS)
def test_like_lax_scan(mistake):
    """The same result, or the same type of error with the same words."""
    want, want_error = _behaviour(CALLS[mistake], lax.scan)
    got, got_error = _behaviour(CALLS[mistake], parscan_bp.scan)
    if want_error is None:
        assert got_error is None, f"{mistake}: lax.scan takes it, got {got_error!r}"
        compare_outputs(got, want, case=mistake)
    else:
        assert got_error is not None, f"{mistake}: want {want_error!r}, got a result"
        assert type(got_error) is type(want_error), f"{mistake}: {got_error!r}"
        assert _message(got_error) == _message(want_error)


@pytest.mark.parametrize("mistake", ["carry changes dtype", "length disagrees", "f is None"])
@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_like_lax_scan_with_a_solver(mistake, solver):
    """A named solver does not change what the caller is told."""

    def scan(*args, **kwargs):
        return parscan_bp.scan(*args, solver=getattr(parscan_bp, solver)(), **kwargs)

    _, want = _behaviour(CALLS[mistake], lax.scan)
    _, got = _behaviour(CALLS[mistake], scan)
    assert type(got) is type(want)
    assert _message(got) == _message(want)


@pytest.mark.parametrize("solver", ["sweep", "Sweep", 3, parscan_bp.Sweep, lax.scan])
def test_solver_is_not_one(solver):
    with pytest.raises(TypeError, match="solver") as error:
        parscan_bp.scan(_step, INIT, XS, solver=solver)
    for name in SOLVER_NAMES:
        assert name in str(error.value)


def test_unknown_jacobian():
    with pytest.raises(ValueError, match="jacobian") as error:
        parscan_bp.scan(_step, INIT, XS, jacobian="banana")
    assert "banana" in str(error.value)
    assert "auto" in str(error.value)


@pytest.mark.parametrize("limit", [0, -1])
def test_memory_limit_is_not_positive(limit):
    with pytest.raises(ValueError, match="memory_limit"):
        parscan_bp.scan(_step, INIT, XS, memory_limit=limit)


@pytest.mark.parametrize("arguments", [{"positional": True}, {"backwards": True}])
def test_our_arguments_are_keywords(arguments):
    """Nothing of ours can be hit by a seventh positional argument."""
    with pytest.raises(TypeError):
        if "positional" in arguments:
            parscan_bp.scan(_step, INIT, XS, None, False, 1, parscan_bp.Sweep())
        else:
            parscan_bp.scan(_step, INIT, XS, solver=parscan_bp.Sweep(), **arguments)


@pytest.mark.parametrize(
    ("solver", "arguments"),
    [
        ("Blelloch", {"up_levels": -1}),
        ("Chunked", {"chunks": 0}),
        ("Chunked", {"chunks": -2}),
        ("Sweep", {"chunk": 0}),
        ("Associative", {"collect_chunk": 0}),
        ("Associative", {"memory_limit": 0}),
        ("Blelloch", {"memory_limit": -1}),
    ],
)
def test_solver_arguments_out_of_range(solver, arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        getattr(parscan_bp, solver)(**arguments)

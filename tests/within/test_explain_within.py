"""`explain_within`: what it says of each scan, and that it is what happens."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb

A, XS = jnp.asarray([0.3, -0.5, 0.8]), jnp.ones((6, 3))


def _model(a, xs):
    def step(h, x):
        h = lax.fori_loop(0, 2, lambda k, v: jnp.sin(a * v) + k, h)
        return h + x, None

    h = jax.jit(jax.checkpoint(lambda a: lax.scan(step, a, xs)[0]))(a)
    return lax.while_loop(lambda h: h[0] < 9, lambda h: lax.fori_loop(0, 2, _more, h), h)


def _more(_, h):
    return jnp.abs(h) + 1


@pytest.fixture(scope="module")
def told():
    return pb.explain_within(_model, A, XS, solver=pb.Sweep())


def test_one_for_each_scan(told):
    outer, inner, looped = told.scans
    assert [scan.index for scan in told.scans] == [0, 1, 2]
    assert outer.inside[0] == "jit" and len(outer.inside) == 2
    assert inner.inside == (*outer.inside, "scan") and looped.inside == ("while",)
    assert (outer.length, outer.carry) == (6, (jax.typeof(A).str_short(),))
    assert all(scan.replaced and scan.stored is not None for scan in told.scans)
    assert all(scan.source.startswith("test_explain_within.py:") for scan in told.scans)


def test_lines_are_those_of_the_source(told):
    lines = pathlib.Path(__file__).read_text().splitlines()
    found = [lines[int(scan.source.split(":")[1]) - 1] for scan in told.scans]
    assert "lax.scan(step" in found[0] and "fori_loop(0, 2, lambda" in found[1]
    assert "fori_loop(0, 2, _more" in found[2]


def test_as_text(told):
    text = str(told)
    assert text.startswith("3 scans, 3 by a solver\n0  test_explain_within.py:")
    assert f"\n  1  {told.scans[1].source} in " in text  # indented by the scan around it
    assert "derivatives by Sweep(): named by the caller" in text
    assert "bytes; by lax.scan" in text


def test_what_stays():
    @jax.custom_vjp
    def ruled(a):
        return lax.scan(lambda h, x: (h * x, None), a, XS)[0]

    ruled.defvjp(lambda a: (ruled(a), None), lambda _, ct: (ct,))

    def printed(h, x):
        jax.debug.print("{}", h)
        return h + x, None

    def f(a):
        h = lax.scan(lambda h, x: (jnp.sin(h) + x, None), ruled(a), XS)[0]
        return lax.scan(printed, h, XS)[0]

    scans = pb.explain_within(f, A, solver=pb.Sweep(), only=(0, 2)).scans
    assert "inside of a jax.custom_vjp" in scans[0].stays
    assert scans[1].stays == "only= does not name it"
    assert "effects" in scans[2].stays
    assert not any(scan.replaced for scan in scans)


def test_what_is_left_says_what_a_named_sweep_would_do():
    short = lambda a: lax.scan(lambda h, x: (jnp.sin(h) + x, None), 2 * a, XS)[0]  # noqa: E731
    (scan,) = pb.explain_within(short, jax.ShapeDtypeStruct((3,), A.dtype)).scans
    assert scan.otherwise == "solver=Sweep() would take it" and not scan.replaced

    def unknown(h, x):
        return lax.while_loop(lambda v: v[0] < 1, lambda v: v + 1, h) + x, None

    (scan,) = pb.explain_within(lambda a: lax.scan(unknown, a, XS)[0], A).scans
    assert "solver=Sweep() would refuse it" in scan.otherwise and "while" in scan.otherwise
    (scan,) = pb.explain_within(lambda a: lax.scan(unknown, a, XS)[0], A, solver=pb.Sweep()).scans
    assert "while" in scan.stays


def test_what_is_told_is_what_runs():
    for solver in (None, pb.Sweep()):
        taken = sum(s.replaced for s in pb.explain_within(_model, A, XS, solver=solver).scans)
        program = str(jax.make_jaxpr(pb.replace_scans(_model, solver=solver))(A, XS))
        assert ("call_with_rule[" in program) == (taken > 0)


def test_a_function_without_scans():
    assert str(pb.explain_within(jnp.sin, A)) == "0 scans, 0 by a solver"

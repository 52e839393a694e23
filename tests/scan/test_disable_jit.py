"""Under `jax.disable_jit`, what is left to us is left to `lax.scan`, whose steps Python runs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import assert_derivatives_close, compare_outputs

XS = jnp.arange(4.0)
SCANS = {"scan": pb.scan, "custom_vjp_scan": pb.custom_vjp_scan}


def _looks(h, x):
    """A step that prints, asserts or chooses by its values."""
    if x > 1:
        h = 2 * h
    assert jnp.abs(h) < 100
    return jnp.tanh(h) + x, h


@pytest.mark.parametrize("scan", SCANS)
def test_a_step_may_look_at_its_values(scan):
    def loss(scan):
        return lambda h, xs: sum(jnp.sum(jnp.sin(v)) for v in scan(_looks, h, xs))

    with jax.disable_jit():
        compare_outputs(SCANS[scan](_looks, 0.5, XS), lax.scan(_looks, 0.5, XS), case=scan)
        got, want = (jax.grad(loss(s), (0, 1))(0.5, XS) for s in (SCANS[scan], lax.scan))
    assert_derivatives_close(got, want, 1e-6, case=scan, mode="grad")


def test_second_derivatives_are_those_of_the_steps():
    def bend(scan):
        loss = lambda h: scan(_looks, h, XS)[0]  # noqa: E731
        return jax.jvp(jax.grad(loss), (0.5,), (1.0,))

    with jax.disable_jit():
        assert_derivatives_close(bend(pb.scan), bend(lax.scan), 1e-6, mode="hvp")


def test_explain_says_so():
    with jax.disable_jit():
        explained = pb.explain(_looks, 0.5, XS)
    assert explained.choice == "lax.scan"
    assert "disable_jit" in explained.reason


@pytest.mark.parametrize("named", [{"solver": pb.Sweep()}, {"jacobian": "diagonal"}])
def test_what_was_named_wants_a_step_that_can_be_traced(named):
    with jax.disable_jit():
        with pytest.raises(jax.errors.ConcretizationTypeError) as error:
            pb.scan(_looks, 0.5, XS, **named)
    assert any("disable_jit" in note for note in error.value.__notes__)


def test_without_it_the_mistake_is_reported_as_by_lax_scan():
    errors = []
    for scan in (lax.scan, pb.scan):
        with pytest.raises(jax.errors.ConcretizationTypeError) as error:
            scan(_looks, 0.5, XS)
        errors.append(error.value)
    want, got = (str(error).split("\n")[0] for error in errors)
    assert got == want
    assert not hasattr(errors[1], "__notes__") or "disable_jit" not in str(errors[1].__notes__)

"""Functions of other packages, if installed, by our scan in the place of `jax.lax.scan`."""

import functools

import jax
import pytest

import parscan_bp as pb
from tests.conformance.packages import PROGRAMS, made
from tests.conformance.trials import differences, results

ORIGINAL = jax.lax.scan


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("solver", [None, pb.Sweep(otherwise="lax")], ids=repr)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_has_the_derivatives_of_lax_scan(name, solver, monkeypatch):
    """Values, gradients, tangents and products with the Hessian, in double precision."""
    for module in PROGRAMS[name][1]:
        pytest.importorskip(module, exc_type=ImportError)
    calls = []

    def ours(*args, **options):
        calls.append(None)
        return pb.scan(*args, solver=solver, **options)

    with jax.enable_x64(True):
        want = results(made(name))
        jax.clear_caches()  # what packages have compiled holds the scan as it was
        monkeypatch.setattr(jax.lax, "scan", functools.wraps(ORIGINAL)(ours))
        try:
            assert not differences(lambda: results(made(name)), want)
        finally:
            jax.clear_caches()
    assert calls, "no scan was called by its name"

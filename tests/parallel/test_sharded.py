"""`Sharded` on virtual devices: derivatives of one device, in every structure, mode and method."""

import pytest

START = """
import jax.numpy as jnp
import parscan_bp as pb
from tests.parallel.sharded_cases import check
"""

DERIVATIVES = (
    START
    + """
exact = {"dtype": jnp.float64}
check(3, 7, "diagonal", method="ppermute", **exact)
check(4, 4, "tree", method="all_gather", reverse=True, **exact)
check(4, 8, "diagonal", mode="product", method="chain", **exact)
check(4, 4, "dense", mode="jvp", method="turns", **exact)
"""
)

GRID = (
    START
    + """
from tests.parallel.sharded_cases import CASES
exact = {"dtype": jnp.float64}
methods = ("ppermute", "all_gather", "chain", "turns", "corrections")
for k, name in enumerate(CASES):
    for length in (DEVICES, 50, 1000):
        check(DEVICES, length, name, method=methods[(k + length) % 5], **exact)
check(DEVICES, 50, "tree", reverse=True, **exact)
check(DEVICES, 50, "dense", inner=pb.Blelloch(scaled=True), **exact)
for method in methods:
    for mode in ("jvp", "product"):
        check(DEVICES, 50, "dense", mode=mode, method=method, **exact)
check(DEVICES, 50, "tree", mode="product", **exact)
check(DEVICES, 50, "block", mode="product", **exact)
check(DEVICES, 50, "dense", dtype=jnp.float32)
check(DEVICES, 50, "dense", dtype=jnp.bfloat16)
"""
)


def test_derivatives_are_those_of_one_device(run_on_devices):
    run_on_devices(DERIVATIVES, 4, x64=True)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_every_structure_length_and_method(run_on_devices, devices):
    run_on_devices(GRID.replace("DEVICES", str(devices)), devices, x64=True)

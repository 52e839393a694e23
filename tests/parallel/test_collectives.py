"""What goes from device to device is what the formulas say, to the byte."""

import pytest

import parscan_bp as pb
from parscan_bp.devices import METHODS

pytestmark = pytest.mark.reads_compiled

PROGRAM = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.devices import METHODS
from parscan_bp.parallel import Collectives, collective_stats
from tests.family import compare_outputs
from tests.parallel.sharded_cases import B, H, case, line_mesh, placed

VECTOR = 4 * B * H
WHOLE = {"dense": H * H, "diagonal": H}

def compiled(f, *args):
    return jax.jit(f).lower(*args).compile()

def sums(name, p, xs):
    used = {"dense": ("w", "b"), "diagonal": ("b",)}[name]
    return {k: p[k] for k in used}

def check(devices, name, method):
    step, p, h, xs = case(name, 2 * devices, jnp.float32)
    mesh = line_mesh(devices)
    xs, used = placed(xs, mesh), sums(name, p, xs)
    scan = functools.partial(pb.scan, solver=pb.Sharded("time", mesh, method=method))

    def loss(used, xs, weights):
        _, ys = scan(functools.partial(step, {**p, **used}), h, xs)
        return (weights * ys).sum()

    found = collective_stats(compiled(jax.grad(loss, (0, 1)), used, xs, xs))
    pair = 4 * B * WHOLE[name] + VECTOR
    # The carry that enters a device is that of the one before it: one exchange, where it is read.
    permutes = Collectives(devices, devices * VECTOR)
    expected = {"all-reduce": Collectives(1, sum(4 * a.size for a in used.values()))}
    if method == "turns":
        permutes += Collectives(devices - 1, (devices - 1) * VECTOR)
    elif method == "all_gather":
        expected["all-gather"] = Collectives(1, devices * pair)
    else:
        sent = METHODS[method](devices, pair, VECTOR)
        permutes += Collectives(sent.collectives, sent.bytes)
    expected["collective-permute"] = permutes
    assert found == expected, (devices, name, method, found, expected)

def check_forward(devices):
    step, p, h, xs = case("dense", 2 * devices, jnp.float32)
    mesh = line_mesh(devices)
    run = lambda scan: functools.partial(scan, functools.partial(step, p))  # noqa: E731
    sharded = functools.partial(pb.scan, solver=pb.Sharded("time", mesh))
    ours = compiled(run(sharded), h, placed(xs, mesh))
    found = collective_stats(ours)
    passed = Collectives(devices - 1, (devices - 1) * VECTOR)
    assert found == {"all-reduce": Collectives(1, VECTOR), "collective-permute": passed}, found
    compare_outputs(ours(h, placed(xs, mesh)), compiled(run(jax.lax.scan), h, xs)(h, xs))

for devices, name, method in CASES:
    check(devices, name, method)
    check_forward(devices)
"""

FEW = [(4, "dense", "ppermute"), (3, "diagonal", "all_gather")]
ALL = [(p, name, method) for p in (2, 3, 4, 8) for name in ("dense", "diagonal")
       for method in (*METHODS, "turns")]  # fmt: skip


def test_collectives_are_those_of_the_formula(run_on_devices):
    run_on_devices(PROGRAM.replace("CASES", str(FEW)), 4)


@pytest.mark.slow
def test_collectives_of_every_method_and_count(run_on_devices):
    run_on_devices(PROGRAM.replace("CASES", str(ALL)), 8)


@pytest.mark.parametrize("p, rounds", [(1, 0), (2, 1), (3, 2), (4, 2), (8, 3), (9, 4)])
def test_traffic(p, rounds):
    pair, vector = 80, 16
    doubling, gathered, chained = (METHODS[name](p, pair, vector) for name in METHODS)
    assert doubling.collectives == rounds
    assert doubling.bytes == max(rounds - 1, 0) * pair + min(rounds, 1) * vector
    assert (gathered.collectives, gathered.bytes) == (min(p - 1, 1), (p - 1) * pair)
    assert (chained.collectives, chained.bytes) == (p - 1, (p - 1) * vector)


def test_what_is_no_program_is_named():
    with pytest.raises(TypeError, match=r"compiled: got 3, of type int; the result of jax.jit"):
        pb.parallel.collective_stats(3)

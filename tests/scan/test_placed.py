"""The exact forward pass runs where its solver wants it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.devices import Place

XS = jnp.linspace(-1.0, 1.0, 5)


def step(carry, x):
    h, k = carry
    return (jnp.tanh(0.5 * h + x), k + 1), h**2


class There(Place):
    """A place of its own: the forward pass is here another function of the same values."""

    def __init__(self):
        self.seen = []

    def placed(self, loop, *, reverse):
        def run(consts, init, xs):
            self.seen.append(tuple(map(len, (consts, init, xs))))
            carry, ys, after = loop(consts, init, xs)
            assert all(len(a) == len(xs[0]) for a in after)
            return carry, ys, after

        return run


THERE = There()


@dataclasses.dataclass(frozen=True, repr=False)
class Elsewhere(pb.Sweep):
    """Runs the forward pass there."""

    @property
    def place(self):
        return THERE


def loss(solver, p, xs):
    f = lambda carry, x: step((p * carry[0], carry[1]), x)  # noqa: E731
    (h, k), ys = pb.scan(f, (jnp.ones(2), 0), xs[:, None], solver=solver)
    return jnp.sum(h) + jnp.sum(ys) + k


@pytest.mark.parametrize("keep", [False, True])
def test_values_and_derivatives_are_made_there(keep):
    solver, here = Elsewhere(recompute=not keep), pb.Sweep(recompute=not keep)
    modes = {
        "values": lambda s: loss(s, 0.5, XS),
        "gradient": lambda s: jax.grad(loss, (1, 2))(s, 0.5, XS),
        "tangents": lambda s: jax.jvp(lambda p: loss(s, p, XS), (0.5,), (1.0,)),
        "product": lambda s: jax.jvp(jax.grad(lambda p: loss(s, p, XS)), (0.5,), (1.0,)),
        "batch": lambda s: jax.vmap(lambda p: loss(s, p, XS))(jnp.ones(2)),
        "report": lambda s: pb.scan(step, (jnp.ones(2), 0), XS, solver=s, report=True)[2].status,
    }
    for name, mode in modes.items():
        THERE.seen.clear()
        both = (jax.jit(lambda mode=mode, s=s: mode(s))() for s in (solver, here))
        for got, want in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name)
        assert THERE.seen and all(lengths[1:] == (2, 1) for lengths in THERE.seen), name


def test_without_a_place_the_values_are_the_bound_equation():
    ours = jax.make_jaxpr(lambda: pb.scan(step, (1.0, 0), XS, solver=pb.Sweep()))()
    (call,) = (e for e in ours.eqns if e.primitive.name == "call_with_rule")
    (scan,) = call.params["call_jaxpr"].eqns
    assert scan.primitive.name == "scan" and len(scan.outvars) == 3


@pytest.mark.parametrize("place", [None, "here", Place], ids=str)
def test_a_place_is_one(place):
    solver = type("Nowhere", (pb.Sweep,), {"place": place})()
    with pytest.raises(TypeError, match=r"Nowhere\.place: got .*; a Place is wanted"):
        pb.scan(step, (jnp.ones(2), 0), XS[:, None], solver=solver)

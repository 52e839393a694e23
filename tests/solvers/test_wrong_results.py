"""What solvers and operators of one's own do slightly wrong is named, or told by a report."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.layers import Linear, init
from parscan_bp.operators import Diagonal
from parscan_bp.solvers import Solver
from tests.solvers.test_written_outside import Scalar


@dataclasses.dataclass(frozen=True)
class Altered(Solver):
    """A sweep of which something else than the results is returned."""

    needs: ClassVar[Literal["products"]] = "products"
    alter: Callable

    def run(self, system, state):
        return self.alter(*pb.Sweep().run(system, state))

    def complexity(self, n):
        return pb.Sweep().complexity(n)


def _first(tree):
    return jax.tree.map(lambda a: a[..., :1], tree)


WRONG = {
    "the state": (lambda s, summed, stacked: (_first(s), summed, stacked), r"state of shapes"),
    "sums": (
        lambda s, summed, stacked: (s, jax.tree.map(jnp.sum, summed), stacked),
        r"contributions of shapes \[\(\)\]; \[\(4,\)\] are wanted",
    ),
    "steps": (
        lambda s, summed, stacked: (s, summed, jax.tree.map(lambda a: a[:1], stacked)),
        r"leading axis of 6, the steps",
    ),
    "a pair": (lambda s, summed, stacked: (s, stacked), r"returned .*\(state, summed, stacked\)"),
    "nothing": (lambda *made: None, r"returned None.*\(state, summed, stacked\)"),
}


@pytest.mark.parametrize(("alter", "message"), WRONG.values(), ids=WRONG)
def test_a_solver_that_returns_something_else_is_named(alter, message):
    def loss(w):
        step = lambda c, x: (jnp.tanh(c * w + x), None)  # noqa: E731
        return pb.scan(step, jnp.ones(4), jnp.ones((6, 4)), solver=Altered(alter))[0].sum()

    with pytest.raises((TypeError, ValueError), match=r"Altered.run.* " + message):
        jax.grad(loss)(jnp.linspace(0.1, 0.9, 4))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Decay(Scalar):
    """A v = exp(factor) v: what bounds its entries is not the operator of |factor|."""

    multilinear: ClassVar = False

    def matvec(self, v):
        return jnp.exp(self.factor)[..., None] * v

    def as_dense(self):
        return jnp.exp(self.factor)[..., None, None] * jnp.eye(self.size)


def decays(factor, size):
    """The same as an operator that holds its entries."""
    return Diagonal(jnp.exp(factor)[:, None] * jnp.ones(size))


@pytest.mark.parametrize("kind", [Decay, decays])
def test_a_report_knows_which_numbers_bound_an_operator(kind):
    system = pb.Uniform(kind(jnp.full(2, -8.0), 2), jnp.zeros((3, 2)).at[-1].set(1.0))
    doubled = Altered(lambda state, *rest: (2 * state, *rest))
    for solver, status in ((pb.Sweep(), pb.Status.OK), (doubled, pb.Status.INACCURATE)):
        assert pb.solve(system, solver, report=True)[1].status == status


def test_a_solver_that_needs_something_else_is_named():
    class Vectors(Altered):
        needs: ClassVar = "vectors"

    with pytest.raises(ValueError, match=r"Vectors.needs: got 'vectors'; 'operators' or"):
        pb.scan(lambda c, x: (c * x, c), jnp.ones(2), jnp.ones(3), solver=Vectors(None))


@dataclasses.dataclass(frozen=True)
class AlteredRagged(Altered):
    """The same over layers of different sizes."""

    ragged: ClassVar[bool] = True

    def run_ragged(self, system):
        return self.alter(pb.Sweep().run_ragged(system))


RAGGED = {
    "a size": (lambda made: [made[0][..., :1], *made[1:]], r"lambda\[0\] of .*; \(\.\.\., \d\) is"),
    "none": (lambda made: [None, *made[1:]], r"lambda\[0\] of None"),
    "too few": (lambda made: made[:-1], r"a list of 3 is wanted"),
    "nothing": (lambda made: None, r"None.*; a list of 3 is wanted"),
}


@pytest.mark.parametrize(("alter", "message"), RAGGED.values(), ids=RAGGED)
def test_a_solver_of_layers_that_returns_something_else_is_named(alter, message):
    layers, x = [Linear(3), Linear(2)], jnp.ones((4, 3))
    params = init(layers, jax.random.key(0), (3,))
    solver = AlteredRagged(alter)
    with pytest.raises((TypeError, ValueError), match=rf"AlteredRagged.run_ragged.* {message}"):
        jax.grad(lambda x: pb.chain(layers, params, x, solver=solver).sum())(x)

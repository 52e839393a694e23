"""An operator from outside whose tree has the form of another's; see `trees.same_structure`."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.operators import Diagonal, Identity, Operator, compose, stack


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Circulant(Operator):
    """Closed, of one array of one axis, as a `Diagonal` is: JAX takes their trees for equal."""

    first: jax.Array

    core_ndims: ClassVar = {"first": 1}
    closed: ClassVar = True

    @property
    def shape(self):
        return (self.first.shape[-1],) * 2

    def as_dense(self):
        k = jnp.arange(self.first.shape[-1])
        return self.first[..., (k[:, None] - k) % k.size]

    def matvec(self, v):
        return jnp.einsum("...ij,...j->...i", self.as_dense(), v)

    def transpose(self):
        return Circulant(jnp.roll(jnp.flip(self.first, -1), 1, -1))

    def cost(self):
        return self.cost_of(2 * self.first.shape[-1] ** 2)

    def after(self, first):
        return Circulant(self.matvec(first.first))


def test_two_structures_of_one_form_are_not_taken_for_each_other():
    op, diagonal = Circulant(jnp.array([1.0, 2.0, 3.0])), Diagonal(jnp.array([1.0, 2.0, 4.0]))
    a, d = op.as_dense(), diagonal.as_dense()
    assert isinstance(compose(op, op), Circulant)
    np.testing.assert_allclose(compose(op, diagonal).as_dense(), d @ a)
    np.testing.assert_allclose(compose(diagonal, op).as_dense(), a @ d)
    np.testing.assert_allclose(stack([op, diagonal]).as_dense(), jnp.stack([a, d]))
    np.testing.assert_allclose(stack([op, Identity(3)]).as_dense(), jnp.stack([a, jnp.eye(3)]))
    g = [None, None, jnp.ones(3)]
    for solver in (pb.Blelloch(), pb.Planned(4)):
        got = pb.solve(pb.Ragged([op, diagonal], g), solver)[0]
        np.testing.assert_allclose(got, a @ d @ g[-1])

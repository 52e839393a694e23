"""Yes or no about a step: is it holomorphic, do its gates share an outer product?"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from parscan_bp.choice.outer_gates import has_outer_gates
from parscan_bp.structure import is_holomorphic

Z = jax.ShapeDtypeStruct((3,), jnp.complex64)


@pytest.mark.parametrize(
    ("step", "holomorphic"),
    [
        (lambda z: jnp.tanh(2j * z) / (z + 3), True),
        (lambda z: z**3 @ jnp.full((3, 3), 1j), True),
        (lambda z: z * jnp.ones(3), True),
        (lambda z: jnp.conj(z) * z, False),
        (lambda z: z * jnp.abs(z), False),
        (lambda z: lax.complex(z.real, z.real), False),
        (lambda z: jnp.where(z.real > 0, z, -z), False),
    ],
)
def test_is_holomorphic(step, holomorphic):
    jaxpr = jax.make_jaxpr(step)(Z).jaxpr
    assert is_holomorphic(jaxpr, 1) == holomorphic


def test_outputs_that_are_not_carried_do_not_count():
    jaxpr = jax.make_jaxpr(lambda z: (jnp.sin(z), jnp.abs(z)))(Z).jaxpr
    assert is_holomorphic(jaxpr, 1) and not is_holomorphic(jaxpr, 2)


def _gated(h, x, w):
    reset, update = jnp.split(jax.nn.sigmoid(x @ w + h @ jnp.ones((4, 8))), 2, axis=-1)
    return update * h + reset


def _elman(h, x, w):
    return jnp.tanh(x @ w + h @ jnp.ones((4, 4)))


def _gates_without_input(h, x, w):
    return jnp.tanh(h) * jax.nn.sigmoid(h) + jnp.sum(x @ w)


@pytest.mark.parametrize(
    ("step", "width", "features", "outer"),
    [
        (_gated, 8, 1, True),
        (_gated, 8, 2, False),
        (_elman, 4, 1, False),
        (_gates_without_input, 4, 1, False),
    ],
)
def test_has_outer_gates(step, width, features, outer):
    arguments = (jnp.ones((2, 4)), jnp.ones((2, features)), jnp.ones((features, width)))
    assert has_outer_gates(jax.make_jaxpr(step)(*arguments).jaxpr) == outer

"""Yes or no about a step: is it holomorphic?"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

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

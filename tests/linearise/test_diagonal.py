"""The diagonal part of a Jacobian against its columns."""

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.linearise.base import Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.diagonal import DiagonalPart
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.operators import Diagonal


def test_it_is_the_diagonal_of_one_leaf_row_by_row():
    draw = lambda *shape: jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape))  # noqa: E731
    w, h, c, u = draw(3, 3), draw(5, 2, 3)[..., 0, :], draw(5, 3), draw(5, 3) + 1
    step = lambda w, h, c, u: (jnp.tanh(h @ w + c) * u, jnp.sin(c) + h)  # noqa: E731
    closed = jax.make_jaxpr(step)(w, h[0], c[0], u[0])
    body = Body(closed, 1, 2).restricted((0,))
    layout = CarryLayout(((3,),), (h.dtype,), ((),))
    new = jax.vmap(step, (None, 0, 0, 0))(w, h, c, u)
    operator = DiagonalPart(body, layout).tangent_operator(Steps([w], [h, c], [u], new))
    assert isinstance(operator, Diagonal)
    whole = jax.vmap(jax.jacobian(lambda h, c, u: step(w, h, c, u)[0]))(h, c, u)
    np.testing.assert_allclose(operator.diagonal, jnp.diagonal(whole, 0, 1, 2), atol=1e-6)

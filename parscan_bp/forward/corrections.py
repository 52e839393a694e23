"""The linear model of a recurrence around a trajectory, as a bi-diagonal system.

Around states x_t with residuals r_t = f(x_{t-1}) - x_t, the corrections d_t obey

    d_t = M_t d_{t-1} + r_t,    d_0 = 0,

the lower block bi-diagonal system L d = r (Naumov 2017, eq. 13). With the Jacobians M_t = J_t the
states x_t + d_t are those of Newton's method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.columns import ByColumns
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.linearise.products import ByProducts
from parscan_bp.solvers import Solver
from parscan_bp.solvers.results import solved
from parscan_bp.structure import find_structure, unsupported
from parscan_bp.system import Block, System
from parscan_bp.trees import stretch
from parscan_bp.types import Array, PyTree


def corrections(
    linear: Linearisation,
    solver: Solver,
    steps: Steps,
    residuals: Sequence[Array],
    factor: Array | None = None,
) -> list[Array]:
    """d_1..d_n of the system above.

    Args:
      linear: how the Jacobians are obtained.
      solver: what solves the system.
      steps: all n steps, at the states that they are linearised around.
      residuals: r, stacked, for the leaves of ``linear.body.float_carry``.
      factor: that by which every M_t is multiplied, an array (*batch) of a layout's batch axes,
        or one number; ``None`` is 1.
    """
    packed = linear.pack(residuals, cotangent=False)
    system = _Corrections(linear, steps, packed, factor)
    rest = jax.tree.map(lambda a: jnp.zeros_like(a[0]), packed)
    _, _, states = solved(solver, system, rest)
    return linear.unpack(states, cotangent=False)


def linear_model(body: Body, solver: Solver, *, formed: bool = False) -> Linearisation:
    """How the Jacobians of a step are obtained for a solver: as products, or formed.

    Args:
      body: the step.
      solver: what will solve the system.
      formed: whether they are formed though it needs products alone.
    """
    if solver.needs == "products" and not formed:
        return ByProducts(body)
    structure = find_structure(body.jaxpr, body.num_consts, body.num_carry)
    layout = body.layout(structure.batch_axes)
    return ByColumns(body, layout, structure.diagonal and not has_complex(layout))


def has_complex(layout: CarryLayout) -> bool:
    """Whether a leaf is complex: what is elementwise still mixes its two parts."""
    return any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in layout.dtypes)


def check_linear(body: Body, method: str) -> None:
    """Raises `NotImplementedError` where the linear model does not hold the step."""
    reasons = unsupported(body.jaxpr)
    if reasons:
        raise NotImplementedError(
            f"forward={method}(): the step contains {reasons[0].primitive}: {reasons[0].message}; "
            "FixedPoint() takes any step"
        )


@dataclasses.dataclass(frozen=True)
class _Corrections(System):
    """The system above.

    Attributes:
      linear, steps, factor: see `corrections`.
      residuals: r as the vector that operators act on.
    """

    linear: Linearisation
    steps: Steps
    residuals: PyTree
    factor: Array | None

    @property
    def length(self):
        return len(jax.tree.leaves(self.residuals)[0])

    @property
    def backward(self):
        return False

    def block(self, start, size):
        own = (list(self.steps.carry), list(self.steps.x), list(self.steps.new_carry))
        carry, x, new_carry = stretch(own, start, size)
        steps = dataclasses.replace(self.steps, carry=carry, x=x, new_carry=new_carry)
        operator = self.linear.tangent_operator(steps)
        if self.factor is not None:
            operator = operator.map_leaves(self._scaled)
        return Block(operator, None, stretch(self.residuals, start, size))

    def _scaled(self, leaf: Array, ndim: int) -> Array:
        """A leaf (n, *batch, *core) times the factors of its rows."""
        assert self.factor is not None
        factor = jnp.expand_dims(self.factor, tuple(range(-ndim, 0))).astype(leaf.dtype)
        return leaf * jnp.broadcast_to(factor, leaf.shape)

    def collect(self, start, shown, state, aux=None):
        def leaving(entering, last):
            return jnp.concatenate([entering[1:], last[None]])

        return None, jax.tree.map(leaving, shown, state)

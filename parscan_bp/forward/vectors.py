"""A recurrence as its linear model sees it: a flat step, and states as vectors by leaf and row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from parscan_bp.arguments import described
from parscan_bp.forward.base import Carry, Recurrence, over_steps
from parscan_bp.jaxprs.read import cut_to
from parscan_bp.linearise.body import Body
from parscan_bp.linearise.layout import CarryLayout
from parscan_bp.structure import CarryStructure, find_structure
from parscan_bp.trees import first_of, same_structure
from parscan_bp.types import Array

Vectors = list[Array]
"""One array (n, *batch, features) for each leaf of the carry, see `CarryLayout`."""


@dataclasses.dataclass(frozen=True, eq=False)
class FlatRecurrence:
    """x_t = f(x_{t-1}, u_t) with a traced step on flat leaves.

    The leaves stay apart. The axes along which a step treats its rows independently lead each of
    them, so that what is asked of a row (is it known yet?) is asked of its features alone.

    Attributes:
      body: the step.
      consts: what it closes over.
      init, inputs: leaves of x_0 and of u_1..u_n.
      structure: of its Jacobian.
      layouts: of each leaf by itself.
    """

    body: Body
    consts: Sequence[Array]
    init: Sequence[Array]
    inputs: Sequence[Array]
    structure: CarryStructure
    layouts: Sequence[CarryLayout]

    @classmethod
    def of(cls, recurrence: Recurrence) -> FlatRecurrence:
        """Traces the step; nothing is run."""
        init, inputs = jax.tree.leaves(recurrence.init), jax.tree.leaves(recurrence.inputs)
        body, consts = traced(recurrence.step, recurrence.init, first_of(recurrence.inputs))
        structure = find_structure(body.jaxpr, body.num_consts, body.num_carry)
        layout = body.layout(structure.batch_axes)
        layouts = [layout.restricted([k]) for k in range(body.num_carry)]
        return cls(body, consts, init, inputs, structure, layouts)

    def vectors(self, leaves: Sequence[Array]) -> Vectors:
        """Leaves (n, *shape) as vectors."""
        pairs = zip(self.layouts, leaves, strict=True)
        return [layout.join([leaf], cotangent=False) for layout, leaf in pairs]

    def vectors_of(self, trajectory: Carry) -> Vectors:
        """A trajectory in the structure of the carry as vectors."""
        return self.vectors(jax.tree.leaves(trajectory))

    def leaves(self, vectors: Vectors) -> list[Array]:
        """The inverse of `vectors`."""
        pairs = zip(self.layouts, vectors, strict=True)
        return [layout.split(vector, cotangent=False)[0] for layout, vector in pairs]

    def entering(self, states: Vectors) -> list[Array]:
        """The leaves of x_0..x_{n-1}, for x_1..x_n."""
        pairs = zip(self.init, self.leaves(states), strict=True)
        return [jnp.concatenate([first[None], after[:-1]]) for first, after in pairs]

    def image(self, states: Vectors) -> Vectors:
        """f(x_{t-1}, u_t) at every step, in one batch."""
        step = lambda carry, x: self.body(self.consts, carry, x)[0]  # noqa: E731
        entering = self.entering(states)
        return self.vectors(over_steps(step, len(entering[0]), entering, list(self.inputs)))


def traced(step: Any, *args: Any) -> tuple[Body, list[Array]]:
    """A step ``(carry, x) -> carry`` as a body whose constants are arguments, and their values.

    What no new carry reads, such as an output of a scan, is left out: it may have no derivative.
    """
    closed = jax.make_jaxpr(step)(*args)
    jaxpr = closed.jaxpr
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    invars = [*jaxpr.constvars, *jaxpr.invars]
    opened = jaxpr.replace(constvars=[], invars=invars, debug_info=names)
    opened = cut_to(opened, len(opened.outvars))
    count = len(jax.tree.leaves(args[0]))
    return Body(ClosedJaxpr(opened, []), len(closed.consts), count), list(closed.consts)


def guessed(guess: Carry | None, recurrence: Recurrence) -> Carry:
    """The trajectory that a method begins with: the guess, or x_0 at every step.

    Raises:
      ValueError: if the guess is no trajectory of the recurrence.
    """
    n, init = recurrence.length, recurrence.init
    if guess is None:
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *jnp.shape(a))), init)
    if not same_structure(tree := jax.tree.structure(guess), own := jax.tree.structure(init)):
        raise ValueError(
            f"guess: got a pytree of structure {tree}; x_1..x_{n} in the structure of the carry, "
            f"{own}, is wanted"
        )

    def checked(leaf, first):
        wanted = (n, *jnp.shape(first))
        if not hasattr(leaf, "shape") or tuple(leaf.shape) != wanted:
            got = getattr(leaf, "shape", None) or described(leaf)
            raise ValueError(f"guess: got a leaf of shape {got}; {wanted} is wanted")
        return jnp.asarray(leaf, jnp.result_type(first))

    return jax.tree.map(checked, guess, init)


def settled(states: Any, image: Any, tolerance: float) -> Array:
    """Whether |f(x_{t-1}) - x_t| <= tolerance (1 + |x_t|) and x_t is finite, entry by entry."""

    def leaf(x, f):
        return jnp.all((jnp.abs(f - x) <= tolerance * (1 + jnp.abs(x))) & jnp.isfinite(x))

    return jnp.stack(jax.tree.leaves(jax.tree.map(leaf, states, image))).all()

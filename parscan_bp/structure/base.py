"""What `find_structure` and `unsupported` answer with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CarryStructure:
    """The structure of the Jacobian J = d carry' / d carry of one step, known without running it.

    J is described, not the step: a dependence that goes through an integer or a boolean (the
    predicate of a `where` or a `cond`, an index, a key) has no derivative and does not count.
    Leaves below are the float and complex carry leaves listed in `float_carry`, in that order.

    Attributes:
      float_carry: flat carry positions of the leaves described.
      depends: `depends[o][i]`: may leaf o of carry' depend on leaf i of carry? False is a promise
        that the block J[o, i] is zero.
      batch_axes: for each leaf its batch axes. The k-th entries of all leaves belong together:
        J[o, i] vanishes unless the index along the k-th batch axis of o equals the index along
        the k-th batch axis of i. Every leaf has the same number of them. Leaves that do not
        depend on each other are paired by size, and an inert leaf (see `active`), whose part of
        J is zero, joins with any axis of the right size.
      batch_shape: the sizes of the batch axes, the same in every leaf.
      diagonal: every entry of carry' depends on the same entry of the same leaf only. For a
        complex leaf an entry is the pair (re, im): nothing is said about holomorphy.
      mixed_by: the primitives at which an axis stopped being elementwise, in order of appearance;
        "carry" where it leaves the step at another place than it entered.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.structure import find_structure
      >>> w, h, x = jnp.ones((3, 3)), jnp.ones((2, 3)), jnp.ones((2, 3))
      >>> body = jax.make_jaxpr(lambda w, h, x: jnp.tanh(h @ w + x))(w, h, x)
      >>> s = find_structure(body, num_consts=1, num_carry=1)
      >>> s.kind, s.batch_axes, s.mixed_by
      ('block', ((0,),), ('dot_general',))
    """

    float_carry: tuple[int, ...]
    depends: tuple[tuple[bool, ...], ...]
    batch_axes: tuple[tuple[int, ...], ...]
    batch_shape: tuple[int, ...]
    diagonal: bool
    mixed_by: tuple[str, ...]

    @property
    def kind(self) -> Literal["diagonal", "block", "dense"]:
        """`diagonal`; else `block` (one small matrix per batch index); else `dense`."""
        if self.diagonal:
            return "diagonal"
        return "block" if self.batch_shape else "dense"

    @property
    def active(self) -> tuple[bool, ...]:
        """Per leaf: is its row or its column of `depends` non-zero? The others are inert."""
        columns = tuple(zip(*self.depends, strict=True))
        return tuple(
            any(row) or any(column) for row, column in zip(self.depends, columns, strict=True)
        )

    @property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The strongly connected components of `depends`, as tuples of flat carry positions.

        A component comes after those it depends on: in this order J is block lower triangular,
        and `find_structure(..., leaves=component)` describes one diagonal block of it.
        """
        n = len(self.depends)
        reach = [[o == i or self.depends[o][i] for i in range(n)] for o in range(n)]
        for k in range(n):  # Warshall's transitive closure
            for o in range(n):
                if reach[o][k]:
                    reach[o] = [a or b for a, b in zip(reach[o], reach[k], strict=True)]
        groups = {tuple(i for i in range(n) if reach[o][i] and reach[i][o]) for o in range(n)}
        # What a component reaches contains what its predecessors reach, and more.
        order = sorted(groups, key=lambda group: (sum(reach[group[0]]), group))
        return tuple(tuple(self.float_carry[i] for i in group) for group in order)


@dataclass(frozen=True)
class Reason:
    """Why the linear model does not hold for a step: the primitive, and what is wrong with it."""

    primitive: str
    message: str

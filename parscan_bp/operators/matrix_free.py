"""A linear function per map: what JAX's own linearisation gives, no matrix formed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from parscan_bp.jaxprs.batching import mapped
from parscan_bp.operators.base import Cost, Operator
from parscan_bp.trees import eval_shape, same_structure, struct_like
from parscan_bp.types import PyTree


@dataclasses.dataclass(frozen=True)
class _Space:
    """The vectors that a map takes or returns: a pytree's structure, shapes and dtypes."""

    treedef: Any
    parts: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, tree: PyTree) -> _Space:
        leaves, treedef = jax.tree.flatten(tree)
        return cls(treedef, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves))

    @property
    def tree(self) -> PyTree:
        return jax.tree.unflatten(self.treedef, self.parts)

    @property
    def size(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts)

    @property
    def is_flat(self) -> bool:
        return len(self.parts) == 1 and len(self.parts[0].shape) == 1

    def leading_axes(self, v: PyTree) -> tuple[int, ...]:
        """The axes in front of every leaf of ``v``; raises where ``v`` is no such vector."""
        leaves, treedef = jax.tree.flatten(v)
        if not same_structure(treedef, self.treedef):
            raise ValueError(f"v: got a pytree {treedef}; {self.treedef} is wanted")
        found = set()
        for leaf, part in zip(leaves, self.parts, strict=True):
            lead = jnp.ndim(leaf) - len(part.shape)
            found.add(jnp.shape(leaf)[: max(lead, 0)])
            if jnp.shape(leaf)[max(lead, 0) :] != part.shape or leaf.dtype != part.dtype:
                raise ValueError(
                    f"v: got a leaf of shape {jnp.shape(leaf)} and dtype {leaf.dtype}; "
                    f"(..., {', '.join(map(str, part.shape))}) and {part.dtype} are wanted"
                )
        if len(found) > 1:
            raise ValueError(f"v: got leaves with different leading axes, {sorted(found)}")
        return found.pop() if found else ()


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MatrixFree(Operator):
    """A v = linear(v), or linear's transpose, with ``linear`` as `jax.linearize` returns it.

    A vector may be any pytree of arrays; every leaf then has the same leading axes. There is no
    product of two of these but doing one after the other, so that only a sequential solver takes
    them. Their dtype is that of ``linear``; a vector of another dtype is refused.

    The residuals, which are the leaves of ``linear``, may be stacked: `jax.vmap` of a function that
    returns ``jax.linearize(f, x)[1]`` stacks them all.

    Args:
      linear: `jax.tree_util.Partial` of a linear function of one vector. Where that function has a
        method ``transposed``, of the same arguments but a vector of the codomain, it is the
        transpose; else JAX transposes the function.
      stacked: for each leaf of ``linear``, in flattening order, whether it has the scanned axis;
        or one bool for all. Other stack axes come by `jax.vmap` or `stack`.
      domain: one vector that ``linear`` takes: a pytree of arrays or `jax.ShapeDtypeStruct`.
      codomain: what ``linear`` returns; found by tracing it if not given.
      ndims: for each leaf, its number of axes for one map; found from ``stacked`` if not given.
      transposed: whether the operator is the transpose of ``linear``.
      has_aux: whether ``linear`` returns a pair: A v, and a pytree of other values linear in v,
        which `matvec_and_aux` returns, too.
      in_turn: whether the maps of a stack act one after the other, as those whose functions may
        not be mapped by `jax.vmap`: a primitive in them would answer for all maps.

    Raises:
      TypeError: if ``linear`` is not a ``Partial``, or there is no ``domain``.
      ValueError: if ``stacked`` has not one bool for each leaf.

    Source: BPPSA eq. 3 by vector-Jacobian products, i.e. ordinary back-propagation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from parscan_bp.operators import MatrixFree
      >>> jacobian = jax.linearize(lambda x: x[:2] * x[2], jnp.array([1.0, 2.0, 3.0]))[1]
      >>> op = MatrixFree(jacobian, False, jnp.zeros(3)).transpose()
      >>> op.shape, op.matvec(jnp.ones(2)).tolist()
      ((3, 2), [3.0, 3.0, 3.0])
    """

    linear: Partial
    stacked: dataclasses.InitVar[bool | Sequence[bool]] = False
    domain: Any = dataclasses.field(default=None, metadata={"static": True})
    codomain: Any = dataclasses.field(default=None, metadata={"static": True})
    ndims: Any = dataclasses.field(default=None, metadata={"static": True})
    transposed: bool = dataclasses.field(default=False, metadata={"static": True})
    has_aux: bool = dataclasses.field(default=False, metadata={"static": True})
    in_turn: bool = dataclasses.field(default=False, metadata={"static": True})

    composes: ClassVar = False

    def __post_init__(self, stacked):
        if callable(self.linear) and not isinstance(self.linear, Partial):
            raise TypeError(
                f"linear: got {type(self.linear).__name__}; a jax.tree_util.Partial is wanted, "
                "as jax.linearize returns, or Partial(f) of a linear f"
            )
        if self.domain is None:
            raise TypeError("domain: got None; one vector that linear takes is wanted")
        if self.ndims is not None:  # rebuilt by JAX: nothing to find or to check
            return
        leaves, treedef = jax.tree.flatten(self.linear)
        flags = (stacked,) * len(leaves) if isinstance(stacked, bool) else tuple(stacked)
        if len(flags) != len(leaves):
            raise ValueError(
                f"stacked: got {len(flags)} bools; linear has {len(leaves)} leaves, one for each "
                "is wanted"
            )
        one = [
            jax.ShapeDtypeStruct(jnp.shape(leaf)[int(flag) :], jnp.result_type(leaf))
            for leaf, flag in zip(leaves, flags, strict=True)
        ]
        domain, codomain = _Space.of(self.domain), self.codomain
        if codomain is None:
            linear = jax.tree.unflatten(treedef, one)
            codomain = eval_shape(self._map, linear, domain.tree)
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "codomain", _Space.of(codomain))
        object.__setattr__(self, "ndims", tuple(len(leaf.shape) for leaf in one))

    @property
    def shape(self):
        sizes = (self.codomain.size, self.domain.size)
        return sizes[::-1] if self.transposed else sizes

    @property
    def dtype(self):
        return jnp.result_type(*[part.dtype for part in self.domain.parts + self.codomain.parts])

    @property
    def vector_dtype(self) -> np.dtype:
        """The common dtype of the parts of the vectors that it takes."""
        takes = self.codomain if self.transposed else self.domain
        return jnp.result_type(*[part.dtype for part in takes.parts])

    def map_leaves(self, f):
        leaves, treedef = jax.tree.flatten(self.linear)
        changed = [f(leaf, ndim) for leaf, ndim in zip(leaves, self.ndims, strict=True)]
        return dataclasses.replace(self, linear=jax.tree.unflatten(treedef, changed))

    def matvec(self, v):
        return self._mapped(self._apply, v)

    def matvec_and_aux(self, v):
        if not self.has_aux or self.transposed:
            return super().matvec_and_aux(v)
        return self._mapped(lambda linear, v: linear(v), v)

    def _mapped(self, apply, v):
        """``apply(linear, v)`` for every map of the stack."""
        takes = self.codomain if self.transposed else self.domain
        extra, stack = takes.leading_axes(v), self.stack_shape
        try:
            lead = np.broadcast_shapes(extra, stack)
        except ValueError:
            raise ValueError(
                f"v: got leading axes {extra}; they do not broadcast with the stack {stack}"
            ) from None

        def differs(stack):
            """For each of all axes, whether what has this stack differs along it."""
            missing = len(lead) - len(stack)
            return [k >= missing and stack[k - missing] == n for k, n in enumerate(lead)]

        def own(leaf, ndim):
            """A leaf without the axes along which it is shared."""
            count = leaf.ndim - ndim
            along = differs(leaf.shape[:count])[len(lead) - count :]
            return jnp.squeeze(leaf, [k for k in range(count) if not along[k]])

        linear = self.map_leaves(own).linear
        vector = zip(jax.tree.leaves(v), takes.parts, strict=True)
        parts = [own(leaf, len(part.shape)) for leaf, part in vector]
        treedef = jax.tree.structure(linear)
        of_leaves = [differs(leaf.shape[: leaf.ndim - ndim]) for leaf, ndim in self.leaves()]
        of_v = differs(extra)
        for k in reversed(range(len(lead))):
            axes = jax.tree.unflatten(treedef, [0 if along[k] else None for along in of_leaves])
            apply = mapped(apply, (axes, 0 if of_v[k] else None), in_turn=self.in_turn)
        return apply(linear, jax.tree.unflatten(takes.treedef, parts))

    def _map(self, linear, v):
        return linear(v)[0] if self.has_aux else linear(v)

    def _apply(self, linear, v):
        if not self.transposed:
            return self._map(linear, v)
        own = getattr(linear.func, "transposed", None)
        if own is not None:
            return own(*linear.args, v, **linear.keywords)
        like = functools.partial(struct_like, jax.tree.leaves(v)[0])
        takes = jax.tree.map(lambda part: like(part.shape, part.dtype), self.domain.tree)
        (out,) = jax.linear_transpose(functools.partial(self._map, linear), takes)(v)
        return out

    def transpose(self):
        return dataclasses.replace(self, transposed=not self.transposed)

    def as_dense(self):
        """The matrices (..., rows, cols), column by column from the basis.

        Raises:
          TypeError: if the vectors are not flat arrays.
        """
        if not (self.domain.is_flat and self.codomain.is_flat):
            raise TypeError(
                "as_dense: this MatrixFree acts on pytrees or on arrays that are not flat; "
                "ravel the step's state first"
            )
        takes = self.codomain if self.transposed else self.domain
        basis = jnp.eye(takes.size, dtype=takes.parts[0].dtype)
        basis = jax.tree.unflatten(takes.treedef, [basis])
        if self.in_turn:
            columns = jax.lax.map(self.matvec, basis)
            return jnp.moveaxis(jax.tree.leaves(columns)[0], 0, -1)
        dense = jax.vmap(self.matvec, in_axes=-1, out_axes=-1)(basis)
        return jax.tree.leaves(dense)[0]

    def cost(self) -> Cost:
        """An estimate from below: one multiplication and addition for each residual."""
        maps = math.prod(self.stack_shape)
        used = sum(leaf.size * (maps if leaf.ndim == ndim else 1) for leaf, ndim in self.leaves())
        vectors = maps * sum(self.shape) * self.dtype.itemsize
        return Cost(2 * used, self.nbytes + vectors)

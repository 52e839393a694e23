"""Elementwise coefficients of a linear step, multiplied ahead of the sequential loop.

The transposed Jacobian of a recurrent step is a few products with weights, and between
them long chains of elementwise products with values that are known before the loop
starts: slopes of activations, gates, masks. Seen as polynomials in the state, such a
chain is one coefficient:

    ((m * a) * b + m * c) * d   =   m * (a b d + c d),

so the chain is evaluated for all steps as one batch, and the loop keeps one product per
state and consumer. This is the form of BPPSA's appendix E (eq. 11), read off the jaxpr.

A *base* is a value that the loop really computes: an entry of the state, or the result
of an operation that is not elementwise. A value between bases is a sum of coefficients
times bases. A sum of several bases that is used more than once becomes a base itself,
since folding it would multiply it again for every use.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal
from jax.tree_util import Partial

from parscan_bp.autodiff.replay import bind
from parscan_bp.autodiff.row_product import as_row_product
from parscan_bp.structure import is_move
from parscan_bp.structure.jaxprs import needed_equations
from parscan_bp.types import Array, PyTree

Terms = dict[int, Any]
"""Base -> coefficient: an array of the value's shape, or the number 1.0 or -1.0."""


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A base that is a sum of (base, sign, coefficient slot or None) terms."""

    base: int
    terms: tuple[tuple[int, float, int | None], ...]


@dataclasses.dataclass(frozen=True)
class _Apply:
    """An operation that is not elementwise; operands are bases, slots or constants."""

    eqn: JaxprEqn
    operands: tuple[tuple[str, Any], ...]
    bases: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Join:
    """A base that is another one several times side by side, each with a coefficient of its own.

    As the gates of a GRU before its weights. It is repeated along an axis of its own and multiplied
    there: a broadcast that fuses with the product. Of different bases, as an LSTM's gates have, a
    concatenation of products is faster: XLA on CPU vectorises each of its parts.
    """

    base: int
    part: int
    axis: int
    slot: int


class _Folding:
    """One pass over a linear jaxpr: known values are computed, linear ones are folded."""

    def __init__(self):
        self.slots: list[Array] = []
        self.program: list[_Sum | _Apply | _Join] = []
        self.bases = 0
        self._slot_of: dict[int, int] = {}
        self._base_of: dict[tuple, int] = {}
        self._transpose_of: dict[int, int] = {}

    def new_base(self) -> int:
        self.bases += 1
        return self.bases - 1

    def slot(self, value: Array) -> int:
        """Where a known value is kept for the loop; the same value is kept once."""
        if id(value) not in self._slot_of:
            self._slot_of[id(value)] = len(self.slots)
            self.slots.append(value)
        return self._slot_of[id(value)]

    def transposed(self, matrix: Array) -> int:
        """Where the transpose of a known matrix is kept for the loop."""
        if id(matrix) not in self._transpose_of:
            self._transpose_of[id(matrix)] = self.slot(matrix.T)
        return self._transpose_of[id(matrix)]

    def materialise(self, terms: Terms) -> int:
        """A single base for a sum of terms; the same one for the same terms."""
        if len(terms) == 1:
            ((base, c),) = terms.items()
            if isinstance(c, float) and c == 1.0:
                return base
        kept = tuple(
            (b, c, None) if isinstance(c, float) else (b, 1.0, self.slot(c))
            for b, c in terms.items()
        )
        if kept not in self._base_of:
            self._base_of[kept] = self.new_base()
            self.program.append(_Sum(self._base_of[kept], kept))
        return self._base_of[kept]


def fold(function: Partial, state: PyTree) -> Partial:
    """A linear function with its elementwise chains multiplied out.

    Args:
      function: linear in the state; what it knows are its leaves.
      state: pytree of the shapes of the state.

    Returns:
      The same function, its coefficients as leaves.
    """
    known, tree = jax.tree.flatten(function)
    closed, result = jax.make_jaxpr(
        lambda known, v: jax.tree.unflatten(tree, known)(v), return_shape=True
    )(known, state)
    jaxpr, work = closed.jaxpr, _Folding()
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, known, strict=False))
    linear: dict[Any, Terms] = {v: {work.new_base(): 1.0} for v in jaxpr.invars[len(known) :]}
    read_by = [jaxpr.outvars, *(eqn.invars for eqn in needed_equations(jaxpr))]
    uses = collections.Counter(v for vs in read_by for v in vs if not isinstance(v, Literal))

    def read(v):
        return v.val if isinstance(v, Literal) else values[v]

    for eqn in needed_equations(jaxpr):
        operands = [None if isinstance(v, Literal) else linear.get(v) for v in eqn.invars]
        if all(t is None for t in operands):
            values.update(zip(eqn.outvars, bind(eqn, [read(v) for v in eqn.invars]), strict=True))
            continue
        terms = _fold_elementwise(eqn, operands, read)
        if terms is None and eqn.primitive.name == "concatenate":
            terms = _fold_join(work, eqn, operands)
        if terms is None:
            _apply(work, eqn, operands, read, linear)
            continue
        (out,) = eqn.outvars
        if len(terms) > 1 and uses[out] > 1:
            terms = {work.materialise(terms): 1.0}
        linear[out] = terms
    outs = tuple(
        (None if isinstance(v, Literal) or v not in linear else work.materialise(linear[v]), v.aval)
        for v in jaxpr.outvars
    )
    run = _Program(tuple(work.program), outs, jax.tree.structure(state), jax.tree.structure(result))
    return Partial(run, work.slots)


def distinct_results(folded: Partial, first: int) -> list[Any]:
    """Types of the leaves of a folded function's result from ``first`` on, each value once."""
    program: Any = folded.func
    avals: dict[Any, Any] = {}
    for k, (base, aval) in enumerate(program.outs[first:]):
        avals.setdefault(("zero", k) if base is None else base, aval)
    return list(avals.values())


def are_multiples(folded: Partial, first: int) -> bool:
    """Whether the leaves of a folded function's result from ``first`` on are known multiples.

    Of one entry of the state each: what takes no sum and no product with weights.
    """
    program: Any = folded.func
    multiples: set[int | None] = {None, *range(program.state_tree.num_leaves)}
    for step in program.program:
        if isinstance(step, _Sum):
            if len(step.terms) == 1 and step.terms[0][0] in multiples:
                multiples.add(step.base)
        elif isinstance(step, _Join):
            if step.part in multiples:
                multiples.add(step.base)
        elif is_move(step.eqn):
            if all(kind == "base" and base in multiples for kind, base in step.operands):
                multiples.update(step.bases)
    return multiples.issuperset(base for base, _ in program.outs[first:])


def _fold_elementwise(eqn, operands, read) -> Terms | None:
    """The terms of an elementwise linear operation; ``None`` for any other operation."""
    name = eqn.primitive.name
    if name in ("mul", "div"):
        a, b = operands
        if name == "div" and b is not None:
            return None
        terms, factor = (a, read(eqn.invars[1])) if a is not None else (b, read(eqn.invars[0]))
        shape = eqn.outvars[0].aval.shape
        if name == "div":
            factor = 1 / factor
        return {k: _times(c, factor, shape) for k, c in terms.items()}
    if name == "neg":
        return {k: -c for k, c in operands[0].items()}
    if name in ("add", "add_any", "sub") and all(t is not None for t in operands):
        left, right = operands
        out = dict(left)
        for k, c in right.items():
            c = -c if name == "sub" else c
            out[k] = c if k not in out else _plus(out[k], c, eqn.outvars[0].aval)
        return out
    return None


def _fold_join(work, eqn, operands) -> Terms | None:
    """Multiples of one base side by side as one coefficient times that, where all are alike."""
    shapes = {v.aval.shape for v in eqn.invars}
    if any(t is None for t in operands) or len(shapes) != 1:
        return None
    bases = {b for t in operands for b in t}
    coefficients = [c for t in operands for c in t.values()]
    if len(bases) > 1 or all(isinstance(c, float) for c in coefficients):
        return None
    (shape,), dtype = shapes, eqn.outvars[0].aval.dtype
    full = [jnp.full(shape, c, dtype) if isinstance(c, float) else c for c in coefficients]
    base, axis = work.new_base(), eqn.params["dimension"]
    # Concatenated and then split: XLA on CPU stacks along an inner axis much more slowly.
    beside = jnp.concatenate(full, axis)
    slot = work.slot(beside.reshape(*shape[:axis], len(full), *shape[axis:]))
    work.program.append(_Join(base, bases.pop(), axis, slot))
    return {base: 1.0}


def _times(coefficient, factor, shape):
    factor = jnp.broadcast_to(factor, shape)
    if isinstance(coefficient, float):
        return factor if coefficient == 1.0 else -factor
    return coefficient * factor


def _plus(a, b, aval):
    if isinstance(a, float) and isinstance(b, float):
        return jnp.full(aval.shape, a + b, aval.dtype)
    return a + b


def _apply(work, eqn, operands, read, linear):
    kept, keep = [], work.slot
    product = as_row_product(eqn) if operands[1:] == [None] else None
    if product is not None:
        if eqn.params["dimension_numbers"][0][1] == (1,):
            keep = work.transposed
        eqn = product
    for v, terms in zip(eqn.invars, operands, strict=True):
        if terms is not None:
            kept.append(("base", work.materialise(terms)))
        elif isinstance(v, Literal):
            kept.append(("constant", v.val))
        else:
            kept.append(("slot", keep(read(v))))
    bases = tuple(work.new_base() for _ in eqn.outvars)
    work.program.append(_Apply(eqn, tuple(kept), bases))
    linear.update({v: {b: 1.0} for v, b in zip(eqn.outvars, bases, strict=True)})


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """What is left for the loop; compared by identity."""

    program: tuple[_Sum | _Apply | _Join, ...]
    outs: tuple[tuple[int | None, Any], ...]
    state_tree: Any
    out_tree: Any

    def __call__(self, slots: Sequence[Array], state: PyTree) -> PyTree:
        assert jax.tree.structure(state) == self.state_tree
        env: dict[int, Array] = dict(enumerate(jax.tree.leaves(state)))
        for step in self.program:
            if isinstance(step, _Sum):
                env[step.base] = self._sum(step, env, slots)
                continue
            if isinstance(step, _Join):
                env[step.base] = self._join(step, env, slots)
                continue
            where = {"base": env.__getitem__, "slot": slots.__getitem__, "constant": lambda c: c}
            values = [where[kind](key) for kind, key in step.operands]
            env.update(zip(step.bases, bind(step.eqn, values), strict=True))
        leaves = [
            jnp.zeros(aval.shape, aval.dtype) if base is None else env[base]
            for base, aval in self.outs
        ]
        return jax.tree.unflatten(self.out_tree, leaves)

    @staticmethod
    def _sum(step: _Sum, env, slots):
        total = None
        for base, sign, slot in step.terms:
            term = env[base] if slot is None else env[base] * slots[slot]
            if total is None:
                total = term if sign == 1.0 else -term
            else:
                total = total + term if sign == 1.0 else total - term
        return total

    @staticmethod
    def _join(step: _Join, env, slots):
        axis, coefficient = step.axis, slots[step.slot]
        repeated = lax.expand_dims(env[step.part], [axis]) * coefficient
        shape = repeated.shape
        return repeated.reshape(*shape[:axis], -1, *shape[axis + 2 :])

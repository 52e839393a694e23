"""What one step does, in the order in which a native loop does it.

A step's values are rows of numbers. Elementwise code is evaluated in registers, block by block,
and only what something else reads in other blocks is written to memory: operands of products,
parts of joined values, results. So the equations are put into levels: a product, and a value joined
of parts, is a level above what it reads, all else in that of its operands. Of a level, the products
come first, then loops over blocks, each of which makes all values of one shape.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import CALLS, FOREIGN_CALLS, OWN_CALLS, VIEWS
from parscan_bp.jaxprs.read import depending, needed_equations, part, shape_of, variables
from parscan_bp.jaxprs.repeats import without_repeats
from parscan_bp.jaxprs.replay import inlined


class Unsupported(Exception):
    """A step has something that no native loop is made of; the text continues "the step ..."."""


FLOATS = ("float32", "float64")
A_FUNCTION = 4
"""Operations that an elementwise function counts for."""


def type_of(atom: Any) -> str:
    """The name of its dtype."""
    return atom.aval.dtype.name


def rows_and_columns(atom: Any) -> tuple[int, int]:
    shape = shape_of(atom)
    return math.prod(shape[:-1]), (shape[-1] if shape else 1)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop over steps, with the contract of `jax.lax.scan`.

    What a step makes of shared values alone is made once, ahead of the loop.

    Attributes:
      ahead: what is shared, of what is shared by the loop that it is of.
      jaxpr: ``[*shared, *carry, *x] -> [*carry, *y]``, without calls and constants.
      shared, carry: how many there are of each.
      length: number of steps.
      reverse: whether the last step comes first.
    """

    ahead: ClosedJaxpr
    jaxpr: Jaxpr
    shared: int
    carry: int
    length: int
    reverse: bool

    @classmethod
    def of(cls, jaxpr: ClosedJaxpr, shared: int, carry: int, length: int, reverse: bool) -> Loop:
        """The loop of a step that may have calls."""
        plain = inlined(jaxpr, CALLS | FOREIGN_CALLS)
        if plain.effects:
            raise Unsupported(f"has effects, {', '.join(map(str, plain.effects))}")
        if not length:
            raise Unsupported("is never made")
        whole = without_repeats(plain.jaxpr)
        whole = whole.replace(eqns=needed_equations(whole))
        moving = depending(whole, whole.invars[shared:])
        steps = [eqn for eqn in whole.eqns if not moving.isdisjoint(eqn.outvars)]
        atoms = [*itertools.chain(*(eqn.invars for eqn in steps)), *whole.outvars]
        read = list(dict.fromkeys(v for v in variables(atoms) if v not in moving))
        ahead = ClosedJaxpr(part(whole, whole.invars[:shared], read), plain.consts)
        invars = [*read, *whole.invars[shared:]]
        names = whole.debug_info._replace(arg_names=None, result_paths=None)
        body = whole.replace(constvars=[], invars=invars, eqns=steps, debug_info=names)
        return cls(ahead, body, len(read), carry, length, reverse)

    @property
    def carries(self) -> Sequence[Var]:
        return self.jaxpr.invars[self.shared : self.shared + self.carry]

    @property
    def xs(self) -> Sequence[Var]:
        return self.jaxpr.invars[self.shared + self.carry :]

    @property
    def leaving(self) -> Sequence[Any]:
        return self.jaxpr.outvars[: self.carry]

    @property
    def ys(self) -> Sequence[Any]:
        return self.jaxpr.outvars[self.carry :]

    @property
    def dtype(self) -> str:
        """The one type of float of all that it computes."""
        atoms = [*self.jaxpr.invars, *self.jaxpr.outvars]
        atoms += [v for eqn in self.jaxpr.eqns for v in eqn.outvars]
        found = set(map(type_of, atoms)) - {"bool"}
        carried = set(map(type_of, (*self.carries, *self.leaving)))
        if len(found) != 1 or not found <= set(FLOATS) or "bool" in carried:
            raise Unsupported(f"has values of the types {', '.join(sorted(found | carried))}")
        if not all(map(_size, atoms)):
            raise Unsupported("has values without entries")
        return found.pop()


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """``out = left @ matrix``, or ``matrix`` transposed."""

    left: Var
    matrix: Var
    turned: bool
    out: Var


@dataclasses.dataclass(frozen=True)
class JoinedParts:
    """Parts beside or below one another.

    Attributes:
      parts: for each its first row and column, how many it has, and the value.
      out: the whole.
    """

    parts: tuple[tuple[int, int, int, int, Any], ...]
    out: Var


@dataclasses.dataclass(frozen=True)
class Slice:
    """Columns of an operand."""

    of: Any
    out: Var
    row: int
    column: int


class Program:
    """A step's equations in levels.

    Args:
      loop: the loop.
      functions: of the elementwise primitives that there is code for, by name.
    """

    def __init__(self, loop: Loop, functions: Mapping[str, Callable[..., Any]]):
        jaxpr = loop.jaxpr
        self._loop = loop
        self.functions = functions
        self.inputs = set(jaxpr.invars)
        self._level: dict[Var, int] = dict.fromkeys(jaxpr.invars, 0)
        self.made: dict[Var, Any] = {}  # an equation, a product, parts, columns
        self.stored: dict[Var, None] = {}  # what has a place in memory
        self._shared = set(jaxpr.invars[: loop.shared])
        for eqn in jaxpr.eqns:
            self._read(eqn)
        for v in jaxpr.outvars:
            self._store(v, even_bools=True)

    @functools.cached_property
    def products(self) -> list[MatrixProduct]:
        return [made for made in self.made.values() if isinstance(made, MatrixProduct)]

    def _read(self, eqn: JaxprEqn) -> None:
        name, out = kind_of(eqn), eqn.outvars[0]
        if name in ("dot_general", "row_product"):
            self._product(eqn)
        elif name in ("concatenate", "stack", "pad"):
            self._join(out, _padded(eqn) if name == "pad" else _beside(eqn))
        elif name in ("slice", "split"):
            for v, (row, column) in zip(eqn.outvars, _slices(eqn), strict=True):
                self.made[v] = Slice(eqn.invars[0], v, row, column)
                self._level[v] = self.level_of(*eqn.invars)
        elif name in VIEWS or name in self.functions:
            self.made[out] = eqn
            self._level[out] = self.level_of(*eqn.invars)
            if name not in VIEWS:
                for atom in eqn.invars:
                    root = self.root(atom)
                    if self.level_of(root) < self._level[out]:
                        self._store(root)
        else:
            what = "a scan of parscan_bp" if name in OWN_CALLS else name
            raise Unsupported(f"contains {what}")

    def root(self, atom: Any) -> Any:
        """The value that views are of."""
        made = None if isinstance(atom, Literal) else self.made.get(atom)
        if isinstance(made, Slice):
            return self.root(made.of)
        if isinstance(made, JaxprEqn) and kind_of(made) in VIEWS:
            return self.root(made.invars[0])
        return atom

    def level_of(self, *atoms: Any) -> int:
        """The highest level of some values."""
        return max((self._level[v] for v in atoms if isinstance(v, Var)), default=0)

    @functools.cached_property
    def batch(self) -> int | None:
        """Rows that never meet, of all that steps make; ``None`` where there are none such."""
        loop = self._loop
        made = [*loop.carries, *loop.jaxpr.outvars, *self.stored]
        rows = {1 if isinstance(v, Literal) else rows_and_columns(v)[0] for v in made}
        return None if len(rows) > 1 or any(map(_moves_rows, self.made.values())) else rows.pop()

    @functools.cached_property
    def operations(self) -> int:
        """Multiplications and additions of all steps, and `A_FUNCTION` for each function."""
        each = sum(
            A_FUNCTION * _size(v)
            for v, made in self.made.items()
            if isinstance(made, JaxprEqn) and kind_of(made) not in VIEWS
        )
        for product in self.products:
            each += _size(product.left) * rows_and_columns(product.out)[1]
        return each * self._loop.length

    @property
    def levels(self) -> int:
        return max(self._level.values(), default=0) + 1

    def _store(self, atom: Any, *, even_bools: bool = False) -> None:
        """Bools are sooner made again."""
        if isinstance(atom, Var) and atom not in self.inputs:
            if even_bools or type_of(atom) != "bool":
                self.stored[atom] = None

    def _product(self, eqn: JaxprEqn) -> None:
        left: Any
        right: Any
        left, right = eqn.invars
        (of_left, of_right), batched = eqn.params["dimension_numbers"]
        if isinstance(left, Literal) or isinstance(right, Literal):
            raise Unsupported("has a constant array")
        if batched != ((), ()) or len(of_left) != 1:
            raise Unsupported("multiplies more than two matrices at a time")
        if left in self._shared and len(shape_of(right)) == 1:
            (left, right), (of_left, of_right) = (right, left), (of_right, of_left)
        if left in self._shared:
            raise Unsupported("multiplies by a matrix from the left")
        if right not in self._shared:
            raise Unsupported("multiplies two values that change from step to step")
        if len(shape_of(right)) != 2:
            raise Unsupported(f"multiplies by an array of {len(shape_of(right))} axes")
        if of_left[0] != len(shape_of(left)) - 1:
            raise Unsupported("sums over another axis than the last")
        out = eqn.outvars[0]
        self._store(left)
        self._store(out)
        self.made[out] = MatrixProduct(left, right, of_right == (1,), out)
        self._level[out] = self.level_of(left) + 1

    def _join(self, out: Var, parts: Sequence[tuple[int, int, int, int, Any]]) -> None:
        self._store(out, even_bools=True)
        self.made[out] = JoinedParts(tuple(parts), out)
        self._level[out] = self.level_of(*(atom for *_, atom in parts)) + 1

    # --- how a value is read ------------------------------------------------------------------

    def making(self, atom: Var, level: int) -> Any:
        """The equation or slice by which it is made on this level; ``None`` where it is read."""
        made = self.made.get(atom)
        if not isinstance(made, JaxprEqn | Slice):
            return None
        return made if self._level[atom] == level or atom not in self.stored else None

    def is_flat(self, atom: Any, level: int) -> bool:
        """Whether number k of it is made of numbers k of what is in memory, or of single ones."""
        made = None if isinstance(atom, Literal) else self.making(atom, level)
        if made is None or isinstance(made, Slice):
            return made is None
        sizes = {_size(v) for v in made.invars}
        return sizes <= {1, _size(atom)} and all(self.is_flat(v, level) for v in made.invars)


def _size(atom: Any) -> int:
    return math.prod(shape_of(atom))


def _moves_rows(made: Any) -> bool:
    """Whether a row of what is made is of other rows, so that they cannot be told apart."""
    if isinstance(made, JoinedParts):
        return any(row for row, *_ in made.parts)
    if isinstance(made, Slice):
        return rows_and_columns(made.of)[0] != rows_and_columns(made.out)[0]
    if not isinstance(made, JaxprEqn) or kind_of(made) not in VIEWS:
        return False
    (of,), (out,) = made.invars, made.outvars
    (before, _), (after, _) = map(rows_and_columns, (of, out))
    if kind_of(made) == "broadcast_in_dim" and before == 1:
        axes = made.params["broadcast_dimensions"]
        return _size(of) > 1 and axes[-1] != len(shape_of(out)) - 1
    return before != after


def _beside(eqn: JaxprEqn) -> list[tuple[int, int, int, int, Any]]:
    """The parts of a value that is joined along its first or its last axis."""
    stacks, last = kind_of(eqn) == "stack", len(shape_of(eqn.outvars[0])) - 1
    axis = eqn.params["axis" if stacks else "dimension"]
    if axis not in (0, last) or (stacks and axis == last):
        raise Unsupported("joins values along another axis than the first or last")
    at, parts = 0, []
    for atom in eqn.invars:
        rows, columns = rows_and_columns(atom)
        parts.append((0, at, rows, columns, atom) if axis == last else (at, 0, rows, columns, atom))
        at += columns if axis == last else rows
    return parts


def _padded(eqn: JaxprEqn) -> list[tuple[int, int, int, int, Any]]:
    atom, value = eqn.invars
    config = [tuple(map(int, axis)) for axis in eqn.params["padding_config"]]  # or NumPy's
    *others, (low, high, inside) = config
    if any(map(any, others)) or low < 0 or high < 0 or inside or not isinstance(value, Literal):
        raise Unsupported("pads in another way than by columns of a constant")
    rows, columns = rows_and_columns(atom)
    parts = ((0, low, value), (low, columns, atom), (low + columns, high, value))
    return [(0, at, rows, count, part) for at, count, part in parts if count]


def _slices(eqn: JaxprEqn) -> list[tuple[int, int]]:
    """First row and first column of each result."""
    shape, params = shape_of(eqn.invars[0]), eqn.params
    if kind_of(eqn) == "split":
        axis, sizes = params["axis"], params["sizes"]
        if axis != len(shape) - 1:
            raise Unsupported("splits another axis than the last")
        return [(0, int(sum(sizes[:k]))) for k in range(len(sizes))]
    start, strides, out = params["start_indices"], params["strides"], shape_of(eqn.outvars[0])
    if (strides and any(s != 1 for s in strides)) or shape[1:-1] != out[1:-1]:
        raise Unsupported("takes parts of another axis than the first or last")
    return [(int(start[0]) * math.prod(shape[1:-1]) if len(shape) > 1 else 0, int(start[-1]))]

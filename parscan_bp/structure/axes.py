"""Which axes of the carry a step treats elementwise: abstract interpretation with axis labels.

Every axis of every float carry leaf starts with a label of its own. A value that depends on the
carry holds one label or None per axis. Where two such values meet elementwise, the labels of
their axes are united (union-find); where a label meets None, or its axis is contracted, reduced,
reversed, cut or reshaped away, its class dies. A class that lives to the end and sits in carry'
where it sits in the carry is a batch axis.

Why this is sound. For each class that is never killed:

    every value v that depends on a leaf with an axis of that class has the class on exactly one
    axis, and v at index b along it depends on the leaf at index b along the leaf's axis only.

The leaves satisfy it, each rule keeps it or kills the class, and uniting two classes asserts
nothing: it only says which axes are to be compared. A class with two axes of one leaf is dropped.

Labels belong to axes, not to entries: the work and the memory do not depend on the sizes of the
arrays, and the answer names axes to batch over. asdex, which also reads the jaxpr, holds one set
of input indices per array entry (for a (B, H) carry times an (H, H) matrix, B H sets of H), and so
finds sparsity inside an axis, which labels cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.interpret import Interpreter
from parscan_bp.jaxprs.read import is_inexact, open_jaxpr, shape_of, touches_ref, walk
from parscan_bp.structure.base import CarryStructure
from parscan_bp.structure.classes import AxisClasses
from parscan_bp.structure.rules import axis_maps


def find_structure(
    body: ClosedJaxpr, num_consts: int, num_carry: int, *, leaves: Sequence[int] | None = None
) -> CarryStructure:
    """The structure of d carry' / d carry of a scan body, found without running it.

    Conservative: what is not recognised is dense. The work is proportional to the number of
    equations, those in a loop counted once per round of its fixed-point iteration; a `custom_jvp`
    has its rule traced, as its derivative may differ from that of its values.

    Args:
      body: jaxpr with flat inputs [consts..., carry..., xs...] and outputs [carry'..., ys...].
      num_consts: number of constants.
      num_carry: number of carry leaves.
      leaves: flat carry positions; describe only the block of the Jacobian between these leaves,
        all others held fixed. None means every float leaf. See `CarryStructure.components`.

    Returns:
      The structure; all its fields are static and hashable.

    Raises:
      ValueError: the counts do not fit the jaxpr, or `leaves` names a leaf without derivative.

    Example: a layer norm mixes the features, never the batch.
      >>> import jax, jax.numpy as jnp
      >>> step = lambda h, x: (jnp.tanh(h - h.mean(-1, keepdims=True) + x), h.sum())
      >>> body = jax.make_jaxpr(step)(jnp.ones((2, 3)), jnp.ones((2, 3)))
      >>> find_structure(body, 0, 1).batch_axes
      ((0,),)
    """
    jaxpr = open_jaxpr(body)
    described = _described_leaves(jaxpr, num_consts, num_carry, leaves)
    shapes = [shape_of(jaxpr.invars[num_consts + i]) for i in described]
    ref = next((eqn for eqn in walk(jaxpr) if touches_ref(eqn)), None)
    if ref is not None:  # what flows through a mutable array is not followed
        return _dense(described, ref.primitive.name)

    classes = AxisClasses()
    domain = _AxisLabels(classes)
    start = [tuple(classes.new(size) for size in shape) for shape in shapes]
    ins: list[Labels | None] = [None] * len(jaxpr.invars)
    live = [False] * len(jaxpr.outvars)
    for bit, (leaf, labels) in enumerate(zip(described, start, strict=True)):
        ins[num_consts + leaf] = Labels(1 << bit, labels)
        live[leaf] = True
    results = domain.run(jaxpr, ins, live)
    outs = [results[leaf] for leaf in described]
    for labels, out in zip(start, outs, strict=True):
        if out is not None:  # carry' is the next carry: it must have the class where carry has it
            for here, there in zip(labels, out.axes, strict=True):
                classes.meet([here, there], "carry")
    for labels in start:
        classes.kill_repeated(labels, "carry")
    n = len(described)
    depends = tuple(
        tuple(out is not None and bool(out.depends >> i & 1) for i in range(n)) for out in outs
    )
    batch_axes, batch_shape = classes.batch_axes(start, depends)
    diagonal = all(
        not depends[o][i] or (o == i and classes.covers(start[o]))
        for o in range(n)
        for i in range(n)
    )
    return CarryStructure(
        described, depends, batch_axes, batch_shape, diagonal, tuple(classes.killers)
    )


@dataclass(frozen=True)
class Labels:
    """A value that depends on the carry: on the leaves of a bit set, with a label per axis."""

    depends: int
    axes: tuple[int | None, ...]


class _AxisLabels(Interpreter[Labels | None]):
    derivative = True
    prune = True
    bottom = None

    def __init__(self, classes: AxisClasses) -> None:
        super().__init__()
        self.classes = classes

    def equation(
        self, eqn: JaxprEqn, ins: list[Labels | None], live: list[bool]
    ) -> list[Labels | None]:
        rows = zip(axis_maps(eqn), eqn.outvars, live, strict=True)
        return [
            self._result(eqn, ins, row) if used and is_inexact(v) else None for row, v, used in rows
        ]

    def _result(self, eqn: JaxprEqn, ins: list[Labels | None], row: list[Any]) -> Labels | None:
        name = kind_of(eqn)
        operands = [
            (value, axis_map)
            for value, axis_map in zip(ins, row, strict=True)
            if value is not None and axis_map is not None
        ]
        if not operands:
            return None
        depends = 0
        for value, axis_map in operands:
            depends |= value.depends
            lost = [label for a, label in enumerate(value.axes) if a not in axis_map]
            self.classes.kill(lost, name)
        per_axis = zip(
            *(
                [None if a is None else value.axes[a] for a in axis_map]
                for value, axis_map in operands
            ),
            strict=True,
        )
        return Labels(depends, tuple(self.classes.meet(labels, name) for labels in per_axis))

    def join(self, a: Labels | None, b: Labels | None, name: str) -> Labels | None:
        if a is None or b is None:
            return a or b
        pairs = zip(a.axes, b.axes, strict=True)
        axes = tuple(self.classes.meet(pair, name) for pair in pairs)
        return Labels(a.depends | b.depends, axes)

    def unstack(self, xs: Labels | None) -> Labels | None:
        return xs and Labels(xs.depends, xs.axes[1:])

    def scanned(self, others: list[Labels | None], xs: list[Labels | None]) -> int | None:
        # The stacked axis of the results is elementwise with that of the scanned-over operands
        # if nothing is carried along it and no constant enters every step.
        labels = [x.axes[0] for x in xs if x is not None] + [None for v in others if v is not None]
        return self.classes.meet(labels, "scan") if labels else None

    def stack(self, y: Labels | None, scanned: int | None) -> Labels | None:
        return y and Labels(y.depends, (scanned, *y.axes))


def _described_leaves(
    jaxpr: Any, num_consts: int, num_carry: int, leaves: Sequence[int] | None
) -> tuple[int, ...]:
    carry_in = jaxpr.invars[num_consts : num_consts + num_carry]
    carry_out = jaxpr.outvars[:num_carry]
    before, after = ([(shape_of(v), v.aval.dtype) for v in vs] for vs in (carry_in, carry_out))
    if len(carry_in) < num_carry or before != after:
        raise ValueError(
            f"num_consts={num_consts}, num_carry={num_carry}: the body has "
            f"{len(jaxpr.invars)} inputs and {len(jaxpr.outvars)} outputs, and the carry inputs "
            f"{before} and outputs {after} do not match; pass the counts of the scan."
        )
    floating = tuple(i for i, v in enumerate(carry_in) if is_inexact(v))
    if leaves is None:
        return floating
    unknown = [i for i in leaves if i not in floating]
    if unknown:
        raise ValueError(
            f"leaves: {unknown} are not float or complex carry leaves; choose among {floating}."
        )
    return tuple(leaves)


def _dense(described: tuple[int, ...], name: str) -> CarryStructure:
    n = len(described)
    return CarryStructure(described, ((True,) * n,) * n, ((),) * n, (), n == 0, (name,))

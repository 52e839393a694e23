"""Operators whose arrays have some of the stack axes, and the matrices that they stand for.

Every array is drawn with all axes first. Along those that it is to share, one entry is kept, and
the axis has size 1 or is left out; the oracle repeats that entry by NumPy. So what an axis means
is known from how it was made, whatever sizes are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from parscan_bp.operators import ChannelSlice, Operator, Scaled
from tests.operators.operator_examples import EXAMPLES, SQUARE, Draw, Example, make_matrix_free
from tests.operators.operator_references import reference

H = 6
MATRIX_FREE = Example("matrix-free", lambda draw, stack: make_matrix_free(draw, stack, H, H))
STRUCTURES = [e for e in SQUARE if e.name != "identity"] + [MATRIX_FREE]
# A `ChannelSlice` has no arrays.
assert {type(e.make(Draw(0, "float32"), ())) for e in EXAMPLES} <= {
    *(type(e.make(Draw(0, "float32"), ())) for e in [*SQUARE, MATRIX_FREE]),
    ChannelSlice,
}


class Small(Draw):
    """Numbers small enough that products of many maps stay tame."""

    def __call__(self, *shape):
        return jnp.asarray(0.4 * self.rng.standard_normal(shape), self.dtype)


@dataclasses.dataclass(frozen=True)
class Form:
    """Along which stack axes an array has entries of its own.

    Attributes:
      own: for the scanned axis and each batch axis, whether it differs along it.
      short: whether axes that are shared are left out where they can be: all of them, or batch axes
        before the first of its own. Otherwise they have size 1.
    """

    own: tuple[bool, ...]
    short: bool

    def full(self, array: np.ndarray, stack: tuple[int, ...]) -> np.ndarray:
        """The array with all axes, of which each entry along a shared one is the same."""
        return np.broadcast_to(self.kept(array), stack + array.shape[len(stack) :])

    def kept(self, array: np.ndarray) -> np.ndarray:
        """One entry along each axis that is shared."""
        return array[tuple(slice(None) if own else slice(1) for own in self.own)]

    def dropped(self, scanned: bool) -> list[int]:
        """The axes that are left out; the scanned one is not, where others follow."""
        if not self.short:
            return []
        if not any(self.own):
            return list(range(len(self.own)))
        first = 1 if scanned else 0
        shared = [k for k in range(first, len(self.own)) if not any(self.own[first : k + 1])]
        return shared

    def compact(self, array: np.ndarray, *, scanned: bool = True) -> np.ndarray:
        """The array as it is given to the package."""
        return np.squeeze(self.kept(array), tuple(self.dropped(scanned)))

    def expanded(self, array, stack: tuple[int, ...], ndim: int):
        """The compact array of a stack with all axes again, by `jax.numpy`."""
        array = jnp.expand_dims(array, tuple(self.dropped(True)))
        return jnp.broadcast_to(array, stack + array.shape[len(stack) :])


@dataclasses.dataclass(frozen=True)
class Made:
    """An operator in parts.

    Attributes:
      like: an operator of the structure, with all axes in each array.
      forms: of each array; ``None`` of one that all maps share by construction (places of
        entries).
      stack: the stack axes.
    """

    like: Operator
    forms: tuple[Form | None, ...]
    stack: tuple[int, ...]

    def of(self, arrays) -> Operator:
        each = iter(arrays)
        return self.like.map_leaves(lambda *_: next(each))

    def _mapped(self, f: Callable) -> list:
        leaves = [np.asarray(leaf) for leaf, _ in self.like.leaves()]
        both = zip(leaves, self.forms, strict=True)
        return [leaf if form is None else f(form, leaf) for leaf, form in both]

    def compact(self, *, scanned: bool = True) -> list[np.ndarray]:
        """The arrays as they are given to the package."""
        return self._mapped(lambda form, leaf: form.compact(leaf, scanned=scanned))

    def expanded(self, arrays) -> Operator:
        """The operator with all axes in each array, from the compact ones."""
        parts = zip(arrays, self.like.leaves(), self.forms, strict=True)
        return self.of(
            [
                a if form is None else form.expanded(jnp.asarray(a), self.stack, ndim)
                for a, (_, ndim), form in parts
            ]
        )

    def dense(self) -> np.ndarray:
        """The matrices (*stack, H, H), in double precision by the definitions."""
        full = self.of(self._mapped(lambda form, leaf: form.full(leaf, self.stack)))
        return np.broadcast_to(reference(full), (*self.stack, H, H))


def draw_made(
    rng: np.random.Generator, example: Example, stack: tuple[int, ...], draw_form: Callable
) -> Made:
    """An operator of a structure; ``draw_form()`` is the form of each array."""
    draw = Small(int(rng.integers(2**31)), "float64")
    op = example.make(draw, stack)
    if isinstance(op, Scaled):  # one form for both of its arrays
        form = draw_form()
        return Made(op, (form, form), stack)
    forms: list[Form | None] = []

    def with_all_axes(leaf, ndim):
        places = leaf.ndim == ndim and stack and not jnp.issubdtype(leaf.dtype, jnp.inexact)
        forms.append(None if places else draw_form())
        lacks = leaf.ndim == ndim and stack and not places
        return draw(*stack, *leaf.shape) if lacks else leaf

    return Made(op.map_leaves(with_all_axes), tuple(forms), stack)


def draw_form(rng: np.random.Generator, rank: int, *, scanned: bool = True) -> Form:
    """Any form of so many stack axes; those that are met in practice more often."""
    own = rng.random(rank) < 0.5
    kind = rng.integers(4)
    if kind == 0:
        own[:] = True
    if kind == 1 and scanned:
        own[:] = np.arange(rank) == 0
    if kind == 2 and rng.random() < 0.5:
        own[:] = False
    return Form(tuple(map(bool, own)), bool(rng.random() < 0.6))


def draw_batch(rng: np.random.Generator, n: int, chunk: int) -> tuple[int, ...]:
    """Batch axes: none, one or two, as large as something else."""
    sizes = [n, chunk, H, 1, 2, 3, max(n - 1, 1), n + 1]
    count = rng.choice([0, 1, 1, 1, 2, 2])
    return tuple(int(rng.choice(sizes)) for _ in range(count))

"""Cells whose step is elementwise beside one product with the input and one with the state."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from parscan_bp.arguments import described
from parscan_bp.cells.base import Cell, in_dtypes_of, normal, sum_leading
from parscan_bp.cells.stated import check_attributes, check_functions
from parscan_bp.cells.weight_cotangent import as_rows, weight_cotangent
from parscan_bp.operators import Factored
from parscan_bp.types import Array, PyTree


class Gated(Cell):
    """A cell of gates: an author states three elementwise functions, the rest follows.

    With h the first leaf of the carry, and W_i and W_h split into as many parts as are asked for,

        a_k = x W_i,k + h W_h,k + b_k,   gates = activate(a),   carry' = update(gates, past),

    where ``past`` are leaves of the carry that act past the weights; the output is h'. `pull` is
    the adjoint of both. The Jacobian, the products of a sweep and ``forward="fused"`` follow.

    Each of the three is a function of one unit alone, and may close over an array (H,), but not in
    the kernels. This is checked, once, where it is relied on: in them, and for derivatives.

    Parameters are ``wi`` (inputs, parts H), ``wh`` (H, parts H) and what `biases` names; the carry
    is h, or a tuple of h and others of its size.

    Attributes:
      parts: pre-activations a_k with a part of the input and one of h.
      input_parts, state_parts: those of the input alone, and of h alone; they follow in this order.
      states: leaves of the carry.
      past: those of them that act past the weights, as all but h have to.
      biases: name of the biases beside the input, and of those beside h, or ``None``.

    Example:
      >>> import functools, jax, jax.numpy as jnp, parscan_bp as pb
      >>> class MinimalGated(pb.cells.Gated):
      ...     '''h' = (1 - z) h + z n with z = sigmoid(a_0) and n = tanh(a_1).'''
      ...     parts = 2
      ...
      ...     def activate(self, a):
      ...         return [jax.nn.sigmoid(a[0]), jnp.tanh(a[1])]
      ...
      ...     def update(self, gates, past):
      ...         (z, n), (h,) = gates, past
      ...         return [(1 - z) * h + z * n]
      ...
      ...     def pull(self, gates, past, new, cts):
      ...         (z, n), (h,), (ct,) = gates, past, cts
      ...         return [(ct * n - ct * h) * z * (1 - z), ct * z * (1 - n * n)], [(1 - z) * ct]
      >>> cell = MinimalGated()
      >>> params = cell.init(jax.random.key(0), inputs=3, hidden=8)
      >>> h, ys = pb.scan(functools.partial(cell, params), jnp.zeros(8), jnp.ones((10, 3)))
      >>> ys.shape
      (10, 8)
    """

    parts: ClassVar[int]
    input_parts: ClassVar[int] = 0
    state_parts: ClassVar[int] = 0
    states: ClassVar[int] = 1
    past: ClassVar[tuple[int, ...]] = (0,)

    @property
    def biases(self) -> tuple[str, str | None]:
        return "b", None

    @abc.abstractmethod
    def activate(self, a: Sequence[Array]) -> list[Array]:
        """The gates from the pre-activations; like all that follow, of arrays of one shape."""

    @abc.abstractmethod
    def update(self, gates: Sequence[Array], past: Sequence[Array]) -> list[Array]:
        """The leaves of the new carry."""

    @abc.abstractmethod
    def pull(
        self,
        gates: Sequence[Array],
        past: Sequence[Array],
        new: Sequence[Array],
        cts: Sequence[Array],
    ) -> tuple[list[Array], list[Array]]:
        """Cotangents of all pre-activations, and of ``past`` but by way of these.

        Linear in ``cts``, which are multiplied by one slope after the other; see `pull_carry`.

        Args:
          gates, past: of the step.
          new: leaves of the new carry.
          cts: their cotangents.
        """

    def init(self, key, inputs, hidden, dtype=float):
        self.check()
        ki, kh = jax.random.split(key)
        sizes = [count * hidden for count in self.counts]
        weights = normal(ki, inputs, sizes[0], dtype), normal(kh, hidden, sizes[1], dtype)
        biases = zip(self.biases, sizes, strict=True)
        return dict(zip(("wi", "wh"), weights, strict=True)) | {
            name: jnp.zeros(size, dtype) for name, size in biases if name is not None
        }

    def initial_carry(self, batch_shape, hidden, dtype=float):
        return self.as_carry([jnp.zeros((*batch_shape, hidden), dtype)] * self.states)

    def as_carry(self, leaves: Sequence[Array]) -> PyTree:
        """The carry of these leaves."""
        return leaves[0] if self.states == 1 else tuple(leaves)

    def __call__(self, params, carry, x):
        self.check()
        leaves = jax.tree.leaves(carry)
        gates = self.activated(params, leaves[0], x)
        new = self.listed("update", self.update(gates, self.of_past(leaves)))
        return self.as_carry(new), new[0]

    def of_past(self, leaves: Sequence[Array]) -> list[Array]:
        """Those of the leaves of a carry that act past the weights."""
        return [leaves[k] for k in self.past]

    def activated(self, params: PyTree, h: Array, x: Array) -> list[Array]:
        """The gates of a step, or of many."""
        beside_x, beside_h = self.biases
        of_input, of_state = x @ params["wi"], h @ params["wh"]
        if beside_h is not None:
            of_state = of_state + params[beside_h]
        if self.are_shared:
            parts = _split(of_input + of_state + params[beside_x], self.parts)
        else:
            parts = self.added(*map(_split, (of_input + params[beside_x], of_state), self.counts))
        return self.listed("activate", self.activate(parts))

    @property
    def counts(self) -> tuple[int, int]:
        """Pre-activations with a part of the input, and of h."""
        return self.parts + self.input_parts, self.parts + self.state_parts

    @property
    def are_shared(self) -> bool:
        """Whether all have both."""
        return self.input_parts == self.state_parts == 0

    def added(self, of_input: Sequence[Array], of_state: Sequence[Array]) -> list[Array]:
        """The pre-activations from their parts."""
        n = self.parts
        both = [a + b for a, b in zip(of_input[:n], of_state[:n], strict=True)]
        return [*both, *of_input[n:], *of_state[n:]]

    def gates(self, params, carry, x, new_carry):
        return self.activated(params, jax.tree.leaves(carry)[0], x)

    def jacobian(self, params, carry, x, new_carry):
        past, new = self.of_past(jax.tree.leaves(carry)), jax.tree.leaves(new_carry)
        gates = self.gates(params, carry, x, new_carry)
        zero, one = jnp.zeros_like(new[0]), jnp.ones_like(new[0])
        # Its diagonals are what `pull` makes of ones, a leaf of the new carry at a time.
        ones = ([one if j == k else zero for j in range(self.states)] for k in range(self.states))
        us, directs = zip(*(self._pulled(gates, past, new, cts) for cts in ones), strict=True)
        rows = [jnp.stack(part, axis=-2) for part in zip(*map(self.of_state, us), strict=True)]
        weight, by_gate = params["wh"], jnp.stack(rows, axis=-3)
        if not self.past:
            return Factored(weight, by_gate)
        rows = [jnp.stack([zero] * self.states, axis=-2)] * self.states
        for n, k in enumerate(self.past):
            rows[k] = jnp.stack([direct[n] for direct in directs], axis=-2)
        return Factored(weight, by_gate, jnp.stack(rows, axis=-3))

    def pull_carry(self, params, carry, gates, new_carry, cts):
        past = self.of_past(jax.tree.leaves(carry))
        u, direct = self._pulled(gates, past, jax.tree.leaves(new_carry), jax.tree.leaves(cts))
        joined, others = self.arranged(u)
        by_state = jnp.inner(joined, params["wh"])
        leaves = dict(zip(self.past, direct, strict=True))
        leaves[0] = by_state + leaves[0] if 0 in leaves else by_state
        return (joined, others), self.as_carry([leaves[k] for k in range(self.states)])

    def _pulled(self, gates, past, new, cts):
        """`pull`, checked."""
        self.check(new[0])
        return self.listed("pull", self.pull(gates, past, new, cts))

    def check(self, leaf: Any = None) -> None:
        """Raises unless the cell is what its attributes have to say, once.

        Args:
          leaf: of the carry; the three functions have to be elementwise, too, of its shape. Where
            it is not given, nothing is taken from what they are.

        Raises:
          TypeError, ValueError: names the class, what is wrong with it, and what is wanted.
        """
        kind = None if leaf is None else (leaf.shape, leaf.dtype)
        if kind in self._checked:
            return
        check_attributes(self)
        if leaf is not None:
            check_functions(self, leaf)
        self._checked.add(kind)

    @functools.cached_property
    def _checked(self) -> set[Any]:
        """The types of leaves for which it was."""
        return set()

    def listed(self, method: str, value: Any) -> Any:
        """What a method returned, if it is lists of as many as there have to be."""
        if method == "activate":
            return self._list(method, value)
        if method == "update":
            return self._list(method, value, self.states)
        u, direct = self._list(method, value, 2)
        u = self._list("pull, of the pre-activations", u, self.counts[1] + self.input_parts)
        return u, self._list("pull, of past", direct, len(self.past))

    def _list(self, method: str, value: Any, count: int | None = None) -> Any:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            many = "" if count is None else f" of {count}"
            got = f"{len(value)}" if isinstance(value, list | tuple) else described(value)
            raise TypeError(f"{type(self).__name__}.{method}: got {got}; a list{many} is wanted")
        return value

    def of_state(self, a: Sequence[Array]) -> list[Array]:
        """Those of the pre-activations, or of their cotangents, that have a part of h."""
        return [*a[: self.parts], *a[self.counts[0] :]]

    def arranged(self, u: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Cotangents of pre-activations for `pull_params`: side by side where h has a part."""
        return _join(self.of_state(u)), list(u[self.parts : self.counts[0]])

    def pull_params(self, params, carry, x, u):
        (of_state, others), h, lead = u, jax.tree.leaves(carry)[0], x.shape[:-1]
        if not self.are_shared:
            x, h, of_state, *others = as_rows(x, h, of_state, *others)
        sums = sum_leading(of_state), [sum_leading(other) for other in others]
        wh = weight_cotangent(h, of_state)
        cts, dx = self.pull_inputs(params, x, (of_state, others), wh, *sums)
        return cts, dx.reshape(*lead, dx.shape[-1])

    def pull_inputs(self, params, x, u, wh, beside_h, others):
        """`pull_params` where the cotangents that are sums over all steps were made with u.

        Args:
          params, x, u: see `pull_params`.
          wh: cotangent of the weights of that name.
          beside_h: sum of u where h has a part.
          others: sums of the others.
        """
        of_input, beside_x = u[0], beside_h
        if not self.are_shared:
            n = self.parts * params["wh"].shape[0]
            of_input = _join([of_input[..., :n], *u[1]])
            beside_x = _join([beside_h[:n], *others])
        cts = {"wi": weight_cotangent(x, of_input), "wh": wh}
        biases = zip(self.biases, (beside_x, beside_h), strict=True)
        cts |= {name: ct for name, ct in biases if name is not None}
        dx = jnp.inner(of_input, params["wi"]).astype(x.dtype)
        return in_dtypes_of(params, cts), dx


def _split(joined: Array, count: int) -> list[Array]:
    return [joined] if count == 1 else jnp.split(joined, count, axis=-1)


def _join(parts: Sequence[Array]) -> Array:
    return jnp.concatenate(parts, axis=-1)

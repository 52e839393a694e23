"""The debug check of what a linearisation states, against the step's own derivative."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.linearise.base import Linearisation, Steps
from parscan_bp.linearise.body import Active, Body
from parscan_bp.operators import Operator, compose
from parscan_bp.trees import replace_at
from parscan_bp.types import Array, PyTree

MOST_ENTRIES = 2**24
"""Most entries of the matrices that are formed to be looked at."""


def check_linearisation(
    linear: Linearisation,
    consts: Sequence[Array],
    carry: Sequence[Array],
    xs: Sequence[Sequence[Array]],
    extra: Sequence[Array],
    key: Array,
    probes: int = 3,
) -> None:
    """Compares all that is stated of some steps in a row with products of their derivative.

    For random v and u: A v, and what the parameters and inputs receive where that is stated, with
    vector-Jacobian products; A^T u, of `transpose`, with Jacobian-vector products; products with
    ``as_dense()`` of both, up to `MOST_ENTRIES`, with the same; and the product of two steps'
    operators, where they are `closed`, with the products one after the other.

    Args:
      linear: what makes the operators.
      consts, carry: values of the body, at the first of the steps.
      xs: the inputs of each step.
      extra: values that a given Jacobian closes over.
      key: random key.
      probes: number of vectors.

    Raises:
      ValueError: naming class and method, the entry, what they give there and what automatic
        differentiation gives.
    """
    own = _Derivative.of(linear.body, consts, carry, xs)
    steps = dataclasses.replace(own.steps, extra=linear.invariants(consts, extra))
    adjoint, tangent = linear.adjoint_operator(steps), linear.tangent_operator(steps)
    for k in jax.random.split(key, probes):
        for told, got, want in _compared(linear, own, steps, (adjoint, tangent), k):
            _compare(told, np.asarray(got), np.asarray(want))


class _Told(NamedTuple):
    """What is compared: ``name`` says who states it, ``by`` what it is compared with."""

    name: str
    where: str
    by: str = "automatic differentiation of the step"


Compared = Iterator[tuple[_Told, Array, Array]]


def _compared(linear: Linearisation, own: _Derivative, steps: Steps, operators, key) -> Compared:
    """All that is stated and what it should be, for one draw of vectors."""
    adjoint, tangent = operators
    stated = linear.origin if linear.is_products else f"{linear.origin}: {type(adjoint).__name__}"
    turned = f"{stated}, transposed" if linear.is_products else f"{stated}.transpose()"
    v, u = (own.random(k) for k in jax.random.split(key))
    yield from _maps(linear, stated, adjoint, v, own.pull(v), cotangent=True)
    yield from _maps(linear, turned, tangent, u, own.push(u), cotangent=False)
    if adjoint.closed and len(own.each) > 1:
        yield from _after(linear, stated, adjoint.broadcast(len(own.each)), [a[:1] for a in v])
    yield from _pullback(linear, own, steps, v)


@dataclasses.dataclass(frozen=True)
class _Derivative:
    """Products with the Jacobians of steps in a row, by automatic differentiation.

    By reverse mode, twice for those with the Jacobian itself: a step with a ``custom_vjp``, whose
    Jacobian is stated, has no other.
    """

    body: Body
    steps: Steps
    each: tuple[tuple[list[Array], list[Array]], ...]

    @classmethod
    def of(cls, body: Body, consts, carry, xs) -> _Derivative:
        each, after = [], []
        for x in xs:
            each.append((list(carry), list(x)))
            carry, _ = body(consts, carry, x)
            after.append(carry)
        before, inputs = ([*map(list, part)] for part in zip(*each, strict=True))
        steps = Steps(list(consts), _stacked(before), _stacked(inputs), _stacked(after))
        return cls(body, steps, tuple(each))

    def random(self, key: Array) -> list[Array]:
        """A vector for every step."""
        floats = [self.steps.carry[k] for k in self.body.float_carry]
        keys = jax.random.split(key, len(floats))
        return [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, floats, strict=True)]

    def pull(self, v: Sequence[Array]) -> list[Array]:
        """J^T v, step by step."""
        each = enumerate(self.each)
        return _stacked([self._pull_of(carry, x)([a[t] for a in v]) for t, (carry, x) in each])

    def push(self, u: Sequence[Array]) -> list[Array]:
        """J u, step by step: the transpose of the transpose."""

        def one(t, carry, x):
            at = [a[t] for a in u]
            return jax.vjp(self._pull_of(carry, x), at)[1](at)[0]

        return _stacked([one(t, carry, x) for t, (carry, x) in enumerate(self.each)])

    def pull_others(self, v: Sequence[Array], active: Active) -> tuple[list[Array], list[Array]]:
        """Cotangents of the active consts, summed over the steps, and of the active inputs."""
        summed, stacked = [], []
        for t, (carry, x) in enumerate(self.each):

            def new(consts, inputs, carry=carry, x=x):
                consts = active.insert_consts(self.steps.consts, consts)
                return self._floats(consts, carry, active.insert_x(x, inputs))

            at = active.of_consts(self.steps.consts), active.of_x(x)
            for_consts, for_x = jax.vjp(new, *at)[1]([a[t] for a in v])
            summed.append(for_consts)
            stacked.append(for_x)
        return [a.sum(0) for a in _stacked(summed)], _stacked(stacked)

    def _pull_of(self, carry, x) -> Callable[[list[Array]], list[Array]]:
        def new(floats):
            return self._floats(
                self.steps.consts, replace_at(carry, self.body.float_carry, floats), x
            )

        pull = jax.vjp(new, [carry[k] for k in self.body.float_carry])[1]
        return lambda v: pull(v)[0]

    def _floats(self, consts, carry, x) -> list[Array]:
        new, _ = self.body(consts, carry, x)
        return [new[k] for k in self.body.float_carry]


def _maps(
    linear: Linearisation,
    name: str,
    operator: Operator,
    v: list[Array],
    want: list[Array],
    *,
    cotangent: bool,
) -> Compared:
    """A v, and the matrices times v."""
    packed = linear.pack(v, cotangent=cotangent)

    def leaves(name: str, product: PyTree) -> Compared:
        got, wanted = ([a.shape for a in jax.tree.leaves(t)] for t in (product, packed))
        if got != wanted:
            raise ValueError(f"{name}: got a product of shape {got[0]}; {wanted[0]} is wanted")
        return _by_leaf(_Told(name, "a product"), linear.unpack(product, cotangent=cotangent), want)

    if linear.is_products:
        yield from leaves(name, operator.matvec(packed))
        return
    if not isinstance(operator, Operator):
        raise ValueError(f"{name}: got {type(operator).__name__}; an Operator is wanted")
    yield from leaves(f"{name}.matvec", operator.matvec(packed))
    shape = *operator.stack_shape, *operator.shape
    if math.prod(shape) <= MOST_ENTRIES:
        dense = operator.as_dense()
        if dense.shape != shape:
            raise ValueError(f"{name}.as_dense: got shape {dense.shape}; {shape} is wanted")
        yield from leaves(f"{name}.as_dense", jnp.einsum("...ij,...j->...i", dense, packed))


def _after(linear: Linearisation, name: str, operator: Operator, v: list[Array]) -> Compared:
    """The product of the first two maps, and one after the other."""
    first, second = operator.slice(0, 1), operator.slice(1, 1)
    packed = linear.pack(v, cotangent=True)
    both = compose(first, second).matvec(packed), second.matvec(first.matvec(packed))
    got, want = (linear.unpack(a, cotangent=True) for a in both)
    told = _Told(f"{name}.after", "a product", "one operator after the other")
    yield from _by_leaf(told, got, want)


def _pullback(linear: Linearisation, own: _Derivative, steps: Steps, v: list[Array]) -> Compared:
    """What consts and inputs receive, where that is stated."""
    if linear.stated_pullback is None:
        return
    name, names = linear.stated_pullback
    consts = tuple(k for k in names if is_differentiable(own.body.const_avals[k]))
    inputs = tuple(k for k, a in enumerate(own.body.x_avals) if is_differentiable(a))
    active = Active(consts, inputs, ())
    summed, xs = linear.pullback(steps, v, [], active)
    summed = linear.const_cotangents(steps.consts, summed, active)
    want_summed, want_xs = own.pull_others(v, active)
    for k, got, want in zip(consts, summed, want_summed, strict=True):
        yield _Told(name, f"the cotangent of parameter {names[k]}"), got, want
    for k, got, want in zip(inputs, xs, want_xs, strict=True):
        yield _Told(name, f"the cotangent of input leaf {k}, by steps"), got, want


def _stacked(each: Sequence[Sequence[Array]]) -> list[Array]:
    return [jnp.stack(leaves) for leaves in zip(*each, strict=True)]


def _by_leaf(told: _Told, got: list[Array], want: list[Array]) -> Compared:
    """Leaf by leaf and step by step."""
    for leaf, (a, b) in enumerate(zip(got, want, strict=True)):
        for t in range(b.shape[0]):
            where = f"float carry leaf {leaf} of {told.where} of step {t}"
            yield told._replace(where=where), a[t], b[t]


def _compare(told: _Told, got: np.ndarray, want: np.ndarray) -> None:
    eps = float(jnp.finfo(want.dtype).eps)
    error = np.abs(got - want)
    bound = 100 * eps * max(1.0, float(np.abs(want).max(initial=0.0)))
    if not (error <= bound).all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        index = tuple(int(i) for i in np.unravel_index(worst, error.shape))
        raise ValueError(
            f"{told.name}: entry {index} of {told.where} is {got[index]}, but {told.by} gives "
            f"{want[index]}"
        )

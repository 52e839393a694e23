"""What may be added to any step of the test family: one function `(parts, draw, n) -> parts` each.

A feature wraps the step; it never looks inside. So features combine with each other and with every
step, in the order in which they stand in `FEATURES`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.conformance.cells import Parts
from parscan_bp.conformance.problem import Draw, PyTree, float_leaves, is_float

Feature = Callable[[Parts, Draw, int], Parts]


class Pair(NamedTuple):
    """A container of the family: a NamedTuple."""

    second: Any
    first: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """A container of the family: a registered dataclass with a static field."""

    value: Any
    spare: Any
    tag: str = dataclasses.field(metadata={"static": True}, default="tag")


def _mean(tree: PyTree) -> jax.Array:
    """A bounded real number of the default type that depends on every float leaf."""
    parts = [jnp.mean(jnp.sin(jnp.real(v))) for v in float_leaves(tree) if jnp.size(v)]
    total = jnp.zeros((), jnp.result_type(float))
    for part in parts:
        total += part.astype(total.dtype)
    return total / max(len(parts), 1)


def _map_floats(function: Callable, tree: PyTree) -> PyTree:
    """`function` on the float leaves, cast back to each leaf's own type."""
    return jax.tree.map(lambda v: function(v).astype(v.dtype) if is_float(v) else v, tree)


def _shifted(tree: PyTree, amount: Any) -> PyTree:
    return _map_floats(lambda leaf: leaf + jnp.asarray(amount).astype(leaf.real.dtype), tree)


# The whole step under a transformation.


def _batched(carry_axis: int, x_axis: int) -> Feature:
    def feature(parts: Parts, draw: Draw, n: int) -> Parts:
        f = jax.vmap(parts.f, in_axes=(None, carry_axis, x_axis), out_axes=(carry_axis, 0))
        step = f if jax.tree.leaves(parts.xs) else lambda p, c, x: f(p, c, None)

        def rows(leaf, axis):
            other = leaf if not is_float(leaf) else np.asarray(0.75 * leaf, leaf.dtype)
            stack = jnp.stack if isinstance(leaf, jax.Array) else np.stack
            return stack([leaf, other], axis=axis)

        init = jax.tree.map(lambda leaf: rows(leaf, carry_axis), parts.init)
        # The time axis of xs stays first.
        time_axis = -1 if x_axis == -1 else x_axis + 1
        xs = jax.tree.map(lambda leaf: rows(leaf, time_axis), parts.xs)
        return Parts(step, parts.params, init, xs)

    return feature


def jitted(parts: Parts, draw: Draw, n: int) -> Parts:
    """The step under `jax.jit`."""
    return parts._replace(f=jax.jit(parts.f))


def checkpointed(parts: Parts, draw: Draw, n: int) -> Parts:
    """The step under `jax.checkpoint`."""
    return parts._replace(f=jax.checkpoint(parts.f))


def twice(parts: Parts, draw: Draw, n: int) -> Parts:
    """Two sub-steps by an inner scan of the step itself; the second output is kept."""

    def f(p, c, x):
        c, ys = lax.scan(lambda c, _: parts.f(p, c, x), c, length=2)
        return c, jax.tree.map(lambda y: y[1], ys)

    return parts._replace(f=f)


def sometimes(parts: Parts, draw: Draw, n: int) -> Parts:
    """A `lax.cond` around the step: skipped steps keep the carry and give zeros."""

    def f(p, c, x):
        x, flag = x
        zeros = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(parts.f, p, c, x)[1]
        )
        return lax.cond(flag, lambda c: parts.f(p, c, x), lambda c: (c, zeros), c)

    return parts._replace(f=f, xs=(parts.xs, draw.bools(n)))


# More in the carry.


def counter(parts: Parts, draw: Draw, n: int) -> Parts:
    """An int32 counter that scales the step, and integer and boolean outputs."""

    def f(p, carry, x):
        c, i = carry
        c, y = parts.f(p, c, x)
        c = _map_floats(lambda leaf: jnp.where(i % 2 == 0, 0.9, 1.0) * leaf, c)
        return (c, i + 1), (y, i, i % 2 == 0)

    return parts._replace(f=f, init=(parts.init, np.int32(3)))


def flag(parts: Parts, draw: Draw, n: int) -> Parts:
    """A boolean carry that decides, in turn, whether the carry is damped."""

    def f(p, carry, x):
        done, c = carry
        c, y = parts.f(p, c, x)
        return (~done, _map_floats(lambda leaf: jnp.where(done, 0.5, 1.0) * leaf, c)), (done, y)

    return parts._replace(f=f, init=(np.bool_(False), parts.init))


def key_carry(parts: Parts, draw: Draw, n: int) -> Parts:
    """A typed PRNG key in the carry, split at every step, and keys among the outputs."""

    def f(p, carry, x):
        c, key = carry
        key, sub = jax.random.split(key)
        c, y = parts.f(p, c, x)
        return (_shifted(c, 0.1 * jax.random.uniform(sub)), key), (y, sub)

    return parts._replace(f=f, init=(parts.init, draw.key()))


def closed_over(parts: Parts, draw: Draw, n: int) -> Parts:
    """A key, an integer and a boolean array closed over by the body, beside the parameters."""

    def f(p, c, x):
        params, key, shift, mask = p
        noise = jnp.where(mask, jax.random.uniform(jax.random.fold_in(key, shift), (2,)), 0.0)
        c, y = parts.f(params, c, x)
        return _shifted(c, 0.1 * jnp.sum(noise)), y

    params = (parts.params, draw.key(), np.int32(5), np.array([True, False]))
    return parts._replace(f=f, params=params)


def invariant(parts: Parts, draw: Draw, n: int) -> Parts:
    """A carry that never changes and is used at every step."""

    def f(p, carry, x):
        scale, c = carry
        c, y = parts.f(p, c, x)
        return (scale, _map_floats(lambda leaf: jnp.cos(scale) * leaf, c)), y

    return parts._replace(f=f, init=(draw(scale=0.3), parts.init))


def weak_float(parts: Parts, draw: Draw, n: int) -> Parts:
    """A Python float in `init` that stays weakly typed."""

    def f(p, carry, x):
        c, weak = carry
        c, y = parts.f(p, c, x)
        return (_shifted(c, 0.1 * weak), weak * 0.5), (y, weak)

    return parts._replace(f=f, init=(parts.init, 0.7))


def weak_promoted(parts: Parts, draw: Draw, n: int) -> Parts:
    """Python numbers in `init` that the first step promotes to an array's type."""

    def f(p, carry, x):
        c, total, half = carry
        c, y = parts.f(p, c, x)
        return (c, total + _mean(c), half * _mean(c)), (y, total)

    return parts._replace(f=f, init=(parts.init, 0, 0.5))


def bfloat16_carry(parts: Parts, draw: Draw, n: int) -> Parts:
    """A bfloat16 leaf coupled to the rest of the carry."""

    def f(p, carry, x):
        c, low = carry
        c, y = parts.f(p, c, x)
        low = 0.5 * low + _mean(c).astype(low.dtype)
        return (_shifted(c, 0.1 * jnp.sum(low)), low), y

    return parts._replace(f=f, init=(parts.init, draw(2).astype(jnp.bfloat16)))


def float32_carry(parts: Parts, draw: Draw, n: int) -> Parts:
    """A float32 leaf coupled to the rest of the carry, whatever the default type is."""

    def f(p, carry, x):
        single, c = carry
        c, y = parts.f(p, c, x)
        single = jnp.cos(single) * _mean(c).astype(single.dtype)
        return (single, _shifted(c, 0.1 * single[0])), (y, single)

    return parts._replace(f=f, init=(draw(2).astype(np.float32), parts.init))


def unused(parts: Parts, draw: Draw, n: int) -> Parts:
    """A carry leaf that nothing reads, one of size zero, and a constant one."""

    def f(p, carry, x):
        c = carry["c"]
        c, y = parts.f(p, c, x)
        carry = {"c": c, "unread": jnp.full((2,), _mean(c)), "none": carry["none"], "one": 1.0}
        return carry, y

    init = {"c": parts.init, "unread": draw(2), "none": draw(0, 2), "one": 0.0}
    return parts._replace(f=f, init=init)


def reset(parts: Parts, draw: Draw, n: int) -> Parts:
    """Steps that forget: where the boolean input holds, the carry becomes a constant."""

    def f(p, c, x):
        x, start = x
        c = _map_floats(lambda leaf: jnp.where(start, 0.25, leaf), c)
        return parts.f(p, c, x)

    return parts._replace(f=f, xs=(parts.xs, draw.bools(n)))


# Other outputs.


def forwarded(parts: Parts, draw: Draw, n: int) -> Parts:
    """The incoming carry is an output."""

    def f(p, c, x):
        new, y = parts.f(p, c, x)
        return new, {"y": y, "before": c}

    return parts._replace(f=f)


def passed_through(parts: Parts, draw: Draw, n: int) -> Parts:
    """The input is an output."""

    def f(p, c, x):
        c, y = parts.f(p, c, x)
        return c, [x, y]

    return parts._replace(f=f)


def constant_output(parts: Parts, draw: Draw, n: int) -> Parts:
    """Outputs that do not depend on the carry: a constant and a function of the parameters."""

    def f(p, c, x):
        return parts.f(p, c, x)[0], (jnp.arange(3.0), _mean(p), 2.5)

    return parts._replace(f=f)


def no_output(parts: Parts, draw: Draw, n: int) -> Parts:
    """`ys` is None: only the final carry counts."""
    return parts._replace(f=lambda p, c, x: (parts.f(p, c, x)[0], None))


# Other shapes of the arguments.


def no_inputs(parts: Parts, draw: Draw, n: int) -> Parts:
    """`xs=None` with a `length`: the first input is closed over instead."""

    def f(p, c, _):
        return parts.f(p[0], c, p[1])

    x = jax.tree.map(lambda leaf: leaf[0], parts.xs)
    return Parts(f, (parts.params, x), parts.init, None)


def none_leaves(parts: Parts, draw: Draw, n: int) -> Parts:
    """None and empty containers in the carry, in `xs` and in `ys`."""

    def f(p, carry, x):
        c, y = parts.f(p, carry[1], x[1])
        return (None, c, {}), {"none": None, "y": y, "empty": ((), [])}

    return parts._replace(f=f, init=(None, parts.init, {}), xs=[None, parts.xs, ()])


_CONTAINERS: dict[str, tuple[Callable, Callable]] = {
    "dict": (lambda v, spare: {"b": v, "a": spare}, lambda t: (t["b"], t["a"])),
    "tuple": (lambda v, spare: ((v,), spare), lambda t: (t[0][0], t[1])),
    "list": (lambda v, spare: [spare, [v]], lambda t: (t[1][0], t[0])),
    "namedtuple": (lambda v, spare: Pair(spare, v), lambda t: (t.first, t.second)),
    "dataclass": (lambda v, spare: State(v, spare), lambda t: (t.value, t.spare)),
}


def containers(parts: Parts, draw: Draw, n: int) -> Parts:
    """Carry, `xs` and `ys` in containers of different kinds, each with a second leaf."""
    kinds = list(_CONTAINERS.values())
    order = draw.rng.permutation(len(kinds))
    (wrap_c, open_c), (wrap_x, open_x), (wrap_y, _) = (kinds[k] for k in order[:3])

    def f(p, carry, x):
        (c, spare_c), (x, spare_x) = open_c(carry), open_x(x)
        c, y = parts.f(p, c, x)
        return wrap_c(c, 0.5 * spare_c + spare_x * _mean(c)), wrap_y(y, spare_c)

    return Parts(f, parts.params, wrap_c(parts.init, draw(2)), wrap_x(parts.xs, draw(n)))


FEATURES: dict[str, Feature] = {
    "batch_first": _batched(0, 0),
    "batch_last": _batched(-1, -1),
    "batch_moved": _batched(-1, 0),
} | {
    feature.__name__: feature
    for feature in (
        no_inputs, jitted, checkpointed, twice, sometimes, counter, flag, key_carry, closed_over,
        invariant, weak_float, weak_promoted, bfloat16_carry, float32_carry, unused, reset,
        forwarded, passed_through, constant_output, no_output, none_leaves, containers,
    )
}  # fmt: skip

"""The letters of which words are made: transformations of JAX, as maps of functions.

A function takes a fixed number of arrays, its leaves, and returns a pytree. Every letter keeps the
number of leaves (it may add axes to them), so that any letter fits on any other. What it leaves
open, such as the axes of a `vmap`, is drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Letter:
    """A transformation with everything about it decided.

    Attributes:
      text: how it is printed.
      wrap: ``(f, scan) -> f``; ``scan`` is that of the front end, for letters that loop.
      leaves: the arguments of the function that it makes.
      split: whether the leaves' and results' first axis is one that may be divided.
    """

    text: str
    wrap: Callable[[Function, Callable], Function]
    leaves: Sequence[np.ndarray]
    split: bool = False


@dataclasses.dataclass(frozen=True)
class Draw:
    """What a letter is drawn from.

    Attributes:
      rng: random numbers.
      leaves: the arguments of the function inside.
      length: its number of steps, which batches equal or do not.
      split: see `Letter`.
      reverse_only: whether a letter inside has no forward-mode derivative.
    """

    rng: np.random.Generator
    leaves: Sequence[np.ndarray]
    length: int
    split: bool = False
    reverse_only: bool = False

    def pick(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def some(self, of: Sequence[int]) -> list[int]:
        """At least one of these, each as likely as not; most often all."""
        if self.rng.random() < 0.4:
            return list(of)
        chosen = [k for k in of if self.rng.random() < 0.5]
        return chosen or [of[self.rng.integers(len(of))]]

    def floats(self) -> list[int]:
        """Some of the leaves that have a derivative."""
        return self.some([k for k, v in enumerate(self.leaves) if inexact(v)])


def inexact(v: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(v), jnp.inexact)


def pattern(v: Any, seed: int = 0) -> jax.Array:
    """Numbers that differ in every entry, in the type of ``v``."""
    return jnp.cos(1.3 * jnp.arange(v.size) + seed).reshape(v.shape).astype(v.dtype)


def loss(tree: Any) -> jax.Array:
    """A real number that every entry of every inexact leaf enters in another way."""
    total = jnp.zeros(())
    for k, v in enumerate(filter(inexact, jax.tree.leaves(tree))):
        v = v * pattern(v, k)
        parts = (jnp.real(v), jnp.imag(v)) if jnp.iscomplexobj(v) else (v,)
        total = total + sum(jnp.sum(jnp.sin(a + 0.2 * a * a)) for a in parts)
    return total


def of_some(f: Function, leaves: Sequence[Any], chosen: Sequence[int], read=None) -> Function:
    """``f`` as a function of the chosen leaves that returns its inexact results, or some of them.

    ``read`` is 0 or 1 for every second result only: nobody reads the others.
    """

    def g(*values):
        full = list(leaves)
        for k, v in zip(chosen, values, strict=True):
            full[k] = v
        outs = [v for v in jax.tree.leaves(f(*full)) if inexact(v)]
        return outs if read is None or len(outs) < 2 else outs[read::2]

    return g


def _mask(chosen: Sequence[int], count: int) -> str:
    return "".join(str(int(k in chosen)) for k in range(count))


def _plain(text: str, transform: Callable[[Function], Function], draw: Draw) -> Letter:
    return Letter(text, lambda f, scan: transform(f), draw.leaves, draw.split)


def jit(draw: Draw) -> Letter:
    return _plain("jit", jax.jit, draw)


def checkpoint(draw: Draw) -> Letter:
    name = draw.pick(
        None, "nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims"
    )
    if name is None:
        return _plain("checkpoint", jax.checkpoint, draw)
    policies = jax.checkpoint_policies
    policy = policies.checkpoint_dots_with_no_batch_dims if "batch" in name else None
    policy = policy or getattr(policies, name)
    return _plain(f"checkpoint[{name}]", lambda f: jax.checkpoint(f, policy=policy), draw)


def vmap(draw: Draw) -> Letter:
    """Some leaves get an axis, of the number of steps or of another size."""
    size = draw.pick(draw.length, draw.length, 2, 3) or 2
    count = len(draw.leaves)
    if draw.rng.random() < 0.08:
        text = f"vmap[axis_size={size}]"
        return _plain(text, lambda f: jax.vmap(f, [None] * count, axis_size=size), draw)
    mapped = draw.some(range(count))
    axis, out = draw.pick(0, 0, 1), draw.pick(0, 0, 0, -1, -1, 1)
    axes = [min(axis, v.ndim) if k in mapped else None for k, v in enumerate(draw.leaves)]
    leaves = [
        v if a is None else spread(v, size, a) for v, a in zip(draw.leaves, axes, strict=True)
    ]
    text = f"vmap[size={size} in={''.join('-' if a is None else str(a) for a in axes)} out={out}]"
    split = out == 0 and all(a == 0 for a in axes)

    def wrap(f, scan):
        return jax.vmap(f, tuple(axes), out)

    return Letter(text, wrap, leaves, split)


def spread(v: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Different values along a new axis."""
    steps = np.arange(size).astype(v.dtype)
    rows = [v * (1 + s / 8) if inexact(v) else v + s for s in steps]
    return np.stack(rows, axis).astype(v.dtype)


def jvp(draw: Draw) -> Letter:
    """By some leaves, of the inexact results; or by all leaves, of all results."""
    depends, every = draw.pick(True, False), draw.rng.random() < 0.4
    chosen = draw.floats()
    text = "jvp[all" if every else f"jvp[by={_mask(chosen, len(draw.leaves))}"
    text += " own tangent]" if depends else "]"

    def tangent(v, k):
        if not inexact(v):
            return np.zeros(v.shape, jax.dtypes.float0)
        return _tangent(v, k, depends)

    def wrap(f, scan):
        def of(*leaves):
            which = range(len(leaves)) if every else chosen
            xs = [leaves[k] for k in which]
            g = f if every else of_some(f, leaves, chosen)
            y, t = jax.jvp(g, xs, [tangent(v, k) for k, v in enumerate(xs)])
            return y, [v for v in jax.tree.leaves(t) if v.dtype != jax.dtypes.float0]

        return of

    return Letter(text, wrap, draw.leaves)


def _tangent(v, k, depends):
    t = pattern(v, k)
    return (t * (1 + v / 4)).astype(v.dtype) if depends else t


def vjp(draw: Draw) -> Letter:
    """Of all inexact results, or of some that are read, by some leaves."""
    chosen, read = draw.floats(), draw.pick(None, None, 0, 1)
    text = f"vjp[by={_mask(chosen, len(draw.leaves))}{'' if read is None else f' of={read}::2'}]"

    def wrap(f, scan):
        def of(*leaves):
            g = of_some(f, leaves, chosen, read)
            y, pull = jax.vjp(g, *[leaves[k] for k in chosen])
            return y, pull([pattern(v, k) for k, v in enumerate(y)])

        return of

    return Letter(text, wrap, draw.leaves)


def grad(draw: Draw) -> Letter:
    chosen, read, value = draw.floats(), draw.pick(None, None, 0, 1), draw.pick(False, True)
    text = f"{'value_and_' if value else ''}grad[by={_mask(chosen, len(draw.leaves))}"
    text += "]" if read is None else f" of={read}::2]"

    def wrap(f, scan):
        def of(*leaves):
            g = of_some(f, leaves, chosen, read)
            transform = jax.value_and_grad if value else jax.grad
            by = tuple(range(len(chosen)))
            return transform(lambda *xs: loss(g(*xs)), by)(*[leaves[k] for k in chosen])

        return of

    return Letter(text, wrap, draw.leaves)


def linearize(draw: Draw) -> Letter:
    chosen, depends = draw.floats(), draw.pick(True, False)
    text = f"linearize[by={_mask(chosen, len(draw.leaves))}{' own tangent' if depends else ''}]"

    def wrap(f, scan):
        def of(*leaves):
            xs = [leaves[k] for k in chosen]
            y, push = jax.linearize(of_some(f, leaves, chosen), *xs)
            return y, push(*[_tangent(v, k, depends) for k, v in enumerate(xs)])

        return of

    return Letter(text, wrap, draw.leaves)


def linear_transpose(draw: Draw) -> Letter:
    """Of the linearised function, or of the push-forward of a `jvp`."""
    chosen, by_jvp = draw.floats(), draw.pick(True, False)
    of_what = "jvp" if by_jvp else "linearize"
    text = f"linear_transpose[of {of_what} by={_mask(chosen, len(draw.leaves))}]"

    def wrap(f, scan):
        def of(*leaves):
            xs = [leaves[k] for k in chosen]
            g = of_some(f, leaves, chosen)
            if by_jvp:
                y, push = g(*xs), lambda *t: jax.jvp(g, tuple(xs), t)[1]
            else:
                y, push = jax.linearize(g, *xs)
            return jax.linear_transpose(push, *xs)([pattern(v, k) for k, v in enumerate(y)])

        return of

    return Letter(text, wrap, draw.leaves)


def custom_jvp(draw: Draw) -> Letter:
    def transform(f):
        g = jax.custom_jvp(f)
        g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
        return g

    return _plain("custom_jvp", transform, draw)


def custom_vjp(draw: Draw) -> Letter:
    chosen = [k for k, v in enumerate(draw.leaves) if inexact(v)]

    def transform(f):
        g = jax.custom_vjp(f)

        def backward(leaves, cts):
            cts = [c for c in jax.tree.leaves(cts) if c.dtype != jax.dtypes.float0]
            pulled = jax.vjp(of_some(f, leaves, chosen), *[leaves[k] for k in chosen])[1](cts)
            full = [None] * len(leaves)
            for k, ct in zip(chosen, pulled, strict=True):
                full[k] = ct
            return tuple(full)

        g.defvjp(lambda *leaves: (f(*leaves), leaves), backward)
        return g

    return _plain("custom_vjp", transform, draw)


def scan(draw: Draw) -> Letter:
    """A loop around: one leaf is carried, and what comes out of ``f`` enters it.

    The loop is `lax.scan`, or the front end's own.
    """
    k, length = draw.floats()[0], draw.pick(1, 2, draw.length or 2)
    own = draw.pick(True, False) and not draw.reverse_only
    text = f"{'own' if own else 'lax'} scan[length={length} carries={k}]"

    def wrap(f, scan):
        def of(*leaves):
            def step(c, s):
                out = f(*leaves[:k], c * s.astype(c.dtype), *leaves[k + 1 :])
                more = jnp.mean(jnp.stack([jnp.mean(v).real for v in jax.tree.leaves(out)]))
                return (0.5 * c + 0.25 * jnp.tanh(more)).astype(c.dtype), out

            loop = scan if own else jax.lax.scan
            return loop(step, leaves[k], 1 + jnp.arange(length) / 8)

        return of

    return Letter(text, wrap, draw.leaves)


def cond(draw: Draw) -> Letter:
    """A branch that depends on the data; the other one is cheap, or the function elsewhere."""
    k, taken, cheap = draw.floats()[0], draw.pick(True, True, False), draw.pick(True, True, False)
    text = f"cond[{'taken' if taken else 'not taken'}, else {'zeros' if cheap else 'elsewhere'}]"

    def wrap(f, scan):
        def other(*leaves):
            if not cheap:
                return f(*[v * jnp.asarray(0.5, v.dtype) if inexact(v) else v for v in leaves])
            shapes = jax.eval_shape(f, *leaves)
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def of(*leaves):
            large = jnp.abs(leaves[k]).sum() >= 0
            return jax.lax.cond(large if taken else ~large, f, other, *leaves)

        return of

    return Letter(text, wrap, draw.leaves)


def shard_map(draw: Draw) -> Letter:
    """Over the devices there are, by the batch axis inside where it can be divided."""
    devices = np.array(jax.devices()[:2])
    mesh = jax.sharding.Mesh(devices, ("devices",))
    split = draw.split and all(v.shape[0] % devices.size == 0 for v in draw.leaves)
    spec = PartitionSpec("devices" if split else None)
    text = f"shard_map[{'split' if split else 'replicated'}]"

    def transform(f):
        return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)

    return _plain(text, transform, draw)


ALPHABET: dict[str, Callable[[Draw], Letter]] = {
    f.__name__: f
    for f in (
        *(jit, vmap, checkpoint, jvp, vjp, grad, linearize, linear_transpose),
        *(custom_jvp, custom_vjp, scan, cond, shard_map),
    )
}
COST = {"jvp": 1, "vjp": 1, "grad": 1, "linearize": 1, "linear_transpose": 1.5, "scan": 0.5}
"""How much longer than others a letter takes to trace and compile."""

DERIVATIVES = frozenset({"jvp", "vjp", "grad", "linearize", "linear_transpose"})
FORWARD = frozenset({"jvp", "linearize", "linear_transpose"})
STAGING = ("jit", "checkpoint", "custom_jvp", "custom_vjp", "scan", "cond", "shard_map")
"""What is inside of them is traced once, and differentiated or mapped later."""

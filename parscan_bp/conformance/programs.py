"""The steps of the test family that are programs: branches, loops, indices, custom rules, dtypes.

Builders as in `cells`: `(draw, n) -> Parts(f, params, init, xs)`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.conformance.cells import Parts
from parscan_bp.conformance.problem import Draw


def branch(draw: Draw, n: int) -> Parts:
    """`lax.cond` on a boolean input."""

    def f(p, c, x):
        flag, u = x
        c = lax.cond(flag, lambda c: jnp.tanh(p[0] @ c + u), lambda c: p[1] * c - u, c)
        return c, c

    return Parts(f, (draw.weights(3, 3), draw(3, scale=0.5)), draw(3), (draw.bools(n), draw(n, 3)))


def switch(draw: Draw, n: int) -> Parts:
    """`lax.switch` on an integer input; one branch resets the carry, one keeps it."""

    def f(p, c, x):
        index, u = x
        branches = [lambda c: jnp.sin(p * c) + u, lambda c: jnp.ones_like(c), lambda c: c]
        c = lax.switch(index, branches, c)
        return c, {"sum": c.sum(), "index": index}

    return Parts(f, draw(2), draw(2), (draw.ints(3, n), draw(n, 2)))


def select(draw: Draw, n: int) -> Parts:
    """`where` with the safe-argument idiom: the branch not taken would divide by zero."""

    def f(p, c, x):
        safe = jnp.where(x > 0, x, 1.0)
        c = jnp.where(x > 0, p / safe * jnp.tanh(c), 0.5 * c)
        return c, c

    return Parts(f, draw(3, scale=0.2), draw(3), np.abs(draw(n, 3, shift=0.5)) * draw.bools(n, 3))


def masked(draw: Draw, n: int) -> Parts:
    """Variable lengths: a row past its end keeps its carry (identity Jacobian)."""

    def f(p, h, x):
        u, mask = x
        new = jnp.tanh(h @ p + u)
        h = jnp.where(mask[:, None], new, h)
        return h, jnp.where(mask[:, None], new, 0)

    mask = np.arange(n)[:, None] < draw.ints(n + 1, 2)
    return Parts(f, draw.weights(3, 3), draw(2, 3), (draw(n, 2, 3), mask))


def memoryless(draw: Draw, n: int) -> Parts:
    """The carry is not used: every Jacobian is exactly zero."""

    def f(p, c, x):
        return jnp.tanh(p * x), p + x

    return Parts(f, draw(2), draw(2), draw(n, 2))


def inner_scan(draw: Draw, n: int) -> Parts:
    """A scan along the features inside the step."""

    def f(p, c, x):
        last, partial_sums = lax.scan(lambda s, v: (0.5 * s + v, jnp.sin(s)), c[0], c * p + x)
        return partial_sums, last

    return Parts(f, draw(3, scale=0.5), draw(3), draw(n, 3))


def static_loop(draw: Draw, n: int) -> Parts:
    """`fori_loop` of static length: three Newton-like sub-steps."""

    def f(p, c, x):
        c = lax.fori_loop(0, 3, lambda i, v: v - 0.3 * (v - jnp.cos(p * v + x)), c)
        return c, c

    return Parts(f, draw(2, scale=0.5), draw(2), draw(n, 2))


def dynamic_loop(draw: Draw, n: int) -> Parts:
    """`while_loop` of a length that depends on the input: forward mode only."""

    def f(p, c, x):
        trips, u = x
        start = (jnp.zeros_like(trips), c)
        _, c = lax.while_loop(
            lambda s: s[0] < trips, lambda s: (s[0] + 1, 0.5 * jnp.sin(p * s[1]) + u), start
        )
        return c, c

    return Parts(f, draw(2), draw(2), (draw.ints(4, n), draw(n, 2)))


def rematerialised(draw: Draw, n: int) -> Parts:
    """`jax.checkpoint` inside the step, closing over the parameters."""

    def f(p, c, x):
        c = jax.checkpoint(lambda c: jnp.sin(jnp.tanh(p @ c) + x))(c)
        return c, c

    return Parts(f, draw.weights(3, 3), draw(3), draw(n, 3))


@jax.custom_jvp
def _sine(x):
    return jnp.sin(x)


@_sine.defjvp
def _(primals, tangents):
    # Not the derivative of the sine, so that a rule that looks through it is noticed.
    return _sine(primals[0]), 0.5 * jnp.cos(primals[0]) * tangents[0]


def custom_tangent(draw: Draw, n: int) -> Parts:
    """A `custom_jvp` function whose rule is not its derivative."""

    def f(p, c, x):
        c = _sine(p @ c + x)
        return c, c

    return Parts(f, draw.weights(3, 3), draw(3), draw(n, 3))


@jax.custom_vjp
def _half_gradient(x):
    return jnp.tanh(x)


_half_gradient.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g / jnp.cosh(x) ** 2,))


def custom_cotangent(draw: Draw, n: int) -> Parts:
    """A `custom_vjp` function whose rule is not its derivative: reverse mode only."""

    def f(p, c, x):
        c = _half_gradient(p @ c + x)
        return c, c

    return Parts(f, draw.weights(2, 2), draw(2), draw(n, 2))


def jitted_inside(draw: Draw, n: int) -> Parts:
    """A jitted function with a static argument inside the step."""

    @functools.partial(jax.jit, static_argnames="power")
    def norm(v, power):
        return jnp.sum(jnp.abs(v) ** power + 0.1) ** (1 / power)

    def f(p, c, x):
        c = p * c / norm(c, power=3) + x
        return c, norm(c, power=2)

    return Parts(f, draw(3), draw(3), draw(n, 3))


def embedding(draw: Draw, n: int) -> Parts:
    """Gathers: a table looked up by an integer input, a carry permuted by a closed-over index."""

    def f(p, c, x):
        c = 0.7 * c[p["permutation"]] + p["table"][x]
        return c, c[x % 4]

    permutation = draw.rng.permutation(4).astype(np.int32)
    return Parts(f, {"table": draw(5, 4), "permutation": permutation}, draw(4), draw.ints(5, n))


def ring_buffer(draw: Draw, n: int) -> Parts:
    """State written with `dynamic_update_slice` at an integer position in the carry."""

    def f(p, carry, x):
        buffer, position = carry
        y = p @ buffer + x
        buffer = lax.dynamic_update_slice(buffer, jnp.tanh(y)[None], (position,))
        return (buffer, (position + 1) % 4), y

    return Parts(f, draw(4, scale=0.4), (draw(4), np.int32(1)), draw(n))


def scatter(draw: Draw, n: int) -> Parts:
    """A scatter-add into the carry at an integer input."""

    def f(p, c, x):
        index, u = x
        c = (0.9 * c).at[index].add(p * u)
        return c, c[index]

    return Parts(f, draw(), draw(4), (draw.ints(4, n), draw(n)))


def sorting(draw: Draw, n: int) -> Parts:
    """A sort: the Jacobian is a permutation that changes from step to step."""

    def f(p, c, x):
        c = jnp.sort(0.8 * c + x) * p
        return c, jnp.max(c)

    return Parts(f, draw(4, shift=1, scale=0.1), draw(4), draw(n, 4))


def descent(draw: Draw, n: int) -> Parts:
    """A gradient inside the step: momentum descent, carry (point, velocity)."""

    def f(p, carry, x):
        point, velocity = carry
        slope = jax.grad(lambda c: 0.5 * jnp.sum((p @ c - x) ** 2) + jnp.sum(jnp.cos(c)))(point)
        velocity = 0.5 * velocity - 0.1 * slope
        return (point + velocity, velocity), jnp.sum(slope**2)

    return Parts(f, draw(2, 2, scale=0.5), (draw(2), draw(2)), draw(n, 2))


def implicit(draw: Draw, n: int) -> Parts:
    """A linear solve inside the step (`custom_linear_solve` within the body)."""

    def f(p, c, x):
        matrix = 2 * jnp.eye(2, dtype=c.dtype) + 0.3 * jnp.outer(jnp.tanh(c), p)
        c = jnp.linalg.solve(matrix, c + x)
        return c, c

    return Parts(f, draw(2), draw(2), draw(n, 2))


def mixed_precision(draw: Draw, n: int) -> Parts:
    """A bfloat16 state beside a float32 accumulator."""

    def f(p, carry, x):
        h, total = carry
        h = jnp.tanh(p @ h + x.astype(jnp.bfloat16))
        total = 0.9 * total + h.astype(jnp.float32)
        return (h, total), (total, h)

    bfloat16 = jnp.bfloat16
    init = (draw(3).astype(bfloat16), draw(3).astype(np.float32))
    return Parts(f, draw.weights(3, 3).astype(bfloat16), init, draw(n, 3).astype(np.float32))


def single_precision(draw: Draw, n: int) -> Parts:
    """float32 whatever the default is, beside one leaf of the default type."""

    def f(p, carry, x):
        h, wide = carry
        h = jnp.tanh(p @ h + x)
        return (h, 0.5 * wide + jnp.sum(h).astype(wide.dtype)), h

    single = np.float32
    init = (draw(3).astype(single), draw())
    return Parts(f, draw.weights(3, 3).astype(single), init, draw(n, 3).astype(single))


def dropout(draw: Draw, n: int) -> Parts:
    """A mask drawn from a key of `xs`."""

    def f(p, c, x):
        key, u = x
        keep = jax.random.bernoulli(key, 0.7, c.shape)
        c = jnp.tanh(p @ jnp.where(keep, c / 0.7, 0) + u)
        return c, c

    return Parts(f, draw.weights(3, 3), draw(3), (jax.random.split(draw.key(), n), draw(n, 3)))


def observed(draw: Draw, n: int) -> Parts:
    """An effect: a debug callback that looks at the carry."""

    def f(p, c, x):
        jax.debug.callback(lambda _: None, c)
        c = p * jnp.tanh(c) + x
        return c, c

    return Parts(f, draw(2, scale=0.5), draw(2), draw(n, 2))


PROGRAMS = {
    builder.__name__: builder
    for builder in (
        branch, switch, select, masked, memoryless, inner_scan, static_loop, dynamic_loop,
        rematerialised, custom_tangent, custom_cotangent, jitted_inside, embedding, ring_buffer,
        scatter, sorting, descent, implicit, mixed_precision, single_precision, dropout, observed,
    )
}  # fmt: skip

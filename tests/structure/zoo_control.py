"""Zoo members: custom and vanishing derivatives, control flow, effects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo_case import (
    BH,
    BOTH,
    COLUMNS,
    NONE,
    ROWS,
    B,
    H,
    S,
    W,
    array,
    map_carry,
    zoo,
)
from zoo_cells import elman

# --- derivatives that are not what the values suggest ---------------------------------------------


@jax.custom_jvp
def honest(h):
    return jnp.sin(h)


@honest.defjvp
def _(primals, tangents):
    return honest(*primals), jnp.cos(primals[0]) * tangents[0]


@jax.custom_jvp
def lying(h):
    return jnp.sin(h)


@lying.defjvp
def _(primals, tangents):
    return lying(*primals), tangents[0] + tangents[0].mean(0)


@jax.custom_jvp
def averaging(h):
    return h.mean() * h


@averaging.defjvp
def _(primals, tangents):
    return averaging(*primals), primals[0].mean() * tangents[0]


# A linear function with a name: its rule applies it to the tangent, or another one's that does.


@jax.custom_jvp
def doubled(h):
    return 2 * h


@jax.custom_jvp
def centred(h):
    return h - h.mean(0)


@jax.custom_jvp
def detached(h):
    return lax.stop_gradient(h + h.mean(0))


@jax.custom_jvp
def onward(h):
    return h @ W


@jax.custom_jvp
def back(h):
    return h @ W


for linear in (doubled, centred, detached):
    linear.defjvp(lambda primals, tangents, f=linear: (f(*primals), f(*tangents)))
onward.defjvp(lambda primals, tangents: (onward(*primals), back(*tangents)))
back.defjvp(lambda primals, tangents: (back(*primals), onward(*tangents)))


@jax.custom_vjp
def reverse_only(h):
    return jnp.sin(h)


reverse_only.defvjp(lambda h: (jnp.sin(h), h), lambda h, ct: (jnp.cos(h) * ct,))

map_carry("custom_jvp", honest, BOTH, diagonal=True)
map_carry("custom_jvp_lying", lying, COLUMNS)
map_carry("custom_jvp_looks_mixed", averaging, BOTH, diagonal=True)
map_carry("custom_jvp_vmapped", jax.vmap(lying), ROWS)
map_carry("custom_jvp_in_scan", lambda h: lax.fori_loop(0, 2, lambda _, v: lying(v), h), COLUMNS)
map_carry("custom_jvp_by_itself", doubled, BOTH, diagonal=True)
map_carry("custom_jvp_by_itself_mixing", centred, COLUMNS)
map_carry("custom_jvp_by_itself_detached", detached, NONE, loose=True)
map_carry(
    "custom_jvp_by_itself_in_scan",
    lambda h: lax.fori_loop(0, 2, lambda _, v: centred(v), h),
    COLUMNS,
)
map_carry("custom_jvp_by_one_another", onward, ROWS)
map_carry("relu", lambda h: jax.nn.relu(h @ W), ROWS)
map_carry("custom_vjp", reverse_only, NONE, loose=True, unsupported=("custom_vjp_call",))
map_carry("remat", jax.checkpoint(lambda h: jnp.tanh(h @ W)), ROWS)
map_carry("stopped_mean", lambda h: h - lax.stop_gradient(h.mean(0)), BOTH, diagonal=True)
map_carry(
    "straight_through", lambda h: h + lax.stop_gradient(jnp.round(h) - h), BOTH, diagonal=True
)
map_carry("floor", lambda h: h * (jnp.floor(h.mean()) + 0.5), BOTH, diagonal=True)
map_carry("sign", lambda h: h * jnp.sign(h.mean()), NONE, loose=True)
map_carry("where_on_mean", lambda h: jnp.where(h.mean() > 0, h, -2 * h), BOTH, diagonal=True)
map_carry("where_two_branches", lambda h: jnp.where(h > 0, h, h @ W), ROWS)
map_carry("clamp", lambda h: jnp.clip(h, -0.5, h * h), BOTH, diagonal=True)
map_carry("through_integers", lambda h: h + jnp.argmax(h, 1, keepdims=True), BOTH, diagonal=True)
map_carry(
    "optimization_barrier", lambda h: sum(lax.optimization_barrier((h, h * h))), BOTH, diagonal=True
)
map_carry("powers", lambda h: h**3 + jnp.abs(h) ** 1.5 + jnp.hypot(h, 1.0), BOTH, diagonal=True)
map_carry("reduce_precision", lambda h: lax.reduce_precision(h, 8, 7), BOTH, diagonal=True)

# --- control flow ---------------------------------------------------------------------------------


@zoo(ROWS, BH(), (array(dtype=bool), BH()))
def cond_on_input(h, x):
    flag, x = x
    return lax.cond(flag, lambda h: jnp.tanh(h @ W), lambda h: 2 * h, h) + x, None


@zoo(NONE, BH(), (array(dtype=bool), BH()))
def cond_with_one_mixing_branch(h, x):
    flag, x = x
    return lax.cond(flag, lambda h: jnp.tanh(h @ W), lambda h: h + h.mean(0), h) + x, None


@zoo(BOTH, BH(), (array(dtype=bool), BH()), diagonal=True)
def cond_with_constant_branch(h, x):
    flag, x = x
    return lax.cond(flag, jnp.sin, jnp.zeros_like, h) + x, None


@zoo(NONE, array(H, H), (array(dtype=bool), array(H, H)))
def cond_with_transposing_branch(h, x):
    flag, x = x
    return lax.cond(flag, jnp.sin, jnp.transpose, h) + x, None


map_carry(
    "scan_of_transposes",
    lambda h: lax.fori_loop(0, 3, lambda i, v: v.T, h),
    NONE,
    array(H, H),
)
map_carry(
    "cond_on_carry",
    lambda h: lax.cond(h.sum() > 0, lambda h: jnp.tanh(h @ W), lambda h: 2 * h, h),
    ROWS,
)
map_carry(
    "switch",
    lambda h: lax.switch(jnp.argmax(h[0]), [jnp.sin, jnp.cos, lambda h: h @ W], h),
    ROWS,
)
map_carry("vmapped_cond", jax.vmap(lambda h: lax.cond(h[0] > 0, jnp.sin, lambda h: W @ h, h)), ROWS)
map_carry(
    "fori_loop", lambda h: lax.fori_loop(0, 3, lambda i, v: jnp.tanh(v @ W) * (i + 1), h), ROWS
)
map_carry("map_over_batch", lambda h: lax.map(lambda row: jnp.tanh(W @ row), h), ROWS)
map_carry(
    "map_over_batch_with_carry_const",
    lambda h: lax.map(lambda row: row * h.sum(0), h),
    COLUMNS,
)


@zoo(ROWS)
def scan_over_features(h, x):
    def inner(total, column):
        total = jnp.tanh(total + column)
        return total, total

    _, ys = lax.scan(inner, jnp.zeros(B), h.T)
    return ys.T + x, None


@zoo(COLUMNS)
def scan_over_batch(h, x):
    _, ys = lax.scan(lambda total, row: (total + row, total * row), jnp.ones(H), h)
    return ys + x, None


@zoo(ROWS)
def scan_of_steps(h, x):
    return lax.scan(elman, h, jnp.stack([x, 2 * x]))[0], None


@zoo(ROWS, x=array(S, B, H))
def scan_with_rotating_carry(h, x):
    """The dependence of c on h takes three rounds to show."""

    def inner(carry, row):
        a, b, c = carry
        return (h * row, a @ W, b), c

    (_, _, c), _ = lax.scan(inner, (x[0], x[1], x[2]), x)
    return c + x[0], None


@zoo(NONE, x=array(S, B, H))
def scan_with_late_mixing(h, x):
    def inner(carry, row):
        a, b = carry
        return (a + row, a - a.mean(0)), b @ W

    _, ys = lax.scan(inner, (h, jnp.zeros((B, H))), x)
    return ys[-1] + x[0], None


map_carry(
    "vmapped_scan",
    jax.vmap(lambda h: lax.scan(lambda s, v: (s * v, s), 1.0, h)[1]),
    ROWS,
)
map_carry("nested_scans", lambda h: lax.scan(scan_of_steps, h, jnp.ones((2, B, H)))[0], ROWS)


@zoo(ROWS, unsupported=("while",))
def while_loop(h, x):
    def more(state):
        i, v = state
        return (i < 3) & (jnp.abs(v).sum() < 10)

    return lax.while_loop(more, lambda s: (s[0] + 1, s[1] @ W + x), (0, h))[1], None


@zoo(BOTH, diagonal=True)
def while_over_integers(h, x):
    n = lax.while_loop(lambda n: n < h.sum(), lambda n: n + 1, 0)
    return h * n + x, None


@zoo(NONE, unsupported=("pure_callback",), derivative=False)
def callback(h, x):
    return jax.pure_callback(np.sin, h, h) + x, None


@zoo(BOTH, diagonal=True, unsupported=("pure_callback",))
def callback_on_input(h, x):
    return h * jax.pure_callback(np.sin, x, x), None


@zoo(BOTH, diagonal=True, unsupported=("debug_callback",))
def debug_callback(h, x):
    jax.debug.callback(lambda _: None, h)
    return h * x, None


@zoo(NONE, unsupported=("new_ref", "swap", "get"), loose=True, derivative=False)
def mutable_array(h, x):
    ref = jax.new_ref(h)
    ref[0] = h[1] * x[0]
    return ref[...], None

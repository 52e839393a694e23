"""Zoo members: recurrent cells, and carries of several leaves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from zoo_case import (
    BH,
    BOTH,
    COLUMNS,
    NONE,
    ROWS,
    W_GATES,
    W_HK,
    W_KH,
    B,
    H,
    K,
    S,
    U,
    W,
    array,
    const,
    map_carry,
    zoo,
)

# --- recurrent cells ------------------------------------------------------------------------------


@zoo(ROWS)
def elman(h, x):
    h = jnp.tanh(h @ W + x)
    return h, h


@zoo(NONE, array(H), array(H))
def elman_vector(h, x):
    return jnp.tanh(h @ W + x), None


@zoo(ROWS)
def gru(h, x):
    z = jax.nn.sigmoid(h @ W + x)
    r = jax.nn.sigmoid(h @ U - x)
    return (1 - z) * h + z * jnp.tanh((r * h) @ W + x), h


@zoo(((0,), (0,)), (BH(), BH()))
def lstm(carry, x):
    h, c = carry
    i, f, g, o = jnp.split(h @ W_GATES + jnp.tile(x, (1, 4)), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


@zoo(((), ()), (array(H), array(H)), array(H))
def lstm_vector(carry, x):
    (h, c), y = lstm((carry[0][None], carry[1][None]), x[None])
    return (h[0], c[0]), y


@zoo(BOTH, diagonal=True)
def min_gru(h, x):
    z = jax.nn.sigmoid(x @ W)
    return (1 - z) * h + z * (x @ U), h @ W


@zoo(BOTH, array(B, H, dtype=complex), diagonal=True)
def lru(h, x):
    rotation = jnp.exp(-0.1 + 1j * jnp.arange(1.0, H + 1))
    return rotation * h + x.astype(h.dtype), (h @ W.astype(complex)).real


@zoo(((0,),), array(H, dtype=complex), array(H), diagonal=True)
def lru_vector(h, x):
    return h * jnp.exp(1j * x) + x, h.real


@zoo(BOTH, array(B, H, dtype=complex), diagonal=True)
def complex_not_holomorphic(h, x):
    return lax.complex(jnp.tanh(h.real + x), h.imag * 0.5) + 0.3 * jnp.conj(h) * jnp.abs(h), None


@zoo(ROWS, array(B, H, dtype=jnp.bfloat16))
def bfloat16_carry(h, x):
    return jnp.tanh(h.astype(float) @ W + x).astype(h.dtype), None


@zoo(((0,), (0, 1)[:1]), (BH(), array(B, H, H)))
def fast_weights(carry, x):
    h, m = carry
    h = jnp.tanh(jnp.einsum("bi,bij->bj", h, m) + x)
    return (h, 0.9 * m + jnp.einsum("bi,bj->bij", h, x)), h


@zoo(((), ()), (array(H), array(H, H)), array(H))
def fast_weights_vector(carry, x):
    h, m = carry
    return (jnp.tanh(m @ h + x), 0.9 * m + jnp.outer(h, h)), None


@zoo(((0, 1),), array(H, H), array(H), diagonal=True)
def outer_product_of_inputs(m, x):
    return 0.9 * m + jnp.outer(x, x), m @ x


map_carry("outer_product_of_carry", lambda h: jnp.outer(h, h) @ const(H), NONE, array(H))
map_carry("bilinear", lambda h: jnp.einsum("bi,ijk,bk->bj", h, const(H, H, H), h), ROWS)
map_carry(
    "einsum_two_batch_axes",
    lambda h: jnp.einsum("abi,aij->abj", h, const(S, H, H)),
    BOTH,
    array(S, B, H),
)
map_carry("two_batch_axes", lambda h: jnp.tanh(h @ W), BOTH, array(S, B, H))
map_carry("batch_in_position_1", lambda h: jnp.tanh(W @ h), COLUMNS, array(H, B))
map_carry("vmapped", jax.vmap(lambda h: jnp.tanh(W @ h)), ROWS)
map_carry("vmapped_in_axes_1", jax.vmap(lambda h: W @ h, 1, 1), COLUMNS, array(H, B))
map_carry("vmapped_twice", jax.vmap(jax.vmap(lambda h: W @ h)), BOTH, array(S, B, H))
map_carry("jitted", jax.jit(lambda h: jnp.tanh(h @ W)), ROWS)
map_carry("identity", lambda h: h, BOTH, diagonal=True)
map_carry("jacobian_is_zero", lambda h: 0.0, BOTH, diagonal=True, depends=((False,),))
map_carry("batch_of_one", lambda h: jnp.tanh(h @ W), ROWS, array(1, H))
map_carry("one_feature", lambda h: h @ const(1, 1), ROWS, array(B, 1), diagonal=True)
map_carry("no_features", jnp.sin, BOTH, array(B, 0), diagonal=True)
map_carry("no_features_reshaped", lambda h: h.reshape(0, B).T, NONE, array(B, 0))

# --- several leaves -------------------------------------------------------------------------------

yes, no = True, False


@zoo(((0,), (1,)), (BH(), array(K, B)))
def batch_at_different_places(carry, x):
    h, g = carry
    return (jnp.tanh(h @ W + (W_KH.T @ g).T + x), jnp.tanh(g + W_HK.T @ h.T)), None


@zoo(((0,), (0,)), (BH(), array(B)), depends=((yes, no), (yes, yes)))
def summed_features_beside(carry, x):
    h, total = carry
    h = jnp.tanh(h @ W + x)
    return (h, total + h.sum(-1)), None


@zoo(((), ()), (BH(), array()), depends=((yes, no), (yes, yes)))
def loss_in_the_carry(carry, x):
    h, loss = carry
    h = jnp.tanh(h @ W + x)
    return (h, loss + (h * h).sum()), None


@zoo(((), ()), (BH(), array()), depends=((yes, yes), (no, yes)))
def clock_in_the_carry(carry, x):
    h, t = carry
    return (jnp.tanh(h @ W + t + x), t + 0.1), None


@zoo(((0,), (0,)), (BH(), array(B, K)), depends=((yes, no), (no, yes)))
def independent_leaves(carry, x):
    h, g = carry
    return (jnp.tanh(h @ W + x), jnp.tanh(g @ const(K, K))), None


@zoo(((0,), (1,)), (BH(), array(H, B)), depends=((yes, no), (no, yes)))
def independent_leaves_turned(carry, x):
    h, g = carry
    return (jnp.tanh(h @ W + x), jnp.tanh(W @ g)), None


@zoo(((0,), (0,)), (BH(), array(B, K)), depends=((yes, no), (no, yes)), diagonal=True)
def independent_diagonals(carry, x):
    h, g = carry
    return (h * x, jnp.sin(g)), None


@zoo(((0,), (0,)), (BH(), BH()), depends=((yes, no), (yes, yes)))
def two_layers(carry, x):
    h, g = carry
    h = jnp.tanh(h @ W + x)
    return (h, jnp.tanh(g @ U + h)), g


@zoo(((0, 1), (0, 1)), (BH(), BH()), depends=((no, yes), (yes, no)))
def swapped_leaves(carry, x):
    h, g = carry
    return (g * x, jnp.sin(h)), None


@zoo(((0,), (0,)), (BH(), array(B, K)), depends=((yes, yes), (no, no)))
def previous_input_used(carry, x):
    h, before = carry
    return (jnp.tanh(h @ W + before @ W_KH), x @ W_HK), None


@zoo(((0,), (0,)), (BH(), array(B, K)), depends=((yes, no), (no, no)))
def previous_input_logged(carry, x):
    h, before = carry
    return (jnp.tanh(h @ W + x), x @ W_HK), before


@zoo(((), ()), (BH(), array()), depends=((yes, no), (no, no)), loose=True)
def inert_scalar(carry, x):
    h, last = carry
    return (jnp.tanh(h @ W + x), x.sum()), last


@zoo(ROWS, {"h": BH(), "i": array(dtype=int)})
def integer_carry(carry, x):
    h, i = carry["h"], carry["i"]
    return {"h": jnp.tanh(h @ W + x * i), "i": i + 1}, None


@zoo(BOTH, (BH(), array(dtype=int)), diagonal=True)
def integer_from_floats(carry, x):
    h, n = carry
    return (h * n, n + (h > 0).sum()), None


@zoo(ROWS, (array(dtype=bool), BH()))
def boolean_carry(carry, x):
    flag, h = carry
    return (~flag, jnp.where(flag, h @ W, h) + x), None


@zoo(BOTH, (jax.eval_shape(lambda: jax.random.key(0)), BH()), diagonal=True)
def key_carry(carry, x):
    key, h = carry
    key, sub = jax.random.split(key)
    keep = jax.random.bernoulli(sub, 0.5, h.shape)
    return (key, jnp.where(keep, h, 0.0) * 2 + jax.random.normal(sub, h.shape)), None


@zoo(NONE, array(), array(), diagonal=True)
def scalar_carry(h, x):
    return jnp.tanh(h + x), None


@zoo(((), ()), (array(), array()), array())
def two_scalars(carry, x):
    a, b = carry
    return (a * b + x, a - b), None


@zoo((), (), diagonal=True)
def empty_carry(carry, x):
    return (), x.sum()


@zoo((), array(dtype=int), diagonal=True)
def integers_only(i, x):
    return i + 1, x * i


@zoo(BOTH, diagonal=True)
def mixing_only_in_the_output(h, x):
    return h * x, h.mean(0) @ W


@zoo(BOTH, diagonal=True)
def mixing_only_in_the_output_of_a_call(h, x):
    mean = h.mean(0)
    return jax.jit(lambda h, mean: (h * x, mean * 2))(h, mean)


@zoo(BOTH, diagonal=True)
def mixing_only_in_the_output_of_a_scan(h, x):
    return lax.scan(lambda v, _: (v * x, v.mean(0)), h, None, length=2)

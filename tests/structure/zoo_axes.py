"""Zoo members: what mixes axes and what moves them about."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo_case import (
    BH,
    BOTH,
    COLUMNS,
    CONV,
    DEPTHWISE,
    NONE,
    ROWS,
    W_CAT,
    WB,
    B,
    H,
    S,
    W,
    array,
    const,
    map_carry,
    zoo,
)

# --- what mixes the batch, what the features ------------------------------------------------------

map_carry("softmax_features", jax.nn.softmax, ROWS)
map_carry("softmax_batch", partial(jax.nn.softmax, axis=0), COLUMNS)
map_carry("log_softmax", jax.nn.log_softmax, ROWS)
map_carry("logsumexp", lambda h: h - jax.nn.logsumexp(h, axis=-1, keepdims=True), ROWS)
map_carry("batch_norm", lambda h: (h - h.mean(0)) / (h.std(0) + 1), COLUMNS)
map_carry("batch_norm_then_matrix", lambda h: jnp.tanh((h - h.mean(0)) @ W), NONE)
map_carry("layer_norm", lambda h: jax.nn.standardize(h, axis=-1, epsilon=0.1), ROWS)
map_carry("rms_norm", lambda h: h * lax.rsqrt(1 + (h * h).sum(-1, keepdims=True)), ROWS)
map_carry("mean_broadcast_back", lambda h: h * h.mean(), NONE)
map_carry("sum_in_two_steps", lambda h: h * h.sum(0).sum(0), NONE)
map_carry("centre_features", lambda h: h - h.mean(-1, keepdims=True), ROWS)
map_carry("product_of_features", lambda h: h + h.prod(-1, keepdims=True), ROWS)
map_carry("max_over_features", lambda h: h - h.max(-1, keepdims=True), ROWS)
map_carry("max_over_batch", lambda h: h - h.max(0), COLUMNS)
map_carry("matrix_from_the_left", lambda h: WB @ h, COLUMNS)
map_carry("matrix_from_both_sides", lambda h: WB @ h @ W, NONE)
map_carry("gram_of_rows", lambda h: jnp.tanh(h @ h.T) @ h, NONE)
map_carry("cumsum_features", lambda h: jnp.cumsum(h, 1), ROWS)
map_carry("cumsum_batch", lambda h: jnp.cumsum(h, 0), COLUMNS)
map_carry("cumprod_features", lambda h: jnp.cumprod(h, 1), ROWS)
map_carry("cumlogsumexp", lambda h: lax.cumlogsumexp(h, 1), ROWS)
map_carry("flip_features", lambda h: h[:, ::-1], ROWS)
map_carry("flip_batch", lambda h: h[::-1], COLUMNS)
map_carry("roll_features", lambda h: jnp.roll(h, 1, 1), ROWS)
map_carry("roll_batch", lambda h: jnp.roll(h, 1, 0), COLUMNS)
map_carry("sort_features", lambda h: jnp.sort(h, 1), ROWS)
map_carry("sort_batch", lambda h: jnp.sort(h, 0), COLUMNS)
map_carry("top_k", lambda h: jnp.repeat(lax.top_k(h, 1)[0], H, 1), ROWS)
map_carry("fft_features", lambda h: jnp.fft.fft(h).real, ROWS)
map_carry("rfft_features", lambda h: jnp.fft.irfft(jnp.fft.rfft(h) ** 2, n=H), ROWS)
map_carry("fft_batch", lambda h: jnp.fft.fft(h, axis=0).real, COLUMNS)
map_carry("associative_scan", lambda h: lax.associative_scan(jnp.add, h, axis=1), ROWS)
map_carry("associative_scan_batch", lambda h: lax.associative_scan(jnp.add, h), COLUMNS)
map_carry(
    "reduce_window", lambda h: lax.reduce_window(h, 0.0, lax.add, (1, 2), (1, 1), "SAME"), ROWS
)
map_carry("median", lambda h: h - jnp.median(h, axis=1, keepdims=True), ROWS)

# --- moving axes about ----------------------------------------------------------------------------

map_carry("transpose", lambda h: h.T, NONE, array(H, H))
map_carry("plus_transpose", lambda h: h + h.T, NONE, array(H, H))
map_carry("transpose_and_back", lambda h: (W @ h.T).T, ROWS)
map_carry("moveaxis", lambda h: jnp.moveaxis(jnp.moveaxis(h, 1, 0) @ W, 0, 1), BOTH, array(S, B, H))
map_carry(
    "heads",
    lambda h: jax.nn.softmax(h.reshape(B, 2, H)).reshape(B, 2 * H),
    ROWS,
    array(B, 2 * H),
)
map_carry(
    "features_reshaped_elementwise",
    lambda h: jnp.sin(h.reshape(B, 2, H)).reshape(B, 2 * H),
    ROWS,
    array(B, 2 * H),
    loose=True,
)
map_carry(
    "batch_merged_by_reshape",
    lambda h: (h.reshape(B * S, H) @ W).reshape(B, S, H),
    NONE,
    array(B, S, H),
    loose=True,
)
map_carry("flattened", lambda h: jnp.sin(h.ravel()).reshape(B, H), NONE, loose=True)
map_carry("flattened_and_mixed", lambda h: (const(6, 6) @ h.ravel()).reshape(B, H), NONE)
map_carry(
    "reshape_around_ones", lambda h: (h[:, None, :, None] * 2).reshape(B, H), BOTH, diagonal=True
)
map_carry("expand_and_squeeze", lambda h: jnp.squeeze(h[None] @ W, 0), ROWS)
map_carry("concatenate_features", lambda h: jnp.concatenate([h, h * h], 1) @ W_CAT, ROWS)
map_carry("concatenate_batch", lambda h: jnp.concatenate([h[1:], h[:1]], 0), COLUMNS)
map_carry("stack", lambda h: jnp.stack([h, h @ W], 1).sum(1), ROWS)
map_carry("unstack", lambda h: jnp.stack(jnp.unstack(h, axis=1)[::-1], 1), ROWS)
map_carry("unstack_batch", lambda h: jnp.stack(jnp.unstack(h)[::-1]), COLUMNS)
map_carry("tile_features", lambda h: jnp.tile(h, (1, 2)) @ W_CAT, ROWS)
map_carry("repeat_batch", lambda h: jnp.repeat(h, 2, 0)[:B], COLUMNS)
map_carry("pad_and_shift", lambda h: jnp.pad(h, ((0, 0), (1, 0)))[:, :-1], ROWS)
map_carry("slices_of_features", lambda h: h[:, :1] * h[:, 1:2] + h, ROWS)
map_carry("slice_of_batch", lambda h: h + h[:1], COLUMNS)
map_carry("whole_slice", lambda h: lax.slice(h, (0, 0), (B, H)) * 2, BOTH, diagonal=True)
map_carry("index_features", lambda h: h[:, np.array([2, 0, 0])], ROWS)
map_carry("index_batch", lambda h: h[np.array([1, 1])], COLUMNS)
map_carry("index_last", lambda h: h + h[:, -1:], ROWS)
map_carry("take_along_axis", lambda h: jnp.take_along_axis(h, jnp.argsort(h, axis=1), axis=1), ROWS)
map_carry("scatter_features", lambda h: h.at[:, np.array([0, 0])].add(h[:, 1:]), ROWS)
map_carry("scatter_batch", lambda h: h.at[np.array([0, 0])].add(h), COLUMNS)
map_carry("scatter_set_constant", lambda h: h.at[0, 1].set(1.0), BOTH, diagonal=True)
map_carry("scatter_max", lambda h: h.at[:, 0].max(h[:, 1]), ROWS)
map_carry("segment_sum", lambda h: jax.ops.segment_sum(h, np.array([1, 1]), B), COLUMNS)
map_carry("vmapped_index", jax.vmap(lambda h: h[jnp.argmax(h)] * h), ROWS)
map_carry("vmapped_update", jax.vmap(lambda h: h.at[jnp.argmin(h)].set(h.sum())), ROWS)


@zoo(ROWS, BH(), (array(dtype=int), BH()))
def dynamic_slice_of_features(h, x):
    i, x = x
    return h + lax.dynamic_slice(h, (0, i), (B, 1)) + x, None


@zoo(COLUMNS, BH(), (array(dtype=int), BH()))
def dynamic_index_of_batch(h, x):
    i, x = x
    return x + lax.dynamic_index_in_dim(h, i, 0), None


@zoo(BOTH, BH(), (array(dtype=int), array(B, 1)), diagonal=True)
def dynamic_update_with_input(h, x):
    i, x = x
    return lax.dynamic_update_slice(h, x, (0, i)), None


@zoo(ROWS, BH(), (array(dtype=int), array(B, 1)))
def dynamic_update_with_carry(h, x):
    i, x = x
    return lax.dynamic_update_slice(h, h[:, 1:2] * x, (0, i)), None


# --- convolution, attention, linear algebra -------------------------------------------------------

_NWC = ("NWC", "WIO", "NWC")


def _conv(kernel, groups=1):
    return lambda h: jnp.tanh(
        lax.conv_general_dilated(
            h,
            kernel.astype(h.dtype),
            (1,),
            "SAME",
            dimension_numbers=_NWC,
            feature_group_count=groups,
        )
    )


map_carry("conv", _conv(CONV), ROWS, array(B, S, H))
map_carry("conv_depthwise", _conv(DEPTHWISE, H), ((0, 2),), array(B, S, H))
map_carry("conv_pointwise", _conv(CONV[:1]), ((0, 1),), array(B, S, H))
map_carry("attention_over_space", lambda h: jax.nn.softmax(h @ h.mT) @ h, ROWS, array(B, S, H))
map_carry("attention_over_batch", lambda h: jax.nn.softmax(h @ h.T) @ h, NONE)
map_carry("cholesky", lambda h: jnp.linalg.cholesky(h @ h.mT + 9 * np.eye(H)), ROWS, array(B, H, H))
map_carry(
    "triangular_solve",
    lambda h: lax.linalg.triangular_solve(
        9 * jnp.eye(H) + jnp.tril(h), h, left_side=True, lower=True
    ),
    ROWS,
    array(B, H, H),
)
map_carry("inverse", lambda h: jnp.linalg.inv(h + 9 * np.eye(H)), NONE, array(B, H, H), loose=True)
map_carry(
    "solve_one", lambda h: jnp.linalg.solve(W.T @ W + np.eye(H), h), NONE, array(H), x=array(H)
)

"""Numbers that are given to remedies, momentum and layers take the dtype of what they meet."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp import layers, pipeline
from parscan_bp.parallel import SyncBatchNorm

HALF = np.float64(0.5)
REMEDIES = [
    pipeline.LearningRateByStaleness(power=HALF),
    pipeline.LearningRateByStaleness(power=HALF, anneal=7),
    pipeline.ErrorFeedback(HALF),
    pipeline.DelayCompensation(HALF),
    pipeline.DelayCompensation(HALF, np.float64(0.9)),
    pipeline.WeightPrediction(),
]
DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64, jnp.complex64, jnp.complex128]


def test_the_annealed_rate_is_as_precise_as_the_updates():
    remedy, delay = pipeline.LearningRateByStaleness(anneal=7), 5
    with jax.enable_x64(True):
        for dtype, rounding in ((jnp.float64, 1e-15), (jnp.complex128, 1e-15), (jnp.float32, 1e-7)):
            state = remedy.init(delay, jnp.ones((), dtype))
            for n in range(9):
                got, state = remedy.adjust(jnp.ones((), dtype), state, delay)
                assert got.dtype == dtype
                assert abs(complex(got) - delay ** -(1 - min(n / 7, 1.0))) < rounding, (dtype, n)


@pytest.mark.parametrize("remedy", REMEDIES, ids=str)
def test_remedies_keep_dtypes(remedy):
    with jax.enable_x64(True):
        for dtype in DTYPES:
            w = jax.ShapeDtypeStruct((3,), dtype)
            state = jax.eval_shape(functools.partial(remedy.init, 2), w)

            def step(w, state):
                late, state = remedy.correct(w, remedy.stored(w), w, state)
                return late, *remedy.adjust(late, state, 2)

            late, out, after = jax.eval_shape(step, w, state)
            assert late.dtype == out.dtype == dtype
            assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_momentum_keeps_dtypes():
    with jax.enable_x64(True):
        optimiser = pipeline.unified_momentum(HALF, HALF, np.float64(1.0))
        for dtype in DTYPES:
            w = jax.ShapeDtypeStruct((3,), dtype)
            made = jax.eval_shape(lambda w: optimiser.update(w, optimiser.init(w)), w)
            assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(dtype)}


LAYERS = {
    "LayerNorm": layers.LayerNorm(epsilon=np.float64(1e-5)),
    "BatchNorm": layers.BatchNorm(epsilon=np.float64(1e-5)),
    "SyncBatchNorm": SyncBatchNorm(epsilon=np.float64(1e-5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_norms_keep_dtypes(name):
    layer = LAYERS[name]
    with jax.enable_x64(True):
        for dtype in (jnp.bfloat16, jnp.float32, jnp.float64):
            init = functools.partial(layer.init, features=(4,), dtype=dtype)
            params = jax.eval_shape(init, jax.random.key(0))
            x = jax.ShapeDtypeStruct((3, 4), dtype)
            assert jax.eval_shape(layer.apply, params, x).dtype == dtype


def test_dropout_keeps_dtypes():
    layer = layers.Dropout(HALF)
    with jax.enable_x64(True):
        for dtype in (jnp.bfloat16, jnp.float32, jnp.float64):
            mask, x = jax.ShapeDtypeStruct((1, 4), bool), jax.ShapeDtypeStruct((3, 4), dtype)
            assert jax.eval_shape(layer.apply, mask, x).dtype == dtype

"""A fall-back runs where an entry needs it, and never for nobody."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.forward.fall_back import fall_back

RUNS = []


def _slow(x, k):
    jax.debug.callback(lambda x: RUNS.append(float(x)), x[0])
    return {"a": 10 * x, "k": k + 1}


def _one(needed, x, k):
    return fall_back(needed, {"a": x, "k": k}, _slow, x, k)


MAPS = {
    "alone": lambda f: f,
    "vmap": jax.vmap,
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f)),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "other axes": lambda f: jax.vmap(f, in_axes=(0, 0, None)),
    "one flag": lambda f: jax.vmap(f, in_axes=(None, 0, 0)),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("share", ["nobody", "some", "all"])
def test_it_costs_nothing_where_nobody_needs_it(name, share):
    shape = {"alone": (), "vmap of vmap": (2, 3)}.get(name, (4,))
    flags = (np.arange(int(np.prod(shape))) % 3 == 1).reshape(shape)
    flags = {"nobody": flags & False, "some": flags, "all": flags | True}[share]
    flags = flags.any() if name == "one flag" else flags
    x = jnp.arange(2.0 * np.prod(shape, dtype=int)).reshape(*shape, 2)
    k = jnp.asarray(3) if name == "other axes" else jnp.arange(x.size // 2).reshape(shape)
    RUNS.clear()
    got = MAPS[name](_one)(jnp.asarray(flags), x, k)
    jax.block_until_ready(got)
    jax.effects_barrier()
    assert bool(RUNS) == bool(np.any(flags))
    where = np.broadcast_to(flags, shape)
    np.testing.assert_array_equal(got["a"], np.where(where[..., None], 10 * x, x))
    np.testing.assert_array_equal(got["k"], np.where(where, k + 1, k))

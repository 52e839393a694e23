"""Results are arrays of JAX, of the types that `lax.scan` gives under `jit`, and nobody else's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import compare_outputs

SOLVERS = {"auto": {}, "sweep": {"solver": pb.Sweep()}, "blelloch": {"solver": pb.Blelloch()}}
LEAVES = {
    "float64": lambda: np.arange(4.0),
    "float32": lambda: np.arange(4, dtype=np.float32),
    "int64": lambda: np.arange(4),
    "uint8": lambda: np.arange(4, dtype=np.uint8),
    "bool": lambda: np.arange(4) > 1,
    "not contiguous": lambda: np.arange(8.0)[::2],
    "NumPy scalars": lambda: [np.float64(0.5), np.int64(3), np.bool_(True), np.float16(0.25)],
    "Python scalars": lambda: [0.5, 3, True, 1j],
    "a list of arrays": lambda: [np.ones(2), (np.zeros((2, 1), np.float32), 1.5)],
    "arrays of JAX": lambda: (jnp.float32(1.5), jnp.arange(3)),
}


def _forwards(carry, x):
    """Hands on a leaf of the carry, and what of the input it does not read."""
    h, kept = carry
    return (jnp.tanh(0.5 * h + x[0]), kept), (x[1], h)


def _opaque(carry, x):
    """The same; no solver takes it, so that it is left to `lax.scan`."""
    (h, kept), outputs = _forwards(carry, x)
    plain = jax.custom_vjp(lambda v: v)
    plain.defvjp(lambda v: (v, None), lambda _, ct: (ct,))
    return (plain(h), kept), outputs


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("leaves", LEAVES)
def test_what_is_handed_on_is_an_array_of_jax(leaves, solver):
    kept = LEAVES[leaves]()
    rows = [np.stack([leaf] * 3) for leaf in jax.tree.leaves(kept) if np.ndim(leaf) > 0]
    arguments = (np.float64(0.5), kept), (np.ones(3), rows)
    want = jax.jit(lambda: lax.scan(_forwards, *arguments))()
    got = pb.scan(_forwards, *arguments, **SOLVERS[solver])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
    compare_outputs(got, want, case=leaves, mode=solver)


@pytest.mark.parametrize("step", [_forwards, _opaque])
@pytest.mark.parametrize("shape", [(3, 2), (3, 64, 64)])  # large arrays may be used in place
def test_what_the_caller_writes_afterwards_is_not_seen(step, shape):
    kept, rows = np.ones(shape, np.float32), np.ones(shape, np.float32)
    (h, same), ys = pb.scan(step, (jnp.float32(0.5), kept), (np.ones(3, np.float32), rows))
    kept[:], rows[:] = -1, -1
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((h, same, ys)))
    assert (same == 1).all()
    assert (ys[0] == 1).all()

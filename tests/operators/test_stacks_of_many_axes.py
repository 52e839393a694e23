"""Products of stacks with batch axes, and their derivatives, compiled as users compile them.

XLA on CPU has no program for matrix products with three batch axes that come in another order on
both sides (jax 0.10 and 0.12): a structure that gathers its blocks would meet it first.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operator_examples import SQUARE, Integers, assert_close
from operator_references import reference, transposed

from parscan_bp.operators import compose

STACK = (5, 2)
GATHERING = ("block-triangular", "channel-dense", "selection", "banded")
EXAMPLES = [
    pytest.param(e, marks=() if e.name in GATHERING else pytest.mark.slow, id=e.name)
    for e in SQUARE
    if e.make(Integers(0, "float32"), ()).composes
]


def total(a, b, v):
    return jnp.sum(jnp.sin(compose(a, b).matvec(v))) + jnp.sum(jnp.cos(a.matvec(v)))


@pytest.mark.parametrize("example", EXAMPLES)
def test_products_and_their_derivatives(example):
    a, b = (example.make(Integers(seed, "float32"), STACK) for seed in (1, 2))
    v = 0.01 * jnp.ones((*STACK, a.shape[1]))
    run = jax.jit(lambda *at: (compose(*at[:2]), jax.grad(total, (0, 1, 2), allow_int=True)(*at)))
    product, (_, _, slope) = run(a, b, v)
    first, both = reference(a), reference(b) @ reference(a)
    assert_close(product.as_dense(), both, "float32")
    apply = lambda m, v: np.einsum("...ij,...j->...i", m, v)  # noqa: E731
    want = apply(transposed(both), np.cos(apply(both, v)))
    want -= apply(transposed(first), np.sin(apply(first, v)))
    assert_close(slope, want, "float32", terms=60)

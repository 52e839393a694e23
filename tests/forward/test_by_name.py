"""`pb.scan(forward=...)` by the names of the methods that make passes over all steps."""

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from tests.forward.recurrences import draw
from tests.quickly import jit_quickly

NAMES = ("newton", "fixed_point", "frozen_activations")


def test_values_gradients_and_the_next_guess():
    w, h, us = 0.4 * draw(1, 3, 3), draw(2, 2, 3), draw(3, 9, 2, 3)

    def loss(w, h, us, **how):
        step = lambda h, u: (h := jnp.tanh(h @ w + u), h)  # noqa: E731
        last, ys, *told = pb.scan(step, h, us, **how)
        return jnp.sum(last**2) + jnp.sum(jnp.sin(ys)), told

    @jit_quickly
    def run(w, h, us):
        made = {}
        for name in ("exact", *NAMES):
            how = {} if name == "exact" else {"forward": name, "report": True}
            made[name] = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(w, h, us, **how)
        return made

    made = run(w, h, us)
    (value, _), gradients = made["exact"]
    for name in NAMES:
        (own, (report,)), ours = made[name]
        assert not report.fell_back and report.forward.iterations > 0
        np.testing.assert_allclose(own, value, rtol=1e-5)
        for a, b in zip(ours, gradients, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    step = lambda h, u: (jnp.tanh(h @ w + u), None)  # noqa: E731
    method = pb.FixedPoint(report.forward.states)
    *_, again = jit_quickly(lambda: pb.scan(step, h, us, forward=method, report=True))()
    assert again.forward.iterations == 0

"""A GRU before, during and after 1,000 steps of training, its forward pass by methods."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp import store
from parscan_bp.choice.wisdom import Timing
from parscan_bp.scan.api import loop_options, plan_of
from parscan_bp.scan.values import forward_wisdom
from parscan_bp.scan.values.forward_wisdom import RememberedForward
from tests.forward.recurrences import draw

STEPS, LENGTH, UNITS = 1000, 128, 8
INIT = jnp.zeros((4, UNITS))

TOLD = (Timing("a", 1e-3, 2.0, 1.9, 2.1),)


def inputs(seed):
    return 0.5 * draw(seed, LENGTH, 4, 2)


def start():
    keys = jax.random.split(jax.random.key(1), 3)
    w = jax.random.normal(keys[0], (UNITS, 3 * UNITS)) / np.sqrt(UNITS)
    return {"w": w, "u": jax.random.normal(keys[1], (2, 3 * UNITS)), "b": jnp.zeros(3 * UNITS)}


def cell(params, h, x):
    w, a = params["w"], x @ params["u"] + params["b"]
    r, z = jnp.split(jax.nn.sigmoid(h @ w[:, : 2 * UNITS] + a[..., : 2 * UNITS]), 2, -1)
    new = jnp.tanh((r * h) @ w[:, 2 * UNITS :] + a[..., 2 * UNITS :])
    h = (1 - z) * new + z * h
    return h, h


def scan(params, xs, **how):
    return pb.scan(functools.partial(cell, params), INIT, xs, **how)


def loss(params, seed_xs, **how):
    """The first unit is to keep a leaky sum of the first input."""
    wanted = jax.lax.scan(lambda s, x: ((s := 0.9 * s + x), s), jnp.zeros(4), seed_xs[..., 0])[1]
    hs = scan(params, seed_xs, **how)[1]
    return jnp.mean((hs[..., 0] - jnp.tanh(wanted)) ** 2)


def train(params, **how):
    """The losses, and the parameters after the last step."""
    batches = jnp.stack([inputs(seed) for seed in range(8)])

    @jax.jit
    def run(params, batches):
        def descend(params, k):
            value, slopes = jax.value_and_grad(loss)(params, batches[k % 8], **how)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, slopes), value

        return jax.lax.scan(descend, params, jnp.arange(STEPS))

    params, losses = run(params, batches)
    return np.asarray(losses), params


@functools.cache
def exactly():
    return train(start())


@pytest.mark.slow
def test_newton_before_and_after():
    losses, after = exactly()
    assert losses[-1] < losses[0] / 4
    for params in (start(), after):
        xs = inputs(99)
        want = jax.lax.scan(functools.partial(cell, params), INIT, xs)[1]
        how = {"forward": pb.Newton(), "report": True}
        _, ys, report = jax.jit(functools.partial(scan, **how))(params, xs)
        told = report.forward
        assert told.converged and not told.fell_back and 2 <= told.iterations <= 20
        assert told.residual < 1e-5
        error = jnp.max(jnp.abs(ys - want)) / (1 + jnp.max(jnp.abs(want)))
        assert error <= told.error + told.floor and error < 1e-5
        print(f"{int(told.iterations)} passes, residual {told.residual:.1e}, error {error:.1e}")


@pytest.mark.slow
@pytest.mark.parametrize("method", [pb.Chunks(4, rounds=3), pb.Newton()], ids=["chunks", "newton"])
def test_training_follows_the_exact_curve(method, tmp_path, monkeypatch):
    """As closely as two runs do whose parameters began with one rounding more, and one less."""
    losses, after = exactly()
    beside = []
    for way in (-1, 1):
        moved = jax.tree.map(lambda p, way=way: jnp.nextafter(p, p + way), start())
        beside.append(train(moved))
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    step = functools.partial(cell, start())
    key = plan_of(step, INIT, inputs(0), loop_options(None, False, 1), None, "auto")[0].key
    forward_wisdom.remember(key, RememberedForward(method, TOLD))
    got, params = train(start(), forward="auto")
    told = jax.jit(lambda p: scan(p, inputs(0), forward="auto", report=True)[2].forward)
    for p in (start(), params):
        assert told(p).iterations >= 1 and not told(p).fell_back
    apart = np.abs(beside[0][0] - beside[1][0])
    ours = np.abs(got - losses)
    print(f"losses: ours {ours.max():.1e}, of two runs {apart.max():.1e}")
    assert ours.max() <= apart.max()
    weights = [
        np.abs(a["w"] - b["w"]).max() for a, b in ((params, after), (beside[0][1], beside[1][1]))
    ]
    print(f"weights: ours {weights[0]:.1e}, of two runs {weights[1]:.1e}")

"""The work of a step: what is too much for a sweep to gain anything, and the reason given."""

import jax
import jax.numpy as jnp
import pytest

from parscan_bp.choice.work import work_of
from parscan_bp.scan import step as scan_step
from parscan_bp.scan.api import loop_options, plan_of

SQUARE, ROWS = jnp.ones((20, 20)), jnp.ones((16, 20))


def _work(step, consts, carry, x=()):
    arguments = jax.tree.leaves((consts, carry, x))
    counts = len(jax.tree.leaves(consts)), len(jax.tree.leaves(carry))
    jaxpr = jax.make_jaxpr(lambda *leaves: step(*leaves))(*arguments)
    return work_of(jaxpr, *counts)


def _normalised(w, c, x):
    z = c @ w + x
    return jnp.tanh((z - z.mean(-1, keepdims=True)) * jax.lax.rsqrt(z.var(-1, keepdims=True) + 1))


def _lstm(w, h, c, x):
    i, f, g, o = jnp.split(h @ w + x, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _pendulum(g, angle, speed, torque):
    speed = speed - 0.1 * g * jnp.sin(angle) + torque
    return angle + 0.1 * speed, speed


def _characters(w, table, c, letters):
    return jnp.tanh(c @ w + jax.nn.one_hot(letters % 5, 20) + table[letters])


@pytest.mark.parametrize(
    ("step", "consts", "carry", "x", "rows"),
    [
        (lambda w, c, x: jnp.tanh(c @ w + x), SQUARE, ROWS, ROWS, 16),
        (lambda w, c, x: jnp.tanh(w @ c + x), SQUARE, jnp.ones(20), jnp.ones(20), 1),
        (lambda u, c, x: 0.9 * c + x @ u, SQUARE, ROWS, ROWS, 16),
        (lambda v, c, x: jnp.sin(c) * (c @ v)[:, None] + x, jnp.ones(20), ROWS[:5], ROWS[:5], 0),
        (_normalised, SQUARE, ROWS, ROWS, 16),
        (_lstm, jnp.ones((20, 80)), (ROWS, ROWS), jnp.ones((16, 80)), 16),
        (_pendulum, 9.8, (jnp.ones(3), jnp.ones(3)), jnp.ones(3), 0),
        (_pendulum, 9.8, (jnp.ones(3000), jnp.ones(3000)), jnp.ones(3000), 0),
        (_characters, (SQUARE, jnp.ones((99, 20))), ROWS, jnp.zeros(16, int), 16),
        (lambda k, c: c + k * (jnp.roll(c, 1) + jnp.roll(c, -1) - c), 0.1, jnp.ones(50), (), 0),
        (lambda w, c: jax.nn.relu(c @ w), jnp.ones((999, 999)), jnp.ones((2, 3, 999)), (), 6),
    ],
)
def test_a_recurrent_cell_is_light(step, consts, carry, x, rows):
    work = _work(step, consts, carry, x)
    assert (work.rows, work.heavy) == (rows, None)


def _gru(w, c, x):
    """Gates of one product, the last of another one, of what a gate lets through."""
    r, z = jnp.split(jax.nn.sigmoid(c @ w[:, :40] + x[..., :40]), 2, axis=-1)
    return (1 - z) * jnp.tanh((r * c) @ w[:, 40:] + x[..., 40:]) + z * c


def _by_index(w, h, c, x):
    z = (h @ w + x).reshape(16, 4, 20)
    c = jax.nn.sigmoid(z[:, 0]) * c + jax.nn.sigmoid(z[:, 1]) * jnp.tanh(z[:, 2])
    return jax.nn.sigmoid(z[:, 3]) * jnp.tanh(c), c


@pytest.mark.parametrize(
    ("step", "consts", "carry", "x", "parts"),
    [
        (_lstm, jnp.ones((20, 80)), (ROWS, ROWS), jnp.ones((16, 80)), 4),
        (jax.jit(_lstm), jnp.ones((20, 80)), (ROWS, ROWS), jnp.ones((16, 80)), 4),
        (_by_index, jnp.ones((20, 80)), (ROWS, ROWS), jnp.ones((16, 80)), 4),
        (_gru, jnp.ones((20, 60)), ROWS, jnp.ones((16, 60)), 2),
        (_normalised, SQUARE, ROWS, ROWS, 0),
        (lambda w, c, x: jnp.tanh(c @ w + x @ w), SQUARE, ROWS, ROWS, 0),
        (lambda u, c, x: 0.9 * c + x @ u, SQUARE, ROWS, ROWS, 0),
        (_pendulum, 9.8, (jnp.ones(3), jnp.ones(3)), jnp.ones(3), 0),
    ],
)
def test_parts_of_products(step, consts, carry, x, parts):
    work = _work(step, consts, carry, x)
    assert work.parts == parts


def _attention(w, c):
    return c + jax.nn.softmax(c @ w @ c.T) @ c


def _forces(mass, q):
    apart = q[None] - q[:, None]
    return q + jnp.sum(mass * apart / (jnp.sum(apart**2, -1, keepdims=True) + 1), axis=1)


def _history(w, buffer, h, t):
    h = jnp.tanh(w @ h)
    return jax.lax.dynamic_update_index_in_dim(buffer, h, t, 0), h


def _filtered(a, mean, spread, x):
    """A Kalman filter, every number of which is observed."""
    mean, spread = a @ mean, a @ spread @ a.T + jnp.eye(len(a))
    root = jnp.linalg.cholesky(spread + jnp.eye(len(a)))
    gain = jax.scipy.linalg.cho_solve((root, True), spread).T
    told = jnp.sum(jnp.log(jnp.diag(root)))
    return mean + gain @ (x - mean), spread - gain @ spread + 0 * told


def _many(w, c):
    for k in range(300):
        c = c + 0.01 * w[k % 3] * jnp.sin(c)
    return c


@pytest.mark.parametrize(
    ("step", "consts", "carry", "x", "calls"),
    [
        (_filtered, jnp.eye(4), (jnp.ones(4), jnp.eye(4)), jnp.ones(4), "dot_general"),
        (_many, jnp.ones(3), jnp.ones(3), (), None),
        (lambda w, c: jnp.tanh(w @ c), SQUARE, jnp.ones(20), (), None),
        (lambda w, c: jnp.tanh(w @ c), SQUARE, ROWS.T, (), "dot_general"),
        (lambda p, c: jax.lax.cond(p, jnp.sin, jnp.cos, c), True, jnp.ones(20), (), None),
    ],
)
def test_small_matrices_are_light_however_many_equations_there_are(step, consts, carry, x, calls):
    work = _work(step, consts, carry, x)
    assert (work.heavy, work.calls) == (None, calls)


@pytest.mark.parametrize(
    ("step", "consts", "carry", "x", "word"),
    [
        (lambda c, w: jnp.tanh(c @ w), (), ROWS, SQUARE, "two matrices"),
        (_attention, SQUARE, ROWS, (), "two matrices"),
        (_forces, 1.0, jnp.ones((30, 3)), (), "values of 2700 entries from a carry of 90"),
        (_history, SQUARE, (jnp.ones((99, 20)), jnp.ones(20)), 3, "dynamic_update_slice"),
        (lambda w, c: jnp.concatenate([c[1:], w @ c[:1]]), jnp.ones((1, 1)), ROWS, (), "moves"),
        (lambda k, c: c + k * jnp.roll(c, 1), 0.1, jnp.ones(500), (), "moves"),
        (lambda w, c: jnp.linalg.solve(w + c, c), SQUARE, SQUARE, (), "linear_solve"),
        (lambda w, c: jnp.convolve(c, w, "same"), jnp.ones(3), jnp.ones(9), (), "conv"),
        (lambda w, c: jax.lax.fori_loop(0, 3, lambda _, c: w @ c, c), SQUARE, ROWS.T, (), "scan"),
        (lambda w, c: jnp.where(w > 0, jnp.sort(c), c), 1.0, jnp.ones(9), (), "sort"),
        (lambda i, c: jnp.tanh(c[i]), jnp.arange(9)[::-1], jnp.ones(9), (), "gather"),
        (lambda c, x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, c), (), jnp.ones(9), 1.0, "cond"),
        (lambda a, c: jnp.linalg.cholesky(a + c), SQUARE, SQUARE, (), "cholesky"),
    ],
)
def test_what_is_heavy(step, consts, carry, x, word):
    reason = _work(step, consts, carry, x).heavy
    assert reason is not None and word in reason


def test_a_plan_reads_the_work_of_its_step_once(monkeypatch):
    read = []

    def counted(*step):
        read.append(work_of(*step))
        return read[-1]

    monkeypatch.setattr(scan_step, "work_of", counted)
    step = lambda c, x: (jnp.tanh(c @ SQUARE + x),) * 2  # noqa: E731
    how = loop_options(1000, False, 1)
    made = plan_of(step, ROWS, jnp.ones((1000, *ROWS.shape)), how, None, "auto")[0]
    assert len(read) == 1 and made.step.work is read[0] and len(read) == 1

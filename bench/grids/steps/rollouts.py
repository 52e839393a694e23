"""Scans that people write and that are no recurrent network: physics, filters, layers.

Each has its step in the words of its field, a size that says what is large about it, and random
numbers. What is differentiated is what its users differentiate: parameters, controls, or both.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.shared import candidates

Run = Callable[[candidates.Scan, Any], Any]
normal = jax.random.normal


@dataclasses.dataclass(frozen=True)
class Rollout:
    """A program around one scan.

    Attributes:
        point: what is differentiated.
        run: ``(scan, point)`` to what the loss reads.
    """

    point: Any
    run: Run


def keys(count: int) -> list[jax.Array]:
    return list(jax.random.split(jax.random.key(0), count))


def layer_norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def pendulums(rows: int, length: int) -> Rollout:
    """Damped, driven pendulums side by side, semi-implicit Euler."""

    def run(scan: candidates.Scan, point: Any) -> Any:
        (gravity, damping), torques = point

        def step(state: Any, torque: jax.Array) -> tuple[Any, jax.Array]:
            angle, speed = state
            speed = speed + 0.02 * (torque - gravity * jnp.sin(angle) - damping * speed)
            angle = angle + 0.02 * speed
            return (angle, speed), angle

        return scan(step, (jnp.ones(rows), jnp.zeros(rows)), torques)[1]

    return Rollout(((jnp.float32(1.0), jnp.float32(0.5)), normal(keys(1)[0], (length, rows))), run)


def cart_poles(rows: int, length: int) -> Rollout:
    """A linear policy on carts with poles, the state one vector for each."""

    def run(scan: candidates.Scan, policy: jax.Array) -> Any:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            place, speed, angle, turn = (state[:, k] for k in range(4))
            force = state @ policy
            mass = 1.2 + jnp.cos(angle) ** 2
            pull = (force + 0.5 * turn**2 * jnp.sin(angle)) / mass
            bend = (jnp.sin(angle) - 0.5 * turn + 0.1 * force) / mass
            moved = (speed, pull, turn, bend)
            state = state + 0.02 * jnp.stack(moved, axis=-1)
            return state, place

        start = 0.1 * normal(keys(1)[0], (rows, 4))
        return scan(step, start, None, length=length)[1]

    return Rollout(0.1 * jnp.ones(4), run)


def bodies(count: int, length: int) -> Rollout:
    """Gravity between all pairs of bodies, leapfrog; masses are differentiated."""

    def run(scan: candidates.Scan, masses: jax.Array) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            places, speeds = state
            apart = places[None] - places[:, None]
            squares = jnp.sum(apart**2, axis=-1, keepdims=True) + 0.1
            speeds = speeds + 0.01 * jnp.sum(masses[:, None] * apart / squares**1.5, axis=1)
            return (places + 0.01 * speeds, speeds), None

        a, b = keys(2)
        start = normal(a, (count, 3)), 0.1 * normal(b, (count, 3))
        return scan(step, start, None, length=length)[0]

    return Rollout(jnp.ones(count) / count, run)


def heat(side: int, length: int) -> Rollout:
    """Heat in a periodic square with a source, explicit differences; the conductivity is sought."""

    def run(scan: candidates.Scan, conductivity: jax.Array) -> Any:
        def step(u: jax.Array, _: None) -> tuple[jax.Array, None]:
            around = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
            return u + conductivity * (around - 4 * u) + 0.01 * jnp.sin(u), None

        return scan(step, normal(keys(1)[0], (side, side)), None, length=length)[0]

    return Rollout(0.1 * jnp.ones((side, side)), run)


def neural_ode(hidden: int, length: int, rows: int) -> Rollout:
    """A vector field of two layers, Runge-Kutta of fourth order."""

    def run(scan: candidates.Scan, weights: Any) -> Any:
        def field(y: jax.Array) -> jax.Array:
            first, second, last = weights
            return jnp.tanh(jnp.tanh(y @ first) @ second) @ last

        def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            a = field(y)
            b = field(y + 0.05 * a)
            c = field(y + 0.05 * b)
            y = y + (a + 2 * b + 2 * c + field(y + 0.1 * c)) / 60
            return y, y

        return scan(step, jnp.ones((rows, 8)), None, length=length)[1]

    a, b, c = keys(3)
    shapes = ((a, (8, hidden)), (b, (hidden, hidden)), (c, (hidden, 8)))
    return Rollout([normal(key, shape) / shape[0] ** 0.5 for key, shape in shapes], run)


def layers(width: int, length: int, rows: int) -> Rollout:
    """Residual layers, each with weights of its own: a deep network as a scan over its layers."""

    def run(scan: candidates.Scan, weights: jax.Array) -> Any:
        def step(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return x + jnp.tanh(x @ weight), None

        return scan(step, jnp.ones((rows, width)), weights)[0]

    return Rollout(normal(keys(1)[0], (length, width, width)) / width**0.5, run)


def transformer(width: int, length: int, tokens: int) -> Rollout:
    """Blocks of attention and a feed-forward layer, four sequences at a time."""

    def run(scan: candidates.Scan, weights: Any) -> Any:
        def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            joint, out, wide, narrow = w
            q, k, v = jnp.split(layer_norm(x) @ joint, 3, axis=-1)
            attention = jax.nn.softmax(q @ k.swapaxes(-1, -2) / width**0.5)
            x = x + attention @ v @ out
            return x + jax.nn.gelu(layer_norm(x) @ wide) @ narrow, None

        return scan(block, normal(keys(5)[4], (4, tokens, width)), weights)[0]

    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    pairs = zip(keys(5), shapes, strict=False)
    return Rollout([0.1 * normal(key, (length, *shape)) for key, shape in pairs], run)


def hidden_markov(states: int, length: int, rows: int) -> Rollout:
    """The forward algorithm on log-probabilities."""

    def run(scan: candidates.Scan, transitions: jax.Array) -> Any:
        log = jax.nn.log_softmax(transitions)

        def step(alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.logsumexp(alpha[:, :, None] + log, axis=1) + emission, None

        emissions = normal(keys(2)[1], (length, rows, states))
        return scan(step, jnp.zeros((rows, states)), emissions)[0]

    return Rollout(normal(keys(2)[0], (states, states)), run)


def kalman(states: int, length: int) -> Rollout:
    """A Kalman filter that observes its whole state; the dynamics are sought."""
    eye = jnp.eye(states)

    def run(scan: candidates.Scan, dynamics: jax.Array) -> Any:
        def step(belief: Any, seen: jax.Array) -> tuple[Any, jax.Array]:
            mean, covariance = belief
            mean, covariance = dynamics @ mean, dynamics @ covariance @ dynamics.T + 0.1 * eye
            gain = jnp.linalg.solve(covariance + 0.2 * eye, covariance).T
            mean = mean + gain @ (seen - mean)
            return (mean, (eye - gain) @ covariance), mean

        return scan(step, (jnp.zeros(states), eye), normal(keys(1)[0], (length, states)))[1]

    return Rollout(0.9 * eye, run)


def buffer(width: int, length: int) -> Rollout:
    """A recurrent step that writes its state into a row of a buffer for all steps."""

    def run(scan: candidates.Scan, weight: jax.Array) -> Any:
        def step(carry: Any, x: jax.Array) -> tuple[Any, None]:
            rows, h, t = carry
            h = jnp.tanh(weight @ h + x)
            return (jax.lax.dynamic_update_index_in_dim(rows, h, t, 0), h, t + 1), None

        start = jnp.zeros((length, width)), jnp.zeros(width), 0
        return scan(step, start, normal(keys(2)[1], (length, width)))[0][0]

    return Rollout(normal(keys(2)[0], (width, width)) / width**0.5, run)


def delayed(delay: int, length: int) -> Rollout:
    """A network with a delay line: 16 units that hear themselves, many steps later."""

    def run(scan: candidates.Scan, weight: jax.Array) -> Any:
        def step(line: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(weight @ line[0] + x)
            return jnp.concatenate([line[1:], h[None]]), h

        return scan(step, jnp.zeros((delay, 16)), normal(keys(2)[1], (length, 16)))[1]

    return Rollout(normal(keys(2)[0], (16, 16)) / 4, run)


def cached_attention(width: int, length: int) -> Rollout:
    """One token after the other, attending to a cache of keys and values."""

    def run(scan: candidates.Scan, weights: jax.Array) -> Any:
        def step(carry: Any, t: jax.Array) -> tuple[Any, jax.Array]:
            keys, values, x = carry
            query, key, value = weights @ x
            keys, values = keys.at[t].set(key), values.at[t].set(value)
            scores = jnp.where(jnp.arange(length) <= t, keys @ query, -1e9)
            y = jax.nn.softmax(scores) @ values
            return (keys, values, jnp.tanh(x + y)), y

        empty = jnp.zeros((length, width))
        return scan(step, (empty, empty, jnp.ones(width)), jnp.arange(length))[1]

    return Rollout(normal(keys(1)[0], (3, width, width)) / width**0.5, run)


def learning(width: int, length: int) -> Rollout:
    """Gradient descent as a scan; what is differentiated is the rate, as in meta-learning."""
    a, b, c = keys(3)
    batches = normal(a, (length, 16, width)), normal(b, (length, 16, width))

    def run(scan: candidates.Scan, rate: jax.Array) -> Any:
        def step(weight: jax.Array, batch: Any) -> tuple[jax.Array, None]:
            x, y = batch
            loss = lambda weight: jnp.mean((jnp.tanh(x @ weight) - y) ** 2)  # noqa: E731
            return weight - rate * jax.grad(loss)(weight), None

        return scan(step, normal(c, (width, width)) / width**0.5, batches)[0]

    return Rollout(jnp.float32(0.1), run)


def stochastic(rows: int, length: int) -> Rollout:
    """A stochastic differential equation, Euler-Maruyama, its random key carried along."""

    def run(scan: candidates.Scan, weights: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            y, key = carry
            key, now = jax.random.split(key)
            drift = jnp.tanh(y @ weights[0]) @ weights[1]
            return (y + 0.01 * drift + 0.1 * normal(now, y.shape), key), None

        start = jnp.ones((rows, 4)), jax.random.key(7)
        return scan(step, start, None, length=length)[0][0]

    a, b = keys(2)
    return Rollout((normal(a, (4, 16)), normal(b, (16, 4))), run)


def returns(rows: int, length: int) -> Rollout:
    """Discounted returns of a batch of episodes, from the last reward to the first."""

    def run(scan: candidates.Scan, rewards: jax.Array) -> Any:
        def step(future: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = reward + 0.95 * future
            return total, total

        return scan(step, jnp.zeros(rows), rewards, reverse=True)[1]

    return Rollout(normal(keys(1)[0], (length, rows)), run)


def spiking(units: int, length: int) -> Rollout:
    """Leaky integrate-and-fire neurons with a smooth spike."""

    def run(scan: candidates.Scan, point: Any) -> Any:
        leak, currents = point

        def step(state: Any, current: jax.Array) -> tuple[Any, jax.Array]:
            potential, spike = state
            potential = leak * potential * (1 - spike) + current
            spike = jax.nn.sigmoid(5 * (potential - 1))
            return (potential, spike), spike

        return scan(step, (jnp.zeros(units), jnp.zeros(units)), currents)[1]

    return Rollout((0.9 * jnp.ones(units), normal(keys(1)[0], (length, units))), run)


ROLLOUTS: dict[str, Callable[[], Rollout]] = {
    "pendulums, 64": lambda: pendulums(64, 1000),
    "pendulums, 1024": lambda: pendulums(1024, 200),
    "cart-poles, 16": lambda: cart_poles(16, 500),
    "cart-poles, 256": lambda: cart_poles(256, 200),
    "bodies, 3": lambda: bodies(3, 1000),
    "bodies, 16": lambda: bodies(16, 300),
    "bodies, 64": lambda: bodies(64, 100),
    "heat, 16 x 16": lambda: heat(16, 500),
    "heat, 64 x 64": lambda: heat(64, 200),
    "heat, 256 x 256": lambda: heat(256, 50),
    "neural ODE, 32 units, 1 row": lambda: neural_ode(32, 200, 1),
    "neural ODE, 128 units, 64 rows": lambda: neural_ode(128, 50, 64),
    "layers, 16 wide, 16 rows": lambda: layers(16, 100, 16),
    "layers, 128 wide, 32 rows": lambda: layers(128, 50, 32),
    "layers, 256 wide, 128 rows": lambda: layers(256, 30, 128),
    "transformer, 32 wide, 16 tokens": lambda: transformer(32, 12, 16),
    "transformer, 64 wide, 32 tokens": lambda: transformer(64, 12, 32),
    "hidden Markov, 10 states": lambda: hidden_markov(10, 500, 1),
    "hidden Markov, 50 states, 4 rows": lambda: hidden_markov(50, 200, 4),
    "Kalman filter, 4 states": lambda: kalman(4, 300),
    "Kalman filter, 16 states": lambda: kalman(16, 100),
    "buffer, 256 rows": lambda: buffer(16, 256),
    "buffer, 1024 rows": lambda: buffer(16, 1024),
    "delay of 8": lambda: delayed(8, 500),
    "delay of 64": lambda: delayed(64, 500),
    "cached attention, 64 tokens": lambda: cached_attention(16, 64),
    "cached attention, 256 tokens": lambda: cached_attention(32, 256),
    "learning, 8 wide": lambda: learning(8, 100),
    "learning, 32 wide": lambda: learning(32, 100),
    "stochastic, 32 rows": lambda: stochastic(32, 200),
    "returns, 64 rows": lambda: returns(64, 1000),
    "spiking, 16 units": lambda: spiking(16, 1000),
    "spiking, 256 units": lambda: spiking(256, 500),
}
"""Programs by name; the number says what is large about them."""

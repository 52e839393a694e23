"""Generated steps, as people write them: what they read, how they begin, what they return."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import parscan_bp as pb

Scan = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a program, and its random numbers.

    Attributes:
      rng: random numbers.
      length: steps T.
      hidden: features H of the carry and the inputs.
      rows: rows R of the carry, 0 for a carry without such an axis.
    """

    rng: np.random.Generator
    length: int
    hidden: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a carry."""
        return (self.rows, self.hidden) if self.rows else (self.hidden,)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * self.rng.normal(size=shape)

    def matrix(self) -> np.ndarray:
        return self.normal(self.hidden, self.hidden, scale=0.6 / self.hidden**0.5)

    def carry(self) -> np.ndarray:
        return self.normal(*self.shape, scale=0.5)

    def inputs(self) -> np.ndarray:
        return self.normal(self.length, *self.shape, scale=0.5)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A loop.

    Attributes:
      params, init, xs: leaves by name; a step of ``xs`` is its input.
      step: ``(scan, params) -> ((carry, x) -> (carry, y))``.
      start: ``(init, params) -> carry``; ``init`` itself if left out.
      solvable: whether a named solver takes it.
    """

    params: dict[str, np.ndarray]
    init: dict[str, np.ndarray]
    xs: dict[str, np.ndarray]
    step: Callable[[Scan, Any], Callable[[Any, Any], tuple[Any, Any]]]
    start: Callable[[Any], Any] = lambda init: init
    solvable: bool = True


def coupled(s: Sizes) -> Parts:
    def step(scan, p):
        def f(c, x):
            h = jnp.tanh(c["h"] @ p["a"] + x["x"])
            return {"h": h}, h * x["x"]

        return f

    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step)


def elementwise(s: Sizes) -> Parts:
    def step(scan, p):
        def f(c, x):
            h = p["a"] * jnp.tanh(c["h"]) + jnp.sin(x["x"])
            return {"h": h}, x["x"] / (1 + h * h)

        return f

    return Parts({"a": s.normal(s.hidden)}, {"h": s.carry()}, {"x": s.inputs()}, step)


def counter(s: Sizes) -> Parts:
    """Several leaves, one of them an integer."""

    def step(scan, p):
        def f(c, x):
            h = jnp.tanh(c["h"] @ p["a"] + x["x"] * jnp.sin(0.1 * c["n"]))
            return {"h": h, "m": 0.9 * c["m"] + h.mean(), "n": c["n"] + 1}, (h + c["n"], c["n"])

        return f

    init = {"h": s.carry(), "m": s.normal(), "n": np.asarray(1, np.int32)}
    return Parts({"a": s.matrix()}, jax.tree.map(np.asarray, init), {"x": s.inputs()}, step)


def integer_state(s: Sizes) -> Parts:
    """No leaf of the carry has a derivative."""

    def step(scan, p):
        def f(c, x):
            return {"n": (5 * c["n"] + 3) % 7}, x["x"] * p["a"] * c["n"]

        return f

    init = {"n": np.asarray(2, np.int32)}
    return Parts({"a": s.normal(s.hidden)}, init, {"x": s.inputs()}, step)


def integer_switch(s: Sizes) -> Parts:
    """Integer inputs look numbers up, and a state of integers switches."""

    def step(scan, p):
        def f(c, x):
            n = (c["n"] + x["k"]) % 3
            h = jnp.where(n == 0, c["h"], jnp.tanh(c["h"] * p["t"][x["k"]]) + 0.3)
            return {"h": h, "n": n}, h * p["t"][n]

        return f

    init = {"h": s.carry(), "n": np.asarray(0, np.int32)}
    k = s.rng.integers(0, 4, s.length).astype(np.int32)
    return Parts({"t": s.normal(4, s.hidden)}, init, {"k": k}, step)


def bfloat16(s: Sizes) -> Parts:
    parts = coupled(s)
    low = [{k: v.astype(ml_dtypes.bfloat16) for k, v in d.items()} for d in _leaves(parts)]
    return Parts(*low, parts.step)


def weak(s: Sizes) -> Parts:
    """A Python number is carried."""

    def step(scan, p):
        def f(c, x):
            k, h = c
            return (k * 0.9, jnp.tanh(h @ p["a"] * k + x["x"])), h * k

        return f

    start = lambda init: (1.0, init["h"])  # noqa: E731
    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step, start)


def weak_bfloat16(s: Sizes) -> Parts:
    """It does not make the loss float32."""
    parts = weak(s)
    low = [{k: v.astype(ml_dtypes.bfloat16) for k, v in d.items()} for d in _leaves(parts)]
    return Parts(*low, parts.step, parts.start)


def _leaves(parts: Parts) -> tuple[dict, dict, dict]:
    return parts.params, parts.init, parts.xs


def unchanged(s: Sizes) -> Parts:
    """A leaf of the carry goes through, a constant is closed over, and both are outputs."""
    table = s.normal(s.hidden)

    def step(scan, p):
        def f(c, x):
            h = jnp.tanh(c["h"] * c["p"] + x["x"] * table) @ p["a"]
            return {"h": h, "p": c["p"]}, (c["p"], h - x["x"])

        return f

    init = {"h": s.carry(), "p": s.normal(s.hidden)}
    return Parts({"a": s.matrix()}, init, {"x": s.inputs()}, step)


def unread(s: Sizes) -> Parts:
    """A leaf that no other one reads, as a metric is."""

    def step(scan, p):
        def f(c, x):
            h = jnp.tanh(c["h"] @ p["a"] + x["x"])
            return {"h": h, "m": c["m"] + jnp.linalg.norm(c["h"])}, jnp.square(h - x["x"]).sum()

        return f

    init = {"h": s.carry(), "m": np.zeros(())}
    return Parts({"a": s.matrix()}, init, {"x": s.inputs()}, step)


def gates(s: Sizes) -> Parts:
    """One's own gates of one product."""

    def step(scan, p):
        def f(c, x):
            z, r, n = jnp.split(c["h"] @ p["w"] + p["b"], 3, axis=-1)
            n = jnp.tanh(n * jax.nn.sigmoid(r) + x["x"])
            z = jax.nn.sigmoid(z)
            h = (1 - z) * n + z * c["h"]
            return {"h": h}, h

        return f

    params = {"w": s.normal(s.hidden, 3 * s.hidden, scale=0.5), "b": s.normal(3 * s.hidden)}
    return Parts(params, {"h": s.carry()}, {"x": s.inputs()}, step)


def two_carries(s: Sizes) -> Parts:
    """As of an LSTM."""

    def step(scan, p):
        def f(c, x):
            h, c = c
            i, g = jnp.split(h @ p["w"], 2, axis=-1)
            c = jax.nn.sigmoid(i + 1) * c + jnp.tanh(g + x["x"])
            h = jnp.tanh(c)
            return (h, c), h

        return f

    start = lambda init: (init["h"], jnp.zeros_like(init["h"]))  # noqa: E731
    params = {"w": s.normal(s.hidden, 2 * s.hidden, scale=0.5)}
    return Parts(params, {"h": s.carry()}, {"x": s.inputs()}, step, start)


def branches(s: Sizes) -> Parts:
    def step(scan, p):
        def f(c, x):
            h = jax.lax.cond(x["x"].sum() > 0, jnp.tanh, jnp.sin, c["h"] @ p["a"]) + x["x"]
            return {"h": h}, jax.nn.relu(h)

        return f

    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step)


def inner_loop(s: Sizes, own: bool = False) -> Parts:
    """Two small steps within every step, by `lax.scan` or by the front end's own scan."""

    def step(scan, p):
        def f(c, x):
            inner = lambda h, k: (jnp.tanh(h @ p["a"] + k * x["x"]), h * k)  # noqa: E731
            h, y = (scan if own else jax.lax.scan)(inner, c["h"], jnp.array([0.5, 1.5]))
            return {"h": h}, y

        return f

    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step)


own_inner_loop = functools.partial(inner_loop, own=True)


def library_functions(s: Sizes) -> Parts:
    """Functions with derivatives of their own, and such as mix places."""

    def step(scan, p):
        def f(c, x):
            h = jax.nn.softplus(c["h"] + x["x"]) - jnp.cumsum(jax.nn.silu(p["a"] * c["h"]), -1)
            y = jax.nn.logsumexp(c["h"], axis=-1)
            return {"h": h - jnp.max(h, -1, keepdims=True)}, y

        return f

    return Parts({"a": s.normal(s.hidden)}, {"h": s.carry()}, {"x": s.inputs()}, step)


def covariance(s: Sizes) -> Parts:
    """A matrix is carried, as by a Kalman filter."""

    def step(scan, p):
        def f(c, x):
            v = p["a"] @ c["v"] @ p["a"].T + 0.1 * jnp.eye(s.hidden)
            gain = v @ x["u"] / (1 + x["u"] @ v @ x["u"])
            return {"v": v - jnp.outer(gain, x["u"] @ v)}, (gain, jnp.log(1 + x["u"] @ v @ x["u"]))

        return f

    init, xs = {"v": np.eye(s.hidden)}, {"u": s.normal(s.length, s.hidden)}
    return Parts({"a": s.matrix()}, init, xs, step)


def complex_state(s: Sizes) -> Parts:
    """A diagonal state-space model; the state is complex, its output is not."""

    def step(scan, p):
        def f(c, x):
            h = jnp.exp(-jnp.exp(p["r"]) + 1j * p["i"]) * c + x["x"]
            return h, (h * (1 - 0.5j)).real

        return f

    params = {"r": s.normal(s.hidden), "i": s.normal(s.hidden)}
    start = lambda init: init["h"].astype(complex)  # noqa: E731
    return Parts(params, {"h": s.carry()}, {"x": s.inputs()}, step, start)


def reverse_mode_only(s: Sizes) -> Parts:
    """A function with a derivative of reverse mode only: no named solver takes it."""

    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.5, 0.5),))

    def step(scan, p):
        def f(c, x):
            h = clipped(jnp.tanh(c["h"] @ p["a"] + x["x"]))
            return {"h": h}, h

        return f

    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step, solvable=False)


def named_linear(s: Sizes) -> Parts:
    """A linear function with a name: its rule applies it to the tangent."""

    @jax.custom_jvp
    def centred(x):
        return x - 0.5 * jnp.mean(x, -1, keepdims=True)

    centred.defjvp(lambda primals, tangents: (centred(*primals), centred(*tangents)))

    def step(scan, p):
        def f(c, x):
            h = jnp.tanh(centred(c["h"] * p["a"]) + x["x"])
            return {"h": h}, centred(h)

        return f

    return Parts({"a": s.normal(s.hidden)}, {"h": s.carry()}, {"x": s.inputs()}, step)


def loop_in_a_rule(s: Sizes) -> Parts:
    """A function whose rule steps the tangent, beside the values."""

    def step(scan, p):
        def both(v, t):
            def inner(c, k):
                h = jnp.tanh(k * c[0] + v)
                return (h, (1 - h * h) * (k * c[1] + t)), None

            return scan(inner, (jnp.zeros_like(v), jnp.zeros_like(v)), jnp.array([0.5, 1.5]))[0]

        settled = jax.custom_jvp(lambda v: both(v, jnp.zeros_like(v))[0])
        settled.defjvp(lambda primals, tangents: both(*primals, *tangents))

        def f(c, x):
            return {"h": settled(c["h"] @ p["a"] + x["x"])}, 2 * c["h"]

        return f

    return Parts({"a": s.matrix()}, {"h": s.carry()}, {"x": s.inputs()}, step)


def cell(s: Sizes, of: Any, carries: int = 1) -> Parts:
    """A cell of the package, whose Jacobian it knows."""
    shapes = jax.eval_shape(lambda key: of.init(key, s.hidden, s.hidden), jax.random.key(0))
    leaves, tree = jax.tree.flatten(shapes)
    params = {str(k): s.normal(*v.shape, scale=0.5) for k, v in enumerate(leaves)}

    def step(scan, p):
        values = jax.tree.unflatten(tree, [p[str(k)] for k in range(len(leaves))])
        return functools.partial(of, values)

    def start(init):
        return init["h"] if carries == 1 else (init["h"], 0.5 * init["h"])

    return Parts(params, {"h": s.carry()}, {"": s.inputs()}, step, start)


elman = functools.partial(cell, of=pb.cells.Elman())
gru = functools.partial(cell, of=pb.cells.GRU())
lstm = functools.partial(cell, of=pb.cells.LSTM(), carries=2)

CELLS = {"elman": elman, "gru": gru, "lstm": lstm}
"""Their input is an array, and their step is called by its own name."""

STEPS: dict[str, Callable[[Sizes], Parts]] = {
    **{
        f.__name__: f
        for f in (
            *(coupled, elementwise, counter, integer_state, integer_switch, bfloat16, weak),
            *(weak_bfloat16, unchanged, unread, gates, two_carries, branches, inner_loop),
            *(library_functions, covariance, complex_state, reverse_mode_only),
            *(named_linear, loop_in_a_rule),
        )
    },
    "own_inner_loop": own_inner_loop,
    **CELLS,
}

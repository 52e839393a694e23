"""The steps of the grid and the loss around them.

The loss reads every output and the last carry through fixed random weights,
sum(w * ys) + sum(v * final), scaled so that it is of order 1; every step gets a cotangent of
its own.
"""

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import parscan_bp
from bench.shared import candidates, programs

Step = Callable[[Any, Any], tuple[Any, Any]]

CUSTOM = "custom"
# Library cells go in as `partial(cell, params)`, which lets the scan use their own Jacobian.
LIBRARY_CELLS = {
    "elman": parscan_bp.cells.Elman(),
    "gru": parscan_bp.cells.GRU(),
    "lstm": parscan_bp.cells.LSTM(),
}
CELLS = (*LIBRARY_CELLS, CUSTOM)
PARAMETERS, EVERYTHING = "params", "all"


@dataclasses.dataclass(frozen=True, order=True)
class Size:
    """One point of the grid: a cell of `hidden` units on `length` steps of `batch` rows.

    The input of a step is as wide as the state, as inside a stack of layers.
    """

    cell: str
    hidden: int
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.cell} H={self.hidden} B={self.batch} T={self.length}"

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Size":
        """The point that an entry of a file is about."""
        return cls(**{field.name: entry[field.name] for field in dataclasses.fields(cls)})


def points(options: argparse.Namespace) -> dict[str, Size]:
    """The grid of the options cells, H, B and T. Small points first: a run that is cut short has
    seen every cell."""
    axes = itertools.product(options.T, options.B, options.H, options.cells)
    sizes = [Size(cell, h, b, t) for t, b, h, cell in axes]
    return {str(size): size for size in sizes}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A point of the grid with its numbers.

    Attributes:
        step: params -> the step that is scanned.
        point: what is differentiated: params, and with `wrt="all"` also carry and xs.
        data: the loss's weights, and whatever of carry and xs is not differentiated.
        state: numbers in one row of the carry.
    """

    step: Callable[[Any], Step]
    point: dict[str, Any]
    data: dict[str, Any]
    state: int

    def loss(self, scan: candidates.Scan) -> programs.Loss:
        """The loss as a function of `(point, data)`, through the given scan."""

        def loss(point: Any, data: Any) -> jax.Array:
            values = {**data, **point}
            step = self.step(values["params"])
            final, ys = scan(step, values["carry"], values["xs"])
            return weigh(values["output_weights"], ys) + weigh(values["final_weights"], final)

        return loss


def make(size: Size, seed: int, wrt: str = PARAMETERS) -> Workload:
    """Draws parameters, inputs and weights of a point of the grid, all in float32."""
    keys = jax.random.split(jax.random.key(seed), 4)
    if size.cell == CUSTOM:
        params: Any = _custom_params(keys[0], size.hidden)
        carry: Any = jnp.zeros((size.batch, size.hidden), jnp.float32)
        step: Callable[[Any], Step] = custom_step
    else:
        cell = LIBRARY_CELLS[size.cell]
        params = cell.init(keys[0], size.hidden, size.hidden, jnp.float32)
        carry = cell.initial_carry((size.batch,), size.hidden, jnp.float32)
        step = _library_step(cell)
    xs = jax.random.normal(keys[1], (size.length, size.batch, size.hidden), jnp.float32)
    final, ys = jax.eval_shape(lambda: jax.lax.scan(step(params), carry, xs))
    values = {"params": params, "carry": carry, "xs": xs}
    chosen = values if wrt == EVERYTHING else {"params": params}
    rest = {name: value for name, value in values.items() if name not in chosen}
    weights = {
        "output_weights": draw_weights(keys[2], ys),
        "final_weights": draw_weights(keys[3], final),
    }
    state = sum(leaf.size for leaf in jax.tree.leaves(carry)) // size.batch
    return Workload(step, chosen, {**rest, **weights}, state)


def custom_step(params: dict[str, jax.Array]) -> Step:
    """A user's own step, a closure with no analytic Jacobian: a forced, damped oscillator."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        drive = jnp.sin(h @ params["W"] + params["b"] + x @ params["U"])
        h = h + 0.1 * (drive - h**3 / (1 + h**2))
        return h, h

    return step


def _library_step(cell: Any) -> Callable[[Any], Step]:
    def step(params: Any) -> Step:
        return functools.partial(cell, params)

    return step


def _custom_params(key: jax.Array, hidden: int) -> dict[str, jax.Array]:
    keys = jax.random.split(key, 3)
    scale = 1 / math.sqrt(hidden)
    return {
        # Half the scale of U: with more, the undamped origin makes long runs chaotic.
        "W": 0.5 * scale * jax.random.normal(keys[0], (hidden, hidden), jnp.float32),
        "U": scale * jax.random.normal(keys[1], (hidden, hidden), jnp.float32),
        "b": scale * jax.random.normal(keys[2], (hidden,), jnp.float32),
    }


def draw_weights(key: jax.Array, values: Any) -> Any:
    """Random weights for `weigh`, of a scale at which its sum is of order 1."""
    leaves, treedef = jax.tree.flatten(values)
    keys = jax.random.split(key, len(leaves))
    draws = [
        jax.random.normal(k, leaf.shape, jnp.float32) / math.sqrt(leaf.size)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, draws)


def weigh(weights: Any, values: Any) -> jax.Array:
    """The sum of all values, each through its weight."""
    terms = jax.tree.map(lambda w, value: jnp.sum(w * value), weights, values)
    return sum(jax.tree.leaves(terms), start=jnp.zeros((), jnp.float32))

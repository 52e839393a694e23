"""Programs of each front end, as functions of arrays: ours, and what it replaces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp import layers
from tests.words.word_loops import (
    SCAN_SOLVERS,
    native_program,
    reverse_program,
    scan_program,
    while_program,
)
from tests.words.word_program import Program, short

CHAIN_SOLVERS = (None, pb.Planned(), pb.Sweep(), pb.Blelloch(), pb.ChunkedCorrections(2))


def draw_program(
    rng: np.random.Generator, *, loops_only: bool = False, front_end: str | None = None
) -> Program:
    """A program of a front end that is drawn, half of them loops of `scan`.

    Args:
      rng: what it is drawn from.
      loops_only: whether its reference is to have a loop of `jax.lax.scan`.
      front_end: the front end, if it is not to be drawn.
    """
    if front_end is not None:
        return FRONT_ENDS[front_end][0](rng)
    names = [name for name in FRONT_ENDS if not loops_only or name in LOOPS]
    weights = np.array([FRONT_ENDS[name][1] for name in names])
    name = names[rng.choice(len(names), p=weights / weights.sum())]
    return FRONT_ENDS[name][0](rng)


def chain_program(rng: np.random.Generator) -> Program:
    """A stack of layers of different sizes, against plain automatic differentiation."""
    solver = CHAIN_SOLVERS[rng.integers(len(CHAIN_SOLVERS))]
    name = list(NETS)[rng.integers(len(NETS))]
    stack, features = NETS[name]
    batch = int(rng.choice([1, 2, len(stack)]))
    shapes = jax.eval_shape(lambda key: layers.init(stack, key, features, float), jax.random.key(0))
    shapes, tree = jax.tree.flatten((shapes, jax.ShapeDtypeStruct((batch, *features), float)))
    leaves = [np.asarray(0.3 + 0.5 * rng.normal(size=s.shape)) for s in shapes]

    def ours(*values):
        return pb.chain(stack, *jax.tree.unflatten(tree, values), solver=solver)

    def reference(*values):
        known = [layers.as_layer(layer) for layer in stack]
        return layers.activations(known, *jax.tree.unflatten(tree, values))[-1]

    text = f"chain {name}[batch={batch}] by {short(solver)}"
    inner = solver if isinstance(solver, pb.Sweep) else None
    scan = functools.partial(pb.scan, solver=inner)
    return Program(text, leaves, len(stack), ours, reference, scan)


NETS: dict[str, tuple[list[Any], tuple[int, ...]]] = {
    "mlp": ([layers.Linear(3), jax.nn.relu, layers.Linear(2)], (2,)),
    "smooth": ([layers.Linear(2), layers.Tanh(), layers.LayerNorm(), layers.Sigmoid()], (3,)),
    "convolutions": (
        [layers.Conv(2, (2,)), jax.nn.gelu, layers.AveragePool((2,)), layers.Flatten()],
        (4, 1),
    ),
    "residual": (
        [layers.Residual((layers.Linear(2), layers.Tanh())), layers.Softmax(), layers.Linear(3)],
        (2,),
    ),
    "functions": (
        [
            layers.Coloured(lambda _, x: x[1:] * x[:-1], [0, 0, 1, 1], [0, 1, 1, 2]),
            layers.Elementwise(jnp.sin),
        ],
        (3,),
    ),
}


def nnx_program(rng: np.random.Generator) -> Program:
    """A recurrent layer of `flax.nnx`, its variables being arguments."""
    solver = SCAN_SOLVERS[rng.integers(len(SCAN_SOLVERS))]
    name = str(rng.choice(["SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"]))
    options = _rnn_options(rng)
    length, batch = _rnn_sizes(rng, solver)

    def layer(kind, **more):
        make = getattr(nnx, name)
        cell = make(2, 3, dtype=float, param_dtype=float, rngs=nnx.Rngs(0))
        return kind(cell, **options, **more)

    leaves, merge = _variables(layer(nnx.RNN), rng)
    ours_graph = nnx.graphdef(layer(parscan_bp.nnx.RNN, solver=solver))
    graph = nnx.graphdef(layer(nnx.RNN))
    leaves.append(rng.normal(size=(batch, length, 2)))

    def function(graph, *values):
        return merge(graph, values[:-1])(values[-1])

    return Program(
        f"nnx.RNN {name}[T={length} batch={batch} {options}] by {short(solver)}",
        leaves,
        length,
        functools.partial(function, ours_graph),
        functools.partial(function, graph),
        functools.partial(pb.scan, solver=solver),
    )


def _variables(model: Any, rng: np.random.Generator):
    """Random numbers for the variables, and a model that has given ones; streams stay."""
    state = nnx.state(model)
    values, tree = jax.tree.flatten(state)
    floats = [k for k, v in enumerate(values) if jnp.issubdtype(v.dtype, jnp.floating)]

    def merge(graph, given):
        full = list(values)
        for k, v in zip(floats, given, strict=True):
            full[k] = v
        return nnx.merge(graph, jax.tree.unflatten(tree, full))

    return [np.asarray(0.5 * rng.normal(size=values[k].shape)) for k in floats], merge


def linen_program(rng: np.random.Generator) -> Program:
    """A recurrent layer of `flax.linen`."""
    solver = SCAN_SOLVERS[rng.integers(len(SCAN_SOLVERS))]
    name = str(rng.choice(["SimpleCell", "GRUCell", "OptimizedLSTMCell"]))
    options = _rnn_options(rng)
    length, batch = _rnn_sizes(rng, solver)

    def layer(kind, **more):
        return kind(getattr(nn, name)(3, dtype=float, param_dtype=float), **options, **more)

    reference, ours = layer(nn.RNN), layer(parscan_bp.linen.RNN, solver=solver)
    x = jax.ShapeDtypeStruct((batch, length, 2), float)
    shapes, tree = jax.tree.flatten(jax.eval_shape(reference.init, jax.random.key(0), x))
    leaves = [np.asarray(0.5 * rng.normal(size=s.shape)) for s in (*shapes, x)]

    def function(layer, *values):
        return layer.apply(jax.tree.unflatten(tree, values[:-1]), values[-1])

    return Program(
        f"linen.RNN {name}[T={length} batch={batch} {options}] by {short(solver)}",
        leaves,
        length,
        functools.partial(function, ours),
        functools.partial(function, reference),
        functools.partial(pb.scan, solver=solver),
    )


def _rnn_options(rng: np.random.Generator) -> dict[str, bool]:
    names = ("return_carry", "reverse", "time_major")
    return {name: True for name in names if rng.random() < 0.4}


def _rnn_sizes(rng: np.random.Generator, solver: Any) -> tuple[int, int]:
    if solver is None and rng.random() < 0.7:
        return 40, 8
    length = int(rng.choice([1, 3, 4, 5]))
    return length, int(rng.choice([2, length]))


def sequential_program(rng: np.random.Generator) -> Program:
    """A `Sequential` of `flax.nnx`, whose known layers are a chain."""
    solver = CHAIN_SOLVERS[rng.integers(len(CHAIN_SOLVERS))]
    batch = int(rng.choice([1, 2, 3]))

    def model(kind, **more):
        sizes = {"dtype": float, "param_dtype": float, "rngs": nnx.Rngs(0)}
        first, last = nnx.Linear(2, 3, **sizes), nnx.Linear(3, 2, **sizes)
        return kind(first, nnx.relu, nnx.softmax, jnp.sin, last, **more)

    leaves, merge = _variables(model(nnx.Sequential), rng)
    ours_graph = nnx.graphdef(model(parscan_bp.nnx.Sequential, solver=solver))
    graph = nnx.graphdef(model(nnx.Sequential))
    leaves.append(rng.normal(size=(batch, 2)))

    def function(graph, *values):
        return merge(graph, values[:-1])(values[-1])

    return Program(
        f"nnx.Sequential[batch={batch}] by {short(solver)}",
        leaves,
        5,
        functools.partial(function, ours_graph),
        functools.partial(function, graph),
        pb.scan,
    )


FRONT_ENDS: dict[str, tuple[Callable[[np.random.Generator], Program], float]] = {
    "scan": (scan_program, 6),
    "chain": (chain_program, 2),
    "nnx.RNN": (nnx_program, 1.5),
    "linen.RNN": (linen_program, 1),
    "nnx.Sequential": (sequential_program, 0.5),
    "while_loop": (while_program, 0),
    "native scan": (native_program, 0),
    "custom_vjp_scan": (reverse_program, 0),
}
"""How a program is drawn, and how often beside the others."""

REVERSE_ONLY = ("custom_vjp_scan",)
"""Those without forward-mode derivatives."""

LOOPS = ("scan", "nnx.RNN", "linen.RNN")
"""Those whose reference has a loop of `jax.lax.scan`."""

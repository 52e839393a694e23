"""Programs of each front end, as functions of arrays: ours, and what it replaces."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
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
from tests.words.steps import CELLS, STEPS, Parts, Sizes

SCAN_SOLVERS = (
    None,
    None,
    pb.Sweep(),
    pb.Sweep(recompute=False),
    pb.Sweep(chunk=2),
    pb.Blelloch(),
    pb.Chunked(chunks=2),
    pb.ChunkedCorrections(2),
    pb.Associative(),
)
NATIVE = (
    {"forward": "fused"},
    {"forward": "fused", "solver": pb.Sweep()},
    {"forward": "fused", "solver": pb.Blelloch()},
    {"solver": pb.Sweep(native=True)},
)
"""Scans whose loops are native functions: both, or that of the backward pass alone."""
NATIVE_STEPS = ("coupled", "elementwise", "gates", "two_carries", *CELLS)
"""Of those that become native, all but such as give out what is the same in all rows of a batch:
there, the gradient of a `custom_vjp` around is wrong (findings/custom_vjp_counts_shared_output.sh),
but for native functions, whose outputs all have the batch's axis."""
CHAIN_SOLVERS = (None, pb.Planned(), pb.Sweep(), pb.Blelloch(), pb.ChunkedCorrections(2))


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of arrays, written twice.

    Attributes:
      text: how it is printed.
      leaves: its arguments.
      length: its number of steps.
      ours: by the package.
      reference: by `lax.scan`, Flax, or plain automatic differentiation.
      scan: the package's scan by the same solver, for loops around.
      low: whether numbers are rounded to bfloat16 on the way.
    """

    text: str
    leaves: Sequence[np.ndarray]
    length: int
    ours: Callable[..., Any]
    reference: Callable[..., Any]
    scan: Callable[..., Any]
    low: bool = False


def _short(solver: Any) -> str:
    """A solver without what it has anyway."""
    if solver is None:
        return "None"
    own = [
        f"{f.name}={getattr(solver, f.name)!r}"
        for f in dataclasses.fields(solver)
        if getattr(solver, f.name) != f.default
    ]
    return f"{type(solver).__name__}({', '.join(own)})"


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


def scan_program(rng: np.random.Generator) -> Program:
    name = list(STEPS)[rng.integers(len(STEPS))]
    solver = SCAN_SOLVERS[rng.integers(len(SCAN_SOLVERS))]
    # Steps that are smaller are left to lax.scan by solver=None.
    wide = solver is None and rng.random() < 0.9
    return _scan_program(rng, name, {"solver": solver}, wide)


def native_program(rng: np.random.Generator) -> Program:
    """A loop of native functions; values of `forward="fused"` are those of `lax.scan` rounded."""
    name, how = NATIVE_STEPS[rng.integers(len(NATIVE_STEPS))], NATIVE[rng.integers(len(NATIVE))]
    return _scan_program(rng, name, how, rng.random() < 0.2)


NO_REVERSE_STEPS = ("reverse_mode_only", "own_inner_loop", "loop_in_a_rule")
"""The rule of the first is not linear, so that it matters whether cotangents of what is the same in
all rows of a batch are added before it or after; the others would have one such loop in another,
which named solvers refuse."""


def reverse_program(rng: np.random.Generator) -> Program:
    """A loop of `custom_vjp_scan`; those around it are of `scan`."""
    names = [name for name in STEPS if name not in NO_REVERSE_STEPS]
    name = names[rng.integers(len(names))]
    how = {"solver": SCAN_SOLVERS[rng.integers(len(SCAN_SOLVERS))]}
    return _scan_program(rng, name, how, rng.random() < 0.1, pb.custom_vjp_scan)


def _scan_program(
    rng: np.random.Generator,
    name: str,
    how: Mapping[str, Any],
    wide: bool,
    loop: Callable[..., Any] = pb.scan,
) -> Program:
    """A loop over a step of that name, with these options."""
    length, hidden, rows = int(rng.choice([1, 3, 4, 5])), int(rng.choice([2, 3])), 0
    if rng.random() < 0.5:
        rows = int(rng.choice([2, length]))
    if wide:
        length, hidden, rows = 6, 3, 100
    parts = STEPS[name](Sizes(rng, length, hidden, rows))
    if not parts.solvable:
        how = {"solver": None}
    solver = how.get("solver")
    by = _short(solver) + ", fused" * (how.get("forward") == "fused")
    outputs = str(rng.choice(["own", "none", "carry", "mixed"]))
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["reverse"] = True
    if rng.random() < 0.2:
        options["unroll"] = [2, True][rng.integers(2)]
    inputs = name in CELLS or rng.random() < 0.85
    leaves, function = _loop(parts, length, "own" if name in CELLS else outputs, inputs, options)
    text = f"scan {name}[T={length} H={hidden} rows={rows} ys={outputs} {options}"
    return Program(
        f"{text}{'' if inputs else ' no xs'}] by {by}",
        leaves,
        length,
        functools.partial(function, functools.partial(loop, **how)),
        functools.partial(function, jax.lax.scan),
        functools.partial(pb.scan, solver=solver),
        "bfloat16" in name,
    )


def _loop(parts: Parts, length: int, outputs: str, inputs: bool, options: dict[str, Any]):
    """The leaves of a loop, and the loop as a function of a scan and of them."""
    xs = parts.xs if inputs else {name: v[0] for name, v in parts.xs.items()}
    leaves, tree = jax.tree.flatten((parts.params, parts.init, xs))

    def function(scan, *values):
        params, init, xs = jax.tree.unflatten(tree, values)
        xs = xs.get("", xs)
        own = parts.step(scan, params)

        def step(c, x):
            new, y = own(c, x if inputs else xs)
            return new, {"none": None, "carry": new, "mixed": (new, c, y)}[outputs]

        init = parts.start(init)
        loop = own if outputs == "own" and inputs else step
        if inputs:
            return scan(loop, init, xs, **options)
        return scan(step, init, length=length, **options)

    if outputs == "own" and not inputs:
        outputs = "mixed"
    return leaves, function


LONGEST = 16
"""Steps of a while loop, whose number grows along mapped axes."""


def while_program(rng: np.random.Generator) -> Program:
    """A loop whose number of steps is a leaf, against one of so many steps that are masked."""
    name = list(STEPS)[rng.integers(len(STEPS))]
    parts = STEPS[name](Sizes(rng, LONGEST, int(rng.choice([2, 3])), 0))
    solver = SCAN_SOLVERS[rng.integers(len(SCAN_SOLVERS))] if parts.solvable else None
    bound = int(rng.choice([LONGEST, 40]))  # one stretch, and several
    steps = int(rng.integers(0, 5))
    constant, counts = {name: v[0] for name, v in parts.xs.items()}, np.full(2, steps, np.int32)
    leaves, tree = jax.tree.flatten((parts.params, parts.init, constant, counts))

    def function(loop, *values):
        params, init, x, counts = jax.tree.unflatten(tree, values)
        own, x = parts.step(jax.lax.scan, params), x.get("", x)
        return loop(lambda c: own(c, x)[0], parts.start(init), jnp.max(counts))

    how = {"max_steps": bound, "solver": solver}
    return Program(
        f"while_loop {name}[n={steps} of {bound}] by {_short(solver)}",
        leaves,
        3,
        functools.partial(function, functools.partial(_while, how)),
        functools.partial(function, _masked),
        jax.lax.scan,
        "bfloat16" in name,
    )


def _while(how, body, init, steps):
    step = lambda s: (body(s[0]), s[1] + 1)  # noqa: E731
    return pb.while_loop(lambda s: s[1] < steps, step, (init, jnp.int32(0)), **how)[0]


def _masked(body, init, steps):
    def step(c, t):
        return jax.tree.map(lambda a, b: jnp.where(t < steps, a, b), body(c), c), None

    return jax.lax.scan(step, init, jnp.arange(LONGEST))[0]


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

    text = f"chain {name}[batch={batch}] by {_short(solver)}"
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
        f"nnx.RNN {name}[T={length} batch={batch} {options}] by {_short(solver)}",
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
        f"linen.RNN {name}[T={length} batch={batch} {options}] by {_short(solver)}",
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
        f"nnx.Sequential[batch={batch}] by {_short(solver)}",
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

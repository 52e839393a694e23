"""Programs of loops, as functions of arrays: ours, and those of `jax.lax`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from tests.words.steps import CELLS, STEPS, Parts, Sizes
from tests.words.word_program import Program, short

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
    by = short(solver) + ", fused" * (how.get("forward") == "fused")
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
        f"while_loop {name}[n={steps} of {bound}] by {short(solver)}",
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

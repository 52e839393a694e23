"""The rows of the matrix of modes: front ends, each by solver, method or layer.

A problem is called through a front end, and through what that is to agree with. The modes ask of
a problem what `parscan_bp.conformance.Problem` has, so that any front end is differentiated in all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parscan_bp as pb
import parscan_bp.linen
from parscan_bp.layers import (
    AveragePool,
    BatchNorm,
    Conv,
    ConvTranspose,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    Sigmoid,
    Softmax,
    Tanh,
    activations,
    as_layer,
    init,
)
from tests.family import FEATURES, Problem, StepCase, step_cases
from tests.forward.methods import METHODS
from tests.solvers.solver_table import SOLVERS

NOT_IN_EVERY_MODE = {"custom_vjp", "false_tangent", "while", "effects"}
FORGET = ("elman", "gru", "min_gru", "lstm", "layer_norm")


class Stack(Problem):
    """``f`` are layers, ``xs`` is a batch."""

    def run(self, scan):
        return (), scan(self.f, self.params, self.xs)


class Recurrent(Problem):
    """``f`` is a cell of Flax, ``params`` are its variables."""

    def run(self, scan):
        return (), scan.RNN(self.f, return_carry=True).apply(self.params, self.xs)


@dataclasses.dataclass(frozen=True)
class Row:
    """A front end.

    Attributes:
      ours: what problems are called through.
      theirs: what it has to agree with.
      problems: makers of problems, by name.
      floor: of the tolerance, where more is lost than by rounding.
      without: modes that are of other front ends, or would be a loop of methods in a method.
      double: whether in double precision, where a method converges to its rounding.
    """

    ours: Any
    theirs: Any
    problems: dict[str, Callable[[], Problem]]
    floor: float = 0.0
    without: tuple[str, ...] = ()
    double: bool = False


# With this seed the first 30 cases deal every flag, feature and way to call.
FAMILY = step_cases(240, seed=1109)


def _covering(cases: list[StepCase]) -> dict[str, StepCase]:
    """Some that have every feature, the one with most of what is missing first.

    Their number is odd, so that by twos all are gone through.
    """
    found, missing = {}, set(FEATURES)
    while missing:
        most = max(cases, key=lambda case: len(missing & set(case.features)))
        found[most.name] = most
        missing -= set(most.features)
    if len(found) % 2 == 0:
        more = next(case for case in cases if case.name not in found)
        found[more.name] = more
    return found


# What `lax.scan` has every mode of, and what no solver refuses.
CASES = _covering([c for c in FAMILY[:60] if not c.flags & NOT_IN_EVERY_MODE and 1 < c.length < 10])
# Methods take floating-point carries that forget.
FORGETTING = {c.name: c for c in FAMILY if not c.flags and c.step in FORGET and 2 < c.length < 10}
# Together they have every layer that a tree takes.
NETS = {
    "convolutions": (
        [Conv(3, (2,)), ReLU(), MaxPool((2,)), Flatten(), Linear(3), Softmax()],
        (6, 2),
    ),
    "averages": (
        [
            ConvTranspose(2, (2,), 2),
            LayerNorm(),
            AveragePool((2,)),
            Sigmoid(),
            Flatten(),
            Linear(2),
        ],
        (4, 2),
    ),
    "residual": ([Residual((Linear(3), Tanh())), BatchNorm(), Linear(4), jax.nn.gelu], (3,)),
}
CELLS = {
    "LSTMCell": flax.linen.LSTMCell,
    "GRUCell": flax.linen.GRUCell,
    "SimpleCell": flax.linen.SimpleCell,
}


def _stack(name: str) -> Stack:
    layers, features = NETS[name]
    rng = np.random.default_rng(len(name))
    shapes = jax.eval_shape(lambda key: init(layers, key, features), jax.random.key(0))

    def draw(a):
        """A variance is positive."""
        signs = rng.choice([-1, 1], a.shape) if len(a.shape) > 1 else 1
        return jnp.asarray(signs * rng.uniform(0.2, 1, a.shape), float)

    x = jnp.asarray(rng.normal(size=(3, *features)), float)
    return Stack(tuple(layers), jax.tree.map(draw, shapes), (), x, {})


def _recurrent(name: str) -> Recurrent:
    cell, rng = CELLS[name](3, param_dtype=float), np.random.default_rng(0)
    draw = lambda a: jnp.asarray(0.5 * rng.normal(size=a.shape), float)  # noqa: E731
    x = draw(np.empty((2, 5, 2)))
    shapes = jax.eval_shape(flax.linen.RNN(cell).init, jax.random.key(0), x)
    return Recurrent(cell, jax.tree.map(draw, shapes), (), x, {})


def _plain(layers, params, x):
    return activations([as_layer(layer) for layer in layers], params, x)[-1]


def _made(make: Callable[..., Problem], names: Any) -> dict[str, Callable[[], Problem]]:
    return {name: functools.partial(make, name) for name in names}


_SCANS = {name: case.make for name, case in CASES.items()}
_SCAN_SOLVERS = {
    **{name: s for name, s in SOLVERS.items() if s.uniform},
    "none": None,
    "keeping": pb.Sweep(recompute=False),
    "collecting": pb.Associative(collect_chunk=4),
}
_CHAIN_SOLVERS = {**{name: s for name, s in SOLVERS.items() if s.ragged}, "none": None}
# What iterates to a tolerance.
_FLOORS = {"bicgstab": 1e-2}


def rows() -> dict[str, Row]:
    """By front end and solver, method or library."""
    made = {}
    for name, solver in _SCAN_SOLVERS.items():
        scan = functools.partial(pb.scan, solver=solver)
        made[f"scan by {name}"] = Row(scan, lax.scan, _SCANS, _FLOORS.get(name, 0.0))
    for name, method in METHODS.items():
        if method.derivatives:
            scan = functools.partial(pb.scan, forward=method.method)
            problems = {step: case.make for step, case in FORGETTING.items()}
            made[f"scan through {name}"] = Row(scan, lax.scan, problems, 1e-9, ("nested",), True)
    for name, solver in _CHAIN_SOLVERS.items():
        chain, stacks = functools.partial(pb.chain, solver=solver), _made(_stack, NETS)
        made[f"chain by {name}"] = Row(chain, _plain, stacks, _FLOORS.get(name, 0.0), ("nested",))
    linen = _made(_recurrent, CELLS)
    made["linen"] = Row(parscan_bp.linen, flax.linen, linen, 0.0, ("nested",))
    return made

"""While loops: time and memory of a value and its gradient, beside equinox and a known length.

A loop of n steps whose end is in its carry, and that may run `bound` of them: ours as it comes and
under limits, `equinox.internal.while_loop(kind="checkpointed")`, where equinox is installed, with
as many checkpoints as fit into the same memory, and `jax.lax.scan` of n steps, which knows what the
others find out. Gradients are compared first.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import parscan_bp as pb
from bench.shared import programs, sides, tables
from bench.shared.bench import Bench, Named, Option, Options, Result, racing

SCAN, ALONE, EQUINOX = "lax.scan of n", "ours", "equinox"
LIMITS = (3.0, 0.5)
"""Beside what ours takes as it comes: parts of that."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A loop of n steps.

    Attributes:
        step: ``(weights, carry) -> carry``.
        weights, carry: what it begins with; the weights are differentiated.
        steps: n.
        bound: the most steps that it may run.
    """

    step: Callable
    weights: Any
    carry: Any
    steps: int
    bound: int

    def program(self, loop: Callable) -> programs.Program:
        """The value and its gradient by a loop ``(cond, body, init) -> carry``."""

        def total(weights, carry, steps):
            body = lambda s: (self.step(weights, s[0]), s[1] + 1)  # noqa: E731
            last, _ = loop(lambda s: s[1] < steps, body, (carry, jnp.int32(0)))
            return sum(jnp.sum(a**2) for a in jax.tree.leaves(last))

        run = jax.value_and_grad(total)
        return programs.build(run, self.weights, self.carry, jnp.int32(self.steps))

    def scan(self, cond: Callable, body: Callable, init: Any) -> Any:
        """The loop of n steps that knows n."""
        return lax.scan(lambda c, _: (body(c), None), init, None, length=self.steps)[0]


def vector(key: jax.Array, steps: int, bound: int) -> Case:
    """A carry of 256 numbers, an elementwise step."""
    step = lambda w, h: jnp.tanh(w * h + 0.1 * jnp.roll(h, 1)) + 0.01  # noqa: E731
    return Case(step, jnp.linspace(0.5, 0.9, 256), jnp.linspace(-1, 1, 256), steps, bound)


def gru(key: jax.Array, steps: int, bound: int) -> Case:
    """A GRU of 64 units and a batch of 16, of the same inputs at each step."""
    cell = pb.cells.GRU()
    x = jax.random.normal(key, (16, 1))
    step = lambda p, h: cell(p, h, x)[0]  # noqa: E731
    return Case(step, cell.init(key, 1, 64), jnp.zeros((16, 64)), steps, bound)


def pendulum(key: jax.Array, steps: int, bound: int) -> Case:
    """Positions and speeds, 512 of each."""

    def step(w, state):
        position, speed = state
        speed = 0.99 * speed - 0.1 * jnp.sin(w * position)
        return position + 0.1 * speed, speed

    first = jnp.linspace(-1, 1, 512), jnp.zeros(512)
    return Case(step, jnp.linspace(0.5, 1.5, 512), first, steps, bound)


CASES = {"vector": vector, "gru": gru, "pendulum": pendulum}


def points(options: Options) -> dict[str, Case]:
    """Each program with each number of steps."""
    key = jax.random.key(options.seed)
    return {
        f"{name}, n={steps}": CASES[name](key, steps, options.bound)
        for name in options.programs
        for steps in options.steps
    }


def equinox(bound: int, checkpoints: int, cond: Callable, body: Callable, init: Any) -> Any:
    """The checkpointed loop of equinox."""
    import equinox.internal as eqxi

    how = {"kind": "checkpointed", "checkpoints": checkpoints}
    return eqxi.while_loop(cond, body, init, max_steps=bound, **how)


def _ours(case: Case) -> dict[str, programs.Program]:
    """As it comes, and under limits that are parts of what that takes."""
    loop = functools.partial(pb.while_loop, max_steps=case.bound)
    made = {ALONE: case.program(loop)}
    for part in LIMITS:
        limit = int(part * made[ALONE].temp_bytes)
        try:
            limited = case.program(functools.partial(loop, memory_limit=limit))
        except ValueError:  # below the least
            continue
        made[f"ours, {part:g} of that"] = limited
    return made


def measure(case: Case, options: Options) -> Result:
    """Compares gradients, then times all."""
    ours = _ours(case)
    made = {SCAN: case.program(case.scan), **ours}
    if importlib.util.find_spec("equinox") is not None and options.equinox:
        carry = sum(a.nbytes for a in jax.tree.leaves(case.carry))
        for name, mine in ours.items():
            checkpoints = max(2, min(mine.temp_bytes // carry, case.bound))
            loop = functools.partial(equinox, case.bound, checkpoints)
            made[name.replace(ALONE, EQUINOX)] = case.program(loop)
    want = made[SCAN].call()
    errors = {name: programs.check_equal(want, p.call(), 1e-3, name) for name, p in made.items()}
    found = sides.raced(made, SCAN, options)
    for name, entry in found.items():
        entry["difference"] = errors[name]
    return {"steps": case.steps, "bound": case.bound, "sides": found}


def text(result: Result) -> str:
    """A table for each program."""
    parts = []
    for name, entry in result["points"].items():
        rows = []
        for side, found in entry["sides"].items():
            pair = found["comparison"]
            speed = ["", ""] if pair is None else [tables.medians(pair)[1], tables.speedup(pair)]
            size, seconds = tables.size(found["temp_bytes"]), found["compile_seconds"]
            rows.append([side, size, f"{seconds:.1f} s", *speed])
        header = ["", "temporary", "compiling", "time", f"{SCAN} / it [95 %]"]
        parts.append(f"{name}\n{tables.table(header, rows)}")
    return "\n\n".join(parts)


BENCH = Bench(
    "loops",
    __doc__,
    baseline="jax.lax.scan",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    options=(
        Option("programs", list(CASES), choices=list(CASES)),
        Option("steps", [20, 1000, 50_000], "steps that run", kind=int),
        Option("bound", 1_000_000, "steps that may run"),
        Option("equinox", True, "whether equinox takes part", kind=lambda v: v != "no"),
        Option("seed", 0),
        *racing(5, 2, 20.0),
    ),
    quick={"steps": [20], "bound": 1000},
    fixed=("seed", "bound"),
)

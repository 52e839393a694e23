"""Measured: every step of the scans over VGG-11, and whole activation-gradient chains.

Given are the activations; computed are the cotangents that the weights' gradients need, those of
every convolution's output. The first convolution's Jacobian is never needed.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bench import programs, schedules, timing
from bench.schedules import APPLY, Span, Step
from parscan_bp.layers import Conv, Layer, activations, adjoint_operators
from parscan_bp.operators import Convolution, Operator, compose, unpacked
from parscan_bp.planner import Plan, Schedule, run
from parscan_bp.planner.outlook import steps
from parscan_bp.planner.schedule import span
from parscan_bp.solvers import Planned
from parscan_bp.sparsity import Pattern
from parscan_bp.system import Ragged

VJP, PLANNED = "XLA's VJP", "planned"
_ROUNDS = 15


@dataclasses.dataclass(frozen=True)
class Chain:
    """The backward chain of some layers for given activations.

    Attributes:
        layers: the first is not differentiated.
        params: of these layers.
        xs: activations, the input first.
        system: of the layers after the first, convolutions of pruned kernels with their masks.
        ct: cotangent of the last activation.
    """

    layers: Sequence[Layer]
    params: Any
    xs: list[jax.Array]
    system: Ragged
    ct: jax.Array

    @property
    def convolutions(self) -> list[int]:
        """Positions of convolutions among the operators."""
        found = enumerate(self.system.operators)
        return [t for t, op in found if isinstance(op, Convolution)]


def chain(layers: Sequence[Layer], params: Any, images: jax.Array, *, masked: bool) -> Chain:
    """The chain for a batch of images.

    Args:
        layers: the convolutional part, or the first layers of it.
        params: of these layers.
        images: (B, size, size, 3).
        masked: whether zeros of the kernels are known.
    """

    @jax.jit
    def make(params: Any, images: jax.Array) -> tuple[list[jax.Array], list[Operator]]:
        xs = activations(layers, params, images)
        return xs, adjoint_operators(layers, params, xs)

    xs, operators = make(params, images)
    ct = jax.random.normal(jax.random.key(0), xs[-1].shape)
    if masked:
        operators = [_masked(op) for op in operators]
    g = [None] * (len(layers) - 1) + [ct.reshape(len(ct), -1)]
    wanted = [k for k, layer in enumerate(layers) if isinstance(layer, Conv)]
    return Chain(layers, params, xs, Ragged(operators[1:], g, wanted), ct)


def xla_vjp(of: Chain) -> tuple[Callable[..., list[jax.Array]], Any]:
    """JAX's own pullback to the output of every convolution, and the residuals it takes."""

    def forward(outputs: list[jax.Array]) -> jax.Array:
        x, moved = of.xs[0], iter(outputs)
        for layer, own in zip(of.layers, of.params, strict=True):
            x = layer.apply(own, x)
            x = x + next(moved) if isinstance(layer, Conv) else x
        return x

    rows = zip(of.layers, of.xs[1:], strict=True)
    zeros = [jnp.zeros_like(y) for layer, y in rows if isinstance(layer, Conv)]
    _, pullback = jax.vjp(forward, zeros)
    return lambda pullback, ct: pullback(ct)[0], pullback


def scan(of: Chain, schedule: Schedule, unpacking: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """The same vectors by a schedule."""
    wanted = of.system.wanted or ()

    def cotangents(operators: list[Operator], ct: jax.Array) -> list[jax.Array]:
        g = [None] * len(operators) + [ct]
        found = run(schedule, operators, g, unpacking)
        return [_vector(found[t]) for t in wanted]

    return cotangents


def paper_schedule(steps: Sequence[Step], n: int) -> Schedule:
    """Steps of Algorithm 1 over n operators and the first layer's, as the planner writes them."""
    # Factor k of the scan is operator n - k; products are written first layers left.
    trees: dict[Span, Any] = {(k, k): n - k for k in range(1, n + 1)}
    for step in steps:
        if step.split is not None:
            left, right = step.operands
            trees[step.span] = (trees[left], trees[right])
    return Schedule(n, tuple(trees[step.span] for step in steps if step.kind == APPLY))


def chains(of: Chain, names: Sequence[str], most: float) -> dict[str, Any]:
    """Times XLA's VJP, the linear scan, truncated and whole scans, and the plan.

    Args:
        of: the chain.
        names: of the operators.
        most: flops of a single step above which a scan is not run.

    Raises:
        FloatingPointError: a scan's cotangents are not XLA's.
    """
    plan = plan_of(of).named(names)
    pull, residuals = xla_vjp(of)
    ct = of.ct.reshape(len(of.ct), -1)
    made = {VJP: programs.build(pull, residuals, of.ct)}
    n = len(of.system.operators)
    left_out = {}
    todo = {PLANNED: (plan.schedule, plan.unpacked)}
    for levels in range(schedules.depth(n + 1) + 1):
        schedule = paper_schedule(schedules.truncated(n + 1, levels), n)
        largest = _largest(plan, schedule)
        name = "linear" if levels == 0 else f"L_m = {levels}"
        if largest > most:
            left_out[name] = f"a step takes {largest:.1e} flop"
        else:
            todo[name] = (schedule.only(of.system.wanted or ()), of.convolutions)
    for name, (schedule, unpacking) in tqdm(todo.items(), desc="compiling", unit="scan"):
        made[name] = programs.build(scan(of, schedule, unpacking), of.system.operators, ct)
    wanted = [v.reshape(len(v), -1) for v in made[VJP].call()]
    allowed = 1e-5 * np.sqrt(max(v.shape[1] for v in wanted))
    errors = {
        name: programs.check_equal(wanted, own.call(), float(allowed), name)
        for name, own in made.items()
        if name != VJP
    }
    outcome = timing.race(
        {"chain": made[VJP].call},
        {name: {"chain": made[name].call} for name in errors},
        rounds=_ROUNDS,
        min_rounds=5,
        budget=10.0,
    )
    return {
        "errors": errors,
        "left_out": left_out,
        "times": {name: outcome.compare(name, "chain").to_json() for name in errors},
        "programs": {name: own.to_json() for name, own in made.items()},
        "plan": str(plan).splitlines(),
        "plan_steps": plan_alone(of, plan, names),
    }


def steps_alone(
    of: Chain, flops: dict[str, list[float]], most: float
) -> dict[str, list[float | None]]:
    """Seconds of each step of every scan, alone, for one image; ``None`` where it is not run.

    Convolutions are matrices here: blocks of channels, or single entries of pruned kernels.

    Args:
        of: the chain.
        flops: of each step, by the number of levels.
        most: flops above which a step is not run, nor what needs its product.
    """
    n = len(of.system.operators)
    one = [_unpacked(op.take(0)) for op in of.system.operators]
    spans: dict[Span, Any] = {(n - t, n - t): op for t, op in enumerate(one)}
    seconds: dict[Any, float | None] = {}
    found = {}
    for levels, costs in flops.items():
        scan_steps = schedules.truncated(n + 1, int(levels))
        progress = zip(scan_steps, costs, strict=True)
        for step, cost in tqdm(progress, total=len(scan_steps), desc=f"steps of L_m = {levels}"):
            if (step.kind, step.operands) not in seconds:
                parts = [spans.get(span) for span in step.operands]
                fits = cost <= most and all(part is not None for part in parts)
                seconds[step.kind, step.operands] = _alone(step, parts, spans) if fits else None
        found[levels] = [seconds[step.kind, step.operands] for step in scan_steps]
    return found


def _alone(step: Step, parts: list[Any], spans: dict[Span, Any]) -> float:
    if step.kind == APPLY:
        (operator,) = parts
        vector = jnp.ones(operator.shape[1], operator.dtype)
        return timing.seconds_per_call(functools.partial(_matvec, operator, vector))
    left, right = parts
    spans[step.span] = _compose(right, left)
    return timing.seconds_per_call(functools.partial(_compose, right, left))


@jax.jit
def _unpacked(operator: Operator) -> Operator:
    return unpacked(operator)


@jax.jit
def _compose(a: Operator, b: Operator) -> Operator:
    return compose(a, b)


@jax.jit
def _matvec(operator: Operator, vector: jax.Array) -> jax.Array:
    return operator.matvec(vector)


def plan_alone(of: Chain, plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    """Every operation of a plan, alone: its operators, counted flops and seconds."""
    made: dict[Any, Operator] = dict(enumerate(of.system.operators))
    formed: dict[Any, Operator] = {}
    found = []
    for step in plan.steps:
        tree, (i, j) = step.tree, span(step.tree)
        if step.kind == "product":
            call = functools.partial(_compose, made[tree[1]], made[tree[0]])
            made[tree] = call()
        elif step.kind == "form":
            call = functools.partial(_unpacked, made[tree])
            formed[tree] = call()
        else:
            operator = formed.get(tree, made[tree])
            vectors = jnp.ones((len(of.ct), operator.shape[1]), operator.dtype)
            call = functools.partial(_matvec, operator, vectors)
        found.append(
            {
                "kind": step.kind,
                "name": names[i] if j - i == 1 else f"{names[i]}..{names[j - 1]}",
                "structure": type(step.task.operator).__name__,
                "flops": step.task.cost.flops,
                "seconds": timing.seconds_per_call(call),
            }
        )
    return found


def layers_alone(of: Chain) -> list[float]:
    """Seconds of XLA's own VJP of each layer after the first, from the last to the first."""
    found = []
    rows = zip(of.layers[1:], of.params[1:], of.xs[1:-1], strict=True)
    for layer, own, x in list(rows)[::-1]:
        y, pullback = jax.vjp(functools.partial(layer.apply, own), x)
        run = jax.jit(lambda pullback, ct: pullback(ct))
        found.append(timing.seconds_per_call(functools.partial(run, pullback, jnp.ones_like(y))))
    return found


def product_rate(size: int = 1024) -> float:
    """Flop per second of a large float32 matrix product."""
    a = jax.random.normal(jax.random.key(0), (size, size))
    return 2 * size**3 / timing.seconds_per_call(functools.partial(jax.jit(jnp.matmul), a, a))


def plan_of(of: Chain, memory_limit: int | None = None) -> Plan:
    """The planner's schedule for a chain."""
    return Planned(memory_limit=memory_limit).plan(of.system)


def memory(of: Chain, limit: int) -> dict[str, Any]:
    """What a plan under a limit takes, by its own estimate and compiled, and a whole scan would.

    Raises:
        ValueError: no schedule keeps the limit.
    """
    plan = plan_of(of, limit)
    ct = of.ct.reshape(len(of.ct), -1)
    program = programs.build(scan(of, plan.schedule, plan.unpacked), of.system.operators, ct)
    whole = plan.baselines["Blelloch()"]
    least = plan_of(of).baselines["linear"]
    return {
        "limit": limit,
        "planned_bytes": plan.outlook.bytes,
        "compiled_bytes": program.peak_bytes,
        "linear_bytes": None if least is None else least.bytes,
        "whole_scan_bytes": None if whole is None else whole.bytes,
    }


def _largest(plan: Plan, schedule: Schedule) -> float:
    """Flops of the largest step, infinite where a product is too large to be planned."""
    found = steps(schedule, plan.table)
    return float("inf") if found is None else max(step.task.cost.flops for step in found)


def _masked(operator: Operator) -> Operator:
    if not isinstance(operator, Convolution):
        return operator
    kernel = np.asarray(operator.kernel)
    return dataclasses.replace(
        operator, mask=Pattern.from_mask(kernel.reshape(-1, kernel.shape[-1]) != 0)
    )


def _vector(v: jax.Array | None) -> jax.Array:
    assert v is not None
    return v

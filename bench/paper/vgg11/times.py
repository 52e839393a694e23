"""Measured seconds of VGG-11's backward chain: every step of every scan, and whole scans."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bench.paper.vgg11 import schedules
from bench.paper.vgg11.chain import Chain, paper_schedule, plan_of, scan, xla_vjp
from bench.paper.vgg11.schedules import APPLY, Span, Step
from bench.shared import programs, timing
from parscan_bp.operators import Operator, compose
from parscan_bp.planner import Plan, ProductOrder
from parscan_bp.planner.outlook import steps

VJP, PLANNED = "XLA's VJP", "planned"
_ROUNDS = 15


def chains(of: Chain, most: float) -> dict[str, Any]:
    """Times XLA's VJP, the linear scan, truncated and whole scans, and the plan.

    Args:
        of: the chain.
        most: flops of a product above which a scan is not run.

    Raises:
        FloatingPointError: a scan's cotangents are not XLA's.
    """
    plan = plan_of(of)
    pull, residuals = xla_vjp(of)
    ct = of.ct.reshape(len(of.ct), -1)
    made = {VJP: programs.build(pull, residuals, of.ct)}
    n = len(of.system.operators)
    left_out = []
    todo = {PLANNED: (plan.schedule, plan.unpacked)}
    for levels in range(schedules.depth(n + 1) + 1):
        schedule = paper_schedule(schedules.truncated(n + 1, levels), n)
        schedule = schedule.only(of.system.wanted or ())
        name = "linear" if levels == 0 else f"L_m = {levels}"
        if _fits(plan, schedule, most):
            todo[name] = (schedule, of.convolutions)
        else:
            left_out.append(name)
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
        "programs": programs.to_json(made),
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
    return operator.unpacked()


@jax.jit
def _compose(a: Operator, b: Operator) -> Operator:
    return compose(a, b)


@jax.jit
def _matvec(operator: Operator, vector: jax.Array) -> jax.Array:
    return operator.matvec(vector)


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
    a = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    return 2 * size**3 / timing.seconds_per_call(functools.partial(jax.jit(jnp.matmul), a, a))


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


def _fits(plan: Plan, schedule: ProductOrder, most: float) -> bool:
    """Whether no product takes more flops; patterns of larger ones are not even looked for."""
    found = steps(schedule, plan.table, most / plan.table.machine.entries)
    if found is None:
        return False
    return all(step.task.cost.flops <= most for step in found if step.kind == "product")

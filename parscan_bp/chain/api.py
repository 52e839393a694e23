"""`chain`: a feed-forward stack with derivatives by a solver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parscan_bp.arguments import as_array, check_array, check_bool, check_concrete, described
from parscan_bp.chain.rule import ChainRule, obstacle
from parscan_bp.chain.stages import Stages, in_stages, run_in_stages
from parscan_bp.choice.machine import known_machine
from parscan_bp.layers import Layer, adjoint_operators
from parscan_bp.layers.base import flat
from parscan_bp.layers.closures import reads_traced, with_closed_over
from parscan_bp.layers.keys import key_of
from parscan_bp.layers.registry import as_stack
from parscan_bp.layers.stack import batched_activations, checked_input, checked_params
from parscan_bp.planner import Plan
from parscan_bp.report import report_on_values
from parscan_bp.solve import solve_upper
from parscan_bp.solvers import Planned, Solver, check_nothing_in_the_way, check_solver
from parscan_bp.system import Ragged
from parscan_bp.types import Array, PyTree


def chain(
    layers: Sequence[Any],
    params: Sequence[PyTree],
    x: Array,
    *,
    solver: Solver | None = None,
    report: bool = False,
) -> Any:
    """The value of a stack of layers of any sizes, its derivatives by a bi-diagonal system.

    x_0 = x, x_k = layers[k - 1](x_{k-1}; params[k - 1]). The derivatives of x_n, of every order
    and mode, come from

        lambda_{k-1} = g_{k-1} + A_k lambda_k,    A_k = (d x_k / d x_{k-1})^T    (BPPSA eq. 3)

    with the layers' analytic A_k, solved by ``solver``, and from one pullback per layer for the
    parameters. Activations are stored. Of a stack whose input is not differentiated the first
    A_1 is never made, nor any A_k up to the first layer with parameters that are.

    What layers close over may be traced, as by a `jax.grad` around the call: it counts as a
    parameter. All else that they close over is read when the stack is traced, as under `jax.jit`.

    Where the rule of a layer's `jax.custom_jvp` returns a value that is no call of its function, as
    one with a surrogate slope may, later derivatives of the activations are those of that value,
    and JAX's own: no layer has an operator for it.

    Layers share parameters where the same arrays stand in ``params`` twice; their cotangents
    add up.

    Args:
      layers: layers of `parscan_bp.layers`, functions that it knows (`jax.nn.relu`), or objects
        of a registered class.
      params: parameters of each layer; ``None`` for a layer without.
      x: input (batch, *features). The leading axis is the batch, whose entries are independent;
        channels come last.
      solver: `Planned`, `Sweep`, or `Blelloch`, whose ``up_levels`` truncates its up-sweep; or
        `Sharded`, which divides the layers over the devices of a mesh axis (`chain.stages`).
        ``None`` is ``Planned()``, which multiplies what pays and sweeps through the rest, by the
        rates of this machine if `measure_machine` was called on it. A symbolic size (`jax.export`)
        or explicit sharding (`jax.make_mesh`) leaves it to plain automatic differentiation; a named
        solver then gives values only.
      report: whether a `Report` is returned as well. The value is exact; what it tells is how good
        derivatives are. The solver solves the equation above once more, from the first layer with
        parameters on, for cotangents g of all activations that are not special, pseudo-random c and
        -c with a small c, and the residual is that of its lambda. It takes one more forward pass,
        and one more backward pass without parameters; its derivatives are zero. Where the stack is
        left to automatic differentiation, it says whether the value is finite.

    Returns:
      x_n, (batch, *features); with ``report=True`` the pair (x_n, report).

    Raises:
      TypeError: if a layer has no builder, ``solver`` is none, or x is not of real floats.
      ValueError: if sizes do not fit, naming the layer and the shapes.
      NotImplementedError: if the solver takes no systems of different sizes, or, when a
        derivative is taken, not a layer's operator.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.layers import Linear, init
      >>> layers = [Linear(8), jax.nn.relu, Linear(1)]
      >>> params = init(layers, jax.random.key(0), (3,))
      >>> loss = lambda params: pb.chain(layers, params, jnp.ones((4, 3))).sum()
      >>> grads = jax.jit(jax.grad(loss))(params)
      >>> grads[2]["bias"].tolist()
      [4.0]
    """
    stack, params, x, chosen = _checked(layers, params, x, solver)
    check_bool("report", report)
    count = None if solver is None else solver.place.count((params, x))
    if count is not None:
        if report:
            raise NotImplementedError(f"report: {solver!r} makes none of a chain; False is wanted")
        return run_in_stages(*with_closed_over(stack, params, x), x, chosen, count)
    may_be_left = solver is None or solver.leaves_to_lax
    left = may_be_left and obstacle(params, x) is not None
    if left or not stack:
        y = batched_activations(stack, params, x)[-1]
        fell_back = left and solver is not None
        return (y, report_on_values(y, fell_back=fell_back)) if report else y
    rule, params = _rule(stack, chosen, params, x)
    y = rule(params, x)
    return (y, rule.report(params, x)) if report else y


def layer_cotangents(
    layers: Sequence[Any],
    params: Sequence[PyTree],
    x: Array,
    ct: Array,
    *,
    solver: Solver | None = None,
) -> list[Array]:
    """The cotangents of all activations: lambda_k = d (ct . x_n) / d x_k for k = 0..n.

    Args:
      layers, params, x, solver: see `chain`.
      ct: cotangent of the stack's value, in its shape.

    Returns:
      n + 1 arrays, ``[k]`` in the shape of x_k. The first is that of the input, the last ``ct``.

    Raises:
      TypeError: if ``ct`` is no array, or complex where the value is not.
      ValueError: if ``ct`` has another shape than the value.
      TypeError, ValueError, NotImplementedError: as `chain`.

    Source: BPPSA eq. 3.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> x = jnp.array([[-1.0, 2.0]])
      >>> [v.tolist() for v in pb.layer_cotangents([jax.nn.relu], [None], x, jnp.ones((1, 2)))]
      [[[0.0, 1.0]], [[1.0, 1.0]]]
    """
    stack, params, x, solver = _checked(layers, params, x, solver)
    check_nothing_in_the_way(obstacle(params, x), solver)
    xs = batched_activations(stack, params, x)
    ct = as_array("ct", ct)
    check_concrete("ct", ct)
    check_array("ct", ct)
    if jnp.iscomplexobj(ct) and not jnp.iscomplexobj(xs[-1]):
        raise TypeError(f"ct: got {ct.dtype}; real numbers are wanted, as the value is real")
    if ct.shape != xs[-1].shape:
        raise ValueError(f"ct: got shape {ct.shape}; that of the value, {xs[-1].shape}, is wanted")
    g = [jnp.zeros_like(flat(a)) for a in xs[:-1]] + [flat(ct)]
    lambdas = solve_upper(solver, adjoint_operators(stack, params, xs), g)
    return [v.reshape(a.shape).astype(a.dtype) for v, a in zip(lambdas, xs, strict=True)]


def plan_chain(
    layers: Sequence[Any], params: Sequence[PyTree], x: Array, solver: Solver | None = None
) -> Plan | Stages:
    """The plan of the parameters' gradient, see `parscan_bp.explain_chain`."""
    stack, params, x, solver = _checked(layers, params, x, solver, abstract=True)
    count = solver.place.count((params, x))
    if count is not None:
        return in_stages(stack, params, x, solver, count)[0]
    if not isinstance(solver, Planned):  # no other solver makes a plan
        raise TypeError(f"solver: got {described(solver)}; None, Planned() or Sharded is wanted")
    xs = jax.eval_shape(functools.partial(batched_activations, stack), params, x)
    ops = jax.eval_shape(functools.partial(adjoint_operators, stack), params, xs)
    moving = [k for k, own in enumerate(params, start=1) if jax.tree.leaves(own)]
    # The vectors of a stack without parameters are wanted at its input.
    first = moving[0] if moving else 0
    g = [None] * (len(stack) - first) + [jax.eval_shape(flat, xs[-1])]
    plan = solver.plan(Ragged(ops[first:], g, [k - first for k in moving or [0]]))
    names = [f"{k} {layer.label}" for k, layer in enumerate(stack)]
    return plan.named(names[first:])


def _rule(stack, solver, params, x) -> tuple[ChainRule, list[PyTree]]:
    """One rule per stack, so that JAX compiles it once; and its parameters.

    It is remembered by what the stack does, where that is for ever the same; else as long as the
    first layer lives of which it is not.
    """
    keys = [key_of(layer) for layer in stack]
    if None not in keys:
        return _remembered(_Keyed((tuple(keys), solver), stack)), params
    names = tuple(id(a) if key is None else key for a, key in zip(stack, keys, strict=True))
    # In its own dictionary, not in a weak one: a rule holds the layer, and would keep it alive.
    rules = vars(stack[keys.index(None)]).setdefault("_rules", {})
    if (names, solver) not in rules:
        if len(rules) == RULES_PER_LAYER:
            del rules[next(iter(rules))]
        rules[names, solver] = ChainRule(stack, solver)
    rule = rules[names, solver]
    if reads_traced(rule.trace(params, x)):
        del rules[names, solver]
        stack, params = with_closed_over(stack, params, x)
        rule = ChainRule(stack, solver)
    return rule, params


RULES_PER_LAYER = 8
"""Stacks and solvers that are remembered with one layer."""


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """A stack by its solver and what it does."""

    key: Any
    stack: tuple[Layer, ...] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=128)
def _remembered(keyed: _Keyed) -> ChainRule:
    _, solver = keyed.key
    return ChainRule(keyed.stack, solver)


def _checked(layers, params, x, solver, *, abstract=False):
    check_solver(solver, "ragged")
    stack = as_stack(layers)
    params = list(checked_params(stack, params))
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: as_array("params" + jax.tree_util.keystr(path), leaf), params
    )
    if not abstract:
        for leaf in jax.tree.leaves((params, x)):
            check_concrete("params or x", leaf, "; explain_chain takes shapes")
    x = checked_input(x)
    solver = Planned(machine=known_machine()) if solver is None else solver
    solver.check_nothing_kept()
    return stack, params, x, solver

"""The ways of differentiating a scan, by name.

A mode is a function `(scan, problem) -> pytree of arrays` that differentiates the call of
`problem` by `scan`. It may be traced over the problem's float leaves, so several modes compile as
one program (`evaluator`). Cotangents and tangents are random but fixed: they depend on shapes only.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp.conformance.cases import StepCase
from parscan_bp.conformance.compile import jit_once
from parscan_bp.conformance.problem import GROUPS, Floats, Problem, PyTree, Scan

Mode = Callable[[Scan, Problem], PyTree]


def _random_like(tree: PyTree, seed: int) -> PyTree:
    """Fixed normal entries of the shapes and types of the float leaves of `tree`."""
    rng = np.random.default_rng(seed)

    def leaf(v):
        dtype = jnp.result_type(v)
        real, imag = rng.standard_normal((2, *jnp.shape(v)))
        complex_valued = jnp.issubdtype(dtype, jnp.complexfloating)
        return jnp.asarray(real + 1j * imag if complex_valued else real, dtype)

    return jax.tree.map(leaf, tree)


def _inner(a: PyTree, b: PyTree) -> jax.Array:
    """`Re sum(a * b)` in the default float type."""
    total = jnp.zeros((), jnp.result_type(float))
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        total += jnp.sum(jnp.real(u * v).astype(total.dtype))
    return total


def _real(floats: PyTree) -> PyTree:
    """Complex leaves as (re, im), for modes that exist for real arguments only."""

    def view(leaf):
        leaf = jnp.asarray(leaf)
        return (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else leaf

    return jax.tree.map(view, floats)


def _unreal(floats: Floats) -> Floats:
    """The inverse of `_real` on the leaves of a problem: a pair is a complex leaf."""
    return {
        group: [lax.complex(*leaf) if isinstance(leaf, tuple) else leaf for leaf in leaves]
        for group, leaves in floats.items()
    }


def _outputs(scan: Scan, problem: Problem) -> Callable[[Floats], list[jax.Array]]:
    """The float outputs as a function of some groups of float leaves."""
    return lambda floats: problem.with_floats(floats).float_outputs(scan)


def _loss(scan: Scan, problem: Problem) -> Callable[[Floats], jax.Array]:
    """A scalar of every y and the final carry, complex parts included; not linear in them."""

    def loss(floats):
        outputs = problem.with_floats(floats).float_outputs(scan)
        weights = _random_like(outputs, seed=1)
        return _inner(weights, [y + 0.1 * y * y for y in outputs])

    return loss


def _projections(scan: Scan, problem: Problem) -> Callable[[PyTree], jax.Array]:
    """Three random projections of the outputs, as a function of real leaves."""

    def project(real_floats):
        outputs = problem.with_floats(_unreal(real_floats)).float_outputs(scan)
        return jnp.stack([_inner(_random_like(outputs, seed), outputs) for seed in (2, 3, 4)])

    return project


def _asarrays(floats: Floats) -> Floats:
    return jax.tree.map(jnp.asarray, floats)


def _grad(*groups: str) -> Mode:
    def mode(scan, problem):
        floats = problem.floats()
        return jax.grad(_loss(scan, problem))({group: floats[group] for group in groups})

    return mode


def _value_and_grad(scan, problem):
    return jax.value_and_grad(_loss(scan, problem))(problem.floats())


def _jit_grad(scan, problem):
    return jax.jit(jax.grad(_loss(scan, problem)))(problem.floats())


def _remat(scan, problem):
    return jax.grad(jax.checkpoint(_loss(scan, problem)))(problem.floats())


def _jvp(scan, problem):
    floats = _asarrays(problem.floats())
    return jax.jvp(_outputs(scan, problem), (floats,), (_random_like(floats, 5),))


def _jvp_of_jvp(scan, problem):
    floats = _asarrays(problem.floats())
    tangent = _random_like(floats, 5)

    def inner(floats):
        return jax.jvp(_outputs(scan, problem), (floats,), (tangent,))[1]

    return jax.jvp(inner, (floats,), (_random_like(floats, 6),))[1]


def _jacfwd(scan, problem):
    return jax.jacfwd(_projections(scan, problem))(_real(problem.floats()))


def _jacrev(scan, problem):
    return jax.jacrev(_projections(scan, problem))(_real(problem.floats()))


def _hessian(scan, problem):
    loss = _loss(scan, problem)
    floats = {group: problem.floats()[group] for group in ("params", "init")}
    return jax.hessian(lambda real_floats: loss(_unreal(real_floats)))(_real(floats))


def _rev_over_rev(scan, problem):
    def inner(floats):
        slope = jax.grad(_loss(scan, problem))(floats)
        return _inner(slope, _random_like(slope, 7))

    return jax.grad(inner)(problem.floats())


def _rev_over_rev_apart(scan, problem):
    """Slopes by every other leaf, differentiated by the leaves between them."""
    leaves, tree = jax.tree.flatten(problem.floats())

    def inner(outer, inner_leaves, first):
        def loss(inner_leaves):
            both = list(leaves)
            both[first::2], both[1 - first :: 2] = inner_leaves, outer
            return _loss(scan, problem)(jax.tree.unflatten(tree, both))

        slope = jax.grad(loss)(inner_leaves)
        return _inner(slope, _random_like(slope, 7))

    return [jax.grad(inner)(leaves[1 - k :: 2], leaves[k::2], k) for k in (0, 1)]


def _hvp_fwd_over_rev(scan, problem):
    floats = _asarrays(problem.floats())
    return jax.jvp(jax.grad(_loss(scan, problem)), (floats,), (_random_like(floats, 8),))[1]


def _hvp_rev_over_fwd(scan, problem):
    def inner(floats):
        return jax.jvp(_loss(scan, problem), (floats,), (_random_like(floats, 8),))[1]

    return jax.grad(inner)(_asarrays(problem.floats()))


def _third_order(scan, problem):
    def hvp(floats):
        tangent = _random_like(floats, 8)
        return jax.jvp(jax.grad(_loss(scan, problem)), (floats,), (tangent,))[1]

    floats = _asarrays(problem.floats())
    return jax.jvp(hvp, (floats,), (_random_like(floats, 9),))[1]


def _scaled(floats: PyTree) -> PyTree:
    """Three rows of every leaf: itself, a little smaller, a little larger."""
    scales = (1.0, 0.875, 1.125)
    return jax.tree.map(lambda v: jnp.stack([jnp.asarray(v) * s for s in scales]), floats)


def _vmap_grad(*mapped: str) -> Mode:
    def mode(scan, problem):
        floats = _asarrays(problem.floats())
        axes = {group: 0 if group in mapped and floats[group] else None for group in GROUPS}
        if not any(axis == 0 for axis in axes.values()):
            return {}
        rows = {g: _scaled(floats[g]) if axes[g] == 0 else floats[g] for g in GROUPS}
        return jax.vmap(jax.value_and_grad(_loss(scan, problem)), in_axes=(axes,))(rows)

    return mode


def _grad_vmap(scan, problem):
    def total(floats):
        return jnp.sum(jax.vmap(_loss(scan, problem))(floats))

    rows = _scaled(_asarrays(problem.floats()))
    return jax.grad(total)(rows) if jax.tree.leaves(rows) else {}


def _grad_through(outer: Callable[[Scan], Scan]) -> Mode:
    """The gradient of two calls in a row, the final carry of one the `init` of the next."""

    def mode(scan, problem):
        def loss(floats):
            start = problem.with_floats(floats)

            def body(carry, scale):
                call = dataclasses.replace(start, init=carry)
                carry, ys = call.run(scan)
                outputs = [y for y in jax.tree.leaves(ys) if jnp.issubdtype(y.dtype, jnp.inexact)]
                return carry, scale * _inner(_random_like(outputs, 10), outputs)

            scales = jnp.asarray([1.0, 0.5])
            carry, losses = outer(scan)(body, start.init, scales)
            final = [c for c in jax.tree.leaves(carry) if jnp.issubdtype(c.dtype, jnp.inexact)]
            return _inner(_random_like(final, 11), final) + jnp.sum(losses)

        return jax.grad(loss)(problem.floats())

    return mode


def _linearize_and_transpose(scan, problem):
    floats = _asarrays(problem.floats())
    outputs, pushforward = jax.linearize(_outputs(scan, problem), floats)
    tangents = pushforward(_random_like(floats, 12))
    pullback = jax.linear_transpose(pushforward, floats)
    return outputs, tangents, pullback(_random_like(outputs, 13))


def _vjp(scan, problem):
    outputs, pullback = jax.vjp(_outputs(scan, problem), problem.floats())
    return pullback(_random_like(outputs, 14))


_SUBSETS = [("params",), ("init",), ("xs",), ("params", "init"), ("params", "xs"), ("init", "xs")]
_FORWARD: dict[str, Mode] = {"jvp": _jvp, "jvp_of_jvp": _jvp_of_jvp, "jacfwd": _jacfwd}
_REVERSE: dict[str, Mode] = {f"grad[{'+'.join(s)}]": _grad(*s) for s in [*_SUBSETS, GROUPS]} | {
    "value_and_grad": _value_and_grad,
    "vjp": _vjp,
    "jacrev": _jacrev,
    "rev_over_rev": _rev_over_rev,
    "rev_over_rev[apart]": _rev_over_rev_apart,
    "vmap_grad": _vmap_grad(*GROUPS),
    "vmap_grad[init]": _vmap_grad("init"),
    "vmap_grad[xs]": _vmap_grad("xs"),
    "grad_vmap": _grad_vmap,
    "jit_grad": _jit_grad,
    "remat": _remat,
    "outer_scan": _grad_through(lambda scan: lax.scan),
    "nested": _grad_through(lambda scan: scan),
}
_FORWARD_OVER_REVERSE: dict[str, Mode] = {
    "hessian": _hessian,
    "hvp_fwd_over_rev": _hvp_fwd_over_rev,
    "third_order": _third_order,
}
_REVERSE_OVER_FORWARD: dict[str, Mode] = {
    "hvp_rev_over_fwd": _hvp_rev_over_fwd,
    "linearize_and_transpose": _linearize_and_transpose,
}
DERIVATIVE_MODES: dict[str, Mode] = (
    _FORWARD | _REVERSE | _FORWARD_OVER_REVERSE | _REVERSE_OVER_FORWARD
)

_HIGHER_ORDER = {
    *("jvp_of_jvp", "rev_over_rev", "rev_over_rev[apart]", "hvp_rev_over_fwd"),
    *_FORWARD_OVER_REVERSE,
}


def modes_for(case: StepCase) -> tuple[str, ...]:
    """The modes in which `jax.lax.scan` itself can differentiate the case, and rightly.

    A `while_loop` of dynamic length has no reverse mode. A `custom_vjp` function has no forward
    mode, but what its backward pass computes has one. Where a `custom_jvp` rule is not the
    derivative, `lax.scan`'s second derivatives are not those of the same steps in a Python loop.
    """
    if "while" in case.flags:
        return tuple(_FORWARD)
    if "custom_vjp" in case.flags:
        return tuple(_REVERSE | _FORWARD_OVER_REVERSE)
    if "false_tangent" in case.flags:
        return tuple(mode for mode in DERIVATIVE_MODES if mode not in _HIGHER_ORDER)
    return tuple(DERIVATIVE_MODES)


def evaluator(
    scan: Scan, problem: Problem, modes: Iterable[str]
) -> Callable[[Floats], dict[str, Any]]:
    """One jitted function of the problem's float leaves that returns `{mode: derivative}`.

    Args:
      scan: `jax.lax.scan` or what has its contract.
      problem: gives the step and every argument that is not a float.
      modes: keys of `DERIVATIVE_MODES`, legal for the problem (`modes_for`).

    Example:
      >>> from parscan_bp.conformance import step_cases
      >>> problem = step_cases(1)[0].make()
      >>> gradient = evaluator(jax.lax.scan, problem, ["value_and_grad"])
      >>> value, slopes = gradient(problem.floats())["value_and_grad"]
      >>> sorted(slopes)
      ['init', 'params', 'xs']
    """
    names = tuple(modes)

    def evaluate(floats):
        at = problem.with_floats(floats)
        return {name: DERIVATIVE_MODES[name](scan, at) for name in names}

    return jit_once(evaluate)

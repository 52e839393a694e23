"""What is raced: the value and gradient of a sum of all that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from parscan_bp.choice.choose import Trial, on_trial
from parscan_bp.jaxprs.read import is_differentiable
from parscan_bp.scan.plan_record import traced_anew
from parscan_bp.trees import at_least_single, replace_at
from parscan_bp.types import PyTree


def drawn(leaf: Any) -> Any:
    """Numbers for a type; anything else as it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return 0.1 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.zeros(leaf.shape, leaf.dtype)


class Compiled:
    """A program to be called: with its arguments, or with these moved by one rounding.

    Attributes:
      bytes: temporary memory that it takes, as the compiler says; ``None`` where it does not.
    """

    def __init__(self, program: Any, args: Sequence[Any], beside: Sequence[Any], tree: Any):
        self._program, self._args, self._beside, self._tree = program, args, beside, tree
        analysis = program.memory_analysis()
        self.bytes: int | None = getattr(analysis, "temp_size_in_bytes", None)

    def __call__(self, moved: bool = False) -> PyTree:
        return jax.tree.unflatten(
            self._tree, self._program(*(self._beside if moved else self._args))
        )


class GradientProgram:
    """The value and gradient of a sum of all floats that a function returns.

    Args:
      run: any function of arrays.
      args: its arguments, pytrees of arrays.
      wrt: by position, those whose floats are differentiated.
    """

    def __init__(self, run: Callable[..., PyTree], args: Sequence[PyTree], wrt: Sequence[int]):
        self._run = run
        leaves, self._tree = jax.tree.flatten(tuple(args))
        self._leaves = [jnp.asarray(leaf) for leaf in leaves]
        owner = [k for k, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
        self._moving = [
            j
            for j, (k, leaf) in enumerate(zip(owner, self._leaves, strict=True))
            if k in wrt and is_differentiable(jax.typeof(leaf))
        ]

    def trace(self, name: str) -> None:
        """Traces the function anew.

        Args:
          name: of the caller.

        Raises:
          ValueError: if an argument, or what the function closes over, is traced.
        """
        closed, _ = traced_anew(lambda leaves: self._value([], leaves), self._leaves)
        if any(isinstance(v, jax.core.Tracer) for v in (*self._leaves, *closed.consts)):
            raise ValueError(
                f"{name}: got traced values, of which nothing can be timed; call it outside of jit "
                "and grad, or give jax.ShapeDtypeStruct"
            )

    def compiled(self, trial: Trial) -> Compiled:
        """The program with a trial's solver."""
        floats = [self._leaves[k] for k in self._moving]
        with on_trial(trial):
            closed, shape = traced_anew(jax.value_and_grad(self._value), floats, self._leaves)
        program = jax.jit(jaxpr_as_fun(closed)).lower(*floats, *self._leaves).compile()
        beside = [v * (1 + jnp.finfo(v.dtype).eps) for v in floats]
        as_is, moved = ([*given, *self._leaves] for given in (floats, beside))
        return Compiled(program, as_is, moved, jax.tree.structure(shape))

    def _value(self, floats, leaves):
        at = self._moving if floats else []
        outs = self._run(*jax.tree.unflatten(self._tree, replace_at(leaves, at, floats)))
        weighed = [
            _weighed(k, v)
            for k, v in enumerate(jax.tree.leaves(outs))
            if is_differentiable(jax.typeof(v))
        ]
        return sum(weighed, 0.0)


def _weighed(k: int, v: Any) -> Any:
    """A sum with weights, so that every entry has a cotangent of its own."""
    weights = jax.random.normal(jax.random.key(k), v.shape)
    return jnp.sum(jnp.real(v).astype(at_least_single(jnp.real(v).dtype)) * weights)

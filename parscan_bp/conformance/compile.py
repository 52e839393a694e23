"""Compilation of programs that run once: in tests it takes longer than all else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

# Found on CPU: a quarter of the time with both (jax 0.10), two thirds with the first (0.12).
_UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def jit_once(f: Callable) -> Callable:
    """`jax.jit` for a program that runs once: on CPU compiled without optimisation.

    The code is slow, and may round differently. For derivatives that are compared up to
    rounding; what has to agree to the last bit is compiled as users compile it.

    Args:
      f: function.

    Example:
      >>> float(jit_once(lambda x: 2 * x)(1.5))
      3.0
    """
    return jax.jit(f, compiler_options=_options())


@functools.cache
def _options() -> dict[str, Any]:
    """Those of the options that this version of XLA knows."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in _UNOPTIMISED.items() if _is_known({name: value})}


def _is_known(option: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=option)(0.0)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" in str(error):
            return False
        raise
    return True

"""What is told of a loop with a bound on its steps: a report, or an error."""

from __future__ import annotations

import dataclasses
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.loops.entries import most_of_entries
from parscan_bp.status import as_told
from parscan_bp.types import Array


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoopReport:
    """How a loop ended. A pytree of arrays without axes; under `jax.vmap`, one an entry.

    Attributes:
      steps: int32, how often its body ran.
      finished: bool, whether ``cond`` is false of the value that is returned; otherwise
        ``max_steps`` ended the loop.

    Example:
      >>> import parscan_bp as pb
      >>> value, report = pb.while_loop(
      ...     lambda x: x > 1, lambda x: x / 2, 9.0, max_steps=3, report=True)
      >>> print(value, report)
      1.125 LoopReport(steps=3, finished=False)
    """

    steps: Array
    finished: Array

    def __str__(self) -> str:
        return as_told(self)


def check_finished(finished: Array, max_steps: int) -> None:
    """Raises `RuntimeError` if a loop has not finished: at once, or where the program runs.

    A compiled program raises it as JAX does errors of its callbacks, a `jax.errors.JaxRuntimeError`
    with the same words, where its results are waited for.
    """

    def fail():
        raise RuntimeError(
            f"max_steps: got {max_steps:,}, and cond is still true after so many steps; more steps "
            "are wanted, or report=True, which returns the value reached and says so"
        )

    if not isinstance(finished, jax.core.Tracer):
        if not jnp.all(finished):
            fail()
        return
    unfinished = most_of_entries(lax.stop_gradient(1 - finished.astype(jnp.int32)))
    lax.cond(unfinished > 0, lambda: jax.debug.callback(fail), lambda: None)

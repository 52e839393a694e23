"""The compiled programs that are timed: value, forward, value_and_grad, jvp, hvp of one loss.

Every program takes `(point, direction, data)`: `point` is what is differentiated, `direction`
a tangent of its shape, `data` the rest. Data are arguments and not constants of the closure, or
XLA would fold and embed them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.shared import timing

Loss = Callable[[Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and the arguments it is measured with.

    Attributes:
        run: the compiled program.
        arguments: what `call` runs it with.
        lower_seconds: tracing and lowering.
        compile_seconds: what XLA took after that.
        temp_bytes: scratch memory of one call, residuals between forward and backward included.
        peak_bytes: arguments, outputs and scratch together.
    """

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    lower_seconds: float
    compile_seconds: float
    temp_bytes: int
    peak_bytes: int

    def call(self) -> Any:
        """Runs it with its arguments."""
        return self.run(*self.arguments)

    def to_json(self) -> dict[str, Any]:
        names = ("lower_seconds", "compile_seconds", "temp_bytes", "peak_bytes")
        return {name: getattr(self, name) for name in names}


def calls(side: Mapping[str, Program]) -> dict[str, timing.Call]:
    """What `timing.race` takes of one side's programs."""
    return {name: program.call for name, program in side.items()}


def to_json(side: Mapping[str, Program]) -> dict[str, Any]:
    """What is recorded of one side's programs."""
    return {name: program.to_json() for name, program in side.items()}


def derivatives(loss: Loss) -> dict[str, Callable[..., Any]]:
    """The functions behind the timed programs, by name."""

    def value(point: Any, direction: Any, data: Any) -> Any:
        # As many arrays as `value_and_grad` hands out: that takes time, too, and is no gradient.
        return loss(point, data), jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), point)

    def forward(point: Any, direction: Any, data: Any) -> Any:
        # The forward half of reverse mode under the loss's own residual policy: what the
        # backward half would read is returned, so XLA may not drop it.
        value, pullback = jax.vjp(lambda at: loss(at, data), point)
        return value, jax.tree.leaves(pullback)

    def value_and_grad(point: Any, direction: Any, data: Any) -> Any:
        return jax.value_and_grad(loss)(point, data)

    def jvp(point: Any, direction: Any, data: Any) -> Any:
        return jax.jvp(lambda at: loss(at, data), (point,), (direction,))

    def hvp(point: Any, direction: Any, data: Any) -> Any:
        return jax.jvp(lambda at: jax.grad(loss)(at, data), (point,), (direction,))[1]

    return {
        timing.VALUE: value,
        timing.FORWARD: forward,
        timing.VALUE_AND_GRAD: value_and_grad,
        "jvp": jvp,
        "hvp": hvp,
    }


def build(function: Callable[..., Any], *arguments: Any) -> Program:
    """Compiles `function` for its arguments; nothing runs yet."""
    clock = timing.Stopwatch()
    lowered = jax.jit(function).lower(*arguments)
    lower_seconds = clock.lap()
    compiled = lowered.compile()
    compile_seconds = clock.lap()
    memory = compiled.memory_analysis()
    return Program(
        run=compiled,
        arguments=arguments,
        lower_seconds=lower_seconds,
        compile_seconds=compile_seconds,
        temp_bytes=memory.temp_size_in_bytes,
        peak_bytes=memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes,
    )


def ascent(gradient: Any) -> Any:
    """A direction for jvp and hvp: the gradient, each leaf scaled to a largest entry of 1.

    Along it the directional derivative is a sum of positive terms. Along a random one the terms
    cancel, and comparing two float32 results would say more about the draw than about them.
    """

    def scaled(leaf: jax.Array) -> jax.Array:
        largest = jnp.max(jnp.abs(leaf))
        return leaf / jnp.where(largest > 0, largest, 1)

    return jax.tree.map(scaled, gradient)


def one_ulp_up(tree: Any) -> Any:
    """The next larger float for every entry: the least change there is."""
    return jax.tree.map(lambda leaf: jnp.nextafter(leaf, jnp.inf), tree)


def differences(reference: Any, result: Any) -> dict[str, float]:
    """The largest difference of each leaf, relative to the leaf's largest entry; NaN stays NaN.

    Scalars (losses of order 1, directional derivatives) are taken relative to max(|value|, 1).
    """
    found = {}
    wanted, got = jax.tree.leaves_with_path(reference), jax.tree.leaves(result)
    for (path, expected), actual in zip(wanted, got, strict=True):
        exact = np.asarray(expected, np.float64)
        largest = np.max(np.abs(exact), initial=0.0)
        scale = max(largest, 1.0) if exact.ndim == 0 else largest
        error = np.max(np.abs(np.asarray(actual, np.float64) - exact), initial=0.0)
        found[jax.tree_util.keystr(path)] = float(error / scale) if scale else float(error)
    return found


def check_equal(reference: Any, result: Any, allowed: float, what: str) -> float:
    """The largest of `differences`.

    Raises:
        FloatingPointError: a leaf differs by more than is allowed, or is not finite.
    """
    found = differences(reference, result)
    for leaf, difference in found.items():
        # Written so that a NaN fails it.
        if not difference <= allowed:
            raise FloatingPointError(
                f"{what}{leaf} differs from its reference by {difference:.1e} of its largest "
                f"entry; allowed is {allowed:.1e}"
            )
    return max(found.values(), default=0.0)


def tolerance(reference: Any, moved: Any, terms: int) -> float:
    """What two float32 evaluations may differ by, relative to a leaf's largest entry.

    Each of the `terms` contributions that are summed carries a rounding error of its own; errors
    of random sign grow with the square root of their number. And where the problem itself
    amplifies errors, no evaluation can be asked for more than the reference keeps when what is
    differentiated moves by one ulp: ten times that is allowed, up to 1 %.

    Args:
        reference: the reference's result.
        moved: its result at `one_ulp_up` of the point.
        terms: how many contributions an entry sums.
    """
    rounding = 1e-5 + 8 * float(np.finfo(np.float32).eps) * float(np.sqrt(terms))
    return max(rounding, min(10 * max(differences(reference, moved).values()), 1e-2))

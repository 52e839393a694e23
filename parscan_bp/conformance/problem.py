"""One call of `scan`, as data: the step, its arguments, and which leaves can be differentiated."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
StepFunction = Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]
Scan = Callable[..., tuple[PyTree, PyTree]]
# The float leaves of a problem, by group: {"params": [...], "init": [...], "xs": [...]}.
Floats = dict[str, list[Any]]

GROUPS = ("params", "init", "xs")


def is_float(leaf: Any) -> bool:
    """Whether a leaf has a tangent space: floating point or complex, Python floats included."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def float_leaves(tree: PyTree) -> list[Any]:
    """The leaves of `tree` that `is_float`, in order."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def replace_floats(tree: PyTree, leaves: list[Any]) -> PyTree:
    """`tree` with its float leaves replaced, in order; every other leaf stays."""
    flat, treedef = jax.tree.flatten(tree)
    new = iter(leaves)
    return jax.tree.unflatten(treedef, [next(new) if is_float(leaf) else leaf for leaf in flat])


@dataclasses.dataclass(frozen=True)
class Problem:
    """One call `scan(lambda c, x: f(params, c, x), init, xs, **kwargs)`.

    Attributes:
      f: `f(params, carry, x) -> (carry, y)`; closes over nothing that is differentiated.
      params: what the body closes over; keys and integers among it are not differentiated.
      init: as for `jax.lax.scan`.
      xs: as for `jax.lax.scan`.
      kwargs: any of `length`, `reverse`, `unroll`.
      style: how `run` passes them: `"positional"`, `"keyword"` or `"mixed"`.

    Example:
      >>> import numpy as np
      >>> problem = Problem(lambda p, c, x: (p * c + x, c), 0.5, 0.0, np.ones(3), {})
      >>> problem.run(jax.lax.scan)[0].item()
      1.75
    """

    f: StepFunction
    params: PyTree
    init: PyTree
    xs: PyTree
    kwargs: dict[str, Any]
    style: str = "mixed"

    def run(self, scan: Scan) -> tuple[PyTree, PyTree]:
        """`(carry, ys)` of this problem by `scan`."""

        def body(carry, x):
            return self.f(self.params, carry, x)

        if self.style == "keyword":
            return scan(f=body, init=self.init, xs=self.xs, **self.kwargs)
        if self.style == "positional":
            arguments = {"length": None, "reverse": False, "unroll": 1} | self.kwargs
            return scan(body, self.init, self.xs, *arguments.values())
        return scan(body, self.init, self.xs, **self.kwargs)

    def floats(self) -> Floats:
        """The differentiable leaves of each group."""
        return {group: float_leaves(getattr(self, group)) for group in GROUPS}

    def with_floats(self, floats: Floats) -> "Problem":
        """The same problem at other values of the differentiable leaves; a missing group stays."""
        changed = {
            group: replace_floats(getattr(self, group), leaves) for group, leaves in floats.items()
        }
        return dataclasses.replace(self, **changed)

    def float_outputs(self, scan: Scan) -> list[jax.Array]:
        """The differentiable leaves of `(carry, ys)`."""
        return float_leaves(self.run(scan))


class Draw:
    """Random arrays of the default float type, so that one case serves x64 off and on."""

    def __init__(self, *entropy: int):
        self.rng = np.random.default_rng(entropy)
        self.dtype = jnp.result_type(float)
        self.complex_dtype = jnp.result_type(complex)

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
        """Normal entries of standard deviation `scale` around `shift`."""
        return np.asarray(shift + scale * self.rng.standard_normal(shape), self.dtype)

    def weights(self, *shape: int, gain: float = 0.8) -> np.ndarray:
        """A matrix whose 2-norm is about `gain`: the recurrences of the family do not explode."""
        return self(*shape, scale=gain / (np.sqrt(shape[-1]) + np.sqrt(shape[-2])))

    def complex(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Complex normal entries."""
        values = self(*shape, scale=scale) + 1j * self(*shape, scale=scale)
        return np.asarray(values, self.complex_dtype)

    def ints(self, high: int, *shape: int) -> np.ndarray:
        """int32 entries below `high`."""
        return self.rng.integers(high, size=shape).astype(np.int32)

    def bools(self, *shape: int) -> np.ndarray:
        """Fair coins."""
        return self.rng.random(shape) < 0.5

    def key(self) -> jax.Array:
        """A typed PRNG key."""
        return jax.random.key(int(self.rng.integers(2**31)))

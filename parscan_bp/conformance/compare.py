"""Comparison of two scans: outputs bit for bit, derivatives up to rounding.

A derivative is judged against the rounding of the problem itself: `ulp_sensitivity` says how much
`jax.lax.scan`'s own derivative moves when the parameters and the initial carry change in the last
bit. No implementation can be asked for more.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.conformance.problem import Floats, Problem, PyTree, is_float

# Relative to a leaf's largest entry. bfloat16 has 8 significant bits; a few of them may go.
_FLOOR = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}
_MARGIN = 10.0


def _paths(tree: PyTree) -> list[tuple[str, Any]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path) or "(root)", leaf) for path, leaf in flat]


def _where(*parts: str) -> str:
    return ": ".join(part for part in parts if part) or "result"


def _same_structure(got: PyTree, want: PyTree, where: str) -> None:
    trees = [str(jax.tree.structure(tree)) for tree in (got, want)]
    if trees[0] != trees[1]:
        raise AssertionError(
            f"{where}: tree structures differ\n  got  {trees[0]}\n  want {trees[1]}"
        )


def _concrete(leaf: Any) -> np.ndarray:
    """Numbers of a leaf; of a PRNG key its data."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def _types(leaf: Any) -> str:
    weak = "weak " if getattr(leaf, "weak_type", False) else ""
    return f"{weak}{leaf.dtype}{list(leaf.shape)}"


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)


def compare_outputs(got: PyTree, want: PyTree, *, case: str = "", mode: str = "") -> None:
    """Raises `AssertionError` unless two results are the same to the last bit.

    Tree structure, shape, dtype, weak type and every bit have to agree; two NaNs agree whatever
    their payload. Leaves without numbers (`jax.ShapeDtypeStruct`) are compared by type.

    Args:
      got: pytree of arrays.
      want: the same, the reference.
      case: named in the message.
      mode: named in the message.

    Example:
      >>> compare_outputs(jnp.float32(1.0), jnp.float32(1.0) + 1e-7)
      Traceback (most recent call last):
      AssertionError: result: (root)[]: got np.float32(1.0), want np.float32(1.0000001), \
bit for bit (1 of 1 entries differ)
    """
    where = _where(case, mode)
    _same_structure(got, want, where)
    for (path, g), (_, w) in zip(_paths(got), _paths(want), strict=True):
        if _types(g) != _types(w):
            raise AssertionError(f"{where}: {path}: got {_types(g)}, want {_types(w)}")
        if isinstance(w, jax.ShapeDtypeStruct):
            continue
        a, b = _concrete(g), _concrete(w)
        wrong = (_bytes(a) != _bytes(b)).any(axis=-1)
        if np.issubdtype(b.dtype, np.inexact) or b.dtype == jnp.bfloat16:
            wrong &= ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{where}: {path}{list(index)}: got {a[index]!r}, want {b[index]!r}, "
                f"bit for bit ({wrong.sum()} of {wrong.size} entries differ)"
            )


def _wide(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _nonfinite(value: np.ndarray) -> np.ndarray:
    """0 finite, 1 NaN, 2 +inf, 3 -inf; a complex number counts by both its parts."""
    if np.iscomplexobj(value):
        return 4 * _nonfinite(value.real) + _nonfinite(value.imag)
    return np.select([np.isnan(value), value == np.inf, value == -np.inf], [1, 2, 3], 0)


def _relative_error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| over the largest finite |want|, where both are finite; 0 / 0 is 0, x / 0 inf."""
    finite = np.isfinite(got) & np.isfinite(want)
    error = np.abs(np.where(finite, got, 0) - np.where(finite, want, 0))
    largest = np.max(np.abs(np.where(np.isfinite(want), want, 0)), initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / largest)


def assert_derivatives_close(
    got: PyTree, want: PyTree, tolerance: PyTree | float, *, case: str = "", mode: str = ""
) -> None:
    """Raises `AssertionError` unless two derivatives agree up to rounding.

    Shapes and dtypes have to be equal, and so do the sets of NaN, +inf and -inf. Finite entries
    may differ by `tolerance` times the largest entry of the reference leaf: a leaf that is zero
    throughout has to be zero.

    Args:
      got: pytree of arrays.
      want: the same, the reference.
      tolerance: a number, or a pytree of numbers like `want` (see `tolerances`).
      case: named in the message.
      mode: named in the message.

    Example:
      >>> assert_derivatives_close(jnp.float32(1.0), jnp.float32(1.0) + 1e-7, 1e-6)
    """
    where = _where(case, mode)
    _same_structure(got, want, where)
    limits = jax.tree.leaves(tolerance)
    limits = limits * len(jax.tree.leaves(want)) if isinstance(tolerance, float) else limits
    for (path, g), (_, w), limit in zip(_paths(got), _paths(want), limits, strict=True):
        if (g.dtype, g.shape) != (w.dtype, w.shape):
            types = f"got {g.dtype}{list(g.shape)}, want {w.dtype}{list(w.shape)}"
            raise AssertionError(f"{where}: {path}: {types}")
        a, b = _wide(g), _wide(w)
        for what, wrong in (
            ("not finite in the same way", _nonfinite(a) != _nonfinite(b)),
            (f"tolerance {limit:.3g} of the largest entry", ~(_relative_error(a, b) <= limit)),
        ):
            if wrong.any():
                worst = np.argmax(np.where(wrong, _relative_error(a, b), -1))
                index = tuple(int(i) for i in np.unravel_index(worst, wrong.shape))
                got_entry, want_entry = (np.asarray(leaf)[index] for leaf in (g, w))
                raise AssertionError(
                    f"{where}: {path}{list(index)}: got {got_entry!r}, want {want_entry!r}, "
                    f"{what} (relative error {_relative_error(a, b)[index]:.3g}; "
                    f"{wrong.sum()} of {wrong.size} entries)"
                )


def _narrowest(leaves: Iterable[Any]) -> np.dtype:
    """The real type with the fewest bits among float leaves; float32 if there is none."""
    types = {np.zeros((), jnp.result_type(leaf)).real.dtype for leaf in leaves if is_float(leaf)}
    return max(types, key=lambda dtype: jnp.finfo(dtype).eps, default=np.dtype(np.float32))


def _one_ulp(leaf: Any, dtype: np.dtype, rng: np.random.Generator) -> Any:
    """Every entry one unit in the last place of `dtype` up or down, at random; the type stays."""
    if np.iscomplexobj(leaf):
        array = np.asarray(leaf)
        parts = [_one_ulp(part, dtype, rng) for part in (array.real, array.imag)]
        return (parts[0] + 1j * parts[1]).astype(array.dtype)
    array = np.asarray(leaf)
    unit = np.abs(np.spacing(array.astype(dtype))).astype(array.dtype)
    moved = (array + np.where(rng.random(array.shape) < 0.5, -unit, unit)).astype(array.dtype)
    return float(moved) if isinstance(leaf, float) else moved


def ulp_sensitivity(
    derivative: Callable[[Floats], PyTree], floats: Floats, *, seed: int = 0, samples: int = 2
) -> PyTree:
    """How much a derivative moves when parameters and carry change in the last bit.

    Args:
      derivative: a function of the float leaves of a problem, normally
        `evaluator(jax.lax.scan, problem, modes)`.
      floats: where; `problem.floats()`.
      seed: of the changes.
      samples: how many random changes of all entries of `params` and `init` by one unit in the
        last place, counted in the narrowest type among `floats`: a float64 leaf behind a bfloat16
        carry has that carry's rounding in every step.

    Returns:
      One number for each leaf of `derivative(floats)`: the largest change, relative to the
      leaf's largest entry.

    Example:
      >>> floats = {"params": [jnp.float32(3.0)], "init": [], "xs": []}
      >>> ulp_sensitivity(lambda f: f["params"][0] ** 2, floats) < 1e-6
      True
    """
    rng = np.random.default_rng(seed)
    dtype = _narrowest(jax.tree.leaves(floats))
    centre = jax.tree.map(_wide, derivative(floats))
    worst = jax.tree.map(lambda _: 0.0, centre)
    for _ in range(samples):
        moved = {
            group: [_one_ulp(leaf, dtype, rng) if group != "xs" else leaf for leaf in leaves]
            for group, leaves in floats.items()
        }
        change = jax.tree.map(
            lambda a, b: float(np.max(_relative_error(_wide(a), b), initial=0.0)),
            derivative(moved),
            centre,
        )
        worst = jax.tree.map(max, worst, change)
    return worst


def tolerances(problem: Problem, sensitivity: PyTree) -> PyTree:
    """`max(floor, 10 s)` for each leaf of an `ulp_sensitivity`.

    The floor is that of the narrowest float type among the problem's arguments: 1e-10 for float64,
    1e-5 for float32, 4e-2 for bfloat16. A float64 leaf behind a float32 carry has float32 noise.
    """
    arguments = (problem.params, problem.init, problem.xs)
    floor = _FLOOR[_narrowest(jax.tree.leaves(arguments)).name]
    return jax.tree.map(lambda s: max(floor, _MARGIN * s), sensitivity)

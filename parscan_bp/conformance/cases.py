"""The seeded family of steps on which `parscan_bp.scan` has to agree with `jax.lax.scan`."""

import dataclasses
import itertools
import zlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.conformance.cells import CELLS
from parscan_bp.conformance.features import FEATURES
from parscan_bp.conformance.problem import Draw, Problem
from parscan_bp.conformance.programs import PROGRAMS

STEPS = CELLS | PROGRAMS

# What a step or a feature brings in, where a solver or a mode may have to know of it.
_FLAGS = {
    "lru": {"complex"},
    "complex_conjugate": {"complex"},
    "custom_cotangent": {"custom_vjp"},
    "custom_tangent": {"false_tangent"},
    "dynamic_loop": {"while"},
    "observed": {"effects"},
    "mixed_precision": {"bfloat16", "mixed"},
    "bfloat16_carry": {"bfloat16", "mixed"},
    "single_precision": {"float32", "mixed"},
    "float32_carry": {"float32", "mixed"},
    "weak_float": {"weak"},
    "weak_promoted": {"weak", "integers"},
    "counter": {"integers"},
    "flag": {"integers"},
    "ring_buffer": {"integers"},
    "switch": {"integers"},
    "embedding": {"integers"},
    "scatter": {"integers"},
    "branch": {"integers"},
    "sometimes": {"integers"},
    "reset": {"integers"},
    "masked": {"integers"},
    "dropout": {"keys"},
    "key_carry": {"keys"},
    "closed_over": {"keys", "integers"},
}
_LENGTHS = (3, 7, 1, 9, 2, 8, 33, 0)
_UNROLLS = (1, 2, 0, 1, True, False)
_STYLES = ("mixed", "positional", "keyword")
_FEATURE_COUNTS = (1, 2, 3, 2)


@dataclasses.dataclass(frozen=True)
class StepCase:
    """One member of the family: a step, the features around it, and how `scan` is called.

    Attributes:
      name: unique in the family; starts with its number.
      step: a key of `STEPS`.
      features: keys of `FEATURES`, applied in this order.
      length: steps of the scan; passed only where `xs` has no leaves or `explicit_length` is set.
      reverse: as for `jax.lax.scan`.
      unroll: as for `jax.lax.scan`.
      style: see `Problem`.
      explicit_length: pass `length` beside `xs`.
      flags: a subset of complex, integers (or booleans), keys, bfloat16, float32, mixed (more
        than one float type), weak, custom_vjp, false_tangent (a `custom_jvp` rule that is not
        the derivative), while, effects.
    """

    name: str
    step: str
    features: tuple[str, ...]
    length: int
    reverse: bool
    unroll: int | bool
    style: str
    explicit_length: bool
    flags: frozenset[str]

    def make(self, seed: int = 0) -> Problem:
        """The case with concrete arrays, the same for the same seed."""
        draw = Draw(seed, zlib.crc32(self.name.encode()))
        # A step that closes over its input needs one even if nothing is scanned.
        steps = max(self.length, 1) if "no_inputs" in self.features else self.length
        parts = STEPS[self.step](draw, steps)
        for feature in self.features:
            parts = FEATURES[feature](parts, draw, self.length)
        kwargs = {"reverse": self.reverse, "unroll": self.unroll}
        if self.explicit_length or not jax.tree.leaves(parts.xs):
            kwargs = {"length": self.length} | kwargs
        params = jax.tree.map(jnp.asarray, parts.params)
        return Problem(parts.f, params, parts.init, parts.xs, kwargs, self.style)


def _forever(rng: np.random.Generator, values: tuple) -> Iterator:
    """Every value once, in random order, again and again: even a short family covers them all."""
    while True:
        yield from (values[i] for i in rng.permutation(len(values)))


def step_cases(n: int = 240, seed: int = 0) -> list[StepCase]:
    """The first `n` cases of the family of this seed.

    Steps, features, lengths, unrolls and calling styles are each dealt from a shuffled deck, so any
    run of cases as long as a deck shows every card of it, and cards meet in new combinations. A
    shorter family is the beginning of a longer one.

    Args:
      n: how many cases.
      seed: of the deal; the arrays are drawn by `StepCase.make`.

    Example:
      >>> case = step_cases(240, seed=1109)[4]
      >>> case.name
      '004-elman-twice-n33-u1-rev'
      >>> carry, ys = case.make(seed=0).run(jax.lax.scan)
      >>> ys.shape
      (33, 4)
    """
    rng = np.random.default_rng(seed)
    decks = [_forever(rng, d) for d in (tuple(STEPS), tuple(FEATURES), _LENGTHS, _UNROLLS, _STYLES)]
    steps, features, lengths, unrolls, styles = decks
    counts = itertools.cycle(_FEATURE_COUNTS)
    order = list(FEATURES)
    cases = []
    for number in range(n):
        step, length, unroll, style = next(steps), next(lengths), next(unrolls), next(styles)
        chosen = sorted({next(features) for _ in range(next(counts))}, key=order.index)
        if length > 3 and (unroll is True or (unroll == 0 and unroll is not False)):
            unroll = 2  # a long unrolled program only compiles slowly
        reverse, explicit = bool(rng.integers(2)), bool(rng.integers(2))
        name = "-".join(
            [f"{number:03d}", step, *chosen, f"n{length}", f"u{unroll}"] + ["rev"] * reverse
        )
        flags = frozenset().union(*(_FLAGS.get(part, ()) for part in (step, *chosen)))
        case = StepCase(name, step, tuple(chosen), length, reverse, unroll, style, explicit, flags)
        cases.append(case)
    return cases

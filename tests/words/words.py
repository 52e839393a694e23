"""Words of transformations: drawn, applied, and compared with what the reference makes of them."""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from tests.words.alphabet import ALPHABET, COST, DERIVATIVES, FORWARD, STAGING, Draw, Letter
from tests.words.compare import difference
from tests.words.programs import REVERSE_ONLY, draw_program
from tests.words.word_program import Program

DEAREST = (2.5, 3.5)
"""`COST` of most words, and of a few: dearer ones take seconds to minutes to compile."""

WEIGHTS = {"vmap": 2.5, "jit": 1.5}
"""Letters that are drawn more often than others."""


@dataclasses.dataclass(frozen=True)
class Word:
    """A word and its program, each drawn from a seed and an index alone.

    Attributes:
      seed, index: what it was drawn from.
      names: of its letters, the innermost first, each with its place in the word as drawn.
      whole: whether it is compiled as a whole, which takes less time; otherwise operations run one
        by one, and only what its letters stage is compiled.
      within: the letters from this place on stand around a `replace_scans` of all inside of them,
        which is the reference; ``None`` where ours is a front end of the package.
      front_end: that of the program; ``None`` for one that is drawn.
    """

    seed: int
    index: int
    names: tuple[tuple[int, str], ...]
    whole: bool
    within: int | None = None
    front_end: str | None = None

    def program(self) -> Program:
        rng = np.random.default_rng((self.seed, self.index, 0))
        return draw_program(rng, loops_only=self.within is not None, front_end=self.front_end)

    def letters(self, program: Program) -> list[Letter]:
        """Each drawn from its place: they stay what they are if others are left out."""
        letters: list[Letter] = []
        leaves, split, reverse_only = program.leaves, False, self.front_end in REVERSE_ONLY
        for place, name in self.names:
            rng = np.random.default_rng((self.seed, self.index, place, 1))
            letter = ALPHABET[name](Draw(rng, leaves, program.length, split, reverse_only))
            leaves, split = letter.leaves, letter.split
            reverse_only = reverse_only or name == "custom_vjp"
            letters.append(letter)
        return letters

    def without(self, place: int) -> Word:
        return dataclasses.replace(self, names=tuple(n for n in self.names if n[0] != place))


def draw_word(seed: int, index: int, *, within: bool = False, front_end: str | None = None) -> Word:
    """The word of an index: one to four letters, so that the reference can take most of them.

    A good part of them maps, stages what is mapped, and differentiates that.

    Args:
      seed, index: what it is drawn from.
      within: whether ours is a `replace_scans`, at a place that is drawn; see `Word`.
      front_end: see `Word`.
    """
    rng = np.random.default_rng((seed, index))
    most = DEAREST[int(rng.random() < 0.08)]
    count = rng.choice([1, 2, 3, 4], p=[0.1, 0.25, 0.35, 0.3])
    begin: list[str] = []
    barred = FORWARD | {"custom_jvp"} if front_end in REVERSE_ONLY else frozenset[str]()
    if count >= 3 and rng.random() < 0.6:
        begin = ["vmap", str(rng.choice(STAGING))]
        begin = begin[:: rng.choice([1, 1, -1])]
        begin.append(str(rng.choice(sorted(DERIVATIVES - barred))))
        fits = all(_fits(x, begin[:k], most) for k, x in enumerate(begin))
        begin = begin if fits and barred.isdisjoint(begin) else []
    while len(begin) < count:
        fitting = [n for n in ALPHABET if n not in barred and _fits(n, begin, most)]
        weights = np.array([WEIGHTS.get(name, 1.0) for name in fitting])
        begin.append(str(rng.choice(fitting, p=weights / weights.sum())))
    whole = bool(rng.random() < 0.75)
    place = int(rng.integers(count + 1)) if within else None
    return Word(seed, index, tuple(enumerate(begin)), whole, place, front_end)


def _fits(name: str, used: Sequence[str], most: float) -> bool:
    if used and name == used[-1] and name not in DERIVATIVES | {"vmap", "scan"}:
        return False
    if name in FORWARD and "custom_vjp" in used:
        return False
    if name == "shard_map" and name in used:  # its mesh is not that of its surroundings
        return False
    return sum(COST.get(u, 0) for u in (*used, name)) <= most


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a word.

    Attributes:
      word: the word that was tried, or a shorter one that fails alike.
      text: the word as it is written, the outermost letter first, and its program.
      ran: whether it runs by the reference.
      message: how ours differs, empty if it does not.
    """

    word: Word
    text: str
    ran: bool
    message: str


def try_word(word: Word, *, loud: bool = False, options: dict[str, Any] | None = None) -> Outcome:
    """Its outcome.

    Args:
      word: the word.
      loud: whether exceptions that are raised on the way are printed.
      options: of the compiler, for words that are compiled as a whole.
    """
    program = word.program()
    letters = word.letters(program)
    leaves = [np.asarray(v) for v in (letters[-1].leaves if letters else program.leaves)]
    how = "whole" if word.whole else "eager"
    inside = sum(place < (word.within or 0) for place, _ in word.names)
    spelled = [x.text for x in reversed(letters)]
    if word.within is not None:
        spelled.insert(len(letters) - inside, "replace_scans")
    text = f"{how} {' '.join(spelled)} | {program.text}"
    compiled = functools.partial(jax.jit, compiler_options=options) if word.whole else lambda f: f
    want = _result(compiled(_spelled(program.reference, letters, jax.lax.scan)), leaves, loud)
    ours = program.ours
    if word.within is not None:
        ours = _spelled(program.reference, letters[:inside], jax.lax.scan)
        ours = pb.replace_scans(ours, solver=program.scan.keywords["solver"])
    got = _result(compiled(_spelled(ours, letters[inside:], program.scan)), leaves, loud)
    message = difference(got, want, low=program.low)
    return Outcome(word, text, not isinstance(want, Exception), message)


def shortened(outcome: Outcome) -> Outcome:
    """A failure of the fewest letters that is found by leaving out one after another."""
    for place, _ in outcome.word.names:
        shorter = try_word(outcome.word.without(place))
        if shorter.message and shorter.ran == outcome.ran:
            return shortened(shorter)
    return outcome


def _spelled(f: Callable, letters: Sequence[Letter], scan: Callable) -> Callable:
    for letter in letters:
        f = letter.wrap(f, scan)
    return f


def _result(f: Callable, leaves: Sequence[np.ndarray], loud: bool) -> Any:
    """What it returns, or the exception that it raises."""
    try:
        return jax.block_until_ready(f(*map(jnp.asarray, leaves)))
    except Exception as error:
        if loud:
            traceback.print_exception(error)
        return error

"""A few words of transformations; `python -m tests.words` tries thousands."""

import dataclasses

import jax
import pytest

from tests.optimisation import UNOPTIMISED
from tests.words.words import draw_word, try_word

SEED = 1
# Some that found faults once, and such as take little time.
FOUND = (72, 169, 221, 248, 286)
QUICK = (17, 20, 50, 80, 82, 84, 115, 117, 137, 138, 377, 382, 385, 389, 394)
HALVES = ((*FOUND[:3], *QUICK[:7]), (*FOUND[3:], *QUICK[7:]))


OF_LOOPS = (7, 13, 17, 18, 19)
"""Words of `while_loop`."""


def _outcome(index, front_end=None):
    word = dataclasses.replace(draw_word(SEED, index, front_end=front_end), whole=True)
    return try_word(word, options=UNOPTIMISED)


def _check(outcomes, options=""):
    failures = [
        f"{options}--seed {SEED} --only {outcome.word.index} | {outcome.text} | {outcome.message}"
        for outcome in outcomes
        if outcome.message
    ]
    assert not failures, "\n".join(failures)
    assert sum(outcome.ran for outcome in outcomes) >= 0.8 * len(outcomes)


@pytest.mark.parametrize("indices", HALVES, ids=["first", "second"])
def test_words_of_transformations(indices):
    """As by `lax.scan`, Flax, or plain automatic differentiation; most of them run there."""
    with jax.enable_x64(True):
        _check([_outcome(index) for index in indices])


def test_words_of_while_loops():
    """As by a scan over more steps than there are, which masks the rest."""
    with jax.enable_x64(True):
        _check([_outcome(index, "while_loop") for index in OF_LOOPS], "--front-end while_loop ")

"""Words of transformations around a scan whose values a method makes."""

import dataclasses
import functools
from typing import Any

import jax

from tests.forward.methods import METHODS, by_method
from tests.optimisation import UNOPTIMISED
from tests.words.words import Word, draw_word, try_word

SEED, WORDS = 3, 5
TAKEN = (
    "coupled elementwise unchanged unread gates two_carries inner_loop library_functions".split()
)


@dataclasses.dataclass(frozen=True)
class ForwardWord(Word):
    """A word whose program is a scan, the values by a method."""

    method: Any = None

    def program(self):
        program = super().program()
        ours = program.ours
        assert isinstance(ours, functools.partial)
        scan = functools.partial(ours.args[0], forward=self.method)
        text = f"{program.text} forward={self.method!r}"
        return dataclasses.replace(program, text=text, ours=functools.partial(ours.func, scan))


def _drawn(method):
    """The first words of that kind that are drawn."""
    for index in range(10_000):
        word = draw_word(SEED, index)
        kind, _, rest = word.program().text.partition(" ")
        # A forward pass that keeps linearised steps is lax.scan's.
        if kind == "scan" and rest.partition("[")[0] in TAKEN and "recompute" not in rest:
            fields = {**vars(word), "whole": True}
            yield ForwardWord(**fields, method=method)


@by_method("chunks to the end")
def test_words_of_transformations(name):
    words = _drawn(METHODS[name].method)
    with jax.enable_x64(True):
        outcomes = [try_word(next(words), options=UNOPTIMISED) for _ in range(WORDS)]
    failures = [f"{o.word.index} | {o.text} | {o.message}" for o in outcomes if o.message]
    assert not failures, "\n".join(failures)
    assert sum(o.ran for o in outcomes) >= 0.8 * len(outcomes)

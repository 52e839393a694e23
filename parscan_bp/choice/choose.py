"""The choice that ``solver=None`` means: what was measured, or else what the rules say."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Hashable, Iterator

from parscan_bp import store
from parscan_bp.choice import rules, wisdom
from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.work import Work
from parscan_bp.solvers import Solver


@dataclasses.dataclass(frozen=True)
class Question:
    """A scan whose solver was not named.

    Attributes:
      facts: what was found about it.
      work: what its step does, read when a rule asks.
      key: `wisdom.scan_key` it.
    """

    facts: Facts
    work: Callable[[], Work]
    key: str

    def by_rules(self) -> Choice:
        """What the rules say, whatever was measured."""
        return rules.by_rules(self.facts, self.work())


def choose(
    question: Question, refusal: Callable[[Solver], str | None] = lambda solver: None
) -> Choice:
    """The solver for a scan whose solver was not named. Nothing is measured for it.

    Args:
      question: the scan.
      refusal: why a solver cannot take it, if it cannot. What was measured of other lengths, or
        under another limit of memory, is left then for what the rules say.
    """
    trial = _TRIAL.get()
    if trial is not None:
        trial.asked.setdefault(question.key, question)
        if question.key == trial.key:
            return Choice(trial.solver, "on trial")
    known = wisdom.recall(question.key)
    if known is None:
        return question.by_rules()
    why = None if known.winner is None else refusal(known.winner)
    if why is None:
        return Choice(known.winner, known.reason)
    ours = question.by_rules()
    return Choice(
        ours.solver, f"{ours.reason}; {known.winner!r}, which was measured, refuses: {why}"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A solver that is chosen for the time of a race.

    Attributes:
      key: of which scans; ``None`` for none, to hear what is asked.
      solver: the solver; ``None`` for `jax.lax.scan` itself.
      asked: the questions that came meanwhile, by their keys.
    """

    key: str | None = None
    solver: Solver | None = None
    asked: dict[str, Question] = dataclasses.field(default_factory=dict)


_TRIAL: contextvars.ContextVar[Trial | None] = contextvars.ContextVar(
    "parscan_bp_trial", default=None
)


@contextlib.contextmanager
def on_trial(trial: Trial) -> Iterator[Trial]:
    """Traces programs with the trial's solver."""
    token = _TRIAL.set(trial)
    try:
        yield trial
    finally:
        _TRIAL.reset(token)


def state() -> Hashable:
    """What `choose` goes by beside the question: a plan that was made under another is old."""
    return store.generation(), _TRIAL.get()

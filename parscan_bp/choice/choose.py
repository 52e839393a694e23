"""The choice that ``solver=None`` means: what was measured, or else what the rules say."""

from __future__ import annotations

from parscan_bp.choice import rules, wisdom
from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.work import Work


def choose(facts: Facts, work: Work, key: str) -> Choice:
    """The solver for a scan whose solver was not named. Nothing is measured for it.

    Args:
      facts: what was found about the scan.
      work: what its step does.
      key: `wisdom.key_of` it.
    """
    known = wisdom.recall(key)
    if known is not None:
        return Choice(known.solver, known.reason)
    return rules.by_rules(facts, work)

"""A claim of a paper, and the record that could contradict it."""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.shared import pages

Record = Mapping[str, Any]
Records = Callable[[str], Record | None]
"""The record of a bench, if there is one."""


class Verdict(enum.Enum):
    """What a record says of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNMEASURED = "not measured"


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says, and how it is looked at here.

    Attributes:
        where: a table, figure or section of the paper.
        says: the claim.
        paper: the paper's numbers; empty where it has none.
        bench: whose record it is compared with; empty where nothing was measured.
        ours: record to our numbers.
        holds: whether the record agrees, by the numbers in it; ``None`` if it ends before.
        given: under which conditions it holds, if it does.
        because: why it does not hold, if it does not, or why nothing was measured.
    """

    where: str
    says: str
    paper: str = ""
    bench: str = ""
    ours: Callable[[Record], str] = lambda record: ""
    holds: Callable[[Record], bool | None] = lambda record: False
    given: str = ""
    because: str = ""

    def judge(self, records: Records) -> tuple[Verdict, str]:
        """The verdict and our numbers."""
        record = records(self.bench) if self.bench else None
        if record is None:
            return Verdict.UNMEASURED, ""
        verdicts = {True: Verdict.HOLDS, False: Verdict.FAILS, None: Verdict.UNMEASURED}
        try:
            return verdicts[self.holds(record)], self.ours(record)
        except (LookupError, ValueError):
            if not is_quick(record):
                raise
            return Verdict.UNMEASURED, ""

    def row(self, records: Records) -> list[str]:
        """A line of `table`."""
        verdict, ours = self.judge(records)
        why = self.given if verdict is Verdict.HOLDS else self.because
        told = f"**{verdict.value}**" + (f": {why}" if why else "")
        source = f"`{self.bench}`" if self.bench else ""
        return [f"{self.where}: {self.says}", self.paper, ours, source, told]


def table(claims: Iterable[Claim], records: Records) -> str:
    """A line a claim: the paper's numbers and ours, the bench, the verdict."""
    header = ["claim", "paper", "ours", "bench", "verdict"]
    return pages.markdown(header, [claim.row(records) for claim in claims])


def is_quick(record: Record) -> bool:
    """Whether it is of tiny sizes, which need not have all that a claim is about."""
    return any("--quick" in run["argv"] for run in record.get("runs", ()))

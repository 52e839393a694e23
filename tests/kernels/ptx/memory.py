"""The shared memory of a block of threads: what lies there, and who races for it."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

THREADS, WARP = 128, 32
WORDS = 58_000
"""Of four bytes: an sm_90 has 227 KB."""
START = 1 << 20
"""Its first address."""


@dataclasses.dataclass(frozen=True)
class Race:
    """Accesses that nothing orders.

    Attributes:
      kind: RAW, WAR or WAW: of two threads, without a barrier of both between, one of which writes
        (in WAW, another number). With a copy in: a use before it has arrived (COPY-RAW), or it
        overwrites what was in use (COPY-WAR, COPY-WAW). With a copy out: of what was written
        without a fence and then a barrier (STORE-RAW), or what it may still read is overwritten
        (STORE-WAR), or the kernel may end before it is read (STORE-END). Of an mbarrier, a use that
        nothing orders after its beginning (MBARRIER).
      instruction: the later access.
    """

    kind: str
    instruction: str


class Last:
    """For each word, which threads used it since all waited for one another.

    A barrier of a warp orders its own threads: what they all used before it, and no other.
    """

    def __init__(self) -> None:
        nothing = np.full(WORDS, -1, np.int64)
        self._interval, self._thread, self._warp_interval = (nothing.copy() for _ in range(3))
        self._warps = np.zeros(WORDS, np.int64)  # a bit for each
        self._several = np.zeros(WORDS, bool)  # threads

    def note(self, threads: np.ndarray, at: np.ndarray, interval: int, of_warps: np.ndarray):
        """A use of the words ``at``, each by the thread beside it."""
        fresh = at[self._interval[at] != interval]
        self._interval[fresh], self._thread[fresh] = interval, -1
        self._warps[fresh], self._several[fresh] = 0, False
        before = self._thread[at]
        self._thread[at] = threads  # of several in this instruction, the last remains
        differs = (self._thread[at] != threads) | ((before >= 0) & (before != threads))
        self._several[at[differs]] = True
        np.bitwise_or.at(self._warps, at, 1 << threads // WARP)
        self._warp_interval[at] = of_warps[threads // WARP]

    def others(self, threads: np.ndarray, at: np.ndarray, interval: int, of_warps: np.ndarray):
        """Whether another thread used the words ``at``, and none of these barriers is between."""
        warp = np.asarray(threads) // WARP
        other = self._several[at] | (self._thread[at] != threads)
        ordered = (self._warps[at] == 1 << warp) & (self._warp_interval[at] < of_warps[warp])
        return (self._interval[at] == interval) & other & ~ordered


class SharedMemory:
    """Words, and for each who used it since the last barrier.

    Attributes:
      words: their bits; NaN where nobody has written.
      races: how many words each was about.
      instruction: the text of what is executed, for races.
      issuer: the thread that starts copies and begins mbarriers.
      now: instructions so far.
      interval: barriers so far.
      of_warps: and those of each warp.
    """

    def __init__(self) -> None:
        self.words = np.full(WORDS, 0x7FC00000, np.uint32)
        self.races: collections.Counter[Race] = collections.Counter()
        self.instruction, self.issuer = "", 0
        self.now, self.interval = 1, 0
        self.of_warps = np.zeros(THREADS // WARP, np.int64)
        self._fenced = self._ordered = 0
        nothing = np.full(WORDS, -1, np.int64)
        self._written, self._read = Last(), Last()
        self._written_at = nothing.copy()
        self._arriving = nothing.copy()  # the mbarrier that a copy in will complete
        self._leaving = np.zeros(WORDS, np.int64)  # groups of copies out that may yet read
        self._left_in = nothing.copy()  # when the issuer knew that they had

    def barrier(self) -> None:
        """All threads wait for one another."""
        self.interval += 1
        self._ordered = self._fenced

    def barrier_of_warps(self) -> None:
        """Those of each warp do."""
        self.of_warps += 1

    def fence(self) -> None:
        """What was written so far is seen by copies, once all threads have waited."""
        self._fenced = self.now

    def read(self, threads: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The words ``at``, each read by the thread beside it."""
        self._report("COPY-RAW", self._arriving[at] >= 0)
        self._report("RAW", self._written.others(threads, at, self.interval, self.of_warps))
        self._read.note(threads, at, self.interval, self.of_warps)
        return self.words[at]

    def write(self, threads: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
        """Puts a word at each place; the same number may come from several threads."""
        self._report("COPY-RAW", self._arriving[at] >= 0)
        again = self._written.others(threads, at, self.interval, self.of_warps)
        self._report("WAW", again & (self.words[at] != values))
        self._report("WAR", self._read.others(threads, at, self.interval, self.of_warps))
        awaited = (self._left_in[at] == self.interval) & (threads != self.issuer)
        self._report("STORE-WAR", (self._leaving[at] > 0) | awaited)
        self.words[at] = values
        self._report("WAW", self.words[at] != values)  # in this instruction
        self._written.note(threads, at, self.interval, self.of_warps)
        self._written_at[at] = self.now

    def copy_in(self, at: np.ndarray, values: np.ndarray, mbarrier: int) -> None:
        """A copy from memory, which may be used once the mbarrier was awaited."""
        issuer = np.full(len(at), self.issuer)
        for kind, last in ("COPY-WAR", self._read), ("COPY-WAW", self._written):
            self._report(kind, last.others(issuer, at, self.interval, self.of_warps))
        unseen = self._written_at[at] >= max(self._ordered, 1)
        self._report("COPY-WAW", unseen | (self._arriving[at] >= 0) | (self._leaving[at] > 0))
        self.words[at], self._arriving[at] = values, mbarrier

    def arrived(self, mbarrier: int) -> None:
        """The mbarrier of copies in was awaited."""
        self._arriving[self._arriving == mbarrier] = -1

    def copy_out(self, at: np.ndarray) -> np.ndarray:
        """The words that a copy to memory reads; `left` says when it has."""
        self._report("STORE-RAW", self._written_at[at] >= max(self._ordered, 1))
        self._report("COPY-RAW", self._arriving[at] >= 0)
        self._leaving[at] += 1
        return self.words[at].copy()

    def left(self, at: np.ndarray) -> None:
        """The issuer has waited for a copy out; others know after a barrier."""
        self._leaving[at] -= 1
        self._left_in[at] = self.interval

    def used(self, began_in: int) -> None:
        """An mbarrier is used by all threads, which one thread began."""
        self._report("MBARRIER", np.array(began_in == self.interval))

    def end(self) -> None:
        """The kernel returns."""
        self._report("STORE-END", self._leaving > 0)

    def _report(self, kind: str, bad: np.ndarray) -> None:
        if bad.any():
            self.races[Race(kind, self.instruction)] += int(bad.sum())

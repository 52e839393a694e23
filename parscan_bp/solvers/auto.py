"""The choice that ``solver=None`` means."""

from __future__ import annotations

import dataclasses

from parscan_bp.solvers.base import Solver
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.structure import Work


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the choice is made from; all of it is known before anything runs.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      length: number of steps T.
      batch: number of independent rows B that the structure leaves.
      features: order H of one row's Jacobian.
      leaves: carry leaves that H is the sum of.
      itemsize: bytes of a number.
      structure: "diagonal", "block" or "dense".
      linearisation: "analytic", "matrix-free", or "columns" of an explicit Jacobian.
      equations: equations in the body's jaxpr.
      outer_gates: `structure.has_outer_gates` of the step, as with a single input feature.
      jax_version: (major, minor), which says how XLA compiles a small loop.
      may_keep: whether as much may be stored as `lax.scan` stores, as the layer does whose place
        is taken.
      rejoins: whether a forward pass that keeps makes the step's products a second time, since
        the cell's are of joined weights.
    """

    platform: str
    length: int
    batch: int
    features: int
    leaves: int
    itemsize: int
    structure: str
    linearisation: str
    equations: int
    outer_gates: bool
    jax_version: tuple[int, ...]
    may_keep: bool = False
    rejoins: bool = False

    @property
    def columns(self) -> int:
        """Tangents that an explicit Jacobian takes."""
        return 1 if self.structure == "diagonal" else self.features

    @property
    def most_rows(self) -> int:
        """Rows up to which a product with fixed weights is slower than the loop around it."""
        return 16 if self.jax_version < (0, 12) else 1


@dataclasses.dataclass(frozen=True)
class Choice:
    """A solver and the reason for it; ``solver`` is ``None`` for `lax.scan` itself."""

    solver: Solver | None
    reason: str

    def __str__(self):
        return "lax.scan" if self.solver is None else repr(self.solver)


TINY_WORK = 4000
"""Elements times equations times steps below which fixed costs outweigh what is saved."""

TINY = 4
"""Elements of a step up to which XLA may make one kernel of its loop."""

TINY_STEP = 64
"""Elements times equations of a tiny step up to which it does."""

PLAIN = 12
"""Most equations of a cell without gates. With gates XLA makes one kernel of a tiny forward loop,
but seldom of that of its derivative, and of a second derivative never."""

ONE_ROW = {"analytic": 80, "matrix-free": 192, "columns": 192}
"""Order of the Jacobian from which a step on a single row gains, with one kernel per loop."""

NO_PRODUCTS = 1024
"""Elements from which a step without products of matrices gains, likewise."""

MANY = 1000
"""Elements above which the rows of a product matter; see `Facts.most_rows`."""

OUTER_GATES = (256, 4096)
"""Elements of a step with `Facts.outer_gates` between which it is slow to make again: XLA makes
the product part of every gate."""

KEPT = (64, 256)
"""Order of the Jacobian, or elements of a step, from which what may be kept is: below that, writing
it takes longer than making it again."""

KEPT_CARRIES = 2**21
"""Bytes of all carries up to which it is: what is kept is several times that, and beyond it the
memory, taken anew from the system in every call, costs more than the products that are spared."""

REJOINED = (512, 1000)
"""Most steps, and fewest elements of one, where it is kept in spite of `Facts.rejoins`."""

FEWEST = 4
"""Steps up to which what a sweep puts around them costs more than it saves."""

FEW = (32, 128)
"""Most steps, or rows of all steps together, of which a larger cell's are kept: they would be
linearised at once in any case. With more rows, as many as the order of the Jacobian: the weights
then outnumber all carries."""

PRODUCTS = (16, 256)
"""Rows above which, and steps up to which, a gated cell is mostly its products."""

LIGHT = Work(rows=1, heavy=None)


def choose(facts: Facts, work: Work = LIGHT) -> Choice:
    """The solver for a scan whose solver was not named.

    Measured on CPUs, cells by ``bench scan``, and steps that people write by ``bench steps``.

    On a CPU the sequential sweep wins: a tree multiplies matrices where the sweep
    multiplies vectors, and two cores do not make up for it. Left to `lax.scan` are steps so
    small that XLA makes one kernel of their whole loop, as no overhead is left to save
    there. From jax 0.12 on that includes gated cells, products of matrices with a single row, and
    steps without products of matrices. So are elementwise gated steps with a single input
    feature; what other such steps make is kept: that takes less memory than `lax.scan` does,
    but more than a sweep that recomputes. And so are steps, unless their Jacobian is given, that
    are heavy (`structure.work_of`), or large products with little beside them: most of the time
    goes into the work itself, of which a sweep has more.

    Otherwise the carries are all that is stored, but for larger gated cells in two cases. Few
    steps would be linearised at once in any case; kept, they take less memory and time. And where
    the scan is that of a layer which stores more anyway (``facts.may_keep``), the backward pass is
    spared the products, unless the sequence is long.

    With few steps of many rows, products are most of the work, and a sweep has more of them:
    they are left to `lax.scan`, but for LSTM cells, which gain when their steps are kept.

    Other platforms were not measured; there a solver has to be named.

    Args:
      facts: what was found about the scan.
      work: what its step does, unless its Jacobian is given.
    """
    elements = facts.batch * facts.features
    if facts.platform != "cpu":
        why = f"nothing was measured on {facts.platform} yet; name a solver to use one"
        return Choice(None, why)
    if elements * facts.equations * facts.length < TINY_WORK:
        return Choice(None, "the whole scan is too short to pay for anything but its loop")
    own = facts.linearisation != "analytic"
    gated = not own and facts.equations > PLAIN and facts.jax_version < (0, 12)
    if gated and elements <= TINY and facts.features == facts.leaves:
        why = "sequential; the gates of a single unit are sooner kept than made again"
        return Choice(Sweep(recompute=False), why)
    tiny = elements <= TINY and elements * facts.equations <= TINY_STEP and not gated
    if tiny or (own and facts.equations <= 8 and facts.features == 1):
        return Choice(None, "the step is so small that its loop is a single kernel")
    if own:
        if work.heavy is not None:
            return Choice(None, f"the step {work.heavy}")
        if work.rows > facts.most_rows and elements > MANY:
            why = f"the step multiplies {work.rows} rows at a time: little else counts"
            return Choice(None, why)
    if facts.outer_gates and OUTER_GATES[0] <= elements <= OUTER_GATES[1]:
        why = "gates of a single input feature are slow to make twice"
        kept = facts.structure != "diagonal" and facts.linearisation != "columns"
        return Choice(Sweep(recompute=False) if kept else None, why)
    few = _few_steps(facts, elements)
    if few is not None:
        return few
    if facts.jax_version >= (0, 12):
        if facts.batch == 1 and 1 < facts.features < ONE_ROW[facts.linearisation]:
            return Choice(None, "a loop over one row is a single kernel from jax 0.12 on")
        elementwise = facts.features == facts.leaves or (own and work.rows == 0)
        if elementwise and elements < NO_PRODUCTS:
            return Choice(None, "a loop without products is a single kernel from jax 0.12 on")
    if facts.may_keep and not own and _keeping_pays(facts, elements):
        why = "sequential; what is slow to make again is kept, as the layer itself keeps residuals"
        return Choice(Sweep(recompute=False), why)
    return Choice(Sweep(), "sequential, in chunks of steps that are linearised as one batch")


def _few_steps(facts: Facts, elements: int) -> Choice | None:
    """The choice where there is little to save around the steps, if they are that few."""
    if facts.length <= FEWEST:
        return Choice(None, "so few steps take less time than what a solver puts around them")
    if facts.structure == "diagonal":
        return None
    own = facts.linearisation != "analytic"
    products = f"few steps, mostly products of {facts.batch} rows"
    if own or facts.equations <= PLAIN:
        heavy = facts.length <= FEW[0] and elements > (MANY if own else 8 * MANY)
        return Choice(None, products) if heavy else None
    kept = Choice(
        Sweep(recompute=False), "sequential; so few steps are sooner kept than made again"
    )
    if facts.batch > PRODUCTS[0] and elements > MANY and facts.length <= PRODUCTS[1]:
        return Choice(None, products) if facts.leaves == 1 or facts.may_keep else kept
    few = facts.length <= FEW[0] or facts.batch * facts.length <= max(FEW[1], facts.features)
    return kept if few and _is_larger(facts, elements) and not facts.rejoins else None


def _is_larger(facts: Facts, elements: int) -> bool:
    return facts.features >= KEPT[0] or elements >= KEPT[1]


def _keeping_pays(facts: Facts, elements: int) -> bool:
    """Whether the products that the backward pass is spared are more than what keeping takes."""
    if facts.batch == 1 and facts.jax_version >= (0, 12):
        return False  # what is kept would not fit into the single kernel of the loop
    if elements * facts.length * facts.itemsize > KEPT_CARRIES:
        return False
    if facts.rejoins:
        return facts.length <= REJOINED[0] and elements >= REJOINED[1]
    return _is_larger(facts, elements)

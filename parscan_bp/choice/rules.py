"""The choice that ``solver=None`` means."""

from __future__ import annotations

from collections.abc import Callable

from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.work import Work
from parscan_bp.cpu.weight_cotangent import FEW_OUTER, SMALL_WEIGHTS
from parscan_bp.solvers.pallas import Pallas
from parscan_bp.solvers.sweep import Sweep

ON_CHIP = Pallas(mode="sequential", otherwise="sweep", memory_limit=2**28)
"""Of the kernels, that which multiplies no Jacobians with one another: nothing can overflow that
does not in `lax.scan`. All linearised steps are in memory at once, 1.2 to 3.2 times what
`lax.scan` stores, hence the limit; larger batches gain less."""

LIGHT = Work(rows=1, heavy=None)

TINY_WORK = 4000
"""Elements times equations times steps below which fixed costs outweigh what is saved."""

TINY = (4, 2**10)
"""Elements of a step, and bytes that it reads and computes, up to which XLA may make one kernel of
its loop."""

TINY_LOOP = "the step is so small that its loop is a single kernel"

SIMPLE = 8
"""Most equations of a step that is a single kernel even where XLA splits larger tiny ones."""

ONE_ROW = {"analytic": 80, "matrix-free": 192, "columns": 192}
"""Order of the Jacobian from which a step on a single row gains, with one kernel per loop."""

SHORT_ROW = 512
"""Steps of a cell on a single row, likewise, up to which it gains most."""

PLAIN_ROW = {True: (12, range(32, 56)), False: (2, range(32, 40))}
"""Order of the Jacobian from which a cell without gates gains, likewise, and orders with which it
does not all the same, of so few steps or of more."""

LONG_ROW = {1: 28, 2: 32}
"""Order of the Jacobian from which more steps of a cell with gates gain, likewise, by its carry
leaves."""

APART = (24, 24)
"""Equations of a cell above which its gates have products of their own, and the order of its
Jacobian from which a layer of it gains, likewise, though it is long."""

NO_PRODUCTS = 1024
"""Elements from which a step without products of matrices gains, likewise."""

MANY = 1000
"""Elements above which the rows of a product matter."""

PRODUCT_ROWS = (16, 1)
"""Rows up to which products with fixed weights take less time than the loop around them, before jax
0.12 and from then on; of many steps that multiply their carry once it is the former."""

OWN_GATES = 3
"""Parts of a product that are the gates of one's own step."""

GATED = (20, 128)
"""Order of the Jacobian from which such a step gains, from jax 0.12 on, on a single row if it has
one carry leaf, and on several rows."""

OUTER_GATES = (256, 4096)
"""Elements of a step with `Facts.outer_gates` between which it is slow to make again: XLA makes
the product part of every gate."""

LARGER = (64, 256)
"""Order of the Jacobian, or elements of a step, from which writing a linearised step takes less
time than making it again."""

KEPT_CARRIES = (2**21, 2**22)
"""Bytes of all carries up to which a layer's steps on a single row, or on several, are kept: they
are several times that, and beyond it the memory, taken anew from the system in every call, costs
more than the products that are spared."""

FEWEST = 4
"""Steps up to which what a sweep puts around them costs more than it saves."""

FEW = (32, 128)
"""Most steps, or rows of all steps together, of which a larger cell's are kept: the former would be
linearised at once in any case. With more rows, as many as the order of the Jacobian: the weights
then outnumber all carries."""

SMALL = (32, 128)
"""Order of the Jacobian, and steps for each carry leaf, up to which a layer keeps several rows of a
cell with gates."""

SEVERAL = 4
"""Rows of all carry leaves together that are several."""

FEW_GATES = 10
"""Steps of a GRU on one row that are made from kept gates at once, where those of all steps are
more than the weights: cotangents of these take memory with every chunk."""

WIDE = 256
"""Order of the Jacobian from which gates of a GRU on one row are sooner kept than made again."""

PRODUCTS = (16, 256)
"""Rows above which, and steps up to which, a gated cell is mostly its products."""


def choose(facts: Facts, work: Work = LIGHT) -> Choice:
    """The solver for a scan whose solver was not named: that of the first rule that applies.

    Measured on CPUs, cells by ``bench scan``, and steps that people write by ``bench steps``; on a
    GPU, cells by ``bench gpu``.

    On a CPU the sequential sweep wins: a tree multiplies matrices where the sweep
    multiplies vectors, and two cores do not make up for it. It saves what `lax.scan` spends
    around a step, for a second evaluation of the step. So what has little around its steps,
    or much in them, is left to `lax.scan`; and of a few cells the linearised steps are kept
    rather than made again.

    Args:
      facts: what was found about the scan.
      work: what its step does, unless its Jacobian is given.
    """
    for rule in RULES:
        choice = rule(facts, work)
        if choice is not None:
            return choice
    return Choice(Sweep(), "sequential, in chunks of steps that are linearised as one batch")


def _left(why: str) -> Choice:
    return Choice(None, why)


def _kept(why: str) -> Choice:
    return Choice(Sweep(recompute=False), why)


def _on_a_gpu(facts: Facts, work: Work) -> Choice | None:
    """There a step of `lax.scan` costs several launches, and one of the kernels none.

    Without gates, the forward pass of a single row is slower by itself, in XLA's hands, than that
    which keeps what `lax.scan` needs.
    """
    if not facts.on_chip or facts.length <= FEWEST:
        return None
    if facts.batch == 1 and not facts.gated:
        return _left("an Elman cell on a single row is no faster by a kernel")
    return Choice(ON_CHIP, "one kernel sweeps all steps, in the order of `lax.scan`")


def _not_on_a_cpu(facts: Facts, work: Work) -> Choice | None:
    if facts.platform != "cpu":
        why = f"no rule is known for such a step on a {facts.platform}; name a solver to use one"
        return _left(why)
    return None


def _tiny_step(facts: Facts, work: Work) -> Choice | None:
    """Of a tiny step XLA makes one kernel, loop included, and of its sweep step by step another.

    What is slow to make again is kept: with so few numbers, nothing else can be saved. One's own
    step without such functions, or with outputs that are made again from it, gains nothing, nor
    does, from jax 0.12 on, an LSTM or a long GRU. Of an Elman cell there is nothing to keep; with a
    single number, four steps at a time are the faster kernel.
    """
    if not _is_tiny(facts) or facts.length <= FEW[0] or work.heavy is not None:
        return None
    why = "sequential, step by step: so small a step's loop is then a single kernel"
    kept = Choice(Sweep(chunk=1, recompute=False), why)
    if facts.own:
        gains = not (work.arithmetic or facts.outputs or _are_tiny_gates(facts, work))
        return kept if gains and facts.linearisation == "matrix-free" else None
    if facts.equations <= SIMPLE:
        return Choice(Sweep(chunk=4, unroll=4) if facts.elements == 1 else Sweep(chunk=1), why)
    if facts.gated:
        one_unit = facts.features == facts.leaves
        return kept if one_unit or (_is_short(facts) and not _has_fast_loops(facts)) else None
    return None


def _short_as_a_whole(facts: Facts, work: Work) -> Choice | None:
    if _is_short(facts):
        return _left("the whole scan is too short to pay for anything but its loop")
    return None


def _single_kernel(facts: Facts, work: Work) -> Choice | None:
    """Of a tiny step XLA makes one kernel, loop included: no overhead is left to save.

    Of a cell with gates it does so forward, but seldom of its derivative, and never of a second
    one; from jax 0.12 on it does.
    """
    if facts.own and facts.equations <= SIMPLE and facts.features == 1:
        return _left(TINY_LOOP)
    if not _is_tiny(facts) or (facts.gated and not _has_fast_loops(facts)):
        return None
    return _left(TINY_LOOP)


def _mostly_work(facts: Facts, work: Work) -> Choice | None:
    """Heavy steps (`structure.work_of`), or large products with little beside them."""
    if not facts.own:
        return None
    if work.heavy is not None:
        return _left(f"the step {work.heavy}")
    if work.rows > _most_rows(facts, work) and facts.elements > MANY:
        return _left(f"the step multiplies {work.rows} rows at a time: little else counts")
    return None


def _single_input_feature(facts: Facts, work: Work) -> Choice | None:
    """Kept, such steps take less memory than with `lax.scan`, but more than when made again."""
    if not (facts.outer_gates and OUTER_GATES[0] <= facts.elements <= OUTER_GATES[1]):
        return None
    why = "gates of a single input feature are slow to make twice"
    if facts.structure == "diagonal" or facts.linearisation == "columns":
        return _left(why)
    return _kept(why)


def _fewest_steps(facts: Facts, work: Work) -> Choice | None:
    if facts.length <= FEWEST:
        return _left("so few steps take less time than what a solver puts around them")
    return None


def _few_steps_of_many_rows(facts: Facts, work: Work) -> Choice | None:
    """With little to save around the steps, a sweep only has more products.

    Smaller LSTM cells, with two carries, gain when their steps are kept.
    """
    if facts.structure == "diagonal":
        return None
    why = f"few steps, mostly products of {facts.batch} rows"
    large = facts.elements > (MANY if facts.own else 8 * MANY)
    few = large and facts.length <= FEW[0]
    if not facts.gated:
        return _left(why) if few else None
    if facts.batch <= PRODUCTS[0] or facts.elements <= MANY or facts.length > PRODUCTS[1]:
        return None
    if few or facts.leaves == 1 or facts.may_keep:
        return _left(why)
    return _kept("sequential; so few steps are sooner kept than made again")


def _gates_of_one_row_since_jax_0_12(facts: Facts, work: Work) -> Choice | None:
    """Kept, they are hardly more than what `lax.scan` stores, and its loop takes hardly longer.

    Made again, steps are no faster than `lax.scan` where there are few of them.
    """
    if facts.jax_version < (0, 12) or facts.batch > 1 or _has_fast_loops(facts):
        return None
    if not _has_gates_to_keep(facts) or not _fits_kept(facts):
        return None
    if facts.features < ONE_ROW[facts.linearisation] and not _gains_on_one_row(facts):
        return None
    return _kept("sequential; a single row's gates are sooner kept than made again")


def _own_gates_of_one_row_since_jax_0_12(facts: Facts, work: Work) -> Choice | None:
    """Gates of one product: what XLA makes of them for `lax.scan` is slow.

    Their cotangents are put side by side again, and XLA makes that for every weight anew, in the
    sum over the steps; of a row that has an axis of its own, only where an LSTM's two carries meet.
    """
    if facts.jax_version < (0, 12) or facts.batch > 1 or facts.unroll > 1:
        return None
    if facts.linearisation != "matrix-free" or work.products != 1 or not _has_own_gates(work):
        return None
    lstm, enough = facts.leaves > 1, facts.features >= GATED[0]
    if not (enough or facts.length > FEW[0] if lstm else enough and facts.vector):
        return None
    if lstm and _is_larger(facts):
        return _kept("sequential; a single row's gates are sooner kept than made again")
    return Choice(Sweep(), "sequential; a single row's gates are joined in every step of lax.scan")


def _few_steps(facts: Facts, work: Work) -> Choice | None:
    """They would be linearised at once in any case: kept, they take less memory and time.

    On a single row they would take several times the memory of a checkpointed body, where weights
    are not the most of it. Of an LSTM, chunks of so few steps that cotangents of weights need no
    matrix product take less than one, and still gain, where the weights are not small; those of a
    GRU do not, but are made from their gates in chunks.
    """
    if not _has_gates_to_keep(facts):
        return None
    rows, few = facts.batch * facts.length, facts.length <= FEW[0]
    if not _is_larger(facts) or not (few or rows <= max(FEW[1], facts.features)):
        return None
    if facts.batch == 1 and not (few or facts.may_keep):
        if facts.leaves > 1:
            if facts.features**2 <= SMALL_WEIGHTS:  # four gates by H, of 2 H features
                return None
            return Choice(Sweep(chunk=FEW_OUTER), "one row: its outer products are cheaply summed")
        if 2 * facts.length > 3 * facts.features:  # 4 T H numbers of gates, 6 H^2 of weights
            why = "one row: its gates are kept, and its steps made from them in chunks"
            return Choice(Sweep(chunk=FEW_GATES, recompute=False), why)
    return _kept("sequential; so few steps are sooner kept than made again")


def _one_row_of_a_wide_gru(facts: Facts, work: Work) -> Choice | None:
    """Made again, its products take what is saved: `lax.scan`, unrolled, loses least on wide rows.

    An LSTM gains all the same, and so do more rows.
    """
    one_row = facts.batch == 1 and facts.leaves == 1 and facts.features >= WIDE
    if not one_row or not _has_gates_to_keep(facts) or not _fits_kept(facts):
        return None
    return _kept("sequential; gates of a single wide row are sooner kept than made again")


def _single_kernel_since_jax_0_12(facts: Facts, work: Work) -> Choice | None:
    """A cell that is not unrolled may gain all the same; see `_gains_on_one_row`."""
    if facts.jax_version < (0, 12):
        return None
    one_row = facts.batch == 1 and 1 < facts.features < ONE_ROW[facts.linearisation]
    if one_row and (_has_fast_loops(facts) or not _gains_on_one_row(facts)):
        return _left("a loop over one row is a single kernel from jax 0.12 on")
    elementwise = facts.features == facts.leaves or (facts.own and work.rows == 0)
    if elementwise and facts.elements < NO_PRODUCTS:
        return _left("a loop without products is a single kernel from jax 0.12 on")
    return None


def _as_the_layer_keeps(facts: Facts, work: Work) -> Choice | None:
    """A layer that stores more than carries anyway: the backward pass is spared the products.

    Of small cells with gates, few steps of several rows are kept, too, and of an LSTM, with two
    carries, few of a single one. Those of a GRU are made again, but half of the steps at a time, in
    about the memory of the layer's residuals, and in less time.
    """
    if not facts.may_keep or facts.own:
        return None
    if facts.batch == 1 and _has_fast_loops(facts):
        return None  # what is kept would not fit into the single kernel of the loop
    if not _fits_kept(facts):
        return None
    pays = _is_larger(facts) or (facts.batch == 1 and facts.jax_version >= (0, 12))
    few = facts.batch * facts.length <= FEW[1]
    if pays or _is_small(facts) or (few and facts.leaves > 1):
        return _kept(
            "sequential; what is slow to make again is kept, as the layer itself keeps residuals"
        )
    if few and facts.gated and facts.length > FEW[0]:
        why = "sequential; half of so few steps take about the memory of the layer's residuals"
        return Choice(Sweep(chunk=-(-facts.length // 2)), why)
    return None


def _most_rows(facts: Facts, work: Work) -> int:
    """See `PRODUCT_ROWS`."""
    many, few = PRODUCT_ROWS
    once = work.products == 1 and facts.length > SHORT_ROW
    gains = once and (facts.features >= GATED[1] or not _has_own_gates(work))
    return many if gains or facts.jax_version < (0, 12) else few


def _has_own_gates(work: Work) -> bool:
    return work.parts >= OWN_GATES


def _is_tiny(facts: Facts) -> bool:
    return facts.elements <= TINY[0] and facts.touched <= TINY[1]


def _has_fast_loops(facts: Facts) -> bool:
    """Whether loops over a single row cost nothing beside their work, as from jax 0.12 on.

    Those of a cell that is not unrolled, as it is not unless asked to be, still do: what
    `lax.scan` gains by the best `unroll` is what our sweep saves.
    """
    plain = not facts.own and facts.unroll == 1
    return facts.jax_version >= (0, 12) and not plain


def _gains_on_one_row(facts: Facts) -> bool:
    """Of a single row, a cell with gates where it has few steps or enough units.

    A layer of it gains with few units, too, unless every gate has products of its own.
    """
    short = facts.length <= SHORT_ROW
    if not facts.gated:
        least, but = PLAIN_ROW[short]
        return facts.features >= least and facts.features not in but
    if facts.may_keep:
        apart = facts.equations > APART[0] and facts.features < APART[1]
        return not apart or facts.length <= FEW[1]
    return short or facts.features >= LONG_ROW[facts.leaves]


def _are_tiny_gates(facts: Facts, work: Work) -> bool:
    """Of an LSTM's two carries, or of many steps of a GRU, from jax 0.12 on."""
    gated = facts.jax_version >= (0, 12) and _has_own_gates(work)
    return gated and (facts.leaves > 1 or facts.length > SHORT_ROW)


def _is_short(facts: Facts) -> bool:
    return facts.elements * facts.equations * facts.length < TINY_WORK


def _is_small(facts: Facts) -> bool:
    size, steps = SMALL
    several = facts.batch > 1 and facts.batch * facts.leaves >= SEVERAL
    small = facts.features <= size and facts.length <= steps * facts.leaves
    return facts.gated and several and small


def _is_larger(facts: Facts) -> bool:
    return facts.features >= LARGER[0] or facts.elements >= LARGER[1]


def _has_gates_to_keep(facts: Facts) -> bool:
    return facts.gated and facts.structure != "diagonal"


def _fits_kept(facts: Facts) -> bool:
    carried = facts.elements * facts.length * facts.itemsize
    return carried <= KEPT_CARRIES[0 if facts.batch == 1 else 1]


RULES: tuple[Callable[[Facts, Work], Choice | None], ...] = (
    _on_a_gpu,
    _not_on_a_cpu,
    _tiny_step,
    _short_as_a_whole,
    _single_kernel,
    _mostly_work,
    _single_input_feature,
    _fewest_steps,
    _few_steps_of_many_rows,
    _gates_of_one_row_since_jax_0_12,
    _own_gates_of_one_row_since_jax_0_12,
    _few_steps,
    _one_row_of_a_wide_gru,
    _single_kernel_since_jax_0_12,
    _as_the_layer_keeps,
)

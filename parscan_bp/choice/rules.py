"""The rules by which ``solver=None`` chooses where nothing was measured.

On a CPU the sequential sweep wins: a tree multiplies matrices where the sweep multiplies vectors,
and a few cores do not make up for it. It saves what `lax.scan` spends around a step, for a second
evaluation of the step. So what has little around its steps, or much in them, is left to `lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable

from parscan_bp.choice.facts import Choice, Facts
from parscan_bp.choice.limits import cpu_limits
from parscan_bp.choice.work import Work
from parscan_bp.solvers.pallas import Pallas
from parscan_bp.solvers.sweep import Sweep

ON_CHIP = Pallas(mode="sequential", otherwise="sweep", memory_limit=2**28)
"""Of the kernels, that which multiplies no Jacobians with one another: nothing can overflow that
does not in `lax.scan`. All linearised steps are in memory at once, 1.2 to 3.2 times what
`lax.scan` stores, hence the limit; larger batches gain less."""

LIGHT = Work(rows=0, heavy=None)


def by_rules(facts: Facts, work: Work = LIGHT) -> Choice:
    """The solver for a scan whose solver was not named: that of the first rule that applies.

    Args:
      facts: what was found about the scan.
      work: what its step does, unless its Jacobian is given.
    """
    for rule in RULES:
        choice = rule(facts, work)
        if choice is not None:
            return choice
    return Choice(Sweep(), "sequential, in chunks of steps that are linearised as one batch")


def _by_platform(facts: Facts, work: Work) -> Choice | None:
    """On a GPU a step of `lax.scan` costs several launches, and one of the kernels none."""
    if facts.on_chip and facts.length > cpu_limits().handful:
        return Choice(ON_CHIP, "one kernel sweeps all steps, in the order of `lax.scan`")
    if facts.platform != "cpu":
        why = f"no rule is known for such a step on a {facts.platform}; name a solver to use one"
        return Choice(None, why)
    return None


def _handful(facts: Facts, work: Work) -> Choice | None:
    """What a solver puts around all steps is then more than what it saves in each."""
    numbers = facts.elements * facts.equations * facts.length
    if facts.length <= cpu_limits().handful or numbers < cpu_limits().short:
        return Choice(None, "the whole scan is too short to pay for anything but its loop")
    return None


def _tiny(facts: Facts, work: Work) -> Choice | None:
    """Of a loop over so few numbers XLA makes one kernel; of a sweep step by step, too.

    Not before jax 0.12 of gates, which are taken apart and put together in every step.
    """
    if facts.elements > cpu_limits().tiny or facts.touched > cpu_limits().tiny_bytes:
        return None
    if facts.jax_version < (0, 12) and work.parts >= cpu_limits().gates:
        return None
    why = "so small a step's loop is a single kernel"
    if facts.own:
        return Choice(None, why)
    return Choice(Sweep(chunk=1, recompute=False), f"sequential, step by step: {why}")


def _heavy(facts: Facts, work: Work) -> Choice | None:
    """Steps of which a second evaluation costs more than what is around them; see `Work`."""
    if facts.own and work.heavy is not None:
        return Choice(None, f"the step {work.heavy}")
    return None


def _many_rows(facts: Facts, work: Work) -> Choice | None:
    """Beside large products little else counts."""
    if facts.own and work.rows > cpu_limits().rows and facts.elements > cpu_limits().wide:
        return Choice(None, f"the step multiplies {work.rows} rows at a time: little else counts")
    return None


def _single_kernel(facts: Facts, work: Work) -> Choice | None:
    """From jax 0.12 on, XLA makes one kernel of loops over one row, and of those without products.

    Not of gates that are parts of one product: their cotangents are put together in every step. Nor
    of what a library does.
    """
    if not facts.own or facts.jax_version < (0, 12):
        return None
    if work.parts >= cpu_limits().gates or work.calls is not None:
        return None
    if facts.batch == 1 or (work.rows == 0 and facts.elements < cpu_limits().one_kernel):
        return Choice(None, "its loop is a single kernel from jax 0.12 on")
    return None


RULES: tuple[Callable[[Facts, Work], Choice | None], ...] = (
    _by_platform,
    _handful,
    _tiny,
    _heavy,
    _many_rows,
    _single_kernel,
)

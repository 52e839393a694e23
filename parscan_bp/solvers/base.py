"""The solver interface, what each solver can take, and what it costs.

A solver is a frozen configuration. It sees a `System` and nothing else: never a layer,
a model or a differentiation rule.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from jax.extend.core import Jaxpr

from parscan_bp.arguments import as_written, described
from parscan_bp.devices import Line, Traffic
from parscan_bp.operators import Operator, for_trees
from parscan_bp.report import Rounds
from parscan_bp.system import Ragged, System
from parscan_bp.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Complexity:
    """What solving n steps takes, in the unit-cost model of BPPSA section 3.6.

    Attributes:
      steps: operations on the critical path with unlimited workers (S in eq. 6).
      matrix_products: matrix-matrix products by all workers.
      vector_products: matrix-vector products by all workers (with
        ``matrix_products``, W in eq. 7).
      operators: Jacobians and their products alive at once.
    """

    steps: int
    matrix_products: int
    vector_products: int
    operators: int


class Solver(abc.ABC):
    """Solves a block bi-diagonal system. Concrete solvers are frozen dataclasses.

    Front ends ask a solver for what it needs and never for its type, so that one written anywhere
    is taken wherever the mathematics allows. A new one defines `run` and `complexity`, one that is
    a `TreeSolver` `states` instead of `run`; and `run_ragged`, if it takes different shapes.

    Attributes:
      uniform: whether it takes systems of equal steps.
      ragged: whether it takes systems of operators of different shapes.
      needs: "products" with vectors alone, for which a Jacobian need not be formed; or the
        "operators" themselves, formed, to multiply them with one another.
      rounds_vary: whether the number of its rounds depends on the numbers, not on sizes alone.
      exact: whether what it returns is the solution, up to rounding or a tolerance.
      inner: the solver that it wraps, if it does.
    """

    uniform: ClassVar[bool] = True
    ragged: ClassVar[bool] = False
    needs: ClassVar[Literal["operators", "products"]] = "operators"
    rounds_vary: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    inner: Solver | None = None

    @property
    def leaves_to_lax(self) -> bool:
        """Whether what it cannot take is left to `jax.lax.scan`, as its caller said."""
        return False

    @property
    def differentiable(self) -> bool:
        """Whether its own program may be differentiated in the place of the system.

        Where it multiplies no operators, takes a fixed number of rounds and is exact.
        """
        return self.needs == "products" and not self.rounds_vary and self.exact

    @property
    def in_range(self) -> bool:
        """Whether it leaves the range of numbers only where the vectors of the system do.

        Products with vectors do; products of operators may overflow, or underflow, where every
        vector is tame. `None` takes, of what was measured, nothing else.
        """
        return self.needs == "products"

    def placed(self, loop: Callable[..., PyTree], *, reverse: bool) -> Callable[..., PyTree]:
        """The exact forward pass, run where the solver wants the data to lie.

        Args:
          loop: ``(consts, init, xs) -> (carry, ys, carry after every step)``, lists of arrays.
          reverse: whether it begins with the last step.

        Returns:
          A function of the same arguments and results; ``loop`` itself where any place is right.
        """
        return loop

    def line(self, *, reverse: bool) -> Line | None:
        """The devices over which `placed` divides the steps, in the order of the scan.

        A parallel forward pass then goes over them, too; ``None`` where all steps are in one place,
        or it should not.
        """
        return None

    def obstacle(self, jaxpr: Jaxpr) -> str | None:
        """Why a step cannot be run where the solver wants it."""
        return None

    @property
    def has_all_steps(self) -> bool:
        """Whether a program has all steps of a scan where it calls it, and not a device's own."""
        return True

    def traced_as(self, init: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """The first carry and the inputs as arrays of the types that they have for one place."""
        return init, xs

    def entering(self, init: list[Array], after: list[Array], *, reverse: bool) -> list[Array]:
        """The carry that enters the first step that is here, linear in the two.

        Args:
          init: the first carry of the scan, or its tangents.
          after: the carry after every step that is here, or their tangents.
          reverse: whether the scan begins with the last step.

        Returns:
          ``init`` itself where all steps are in one place.
        """
        return init

    def spread(
        self, run: Callable[[Solver, int], Callable[..., PyTree]], length: int, *, reverse: bool
    ) -> Callable[..., PyTree]:
        """The whole scan, derivatives included, over the places where the solver wants its steps.

        Args:
          run: ``(solver, n) -> scan`` of n steps in one place, of which ``placed``, ``entering``
            and `run` are then asked; ``scan`` is ``(shared, init, xs) -> (carry, ys)``, of which
            xs and ys have the steps in front.
          length: all steps.
          reverse: whether the scan begins with the last step.

        Returns:
          A function of the same arguments and results; ``run(self, length)`` for a single place.
        """
        return run(self, length)

    def places(self, tree: PyTree) -> int | None:
        """In how many places it wants the layers of a chain, a stretch in each; ``None`` for one.

        Args:
          tree: the arrays of the chain.
        """
        return None

    def for_stages(self, system: Ragged) -> Solver:
        """The solver for a chain in several places, which is a scan of one step in each.

        Args:
          system: that of all layers, whose arrays are types.
        """
        return self

    def on_each_place(self, f: Callable[..., PyTree], whole: PyTree, divided: PyTree) -> PyTree:
        """``f(which place, whole, its part of divided)`` in all places, where it is the same."""
        raise NotImplementedError(f"{self!r} has no places")

    def traffic(self, pair: int, vector: int, length: int) -> dict[str, Traffic]:
        """What a device takes part in between places, by its purpose; nothing for one place.

        Args:
          pair: bytes of a Jacobian, or of a product of them, and a vector.
          vector: bytes of a carry.
          length: all steps.
        """
        return {}

    def with_memory_limit(self, limit: int) -> Solver:
        """The same solver under another limit in bytes; one that has none is itself."""
        return self

    def run_observed(self, system: System, state: PyTree) -> tuple[PyTree, Rounds]:
        """`run`, and what a report tells of its rounds."""
        return self.run(system, state), Rounds.of(1)

    def run_ragged_observed(self, system: Ragged) -> tuple[list[Any], Rounds]:
        """`run_ragged`, and what a report tells of its rounds."""
        return self.run_ragged(system), Rounds.of(1)

    def form(self, operator: Operator) -> Operator:
        """The operator in the structure in which it is multiplied."""
        return for_trees(operator)

    def __repr__(self) -> str:
        return as_written(self)

    @property
    def keeps(self) -> bool:
        """Whether the forward pass has to keep the linearised steps for it."""
        return False

    def check_nothing_kept(self) -> None:
        """Raises `NotImplementedError` if it `keeps`, where no forward pass does that for it."""
        if self.keeps:
            raise NotImplementedError(
                f"solver={self!r}: there is no forward pass here that keeps linearised steps; "
                "parscan_bp.scan has one, with jacobian='auto' and forward='exact'. "
                "recompute=True is wanted"
            )

    @abc.abstractmethod
    def run(self, system: System, state: PyTree) -> tuple[PyTree, PyTree, PyTree]:
        """Traverses a uniform system from ``state``.

        Returns:
          ``(state, summed, stacked)``: the state that leaves the last traversed step,
          and the contributions of `System.collect`, summed and stacked.
        """

    @abc.abstractmethod
    def complexity(self, n: int) -> Complexity:
        """Operations that `run` executes on n steps."""

    def run_ragged(self, system: Ragged) -> list[Any]:
        """lambda_0..lambda_n of a ragged system; ``None`` may stand where none is wanted."""
        raise NotImplementedError(
            f"{type(self).__name__} takes uniform systems only; Planned() and Sweep() take "
            "operators of different shapes"
        )

    def check(self, structure: type[Operator], *, ragged: bool = False) -> None:
        """Raises `NotImplementedError` unless it takes operators of this structure."""
        kind, other = ("ragged", "uniform") if ragged else ("uniform", "ragged")
        why = None
        if not getattr(self, kind):
            why = f"it takes {other} systems only"
        elif self.needs == "operators" and not structure.composes:
            why = "it multiplies operators, and these have products with vectors alone"
        if why is not None:
            raise NotImplementedError(
                f"{type(self).__name__} cannot take a {kind} system of {structure.__name__} "
                f"operators: {why}. Sweep() takes every structure"
            )

    def check_memory(self, n: int, operator: Operator) -> None:  # noqa: B027
        """Raises `ValueError` if n steps of such operators need more than its memory limit.

        Args:
          n: number of steps.
          operator: their stack, whose arrays may be types.

        One that has no limit raises nothing.
        """


SUCH_AS = {
    "uniform": "a solver such as Sweep(), Chunked(), Blelloch(), Associative() or Pallas()",
    "ragged": "a solver such as Planned(), Sweep() or Blelloch()",
}
"""What ``solver=`` may be, by the kind of systems that a front end makes."""


def check_solver(solver: Any, kind: Literal["uniform", "ragged"]) -> None:
    """The check of ``solver=`` in every front end.

    Args:
      solver: what came.
      kind: "uniform" for equal steps, "ragged" for layers of different sizes.

    Raises:
      TypeError: if it is neither ``None`` nor a solver, but a class or a name, for instance.
      ValueError: if it says that it needs something else than operators or products.
      NotImplementedError: if it takes no such systems.
    """
    if solver is None:
        return
    wanted = SUCH_AS[kind]
    if isinstance(solver, type) and issubclass(solver, Solver):
        name = solver.__name__
        raise TypeError(f"solver: {name} is a class; {name}() is wanted, or {wanted}")
    if not isinstance(solver, Solver):
        raise TypeError(f"solver: got {described(solver)}; None, or {wanted}, is wanted")
    if solver.needs not in ("operators", "products"):
        name = type(solver).__name__
        raise ValueError(f"{name}.needs: got {solver.needs!r}; 'operators' or 'products' is wanted")
    if not getattr(solver, kind):
        ragged = kind == "ragged"
        takes = f"{type(solver).__name__} takes {'uniform' if ragged else 'ragged'} systems only"
        what = "layers of different sizes" if ragged else "equal steps"
        raise NotImplementedError(f"solver: {takes}; {what} want None, or {wanted}")


def check_has_all_steps(solver: Solver | None, **options: bool) -> None:
    """The check of the options of a layer that look at its inputs from their end.

    Args:
      solver: that of the layer.
      **options: whether each is used.

    Raises:
      NotImplementedError: if one is, and the layer is called where it has a device's steps alone.
    """
    for name, used in options.items():
        if used and solver is not None and not solver.has_all_steps:
            raise NotImplementedError(
                f"{name}: inside of jax.shard_map or jax.pmap the layer has the steps of its own "
                f"device alone, and their end is not that of all, which {solver!r} goes through; "
                "the layer outside takes it, and so does parscan_bp.scan(reverse=True)"
            )

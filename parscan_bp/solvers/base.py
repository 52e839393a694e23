"""The solver interface, what each solver can take, and what it costs.

A solver is a frozen configuration. It sees a `System` and nothing else: never a layer,
a model or a differentiation rule.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal

from parscan_bp.arguments import as_written, described
from parscan_bp.devices import HERE, Place
from parscan_bp.operators import Operator, for_trees
from parscan_bp.report import Rounds
from parscan_bp.system import Ragged, System
from parscan_bp.types import PyTree


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

    @property
    def place(self) -> Place:
        """Where it wants the steps of a scan; all in one place, if it does not say."""
        return HERE

    @property
    def here(self) -> Solver:
        """What solves for steps that are not divided, where others are: itself, if none are."""
        return self

    def for_stages(self, system: Ragged) -> Solver:
        """The solver for a chain over devices, which is a scan of one step on each.

        Args:
          system: that of all layers, whose arrays are types.
        """
        return self

    def memory(self, n: int, each: int, vector: int) -> int:
        """Bytes of what there is at once while n steps are solved for.

        Args:
          n: number of steps.
          each: bytes of one, linearised.
          vector: bytes of one of the vectors, of which there are as many as steps.
        """
        return self.complexity(n).operators * each + n * vector

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

    @property
    def one_function(self) -> bool:
        """Whether its loop is one function, which does arithmetic for nothing: all that a step may
        be left to it."""
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


def check_nothing_in_the_way(obstacle: str | None, solver: Solver) -> None:
    """Raises `NotImplementedError` if something in the types of arrays keeps it from planning.

    Args:
      obstacle: what, see `jaxprs.obstacles`; ``None`` if there is nothing.
      solver: the solver that was named.
    """
    if obstacle is not None:
        raise NotImplementedError(
            f"solver={solver!r}: {obstacle}, and a solver cannot plan by such types. scan and "
            "chain leave derivatives to plain automatic differentiation with solver=None, or with "
            "Sweep(otherwise='lax'), which is Sweep() for all other types"
        )


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
    check_is_solver(solver, f"None, or {wanted},")
    if not isinstance(solver.place, Place):
        name = type(solver).__name__
        raise TypeError(f"{name}.place: got {described(solver.place)}; a Place is wanted")
    if solver.needs not in ("operators", "products"):
        name = type(solver).__name__
        raise ValueError(f"{name}.needs: got {solver.needs!r}; 'operators' or 'products' is wanted")
    if not getattr(solver, kind):
        ragged = kind == "ragged"
        takes = f"{type(solver).__name__} takes {'uniform' if ragged else 'ragged'} systems only"
        what = "layers of different sizes" if ragged else "equal steps"
        raise NotImplementedError(f"solver: {takes}; {what} want None, or {wanted}")


def check_is_solver(solver: Any, wanted: str) -> None:
    """Raises `TypeError` unless it is a solver; ``wanted`` says what may come."""
    if isinstance(solver, type) and issubclass(solver, Solver):
        name = solver.__name__
        raise TypeError(f"solver: {name} is a class; {name}() is wanted, or {wanted.rstrip(',')}")
    if not isinstance(solver, Solver):
        named = _named(solver) if isinstance(solver, str) else None
        instead = f"{named}() of parscan_bp.solvers, as solvers have no names; " if named else ""
        raise TypeError(f"solver: got {described(solver)}; {instead}{wanted} is wanted")


def _named(name: str) -> str | None:
    """The solver's class that somebody means who writes it as the methods of ``forward=``."""
    classes = [Solver]
    for kind in classes:
        classes += kind.__subclasses__()
    plain = name.replace("_", "").lower()
    return next((kind.__name__ for kind in classes[1:] if kind.__name__.lower() == plain), None)


def check_has_all_steps(solver: Solver | None, **options: bool) -> None:
    """The check of the options of a layer that look at its inputs from their end.

    Args:
      solver: that of the layer.
      **options: whether each is used.

    Raises:
      NotImplementedError: if one is, and the layer is called where it has a device's steps alone.
    """
    for name, used in options.items():
        if used and solver is not None and not solver.place.has_all_steps:
            raise NotImplementedError(
                f"{name}: inside of jax.shard_map or jax.pmap the layer has the steps of its own "
                f"device alone, and their end is not that of all, which {solver!r} goes through; "
                "the layer outside takes it, and so does parscan_bp.scan(reverse=True)"
            )

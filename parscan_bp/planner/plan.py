"""The plan of a ragged system: the schedule that is chosen, its costs and those of others."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from parscan_bp.planner.machine import CPU, FLOPS, Machine
from parscan_bp.planner.outlook import Outlook, ProductStep, outlook, steps
from parscan_bp.planner.schedule import ProductOrder, blelloch, linear, span
from parscan_bp.planner.search import order_candidates
from parscan_bp.planner.table import ChainProblem, ProductTable

DEFAULT_MEMORY_LIMIT = 4 * 2**30
"""Bytes that operators and their products may take where no limit is given."""


class Plan:
    """A schedule for a system, with what it takes; ``str()`` is a table.

    Attributes:
      schedule: what is multiplied and pushed.
      unpacked: positions of convolutions that are pushed through as matrices.
      steps: the operations in order, with their structures and costs.
      outlook: what they take together.
      names: of the operators, for the table.
    """

    def __init__(
        self, table: ProductTable, schedule: ProductOrder, workers: int, names: Sequence[str] = ()
    ):
        found = steps(schedule, table)
        assert found is not None
        self.table, self.workers = table, workers
        self.schedule, self.unpacked = schedule, table.unpacked
        self.steps = tuple(found)
        self.outlook = outlook(schedule, found, table, workers)
        self.names = tuple(names) or tuple(f"A{t}" for t in range(schedule.length))

    def named(self, names: Sequence[str]) -> Plan:
        """The same plan with other names of its operators."""
        return Plan(self.table, self.schedule, self.workers, names)

    @functools.cached_property
    def baselines(self) -> dict[str, Outlook | None]:
        """What other schedules take: ``None`` where a product cannot be made, or is too
        large to be planned.

        "BP" is the linear scan through the operators as they are given, which is
        back-propagation by VJPs.
        """
        problem, machine = self.table.problem, self.table.machine
        found = {"BP": _outlook(linear(self.schedule.length), _plain(problem, machine), 1)}
        for name, schedule in _named(self.schedule.length):
            found[name] = _outlook(schedule, self.table, self.workers)
        return found

    def __str__(self):
        problem, unit = self.table.problem, "seconds"
        if self.table.machine == FLOPS:
            unit = "flops"
        lines = [
            f"{self.schedule.length} operators, batch {problem.stack or 1}, "
            f"{self.workers} worker{'s' * (self.workers > 1)}; costs in {unit}",
            *_rates(self.table.machine),
            f"{'step':<9}{'operators':<26}{'structure':<14}{'shape':>14}"
            f"{'nnz':>11}{'flops':>10}{'bytes':>10}{'cost':>10}",
        ]
        lines += [self._row(step) for step in self.steps]
        lines.append(
            f"{'schedule':<14}{'products':>9}{'pushes':>8}{'flops':>10}{'largest':>10}"
            f"{'bytes':>10}{'cost':>10}{'critical path':>15}"
        )
        for name, one in {"planned": self.outlook, **self.baselines}.items():
            if one is None:
                lines.append(f"{name:<14}   a product cannot be made or is too large")
                continue
            lines.append(
                f"{name:<14}{one.products:>9}{one.pushes:>8}{one.flops:>10.2e}{one.largest:>10.2e}"
                f"{one.bytes:>10.2e}{one.seconds:>10.2e}{one.critical_path:>15.2e}"
            )
        return "\n".join(lines)

    def _row(self, step: ProductStep) -> str:
        i, j = span(step.tree)
        name = self.names[i] if j - i == 1 else f"{self.names[i]}..{self.names[j - 1]}"
        op, task = step.task.operator, step.task
        shape = f"{op.shape[0]}x{op.shape[1]}"
        return (
            f"{step.kind:<9}{name:<25.25} {type(op).__name__:<14}{shape:>14}{op.nnz:>11}"
            f"{task.cost.flops:>10.2e}{task.nbytes:>10.2e}{task.seconds:>10.2e}"
        )


def _rates(machine: Machine) -> list[str]:
    """Where the rates are from that costs are counted with, in a line."""
    if machine == FLOPS:
        return []
    if machine == CPU:
        return ["rates: the package's own; pb.measure_machine() measures those of this machine"]
    return [f"rates, measured or named: {machine}"]


@functools.lru_cache(maxsize=128)
def plan(problem: ChainProblem, machine: Machine, workers: int, memory_limit: int | None) -> Plan:
    """The fastest schedule that was found under a memory limit.

    Candidates are the results of the dynamic programs, the linear scan and every truncation of
    Algorithm 1; each is scheduled on the workers, and the first to end is taken.

    Args:
      problem: the system.
      machine: what costs are counted in.
      workers: number of workers.
      memory_limit: bytes that operators, products, index plans and vectors may take together;
        ``None`` is 4 GiB, or what the linear scan needs if that is more.

    Raises:
      ValueError: if no schedule keeps the limit.

    Source: BPPSA sections 3.6 and 5.3, for any parenthesisation.
    """
    n = len(problem.given) - 1
    table, plain = ProductTable(problem, machine), _plain(problem, machine)
    least = Plan(plain, linear(n).only(problem.wanted), workers)
    limit = memory_limit
    if limit is None:
        limit = max(DEFAULT_MEMORY_LIMIT, least.outlook.bytes)
    best = least if least.outlook.bytes <= limit else None
    for schedules in _rounds(table, workers, limit):
        fits = False
        for schedule in schedules:
            found = steps(schedule, table, table.linear)
            if found is None:
                continue
            it = outlook(schedule, found, table, workers)
            fits = fits or it.bytes <= limit
            if it.bytes <= limit and (best is None or _pays(it, best)):
                best = Plan(table, schedule, workers)
        if fits:
            break
    if best is None:
        full = least.baselines["Blelloch()"]
        raise ValueError(
            f"memory_limit: no schedule of {n} operators fits into {limit:,} bytes; the linear "
            f"scan, which needs the least, needs {least.outlook.bytes:,}"
            + ("" if full is None else f", a full scan {full.bytes:,}")
        )
    return best


def _pays(it: Outlook, best: Plan) -> bool:
    """Whether a schedule is to replace one that came before it and multiplies less."""
    margin = best.table.machine.margin if best.outlook.products < it.products else 0
    return it.seconds < (1 - margin) * best.outlook.seconds


def _rounds(table: ProductTable, workers: int, limit: int) -> Iterator[list[ProductOrder]]:
    """Candidates under a limit on every single product, which falls until their sum keeps it."""
    wanted = table.problem.wanted
    if not wanted:
        return
    named = [schedule.only(wanted) for _, schedule in _named(table.length)]
    largest = [limit]
    while largest:
        found = list(order_candidates(table, workers, max(largest)))
        yield named + found
        products = {p for schedule in found for p in schedule.products}
        largest = [made.nbytes - 1 for p in products if (made := table.product(p)) is not None]


def _named(n: int) -> Iterator[tuple[str, ProductOrder]]:
    """The linear scan, every truncation of Algorithm 1, and the whole of it."""
    yield "linear", linear(n)
    for levels in range(1, max((n - 1).bit_length(), 1)):
        yield f"Blelloch({levels})", blelloch(n, levels)
    yield "Blelloch()", blelloch(n)


def _plain(problem: ChainProblem, machine: Machine) -> ProductTable:
    return ProductTable(problem, machine, convert=False)


def _outlook(schedule: ProductOrder, table: ProductTable, workers: int) -> Outlook | None:
    schedule = schedule.only(table.problem.wanted)
    found = steps(schedule, table)
    return None if found is None else outlook(schedule, found, table, workers)

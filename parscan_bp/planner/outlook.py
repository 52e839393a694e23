"""What a schedule costs: list scheduling of its operations on some workers."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Hashable

from parscan_bp.planner.schedule import ProductOrder, Tree, span
from parscan_bp.planner.table import ProductTable, ProductTask
from parscan_bp.trees import nbytes


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a schedule takes.

    Attributes:
      products: number of matrix products.
      pushes: number of matrix-vector products.
      flops: of all workers.
      largest: flops of the largest single operation.
      seconds: until the last vector is known.
      critical_path: the same with as many workers as there is work for.
      bytes: operators given, formed and multiplied, index plans and vectors, all at once.
    """

    products: int
    pushes: int
    flops: int
    largest: int
    seconds: float
    critical_path: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class ProductStep:
    """An operation of a schedule: a product, a push, or the forming of a matrix.

    Attributes:
      kind: "product", "push" or "form".
      tree: what is multiplied or pushed through.
      task: its operator and costs.
    """

    kind: str
    tree: Tree
    task: ProductTask


def steps(
    schedule: ProductOrder, table: ProductTable, most: float = math.inf
) -> list[ProductStep] | None:
    """The operations in order; ``None`` with a product that cannot be made in ``most`` seconds."""
    found = []
    for product in schedule.products:
        task = table.product(product, most)
        if task is None or task.seconds > most:
            return None
        found.append(ProductStep("product", product, task))
    for tree in schedule.pushes:
        formed = table.formed(tree) if isinstance(tree, int) else None
        if formed is not None:
            found.append(ProductStep("form", tree, formed))
        found.append(ProductStep("push", tree, table.push(tree)))
    return found


def outlook(
    schedule: ProductOrder, found: list[ProductStep], table: ProductTable, workers: int
) -> Outlook:
    """What a schedule, whose operations were found, takes."""
    flops = [step.task.cost.flops for step in found]
    after = _dependencies(found, table.length)
    duration = {(step.kind, step.tree): step.task.seconds for step in found}
    return Outlook(
        products=len(schedule.products),
        pushes=len(schedule.pushes),
        flops=sum(flops),
        largest=max(flops, default=0),
        seconds=_makespan(duration, after, workers),
        critical_path=_makespan(duration, after, len(found)),
        bytes=nbytes(table.problem.leaves) + sum(step.task.nbytes for step in found),
    )


def _dependencies(found: list[ProductStep], n: int) -> dict[Hashable, list[Hashable]]:
    """For each operation those that it waits for."""
    reached: dict[int, Hashable] = {}
    after: dict[Hashable, list[Hashable]] = {}
    for step in found:
        me = (step.kind, step.tree)
        if step.kind == "product" and isinstance(step.tree, tuple):
            after[me] = [("product", t) for t in step.tree if not isinstance(t, int)]
        elif step.kind == "form":
            after[me] = []
        else:
            to, source = span(step.tree)
            waits = [reached[source]] if source < n else []
            made = ("product" if isinstance(step.tree, tuple) else "form", step.tree)
            after[me] = [*waits, made] if made in after else waits
            reached[to] = me
    return after


def _makespan(duration: dict, after: dict[Hashable, list[Hashable]], workers: int) -> float:
    """The end of the last operation when the longest remaining path goes first."""
    followers: dict[Hashable, list[Hashable]] = {me: [] for me in after}
    for me, waits in after.items():
        for other in waits:
            followers[other].append(me)
    remaining: dict[Hashable, float] = {}
    for me in reversed(after):
        longest = max((remaining[f] for f in followers[me]), default=0.0)
        remaining[me] = duration[me] + longest
    order = {me: k for k, me in enumerate(after)}
    waiting = {me: len(waits) for me, waits in after.items()}
    ready = [(-remaining[me], order[me], me) for me, count in waiting.items() if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int, Hashable]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            _, k, me = heapq.heappop(ready)
            heapq.heappush(running, (now + duration[me], k, me))
        now, _, me = heapq.heappop(running)
        for other in followers[me]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (-remaining[other], order[other], other))
    return now

"""What is raced for a scan: a solver for each name."""

from __future__ import annotations

from parscan_bp.choice.facts import Facts
from parscan_bp.measured import measured
from parscan_bp.solvers import (
    Associative,
    Blelloch,
    Chunked,
    ChunkedCorrections,
    Pallas,
    Solver,
    Sweep,
)
from parscan_bp.solvers.pallas_chunks import DIAGONAL, chunk_of, reduction_of_matrices

LAX = "lax.scan"


def solver_candidates(facts: Facts) -> dict[str, Solver | None]:
    """The solvers that may be the fastest for a scan, by what is printed of them."""
    n = facts.length
    found: list[Solver] = [
        Sweep(),
        Sweep(recompute=False),
        Sweep(chunk=1, recompute=False),
        *(Sweep(chunk=size) for size in sorted({max(2, n // 30), max(2, n // 4)})),
    ]
    rounds = ChunkedCorrections()
    if rounds.count(n) > 1:  # or it is a sweep
        found.append(rounds)
    matrix = facts.columns * facts.features * facts.batch * facts.itemsize
    trees = measured("cpu")["trees"]  # products take the cube of the order
    fits = n * matrix <= trees["bytes"] and facts.columns <= trees["order"]
    if fits:
        found += [Chunked(), Blelloch(), Associative()]
        found += [Chunked(scaled=True), Blelloch(scaled=True)]
    if fits and facts.platform == "gpu":
        middle = _chunk(facts)
        found += [
            *(Pallas(), Pallas(mode="sequential")),
            *(Pallas(mode="chunked", chunk=size) for size in (middle // 2, 2 * middle, 4 * middle)),
        ]
    return {LAX: None, **{repr(solver): solver for solver in found}}


def _chunk(facts: Facts) -> int:
    """That of `Pallas(mode="chunked")`, of a cell's maps about: here they count as matrices."""
    if facts.structure == "diagonal":
        return chunk_of(DIAGONAL, facts.length, facts.elements)
    return chunk_of(reduction_of_matrices(facts.features), facts.length, facts.batch)

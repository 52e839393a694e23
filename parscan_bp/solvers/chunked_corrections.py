"""Chunks side by side from zero, and rounds that hand on and sweep what each seam lacked."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import set_ints
from parscan_bp.jaxprs.batching import mapped
from parscan_bp.primitives.mapping import largest_of_mapped
from parscan_bp.report import Rounds
from parscan_bp.solvers.base import Complexity, Solver
from parscan_bp.solvers.collect import collect_in_chunks, default_chunk
from parscan_bp.solvers.layer_corrections import LayerChunks
from parscan_bp.solvers.seams import anywhere, are_finite, cancels, matters, select
from parscan_bp.solvers.stretches import steps_per_chunk, sweep_stretch
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.system import System, block_shape, zeros_of_shape
from parscan_bp.trees import add, nbytes, stretch, write_stretch
from parscan_bp.types import Array, PyTree

MOST_CHUNKS, LEAST_STEPS = 64, 64
"""Chunks and steps per chunk that are taken where none are named: what a step forgets within a
chunk, it forgets in the first round."""


@dataclasses.dataclass(frozen=True, repr=False)
class ChunkedCorrections(Solver):
    """p chunks of the recurrence swept side by side, and their seams corrected in rounds.

    The first chunk starts from the state that enters it, all others from zero. Then each chunk
    hands what leaves it to the next one, where only this *correction* is swept,

        c_{t-1} = J_t^T c_t,    lambda_t <- lambda_t + c_t,

    and what leaves there is handed on in the next round. It is the block Jacobi iteration with a
    chunk as a block: chunk k, counted from 0, is exact after k rounds, all of them after p - 1. A
    correction that a chunk forgets takes part in no further steps or rounds, so that one round of
    some steps does for a network that forgets within a chunk. No matrices are multiplied, whatever
    their structure.

    A correction is dropped where it changes no stored number: where every entry is below half an
    ulp of the one that it is added to. An addition drops that, too; so what later steps would have
    made of it, however fast they grow, is what they make of the rounding of a sequential sweep.

    What is left after ``max_rounds`` is swept sequentially, from the first chunk that is not
    settled. So it is where large numbers of a chunk cancel with what is handed to it, of which
    `Report.bound` says how much is too much, and where a number is not finite: sums over a part of
    the chunks may overflow where the solution does not, and a solution that is not finite is that
    of `Sweep`. The report says how many rounds there were (``iterations``), and whether chunks were
    swept again (``fell_back``). Under `jax.vmap` every entry has rounds of its own; those that are
    done are kept as they are, to the last bit.

    Steps n/p for the chunks, at most as many for each round; what n leaves over the chunks is swept
    at the end. Memory one vector a step, and a block of linearised steps of all chunks. Every
    step is linearised for its chunk, again for a correction that reaches it, and once more for
    parameters and inputs. Derivatives of every order are solutions of the same system.

    Args:
      chunks: p, at most the number of steps. ``None`` takes up to 64 of 64 steps or more. A single
        chunk is a `Sweep`.
      max_rounds: the most rounds. ``None`` takes an eighth of the chunks, and 2 at least: an eighth
        of the steps of a sweep. With p - 1 nothing is swept again for want of rounds.

    Raises:
      TypeError, ValueError: if an argument is not an int of at least 1.
      NotImplementedError: when used, for a step that works along a mapped axis: its entries may
        differ in their rounds.

    Source: Naumov, "Parallel complexity of forward and backward propagation" (2017), section 3, for
    the system; Saad, "Iterative methods for sparse linear systems" (2003), section 4.1, for block
    Jacobi, whose iteration matrix is nilpotent here.

    Example:
      >>> import jax.numpy as jnp, parscan_bp as pb
      >>> from parscan_bp.operators import Diagonal
      >>> system = pb.Uniform(Diagonal(jnp.full((8, 1), 0.5)), jnp.ones((9, 1)))
      >>> solution, report = pb.solve(system, pb.ChunkedCorrections(4, max_rounds=3), report=True)
      >>> float(solution[0, 0]), int(report.iterations), bool(report.fell_back)
      (1.99609375, 3, False)
    """

    chunks: int | None = None
    _: dataclasses.KW_ONLY
    max_rounds: int | None = None

    ragged: ClassVar = True
    needs: ClassVar = "products"
    rounds_vary: ClassVar = True

    def __post_init__(self):
        set_ints(self, ("chunks", "max_rounds"), chunks=1, max_rounds=1)

    def count(self, n: int) -> int:
        """The number of chunks that n steps are cut into; of one it is a `Sweep`."""
        return min(self.chunks or min(n // LEAST_STEPS, MOST_CHUNKS), n) or 1

    def _most_rounds(self, count: int) -> int:
        return self.max_rounds or max(2, count // 8)

    def run(self, system, state):
        return self.run_observed(system, state)[0]

    def run_observed(self, system, state):
        if self.count(system.length) == 1:
            return Sweep().run(system, state), Rounds.of(0)
        chunks = _Chunks.of(system, state, self.count(system.length))
        most = self._most_rounds(chunks.count)
        rounds = _corrected(chunks, _swept_from_zero(chunks, state), most)
        last, (shown, aux), fell_back = _swept_on(chunks, state, rounds)
        summed, out = collect_in_chunks(system, shown, aux, last, chunks.collected)
        number = jnp.minimum(rounds.number, most)
        return (last, summed, out), Rounds(number, fell_back=fell_back)

    def run_ragged(self, system):
        return self.run_ragged_observed(system)[0]

    def run_ragged_observed(self, system):
        layers = LayerChunks.of(system, self.count(system.length))
        most = self._most_rounds(len(layers.edges) - 1)
        unsettled, number, lambdas = layers.corrected(most)
        lambdas, fell_back = layers.swept_on(unsettled, lambdas)
        return lambdas, Rounds(jnp.minimum(number, most), fell_back=fell_back)

    def complexity(self, n):
        """With one round that no chunk forgets early."""
        p = self.count(n)
        size, rest = divmod(n, p)
        again = size if p > 1 else 0
        return Complexity(
            steps=size + again + rest,
            matrix_products=0,
            vector_products=n + (p - 1) * again,
            operators=p,
        )


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """The steps of a system as chunks of one size, and what these leave over, traversed last.

    Values of all chunks are stacked in the order of their positions.

    Attributes:
      system: the system.
      count: number of chunks.
      size: steps of each, a multiple of ``block``.
      block: steps of each that are linearised at a time.
      collected: steps of which contributions are collected at a time.
    """

    system: System
    count: int
    size: int
    block: int
    collected: int

    @classmethod
    def of(cls, system: System, state: PyTree, count: int) -> _Chunks:
        n = system.length
        leaves, _ = block_shape(system, 1).operator.unstack()
        step, most = nbytes(leaves), n // count
        # The size in whose multiples the fewest steps are left over.
        large = default_chunk(most, most * count * step)
        block = min(range(large, large // 2, -1), key=lambda size: most % size)
        return cls(system, count, most - most % block, block, steps_per_chunk(n, step, 0))

    @property
    def blocks(self) -> int:
        """Blocks of a chunk."""
        return self.size // self.block

    @property
    def rest(self) -> int:
        """Steps beside the chunks."""
        return self.system.length - self.count * self.size

    def within(self, block: int | Array) -> int | Array:
        """Where in its chunk a block begins that is traversed after so many others."""
        done = block * self.block
        return self.size - self.block - done if self.system.backward else done

    def swept(self, block, states: PyTree, **how) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        """A block of every chunk at once: the states that leave it, and what is made in it."""
        lowest = self.rest if self.system.backward else 0
        starts = lowest + self.within(block) + self.size * jnp.arange(self.count)

        def one(start, state):
            state, *made = sweep_stretch(self.system, state, start, self.block, **how)
            return state, tuple(made)

        return mapped(one, in_turn=self.system.in_turn)(starts, states)

    def entering(self, first: PyTree, leaving: PyTree) -> PyTree:
        """What enters each chunk: ``first`` the first one, what leaves one the one after it."""

        def leaf(first, leaving):
            if self.system.backward:
                return jnp.concatenate([leaving[1:], first[None]])
            return jnp.concatenate([first[None], leaving[:-1]])

        return jax.tree.map(leaf, first, leaving)

    def first_shown(self, shown: PyTree, block) -> PyTree:
        """The vectors that are shown first in a block of each chunk."""
        at = self.within(block) + (self.block - 1 if self.system.backward else 0)
        return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, at, 1, keepdims=False), shown)

    def in_order(self, values: PyTree) -> PyTree:
        """Values of all chunks, in the order in which they are traversed."""
        return jax.tree.map(lambda a: a[::-1], values) if self.system.backward else values

    def joined(self, values: PyTree) -> PyTree:
        """The values of all steps; zeros of those that the chunks leave over."""

        def leaf(a):
            steps = a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])
            rest = jnp.zeros_like(steps[: self.rest])
            return jnp.concatenate([rest, steps] if self.system.backward else [steps, rest])

        return jax.tree.map(leaf, values)


class _Rounds(NamedTuple):
    """The state of the corrections.

    Attributes:
      block: the next block, the same one of every chunk.
      number: the round that it belongs to; 0 where there was nothing to correct.
      correction: what is to be added to the states that enter it.
      pending: of which chunks there is a correction that counts.
      lost: in which chunks large numbers cancelled.
      leaving: the states that leave the chunks.
      made: the vectors that are shown, and what the maps made beside their products, by chunk.
    """

    block: Array
    number: Array
    correction: PyTree
    pending: Array
    lost: Array
    leaving: PyTree
    made: tuple[PyTree, PyTree]


def _swept_from_zero(chunks: _Chunks, state: PyTree) -> _Rounds:
    """All chunks but the first from zero, before any round."""
    zeros = jax.tree.map(lambda a: lax.broadcast(jnp.zeros_like(a), (chunks.count,)), state)
    states = chunks.entering(state, zeros)
    _, part = jax.eval_shape(functools.partial(chunks.swept, 0), states)
    repeat = functools.partial(jnp.repeat, repeats=chunks.blocks, axis=1)
    made = zeros_of_shape(jax.eval_shape(functools.partial(jax.tree.map, repeat), part))

    def visit(block, carry):
        states, made = carry
        states, part = chunks.swept(block, states)
        return states, write_stretch(made, part, chunks.within(block), axis=1)

    leaving, made = lax.fori_loop(0, chunks.blocks, visit, (states, made))
    correction = chunks.entering(jax.tree.map(jnp.zeros_like, state), leaving)
    pending = matters(correction, chunks.first_shown(made[0], 0), 1)
    number, lost = jnp.any(pending).astype(jnp.int32), jnp.zeros_like(pending)
    return _Rounds(jnp.zeros((), jnp.int32), number, correction, pending, lost, leaving, made)


def _corrected(chunks: _Chunks, rounds: _Rounds, most: int) -> _Rounds:
    """The rounds, ``most`` of them at most."""

    def wanted(rounds: _Rounds) -> Array:
        """Whether there is something left that a round can do."""
        usable = jnp.all(are_finite(rounds.correction, 1) & ~rounds.lost)
        return jnp.any(rounds.pending) & (rounds.number <= most) & usable

    def visit(rounds: _Rounds) -> _Rounds:
        # An entry of a mapped axis that is done stays as it is, to the last bit.
        goes = wanted(rounds)
        active, ends = rounds.pending & goes, rounds.block + 1 == chunks.blocks
        left, added = chunks.swept(rounds.block, rounds.correction, homogeneous=True)
        left = select(active, left, jax.tree.map(jnp.zeros_like, left))
        at = chunks.within(rounds.block)
        old = stretch(rounds.made, at, chunks.block, axis=1)
        new = select(active, jax.tree.map(jnp.add, old, added), old)
        made = write_stretch(rounds.made, new, at, axis=1)
        leaving = select(active & ends, add(rounds.leaving, left), rounds.leaving)
        lost = rounds.lost | cancels(old[0], new[0], 1)

        nothing = jax.tree.map(lambda a: jnp.zeros_like(a[0]), (left, active))
        correction, pending = select(ends, chunks.entering(nothing, (left, active)), (left, active))
        block = jnp.where(ends, 0, rounds.block + 1)
        pending &= matters(correction, chunks.first_shown(made[0], block), 1)
        correction = select(pending, correction, jax.tree.map(jnp.zeros_like, correction))
        number = rounds.number + (ends & jnp.any(pending))
        kept = rounds.number, rounds.correction, rounds.pending
        number, correction, pending = select(goes, (number, correction, pending), kept)
        return _Rounds(block, number, correction, pending, lost, leaving, made)

    return lax.while_loop(lambda rounds: anywhere(wanted(rounds)), visit, rounds)


def _swept_on(chunks: _Chunks, state: PyTree, rounds: _Rounds) -> tuple[PyTree, PyTree, Array]:
    """Sequentially what no round settled, and what the chunks leave over.

    Returns:
      The state that leaves the last step, what all steps made, and whether a chunk was swept again.
    """
    system, n, block = chunks.system, chunks.system.length, chunks.block
    settled, fell_back = _settled(chunks, rounds)
    seams = jax.tree.map(
        lambda a, b: jnp.concatenate([a[None], b]), state, chunks.in_order(rounds.leaving)
    )
    state = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, settled, 0, keepdims=False), seams)
    begin, (whole, rest) = settled * chunks.blocks, divmod(n, block)

    def visit(carry):
        k, state, made = carry
        start = n - (k + 1) * block if system.backward else k * block
        left, *part = sweep_stretch(system, state, start, block)
        mine, old = k >= begin, stretch(made, start, block)
        made = write_stretch(made, select(mine, tuple(part), old), start)
        return k + 1, select(mine, left, state), made

    carry = -largest_of_mapped(-begin), state, chunks.joined(rounds.made)
    _, state, made = lax.while_loop(lambda carry: carry[0] < whole, visit, carry)
    if rest:
        start = 0 if system.backward else n - rest
        state, *part = sweep_stretch(system, state, start, rest)
        made = write_stretch(made, tuple(part), start)
    return state, made, fell_back


def _settled(chunks: _Chunks, rounds: _Rounds) -> tuple[Array, Array]:
    """How many chunks are, before the first that is not, int32; whether there is such a one."""
    finite = are_finite(rounds.made[0], 1) & are_finite(rounds.leaving, 1)
    # The first one was swept from the state that enters it, whatever came out.
    later = jnp.arange(chunks.count) > 0
    unsettled = chunks.in_order(rounds.pending | rounds.lost | ~finite) & later
    fell_back = jnp.any(unsettled)
    first = jnp.where(fell_back, jnp.argmax(unsettled), chunks.count)
    return first.astype(jnp.int32), fell_back

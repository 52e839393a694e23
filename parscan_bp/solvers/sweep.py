"""The sequential sweep, in chunks that stay in cache."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax

from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.operators import Operator
from parscan_bp.originals import lax_scan
from parscan_bp.solvers.base import (
    CHUNK_BYTES,
    Complexity,
    Solver,
    accumulators,
    default_chunk,
    in_chunks,
)
from parscan_bp.system import System, block_shape
from parscan_bp.trees import add, nbytes, write_stretch

SMALL_SUMS = 2**15
"""Bytes of parameter cotangents up to which adding them up is no reason for larger chunks."""

SPLIT = 15 * 2**15
"""Bytes of the largest array of a chunk, or of all its gates, from which XLA on CPU splits its
evaluation among threads with gain."""

PARTS = {False: (10, 5 * 2**18), True: (5, 3 * 2**19)}
"""Of all steps, the part that is such a chunk, and its most bytes, by whether they are kept."""

PLAIN = 2
"""Times the carry that a linearised step has at most where it has no gates."""

SMALLEST = 2**12
"""Bytes of a chunk that are not worth saving, where there are no gates."""

FEWEST = (10, 50)
"""Least steps per chunk, where they fit; and where a step has more than `GATES`: every array adds
to what a chunk takes beside its steps."""

FIFTH = 2**14
"""Bytes of a fifth of all steps with gates up to which that is a chunk."""

GATES = 6
"""Most arrays that a linearised step of a recurrent cell consists of."""

FEW = 32
"""Steps up to which there is no memory to speak of, and every chunk more is slower."""

SHORT = (512, 2**22)
"""Steps, and their bytes where they are kept, up to which they are one chunk."""

UNSPLIT = (25 * 2**13, 5 * 2**17)
"""Bytes of so short a chunk, of steps of `MANY` times their carry, between which it is divided into
such as have the former at most: XLA would split the evaluation of the whole among threads, with
loss."""

MANY = 4
"""Times the carry that a linearised GRU has at least."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(Solver):
    """Sequential substitution, the linear scan of BPPSA section 3.6.

    Each chunk of steps is linearised as one batch, from the stored carries; a loop of
    one matrix-vector product per step follows; then the chunk's parameter and input
    cotangents are one batched product. The values of a chunk stay in cache, and nothing
    but the carries is kept for the whole length. On a CPU, products with matrices of a
    few numbers are compiled into the loop as sums of elementwise products.

    Of a scan no Jacobian is formed, unless one is given, and no slopes are multiplied with one
    another: a cotangent is multiplied by one after the other, in the order of `jax.lax.scan`. So
    in a gradient, cotangents of carries and inputs become zero, infinite or NaN where they do
    there. Only sums are made in another order, which matters where one leaves the range on its
    way, or cancels: of a matrix product; of a parameter's cotangents, which go back through what
    the step makes of its parameters alone when all steps are summed; and of a carry's cotangent
    with those of outputs other than the carry, which are multiplied by the step's slopes apart.
    And slopes that are constants of the compiled program are XLA's to multiply, as a product with
    a mask that is made in the same program is XLA's to select: 0 where inf or NaN times 0 is NaN,
    as in the compiled gradient of ``jnp.sqrt(c * (c > 1))`` and ``jnp.max(c)`` without a scan.

    With ``recompute=False`` the forward pass keeps, as `jax.lax.scan` keeps its residuals, what of
    the linearised steps is slow to make again: functions of products, or the slopes that follow
    from them where these are hardly more bytes. That takes more memory, and steps with costly
    functions, such as an LSTM's, are evaluated once, for derivatives of the gradient, too. Of 16
    to 24 numbers, such functions are made again all the same where what they are made of is fewer
    arrays, such as an LSTM's gates side by side. Of mere arithmetic on the carries, as in an Elman
    RNN, there is nothing to keep.

    Steps n, work n matrix-vector products, memory one chunk.

    Args:
      chunk: steps per chunk; ``None`` takes a tenth of all and at least 10 steps, or 50 of more
        than six arrays, but a fifth of steps with gates where that has 16 kB at most; without
        gates a quarter and, of linearised steps, at least 4 kB; and in any case half as many bytes
        as the parameters have. It takes at most 1 MB, or 128 kB where the parameters have 32 kB or
        less. Below 1 MB, the largest array of a step with several, such as gates, has at most
        128 kB, or all 1.5 times what the parameters have. But if the gates of a tenth of all
        steps have 480 kB, that is a chunk, of at most 1.25 MB; or those of a fifth, if they are
        kept, of at most 1.5 MB. Less than half a chunk is not left over, but all are one. Up to 32
        steps and 128 kB are one, with ``recompute=False`` up to 512 steps and 4 MB; but a GRU's of
        200 to 640 kB, with weights of 32 kB at most, are divided into chunks of 200 kB. A
        single step per chunk is linearised in the loop itself: with a few numbers to carry, XLA on
        CPU makes one kernel of that.
      unroll: steps per iteration of the inner loop, as in `jax.lax.scan`.
      recompute: whether the steps are linearised again, from the carries, or partly kept. Only
        `scan` and the recurrent modules of Flax can keep them, with ``jacobian="auto"`` and
        ``forward="exact"``.
      otherwise: what becomes of a step of `scan` that the linear model does not hold, such as one
        with effects: "refuse" raises, and names the primitive; "lax" leaves the whole loop to
        `jax.lax.scan`, as ``solver=None`` does, for those who put `scan` in place of every loop of
        a program.

    Raises:
      TypeError, ValueError: if ``chunk`` or ``unroll`` is not an int of at least 1, ``recompute``
        no bool or ``otherwise`` another word.
      NotImplementedError: when used, with ``recompute=False`` where nothing can be kept.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> step = lambda c, x: (jnp.tanh(0.5 * c + x), c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Sweep(chunk=2))[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    chunk: int | None = None
    _: dataclasses.KW_ONLY
    unroll: int = 1
    recompute: bool = True
    otherwise: Literal["refuse", "lax"] = "refuse"

    ragged: ClassVar = True
    needs: ClassVar = "products"

    def __post_init__(self):
        set_ints(self, ("chunk",), chunk=1, unroll=1)
        check_bool("recompute", self.recompute)
        if self.otherwise not in ("refuse", "lax"):
            raise ValueError(f"otherwise: got {self.otherwise!r}; 'refuse' or 'lax' is wanted")

    def __repr__(self):
        more = "" if self.recompute else ", recompute=False"
        more += ", otherwise='lax'" if self.leaves_to_lax else ""
        return f"Sweep(chunk={self.chunk}, unroll={self.unroll}{more})"

    @property
    def leaves_to_lax(self):
        return self.otherwise == "lax"

    @property
    def keeps(self):
        return not self.recompute

    def at_once(self, n: int, step: int, *, carried: int, sums: int) -> bool:
        """Whether n kept steps are linearised as one batch, or singly.

        Args:
          n: all steps.
          step: bytes of one linearised step.
          carried: bytes of one carry.
          sums: bytes of what is summed over the steps.
        """
        if self.chunk is None:
            return _are_short(n, step) and _short_chunk(n, step, carried, sums) == n
        return self.chunk == 1 or self.chunk >= n  # in chunks of one, nothing stands beside a step

    def run(self, system, state):
        n = system.length
        operator = block_shape(system, 1).operator
        after, shown, aux = jax.eval_shape(lambda s: self._sweep(system, s, 0, 1), state)
        sums, stacked = accumulators(system, shown, after, aux)
        chunk = self.chunk or _chunk(n, operator, nbytes(state), nbytes(sums), kept=self.keeps)
        size = min(chunk, n)

        if size == n:
            state, shown, aux = self._sweep(system, state, 0, n)
            return state, *system.collect(0, shown, state, aux)

        def visit(carry, start, size):
            state, summed, stacked = carry
            state, shown, aux = self._sweep(system, state, start, size)
            more, part = system.collect(start, shown, state, aux)
            return state, add(summed, more), write_stretch(stacked, part, start)

        return in_chunks(n, size, system.backward, visit, (state, sums, stacked))

    def _sweep(self, system: System, state, start, size):
        """One chunk: the state that leaves it, the vectors shown in it, and what the maps made."""
        block = system.block(start, size)
        leaves, rebuild = block.operator.unstack()

        def step(state, t):
            leaves, entering, leaving = t
            shown = add(entering, state)
            out, aux = rebuild(leaves).matvec_and_aux(shown)
            return add(out, leaving), (shown, aux)

        state, (shown, aux) = lax_scan(
            step,
            state,
            (leaves, block.entering, block.leaving),
            length=size,
            reverse=system.backward,
            unroll=self.unroll,
        )
        return state, shown, aux

    def run_ragged(self, system):
        out = [system.g[-1]]
        for a, g in zip(reversed(system.operators), reversed(system.g[:-1]), strict=True):
            out.append(add(g, a.matvec(out[-1])))
        return out[::-1]

    def complexity(self, n):
        return Complexity(steps=n, matrix_products=0, vector_products=n, operators=1)


def _chunk(n: int, operator: Operator, carried: int, sums: int, *, kept: bool) -> int:
    """Steps per chunk; see `Sweep`.

    Args:
      n: all steps.
      operator: one linearised step.
      carried: bytes of one carry.
      sums: bytes of what is summed over the chunks, and so read and written once in each.
      kept: whether all linearised steps are in memory already.
    """
    enough, most = CHUNK_BYTES
    leaves, _ = operator.unstack()
    sizes = [nbytes(leaf) for leaf in leaves]
    step = sum(sizes)
    gated = step > PLAIN * carried and len(leaves) <= GATES
    if gated:  # by gate, they are evaluated as one all the same
        apart = [size for size in sizes if size <= carried]
        # Beside a GRU's three gates stand its carry, which is at hand, and a product.
        beside = 2 * carried if min(apart, default=0) == carried else 0
        sizes.append(sum(apart) - beside)
    total, largest = n * step, n * max(sizes, default=0)
    if kept and _are_short(n, step):
        return _short_chunk(n, step, carried, sums)
    if n <= FEW:
        least = enough
    elif step <= PLAIN * carried:
        least = max(SMALLEST, total // 4)
    elif gated:
        least = max(FEWEST[0] * step, min(FIFTH, total // 5))
    else:
        least = FEWEST[1] * step
    least = max(min(least, enough), sums // 2)
    parts, most_split = PARTS[kept]
    split = min(total // parts, most_split)
    if gated and split * largest >= SPLIT * total:
        return _whole(n, default_chunk(n, total, (max(split, least),) * 2))
    if sums <= SMALL_SUMS and not kept:
        return _whole(n, default_chunk(n, total, (least, enough)))
    if len(leaves) > 1 and total < 8 * most:
        # Arrays between this and `SPLIT` are split among threads, too, with loss.
        unsplit = total * enough // max(1, largest)
        most = min(most, max(unsplit, 3 * sums // 2))
    return _whole(n, default_chunk(n, total, (min(least, most), most)))


def _are_short(n: int, step: int) -> bool:
    """Whether n kept steps, of so many bytes each, are one chunk, or a few."""
    return n <= SHORT[0] and n * step <= SHORT[1]


def _short_chunk(n: int, step: int, carried: int, sums: int) -> int:
    """Steps per chunk where n kept steps are short."""
    unsplit, most = UNSPLIT
    total = n * step
    if n <= FEW or total > most or step < MANY * carried or sums > SMALL_SUMS:
        return n
    return _whole(n, default_chunk(n, total, (unsplit, unsplit)))


def _whole(n: int, size: int) -> int:
    """All steps instead of one chunk and less than half of another."""
    return n if 2 * n < 3 * size else size

"""How the kernels divide their work, and why.

Counted on code compiled for sm_90a without a GPU at hand (registers, spills, instructions). On an
H100 an earlier form of the kernels was timed (``bench gpu``), before `column_reduce`, rounds of
steps and warps with a sample of their own, and no other sizes beside them.
"""

from __future__ import annotations

import dataclasses
import itertools

LANES = 128
"""Threads of a warpgroup: lanes that one instance of a lane kernel takes."""

MAX_LANES_SIZE = 10
"""Largest map that a thread composes in registers: 10 x 11 numbers and one row take 252 of the
255 registers. Up to there the lane kernels need a sixth of the tile kernels' instructions."""

MAX_SIZE = 128
"""Largest map of the tile kernels: two 128 x 132 float32 maps still fit shared memory."""

SHARED_BYTES = 160_000
"""Shared memory that an instance plans with, below the 227 KB of an sm_90."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """The shape of one tile instance: a warpgroup and the pairs (chunk, sample) it works on.

    Attributes:
      pairs: samples per warpgroup. 4: one per warp; 8: two per warp, which reads less shared
        memory per product; 1: four warps share the rows of one.
      rows: rows of a map in shared memory, whole tiles of the layout.
      pitch: columns of a map in shared memory: an odd number of 16-byte units, so that the
        rows that a warp reads at once lie in different banks.
      width: columns of a map and its affine part, whole tiles of the layout.
      columns: columns that one instance composes, a divisor of ``width``.
    """

    pairs: int
    rows: int
    pitch: int
    width: int
    columns: int


def tile_of(size: int, batch: int, itemsize: int, held: bool) -> Tile:
    """The tile for maps of order ``size``, a multiple of 16 bytes.

    ``held`` says whether one matrix stays on chip for all steps. Every copy is a multiple of
    128 bytes: the vectors of all pairs, and the held matrix of one.

    Two pairs per warp up to order 24 where the batch fills them (128 registers at 20), one per
    warp up to 32 (168 registers), and above that one per warpgroup: four of order 60 take all
    255 registers, and of order 64 they spill.
    """
    pairs = 1 if size > 32 else 8 if size <= 24 and batch >= 8 else 4
    least = {1: 32, 4: 8, 8: 8 if held else 4}[pairs]
    rows = ceil(size, max(least, 128 // (pairs * itemsize)))
    pitch = pitch_of(size, itemsize)
    width = ceil(size + 1, 16)
    if pairs == 1:
        # At most 64 accumulators in a thread; the other columns are another instance's.
        parts = -(-rows * width // (64 * LANES))
        columns = ceil(-(-width // parts), 16)
        width = columns * parts
    else:
        columns = width
    return Tile(pairs, rows, pitch, width, columns)


MIN_ORDER = 8
"""The least order of maps and weights: two columns for each of the four threads of a row.

With one, a thread's part of the row's sum is a product, which the compiler adds to its neighbour's
without rounding it: the four would come to different numbers, and write them to one place."""


def padded_order(size: int, itemsize: int) -> int:
    """The order that the tile kernels want of maps, weights and vectors of ``size``.

    A multiple of 16 bytes, as the copy engine wants of a row, and `MIN_ORDER` at least.
    """
    return max(MIN_ORDER, ceil(size, 16 // itemsize))


FACTORED_SHARED_BYTES = 220_000
"""Shared memory that the weights and maps of gated cells may have, of 227 KB: the rest is for
two steps fetched ahead."""


def factored_bytes(tile: Tile, size: int, gates: int, itemsize: int) -> int:
    """Shared memory for the weights of all gates and the map that is formed from them."""
    columns = tile.pitch * gates * itemsize + pitch_of(size, 4) * 4
    return tile.pairs * tile.rows * columns


def factored_fits(units: int, states: int, gates: int, itemsize: int) -> bool:
    """Whether the maps of a gated cell can be formed on chip.

    Args:
      units: H.
      states: groups of H units in the state.
      gates: gates of H units.
      itemsize: bytes of a weight.
    """
    size = states * padded_order(units, itemsize)
    if size > MAX_SIZE:
        return False
    tile = tile_of(size, 1, itemsize, True)
    product = 4 * tile.pairs * tile.rows * tile.columns
    return factored_bytes(tile, size, gates, itemsize) + product <= FACTORED_SHARED_BYTES


def factored_columns(tile: Tile) -> int:
    """Columns of a map that are formed at once: 32 numbers in a thread."""
    return max(4, 32 * LANES // (tile.pairs * tile.rows) // 4 * 4)


def pitch_of(size: int, itemsize: int) -> int:
    """Columns of a matrix in shared memory for ``size`` that are used, see `Tile`."""
    unit = 16 // itemsize
    size = ceil(size, unit)
    return size if size // unit % 2 else size + unit


def depth(step_bytes: int, most: int, rest: int = 0) -> int:
    """Steps that are fetched ahead: as many as fit beside ``rest`` bytes, at most ``most``."""
    return max(1, min(most, (SHARED_BYTES - rest) // step_bytes))


def sweep_steps(step_bytes: int, rest: int, chunk: int, count: int, instances: int) -> int:
    """Steps of a round of `tile_sweep`, see `rounds.StepRounds`.

    Rounds are long where each instance has a multiprocessor to itself. What is left over of the
    last one would be written over the next chunk, where there is one.

    Args:
      step_bytes: of shared memory.
      rest: bytes beside those of steps.
      chunk: steps of a chunk.
      count: chunks.
      instances: of all of them.
    """
    most = depth(step_bytes, 16 if instances <= SM_COUNT else 4, rest) // 2
    steps = (8, 4, 2, 1)  # a place is found by bits
    return next(n for n in steps if n == 1 or (n <= most and (count == 1 or chunk % n == 0)))


def lanes_group(size: int, chunk: int) -> int:
    """Steps whose maps a lane kernel reads at once: reads in flight hide memory's latency.

    A divisor of ``chunk``; not more than 32 numbers of a thread, which has 255 registers.
    """
    return next(g for g in (8, 4, 2, 1) if chunk % g == 0 and (g == 1 or g * size * size <= 32))


COLUMN_REGISTERS = 200
"""Registers of a thread of `column_reduce`, of 255, for the numbers of its columns."""

COLUMN_PRODUCTS = 2048
"""Largest G H^2 of `column_reduce`, whose steps are straight code: an instruction each for every
column, and for every four one that reads W."""


def columns_fit(size: int, states: int, gates: int) -> bool:
    """Whether `column_reduce` takes maps of so many groups of units (states) and gates."""
    return (states + 1) * size <= COLUMN_REGISTERS and gates * size**2 <= COLUMN_PRODUCTS


def columns_of(size: int, states: int, instances: int) -> int:
    """Columns of a map and its affine part that a thread of `column_reduce` holds.

    It holds x, and beside it makes the first group of A x: (states + 1) H numbers a column. What
    it reads of W serves all its columns, so c of them take the time of c + 1. What counts is the
    multiprocessor with the most instances: while some are idle, fewer columns are faster.

    Args:
      size: H.
      states: groups of H units.
      instances: warpgroups of pairs, for each part of the columns.
    """
    width = states * size + 1
    most = min(width, COLUMN_REGISTERS // ((states + 1) * size))

    def time(columns):
        return -(-instances * -(-width // columns) // SM_COUNT) * (columns + 1)

    return min(range(1, most + 1), key=time)


def ceil(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple


SM_COUNT = 132
"""Multiprocessors of an H100 or H200."""

FUSED_SHARED_BYTES = 230_000
"""Shared memory that one instance may have on an sm_90, less a little for its barriers."""

SUM_REGISTERS = 64
"""Numbers of weights and their sums in a thread of `recurrence` up to which sums are made.

Their multiply-adds fit between what a step waits for. Predicted with latencies that reproduce a
measured step, its clocks change by -5 to 4 percent, and with 4 samples grow by 6 to 16, a third of
what is saved afterwards; of 144 numbers and one sample they grow by 13 to 15.
"""

OPERAND_REGISTERS = 192
"""Numbers of operands in a thread, of two steps, up to which sums are made: with 256 a step
is predicted to take two fifths longer, more than what it saves."""


WARP_PRODUCTS = 64
"""Numbers of weights in a thread up to which a warp takes a sample by itself, a row to a lane.

Nothing is then added over threads, and no warp waits for another one: with 20 numbers a step is
predicted to take 150 clocks instead of 184, with 60 it is 260 instead of 289, with 64 298 instead
of 302. With more rows than lanes, four warps are faster."""

WARP_SUMS = 128
"""And, with sums, numbers of them too, and of the operands of two steps."""


@dataclasses.dataclass(frozen=True)
class FusedTile:
    """The shape of one instance of `recurrence`.

    Attributes:
      samples: samples per warpgroup: one as long as every sample can have a multiprocessor of
        its own, since a step's latency is what counts; more share what is read of the weights. Four
        where they are apart.
      rows: rows of a weight, 32 or more: four warps of eight rows.
      pitch: columns of a weight in shared memory, see `Tile`.
      steps: those that are copied at once, in and out. There is room for two times as many: the
        next ones are on their way in, those before on their way out.
      columns: the most that are multiplied at once: 64 numbers of a weight in a thread; four where
        samples are apart, whose sums in a thread would be one long chain.
      held: whether all weights stay in registers, at most 96 in a thread.
      sums: whether those of the rule are made, too, see `SUM_REGISTERS` and `OPERAND_REGISTERS`.
      apart: whether each sample has a warp of its own, see `WARP_PRODUCTS`.
    """

    samples: int
    rows: int
    pitch: int
    steps: int
    columns: int
    held: bool
    sums: bool
    apart: bool

    @property
    def fits(self) -> bool:
        """Whether there is room for the weights and two steps; a copy is 256 wide at most."""
        return self.steps >= 1 and max(self.rows, self.pitch) <= 256

    @property
    def parts(self) -> int:
        """Sums of weights that an instance makes: those of samples that are apart are, too."""
        return self.samples if self.apart else 1

    def starts(self, rule) -> int:
        """Vectors that are read before the first step."""
        return rule.starts if self.sums else rule.outputs + rule.states

    def slices(self, size: int) -> list[tuple[int, int]]:
        """(start, size) of the columns multiplied at once, alike in size: see `MIN_ORDER`."""
        parts = -(-size // self.columns)
        edges = [size // 4 * k // parts * 4 for k in range(parts + 1)]
        return [(start, end - start) for start, end in itertools.pairwise(edges)]


def fused_tile(rule, size: int, batch: int, itemsize: int) -> FusedTile:
    """The tile of `recurrence` for weights of order ``size``; it may not fit."""
    rows = ceil(size, 32)
    pitch = pitch_of(size, itemsize)
    count = rule.operands * rule.products
    summed = (count + 3 * rule.operands) * size if rule.sums else 0
    apart = size <= 32 and count * size <= WARP_PRODUCTS and summed <= WARP_SUMS
    most = 1 if batch <= SM_COUNT else 2 if batch <= 264 else 4
    samples = 4 if apart else min(most, max(1, 128 // rows))
    vector = 4 * samples * rows
    held = count * rows * size <= 96 * LANES
    columns = 4 if apart else min(size, 64 * LANES // rows // 4 * 4)
    sums = (
        rule.sums > 0
        and (count + rule.operands) * rows * size <= SUM_REGISTERS * LANES
        and samples * rule.operands * size <= 2 * OPERAND_REGISTERS
    )
    tile = FusedTile(samples, rows, pitch, 0, columns, held, sums, apart)
    rest = count * rows * pitch * itemsize + tile.starts(rule) * vector
    rest += 4 * tile.parts * rule.operands * rows * pitch_of(size, 4) if sums else 0
    most = (FUSED_SHARED_BYTES - rest) // (2 * (rule.inputs + rule.outputs) * vector)
    steps = next((n for n in (8, 4, 2, 1) if n <= most), 0)  # a place is found by bits
    return dataclasses.replace(tile, steps=steps)

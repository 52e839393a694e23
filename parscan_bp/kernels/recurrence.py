"""A whole recurrence in one launch: products with weights that stay on chip, gates between."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from parscan_bp.kernels import compat, tiles
from parscan_bp.kernels.compat import from_zero, plgpu
from parscan_bp.kernels.layouts import fused_layout, spread
from parscan_bp.kernels.opened import opened
from parscan_bp.kernels.rounds import StepRounds
from parscan_bp.kernels.rule import Rule
from parscan_bp.kernels.weight_sums import WeightSums


def recurrence(rule: Rule, v, weights, first, *, reverse: bool = False, interpret=None):
    """Runs a gate rule over all steps.

        y_p = sum_k weights[k, p] out_k,   out, state <- rule.step(v_t, y, state)

    A warpgroup takes one or a few samples through all steps. Its threads share the rows of
    every weight; four neighbours sum the columns of a row, so that all gates of a unit meet in
    the same thread, and only the operands go through shared memory: for them, threads wait for
    one another once a step. Where a thread may have a whole row of every weight, a warp takes a
    sample by itself and waits for no other one, see `tiles.WARP_PRODUCTS`.

    Steps are copied in and out several at once, and copies waited for then, see `StepRounds`.

    A rule with sums has them made, too, where a thread holds few numbers of them, see
    `tiles.fused_tile`. A step's are multiplied in the next one, while that waits for its operands.

    Args:
      rule: the elementwise half of a step, see `parscan_bp.kernels.rule`.
      v: (T, B, inputs, H), float32, H a multiple of 4 and `tiles.MIN_ORDER` at least.
      weights: (operands, products, H, H), float32 or bfloat16.
      first: (B, starts, H), float32: out, state and, with sums, h before the first step.
      reverse: whether step t follows step t + 1.
      interpret: see `compat.kernel`.

    Returns:
      out (T, B, outputs, H) in float32, and the sums, as of `WeightSums.joined`; ``None`` if there
      are none, or no room.
    """
    length, batch, _, size = v.shape
    assert size >= tiles.MIN_ORDER, size
    tile = tiles.fused_tile(rule, size, batch, weights.dtype.itemsize)
    samples, rows = tile.samples, tile.rows
    rounds = StepRounds(length, min(tile.steps, length), reverse)
    layout = fused_layout(tile.apart)
    vector = layout.reduce(2)
    pairs = [(k, p) for k in range(rule.operands) for p in range(rule.products)]
    sums = WeightSums(rule, tile, size, batch) if tile.sums else None
    first = first[:, : tile.starts(rule)]

    def body(v_ref, w_ref, first_ref, out_ref, *refs):
        *sum_refs, w_s, v_s, first_s, out_s, bars, first_bar = refs
        zero = lax.axis_index("batch")
        sample, row = pl.ds(zero * samples, samples), from_zero(zero, rows)
        every_output = pl.ds(0, rule.outputs)

        def fetch(n):
            source = v_ref.at[rounds.times(n), sample, :, row]
            compat.fetch(source, v_s.at[rounds.places(n)], bars.at[rounds.half(n)])

        for n in range(min(2, rounds.count)):
            fetch(jnp.int32(n))
        compat.fetch(first_ref.at[sample, :, row], first_s, first_bar)
        for n, (k, p) in enumerate(pairs):
            compat.fetch(w_ref.at[k, p, row, from_zero(zero, tile.pitch)], w_s.at[n], first_bar)
        plgpu.barrier_wait(first_bar)
        # The operands before the first step lie where one before it would have put its own.
        start = rounds.place(rounds.before(rounds.first))
        for k in range(rule.operands):
            out_s[start, :, k] = compat.load(first_s.at[:, k], vector)
        state = [compat.load(first_s.at[:, rule.outputs + s], vector) for s in range(rule.states)]

        def weight(n, columns):
            w = compat.load(w_s.at[n, :, pl.ds(*columns)], layout.reduce(0))
            return w.astype(jnp.float32)

        slices = tile.slices(size)
        held = [[weight(n, c) for c in slices] for n in range(len(pairs))] if tile.held else None

        def operands_of(t):
            """What step t left, (samples, columns) by operands and slices."""
            left = out_s.at[rounds.place(t)]

            def operand(k, columns):
                return compat.load(left.at[:, k, pl.ds(*columns)], layout.reduce(1))

            return [[operand(k, columns) for columns in slices] for k in range(rule.operands)]

        def products(operands):
            totals: list[Any] = [None] * rule.products
            for n, (k, p) in enumerate(pairs):
                for m, columns in enumerate(slices):
                    shape = (samples, rows, columns[1])
                    x = spread(operands[k][m], shape, (0, 2), layout)
                    w = weight(n, columns) if held is None else held[n][m]
                    y = spread(w, shape, (1, 2), layout) * x
                    y = jnp.sum(y, axis=2)
                    totals[p] = y if totals[p] is None else totals[p] + y
            return totals

        def step(n, k, carry):
            """The k-th of round n."""
            t = rounds.nth(n, k)
            state, added = carry
            operands = operands_of(rounds.before(t))
            if sums is not None:
                added = sums.multiplied(added, zero)
            y = products(operands)
            place = rounds.place(t)
            inputs = [compat.load(v_s.at[place, :, n], vector) for n in range(rule.inputs)]
            out, state, *h = opened(rule.step)(inputs, y, state)
            state = [plgpu.layout_cast(x, vector) for x in state]  # constants have no layout
            for n, value in enumerate(out):
                out_s[place, :, n] = value
            if rounds.steps > 1:  # else what orders copies does that, too
                compat.join_threads(of_warp=tile.apart)
            if sums is not None:
                added = sums.then(added, out, h[0], operands)
            return state, added

        def take(n, carry):
            plgpu.barrier_wait(bars.at[rounds.half(n)])
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # what lay here has left
            carry = lax.fori_loop(0, rounds.taken(n), functools.partial(step, n), carry)
            plgpu.commit_smem()
            source = out_s.at[rounds.places(n)]
            compat.store(source, out_ref, rounds.times(n), sample, every_output, row)

            @pl.when(n + 2 < rounds.count)
            def refill():
                fetch(n + 2)

            return carry

        carry = state, None if sums is None else sums.nothing()
        _, added = lax.fori_loop(0, rounds.count, take, carry)
        if sums is not None:
            added = sums.multiplied(added, zero)
            h = compat.load(first_s.at[:, rule.starts - 1], vector)
            last = added._replace(h=h, operands=operands_of(rounds.last))
            sums.store(sums.multiplied(last, zero), sum_refs, first_s, zero)
        plgpu.wait_smem_to_gmem(0)

    box = (rounds.steps, samples, rule.outputs, rows)
    shape = compat.room((length, batch, rule.outputs, size), box)
    out = [jax.ShapeDtypeStruct(shape, jnp.float32), *([] if sums is None else sums.outputs)]
    scratch = [
        *([] if sums is None else sums.scratch),
        plgpu.SMEM((len(pairs), rows, tile.pitch), weights.dtype),
        plgpu.SMEM((rounds.room, samples, rule.inputs, rows), jnp.float32),
        plgpu.SMEM((samples, tile.starts(rule), rows), jnp.float32),
        plgpu.SMEM((rounds.room, samples, rule.outputs, rows), jnp.float32),
        plgpu.Barrier(num_arrivals=1, num_barriers=2),
        plgpu.Barrier(num_arrivals=1 + len(pairs)),
    ]
    grid = {"batch": -(-batch // samples)}
    how = {"grid": grid, "scratch": scratch, "interpret": interpret}
    x, *made = compat.kernel(body, name=kernel_name(rule), out=out, **how)(v, weights, first)
    return x[:length, :batch, :, :size], None if sums is None else sums.joined(*made)


def kernel_name(rule: Rule) -> str:
    """The kernel's name in the program."""
    return f"recurrence_{rule.name}"

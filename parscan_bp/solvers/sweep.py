"""The sequential sweep, in chunks that stay in cache."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal

from parscan_bp import native
from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.originals import lax_scan
from parscan_bp.solvers.base import Complexity, Solver
from parscan_bp.solvers.collect import accumulators, in_chunks
from parscan_bp.solvers.stretches import steps_per_chunk, sweep_layers, sweep_stretch
from parscan_bp.system import block_shape
from parscan_bp.trees import add, eval_shape, nbytes, write_stretch


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
    functions, such as an LSTM's, are evaluated once, for derivatives of the gradient, too. Of mere
    arithmetic on the carries, as in an Elman RNN, there is nothing to keep.

    Steps n, work n matrix-vector products, memory one chunk.

    Args:
      chunk: steps per chunk. ``None`` takes a tenth of all, but 128 kB to 1 MB of linearised steps,
        and not less than half of what the parameters have. A single step per chunk is linearised in
        the loop itself: with a few numbers to carry, XLA on CPU makes one kernel of that.
      unroll: steps per iteration of the inner loop, as in `jax.lax.scan`.
      recompute: whether the steps are linearised again, from the carries, or partly kept. Only
        `scan` and the recurrent modules of Flax can keep them, with ``jacobian="auto"`` and
        ``forward="exact"``.
      otherwise: what becomes of a step of `scan` that the linear model does not hold, such as one
        with effects: "refuse" raises, and names the primitive; "lax" leaves the whole loop to
        `jax.lax.scan`, as ``solver=None`` does, for those who put `scan` in place of every loop of
        a program.
      native: whether, on a CPU, the inner loop is one function of LLVM in place of the operations
        that XLA runs one after the other in each step (the extra ``cpu``). That takes elementwise
        arithmetic and products with matrices that are the same in all steps, in float32 or float64,
        on one device; any other loop is XLA's. ``forward="fused"`` of `scan` takes it by itself.

    Raises:
      TypeError, ValueError: if ``chunk`` or ``unroll`` is not an int of at least 1, ``recompute``
        or ``native`` no bool or ``otherwise`` another word.
      ImportError: if ``native`` is set and llvmlite is not installed.
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
    native: bool = False

    ragged: ClassVar = True
    needs: ClassVar = "products"

    def __post_init__(self):
        set_ints(self, ("chunk",), chunk=1, unroll=1)
        check_bool("recompute", self.recompute)
        check_bool("native", self.native)
        if self.native:
            native.check_available()
        if self.otherwise not in ("refuse", "lax"):
            raise ValueError(f"otherwise: got {self.otherwise!r}; 'refuse' or 'lax' is wanted")

    @property
    def leaves_to_lax(self):
        return self.otherwise == "lax"

    @property
    def is_one_function(self):
        return self.native

    @property
    def keeps(self):
        return not self.recompute

    def run(self, system, state):
        how: Any = {"unroll": self.unroll, "scan": native.scan if self.native else lax_scan}
        n = system.length
        sweep: Any = functools.partial(sweep_stretch, **how)
        operator = block_shape(system, 1).operator
        after, shown, aux = eval_shape(lambda s: sweep(system, s, 0, 1), state)
        sums, stacked = accumulators(system, shown, after, aux)
        leaves, _ = operator.unstack()
        size = min(self.chunk or steps_per_chunk(n, nbytes(leaves), nbytes(sums)), n)

        if size == n:
            state, shown, aux = sweep(system, state, 0, n)
            return state, *system.collect(0, shown, state, aux)

        def visit(carry, start, size):
            state, summed, stacked = carry
            state, shown, aux = sweep(system, state, start, size)
            more, part = system.collect(start, shown, state, aux)
            return state, add(summed, more), write_stretch(stacked, part, start)

        return in_chunks(n, size, system.backward, visit, (state, sums, stacked))

    def memory(self, n, each, vector):
        return (each + vector) * min(self.chunk or steps_per_chunk(n, each, 0), n)

    def run_ragged(self, system):
        return sweep_layers(system.operators, system.g)

    def complexity(self, n):
        return Complexity(steps=n, matrix_products=0, vector_products=n, operators=1)

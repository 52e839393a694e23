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
from parscan_bp.solvers.stretches import (
    is_scattered,
    steps_per_chunk,
    sweep_layers,
    sweep_stretch,
)
from parscan_bp.system import block_shape
from parscan_bp.trees import add, eval_shape, nbytes, write_stretch


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep(Solver):
    """Sequential substitution, the linear scan of BPPSA section 3.6.

        lambda_{t-1} = g_{t-1} + J_t^T lambda_t

    Each chunk of steps is linearised as one batch, from the stored carries. A loop of one
    matrix-vector product per step follows; then the chunk's parameter and input cotangents are one
    batched product. The values of a chunk stay in cache, and nothing but the carries is kept for
    the whole length. No Jacobians are multiplied with one another, so that cotangents leave the
    range of floats where those of `jax.lax.scan` do. docs/reference.md has the details.

    Steps n, work n matrix-vector products, memory one chunk.

    Args:
      chunk: steps per chunk; ``None`` takes so many that they stay in cache.
      unroll: steps per iteration of the inner loop, as in `jax.lax.scan`.
      recompute: whether steps are linearised again, from the carries. ``False`` keeps what of them
        is slow to make again, which takes more memory.
      otherwise: what becomes of a step of `scan` that the linear model does not hold: "refuse"
        raises, and names the primitive; "lax" leaves the whole loop to `jax.lax.scan`.
      native: whether, on a CPU, the inner loop is one function of LLVM (the extra ``cpu``), where
        it is elementwise arithmetic and products with matrices that are the same in all steps.

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
    def one_function(self):
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
        scattered = not self.native and is_scattered(state, leaves)
        held = steps_per_chunk(n, nbytes(leaves), nbytes(sums), scattered=scattered)
        size = min(self.chunk or held, n)

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

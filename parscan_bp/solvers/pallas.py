"""The chunked scan in hand-written GPU kernels."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parscan_bp import kernels
from parscan_bp.arguments import check_bool, set_ints
from parscan_bp.operators import Dense, Diagonal, Factored, Operator, Scaled
from parscan_bp.operators.lattice import brought
from parscan_bp.solvers.base import Complexity
from parscan_bp.solvers.pallas_chunks import (
    DIAGONAL,
    Reduction,
    chunk_of,
    radices_of,
    reduction_of_cell,
    reduction_of_matrices,
)
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.solvers.tree import TreeSolver
from parscan_bp.system import System, block_shape
from parscan_bp.trees import nbytes

MODES = ("auto", "chunked", "blelloch", "sequential")
DTYPES = (jnp.float32, jnp.bfloat16)


@dataclasses.dataclass(frozen=True, repr=False)
class Pallas(TreeSolver):
    """Three phases in Pallas kernels (Mosaic GPU, NVIDIA Hopper): reduce chunks, go through
    their maps with a vector, sweep every chunk.

    One launch per phase. Products are float32 multiply-adds, never tf32; bfloat16 operators
    are read as such and accumulated in float32. W diag(d_t), the Jacobian of an Elman step,
    is never in memory: W stays on chip. Nor are those of a GRU (H from 11 to 96 in float32) and of
    an LSTM (6 to 48), of which the weights and a few vectors per step are read; other sizes and
    forward-mode become dense. Maps are of order 128 at most, all groups of units together.
    Chunks of an Elman cell up to H = 45, of a GRU up to 26 and an LSTM up to 22 are reduced without
    forming a step's map at all, by threads that each hold a few columns of the chunk's.

    Steps 2 C + n / C for chunks of C steps, work n matrix and 2n vector products, memory
    n operators and n / C more.

    Args:
      mode: "chunked"; "blelloch", one level of Algorithm 1 of BPPSA per launch; "sequential",
        all steps in one launch, for batches that fill the GPU by themselves; or "auto", which
        is "chunked" unless the batch is that large or the scan is very short, by the rates of the
        GPU (`solvers.pallas_chunks`), not all of which were measured.
      chunk: steps per chunk in "chunked"; ``None`` chooses by the same.
      interpret: simulates the kernels on any device, slowly, to check them.
      otherwise: what becomes of a system that no kernel takes as it is, for its structure, order,
        dtype or size, or since there is no such GPU: "refuse" makes it dense where that is all,
        else it raises; "sweep" solves it as `Sweep` does, also where a program of a process with
        a GPU is compiled for another device.
      memory_limit, collect_chunk: see `TreeSolver`.

    Raises:
      ValueError: for an unknown mode or ``otherwise``, ``chunk`` beside another mode, or
        ``scaled``.
      NotImplementedError: when run, for a structure, order, dtype, device or version of JAX
        that the kernels cannot take.

    Source: BPPSA sections 3.2 and 3.6; tiles and layouts are counted in `kernels.tiles`.

    Example:
      >>> import parscan_bp as pb
      >>> pb.Pallas(mode="chunked", chunk=32).chunk
      32
    """

    mode: Literal["auto", "chunked", "blelloch", "sequential"] = "auto"
    _: dataclasses.KW_ONLY
    chunk: int | None = None
    interpret: bool = False
    otherwise: Literal["refuse", "sweep"] = "refuse"

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            names = ", ".join(map(repr, MODES))
            raise ValueError(f"mode: got {self.mode!r}; one of {names} is wanted")
        if self.otherwise not in ("refuse", "sweep"):
            raise ValueError(f"otherwise: got {self.otherwise!r}; 'refuse' or 'sweep' is wanted")
        set_ints(self, ("chunk",), chunk=1)
        check_bool("interpret", self.interpret)
        if self.chunk is not None and self.mode != "chunked":
            raise ValueError(f"chunk: {self.chunk} needs mode='chunked', not {self.mode!r}")
        if self.scaled:
            raise ValueError("scaled: the kernels keep no exponents; use Chunked(scaled=True)")

    @property
    def in_range(self):
        return self.mode == "sequential"

    def check(self, structure, *, ragged=False):
        super().check(structure, ragged=ragged)
        if structure is Scaled and self.otherwise == "refuse":
            raise NotImplementedError(
                "Pallas cannot take a uniform system of Scaled operators: the kernels keep no "
                "exponents; Chunked() takes them"
            )

    def run(self, system, state):
        launch = functools.partial(super().run, system)
        if self.otherwise == "refuse":
            self._check_device()
            return launch(state)
        sweep = functools.partial(Sweep().run, system)
        if not self._can_run(system):
            return sweep(state)
        if self.interpret:
            return launch(state)
        return lax.platform_dependent(state, cuda=launch, default=sweep)

    def _can_run(self, system: System) -> bool:
        usable = kernels.unusable(self.interpret) is None
        return usable and self.takes(block_shape(system, system.length).operator)

    def takes(self, operator: Operator) -> bool:
        """Whether the kernels take such steps as they are, within ``memory_limit``."""
        weighted = _is_weighted(operator) and operator.shape[0] <= kernels.MAX_SIZE
        as_it_is = isinstance(operator, Diagonal) or weighted or _is_formed(operator)
        if not as_it_is or operator.dtype not in DTYPES:
            return False
        return nbytes(jax.eval_shape(self.form, operator)) <= self.memory_limit

    def states(self, operator, leaving, state):
        self._check_device()
        return self._traverse(operator, leaving, state, False)

    def form(self, operator):
        if _is_weighted(operator) or _is_formed(operator):
            return operator
        return brought(operator, Diagonal) or Dense(operator.as_dense())

    def steps_to_collect(self, n, shown):
        # All: each chunk would be launched anew. What fits in the memory limit was checked before.
        return n

    def _traverse(self, operator, b, state, backward):
        dtype = _kernel_dtype(jnp.result_type(operator.dtype, b.dtype, state.dtype))
        size = state.shape[-1]
        batch = np.broadcast_shapes(operator.stack_shape[1:], b.shape[1:-1], state.shape[:-1])
        length, samples = b.shape[0], math.prod(batch)

        def flat(x, *core):
            x = jnp.broadcast_to(x, (length, *batch, *core)).astype(dtype)
            return x.reshape(length, samples, *core)

        start = jnp.broadcast_to(state, (*batch, size)).reshape(samples, size)
        how = {
            "radices": self._radices(*_reduction(operator, samples), length),
            "reverse": backward,
            "interpret": kernels.interpreter() if self.interpret else None,
        }
        b = flat(b, size)
        if isinstance(operator, Diagonal):
            a = flat(operator.diagonal, size).reshape(length, -1)
            x = kernels.diagonal_scan(a, b.reshape(length, -1), start.ravel(), **how)
        elif isinstance(operator, Factored) and not _is_weighted(operator):
            *_, gates, states, units = operator.gates.shape
            direct = operator.direct
            x = kernels.factored_scan(
                operator.weight.astype(_stored(operator.weight.dtype)),
                flat(operator.gates, gates, states, units),
                None if direct is None else flat(direct, states, states, units),
                b.reshape(length, samples, states, units),
                start.reshape(samples, states, units),
                **how,
            )
        elif isinstance(operator, Factored):
            d = flat(operator.gates[..., 0, 0, :], size)
            x = kernels.weighted_scan(operator.weight.astype(dtype), d, b, start, **how)
        else:
            x = kernels.dense_scan(flat(operator.matrix, size, size), b, start, **how)
        after = x.reshape(length, *batch, size).astype(dtype)
        first = start.reshape(1, *batch, size).astype(dtype)
        if backward:
            return jnp.concatenate([after[1:], first]), after[0]
        return jnp.concatenate([first, after[:-1]]), after[-1]

    def _radices(self, reduction: Reduction, batch: int, length: int) -> list[int]:
        if self.mode == "sequential":
            return []
        if self.mode == "blelloch":
            return [2] * max(0, length - 1).bit_length()
        if self.chunk is not None:
            return [self.chunk]
        if self.mode == "chunked":
            return [chunk_of(reduction, length, batch)]
        return radices_of(reduction, length, batch)

    def _check_device(self) -> None:
        reason = kernels.unusable(self.interpret)
        if reason is not None:
            raise NotImplementedError(f"Pallas: {reason}; Chunked() and Sweep() run everywhere")

    def radices(self, n: int) -> list[int]:
        """Steps per chunk on each level, for n dense steps of one sample."""
        return self._radices(reduction_of_matrices(2), 1, n)

    def complexity(self, n):
        radices, m = self.radices(n), n
        matrix = vector = operators = steps = 0
        for chunk in radices:
            if m <= chunk:
                break
            count = -(-m // chunk)
            matrix, operators = matrix + (chunk - 1) * count, operators + count
            vector, steps, m = vector + (chunk - 1) * count + m, steps + 2 * chunk - 1, count
        return Complexity(
            steps=steps + m,
            matrix_products=matrix,
            vector_products=vector + m,
            operators=n + operators,
        )


def _reduction(operator: Operator, samples: int) -> tuple[Reduction, int]:
    """How the kernels reduce chunks of such steps, and how many maps a step has."""
    if isinstance(operator, Diagonal):
        return DIAGONAL, samples * operator.shape[0]
    if isinstance(operator, Factored):
        gates, states, units = operator.gates.shape[-3:]
        return reduction_of_cell(units, states, gates), samples
    return reduction_of_matrices(operator.shape[0]), samples


def _is_weighted(operator: Operator) -> bool:
    """Whether it is W diag(d) with one W for all steps and samples."""
    return (
        isinstance(operator, Factored)
        and not operator.transposed
        and operator.direct is None
        and operator.gates.shape[-3:-1] == (1, 1)
        and operator.weight.ndim == 2
    )


def _is_formed(operator: Operator) -> bool:
    """Whether its maps are formed on chip. Those that a thread holds take no less memory so."""
    if not isinstance(operator, Factored) or operator.transposed or operator.weight.ndim != 2:
        return False
    gates, states, units = operator.gates.shape[-3:]
    fits = kernels.factored_fits(units, states, gates, _stored(operator.weight.dtype).itemsize)
    return fits and states * units > kernels.MAX_LANES_SIZE


def _stored(dtype: np.dtype) -> np.dtype:
    """The dtype in which the kernels keep the weights of a gated cell."""
    return jnp.dtype(jnp.bfloat16 if dtype == jnp.bfloat16 else jnp.float32)


def _kernel_dtype(dtype: np.dtype) -> np.dtype:
    if dtype not in DTYPES:
        raise NotImplementedError(
            f"Pallas: the kernels take float32 and bfloat16, this system is {dtype}; use Chunked()"
        )
    return dtype

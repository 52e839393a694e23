"""Who is timed: every contender gives its programs as lanes, or an error that says why not."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

import parscan_bp
from bench.gpu import floor, grid
from bench.shared import candidates, programs, timing
from bench.shared.training import Trainer
from parscan_bp import kernels
from parscan_bp.operators import Factored

STEP, SOLVE = "step", "solve"
PLAIN, AUTO, PALLAS, KERNELS = "lax.scan", "auto", "pallas", "kernels"
# A fused forward pass, and backward the parallel kernels or the fused sequential one.
FUSED, SEQUENTIAL = "fused", "fused_sequential"
PURE = ("sweep", "associative", "chunked", "blelloch")

# How XLA multiplies float32 here: no side may round its products to TF32.
PRECISION = "highest"

# What stands in a compiled program for a Pallas kernel of Mosaic GPU.
_KERNEL_CALL = 'custom_call_target="mosaic_gpu'

_PASSES = (timing.FORWARD, timing.VALUE_AND_GRAD)
_ALL = (*_PASSES, STEP)


def _ours(**options: Any) -> Callable[[int], candidates.Scan]:
    return lambda unroll: functools.partial(parscan_bp.scan, unroll=unroll, **options)


# How each is made from an unroll factor, and its programs. A step of a pure-JAX solver is its
# value_and_grad and the same Adam: not worth its compilation.
SCANS: dict[str, tuple[Callable[[int], candidates.Scan], tuple[str, ...]]] = {
    PLAIN: (candidates.baseline, _ALL),
    AUTO: (_ours(), _ALL),
    PALLAS: (_ours(solver=parscan_bp.Pallas()), _ALL),
    FUSED: (_ours(solver=parscan_bp.Pallas(), forward="fused"), _ALL),
    SEQUENTIAL: (_ours(forward="fused"), _ALL),
    **{name: (functools.partial(candidates.candidate, name), _PASSES) for name in PURE},
}


class Lane(Protocol):
    """A program with its arguments, ready to run."""

    def __call__(self) -> Any:
        """Runs it once; of value_and_grad, returns what `jax.value_and_grad` would."""

    def seconds(self, repeats: int) -> float:
        """Seconds per call of the device."""

    def to_json(self) -> dict[str, Any]:
        """What is known about it besides its time."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A lane of JAX."""

    program: programs.Program

    def __call__(self) -> Any:
        return self.program.call()

    def seconds(self, repeats: int) -> float:
        return timing.queued(self.program.call, repeats)

    def to_json(self) -> dict[str, Any]:
        sizes = {name: getattr(self.program, name) for name in ("temp_bytes", "peak_bytes")}
        return {**sizes, "pallas_kernels": self.program.run.as_text().count(_KERNEL_CALL)}


Builders = Mapping[str, Callable[[], Lane]]


def of_scan(name: str, work: grid.Workload, unroll: int) -> Builders:
    """The builders of a contender that is a scan, by program."""
    make, wanted = SCANS[name]
    return {
        program: functools.partial(scan_lane, program, work, make, unroll) for program in wanted
    }


def scan_lane(
    program: str, work: grid.Workload, make: Callable[[int], candidates.Scan], unroll: int
) -> Compiled:
    """One program of a scan, compiled.

    Raises:
        Exception: whatever the scan or the compiler refuses with.
    """
    with jax.default_matmul_precision(PRECISION):
        if program == STEP:
            optimiser = optax.adam(grid.LEARNING_RATE)
            trainer = Trainer(work.training_loss(make(unroll)), optimiser)
            state = trainer.start(work.params)
            return Compiled(programs.build(trainer.step, state, work.batch))
        function = programs.derivatives(work.loss(make(unroll)))[program]
        return Compiled(programs.build(function, work.point, None, work.batch.labels))


def system_of(shape: grid.Shape) -> floor.System:
    """What `KERNELS` solves: W diag(d_t) of the RNN as such, the GRU's Jacobians as matrices."""
    return floor.System(shape.length, shape.batch, shape.hidden, shape.cell == grid.RNN)


def radices_of(shape: grid.Shape) -> list[int]:
    """The chunks that `Pallas()` chooses."""
    return kernels.radices_of(shape.length, shape.batch, shape.hidden)


def kernel_lane(shape: grid.Shape, work: grid.Workload) -> Compiled:
    """The kernels alone, on the system of this point: the part that the floor bounds.

    Raises:
        Exception: whatever the kernels or the compiler refuse with.
    """
    reason = kernels.missing()
    if reason is not None:
        raise NotImplementedError(reason)
    operator = _operator(work)
    sizes = (shape.length, shape.batch, shape.hidden)
    cotangents = jax.random.normal(jax.random.key(1), sizes, jnp.float32)
    start = jnp.zeros_like(cotangents[0])
    how = {"radices": radices_of(shape), "reverse": True}
    if system_of(shape).weighted:
        run = functools.partial(kernels.weighted_scan, **how)
        gates = operator.gates[..., 0, 0, :]
        return Compiled(programs.build(run, operator.weight, gates, cotangents, start))
    run = functools.partial(kernels.dense_scan, **how)
    return Compiled(programs.build(run, operator.as_dense(), cotangents, start))


def _operator(work: grid.Workload) -> Factored:
    """The transposed Jacobians along the trajectory of the workload."""
    params, bits = work.params["cell"], work.batch.inputs
    first = work.cell.initial_carry((bits.shape[1],), work.params["head"].shape[0], bits.dtype)
    _, hs = jax.lax.scan(functools.partial(work.cell, params), first, bits)
    before = jnp.concatenate([first[None], hs[:-1]])
    return work.cell.jacobian(params, before, bits, hs)

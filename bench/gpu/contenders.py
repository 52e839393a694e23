"""Who is timed: every contender gives its programs as lanes, or an error that says why not."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

import parscan_bp
from bench.gpu import floor, grid
from bench.shared import candidates, programs, timing
from bench.shared.training import Trainer
from parscan_bp import kernels
from parscan_bp.operators import Factored
from parscan_bp.solvers import pallas_chunks

STEP, STEPS, SOLVE, DENSE = "step", "steps", "solve", "dense"
"""A training step; one of many in a program; the kernels alone; a loss that reads every step."""
PLAIN, AUTO, PALLAS, KERNELS = "lax.scan", "auto", "pallas", "kernels"
# One level of the paper's Algorithm 1 in each kernel.
LEVELS = "pallas_blelloch"
# A fused forward pass, and backward the parallel kernels or the fused sequential one.
FUSED, SEQUENTIAL = "fused", "fused_sequential"
PURE = ("sweep", "associative", "chunked", "blelloch")

# How XLA multiplies float32 here: no side may round its products to TF32.
PRECISION = "highest"

# What stands in a compiled program for a Pallas kernel of Mosaic GPU.
_KERNEL_CALL = 'custom_call_target="mosaic_gpu'

_PASSES = (timing.FORWARD, timing.BACKWARD, timing.VALUE_AND_GRAD)
_ALL = (*_PASSES, STEP)
_FUSED = (*_ALL, STEPS, DENSE)
IN_ONE, SOLVES = 20, 8
"""Training steps, and solves, of one call where that is not to be of the host."""


def _ours(**options: Any) -> Callable[[int], candidates.Scan]:
    return lambda unroll: functools.partial(parscan_bp.scan, unroll=unroll, **options)


# How each is made from an unroll factor, and its programs. A step of a pure-JAX solver is its
# value_and_grad and the same Adam: not worth its compilation.
SCANS: dict[str, tuple[Callable[[int], candidates.Scan], tuple[str, ...]]] = {
    PLAIN: (candidates.baseline, _ALL),
    AUTO: (_ours(), _ALL),
    PALLAS: (_ours(solver=parscan_bp.Pallas()), (*_ALL, DENSE)),
    LEVELS: (_ours(solver=parscan_bp.Pallas(mode="blelloch")), (*_PASSES, DENSE)),
    FUSED: (_ours(solver=parscan_bp.Pallas(), forward="fused"), _FUSED),
    SEQUENTIAL: (_ours(forward="fused"), _FUSED),
    **{name: (functools.partial(candidates.candidate, name), _PASSES) for name in PURE},
}

_PALLAS, _IN_ONE_KERNEL = parscan_bp.Pallas(interpret=True), parscan_bp.Fused(interpret=True)
# The same with simulated kernels, on any device: what a rehearsal runs, in few programs.
SIMULATED = {
    PALLAS: _ours(solver=_PALLAS),
    LEVELS: _ours(solver=parscan_bp.Pallas(mode="blelloch", interpret=True)),
    FUSED: _ours(solver=_PALLAS, forward=_IN_ONE_KERNEL),
    SEQUENTIAL: _ours(forward=_IN_ONE_KERNEL),
}
_SIMULATED_PROGRAMS = (timing.VALUE_AND_GRAD, STEP)


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


@dataclasses.dataclass(frozen=True)
class Repeated(Compiled):
    """A lane of JAX whose program does one thing several times.

    Attributes:
        count: how often.
    """

    count: int

    def seconds(self, repeats: int) -> float:
        return super().seconds(repeats) / self.count


class Donated:
    """Training steps in one program, which is given its own state back and writes over it.

    Args:
        program: `state -> (losses, state)`, compiled with its argument donated.
        state: the first one.
        count: the steps of a call.
    """

    def __init__(self, program: Any, state: Any, count: int) -> None:
        self._program, self._state, self._count = program, state, count

    def __call__(self) -> Any:
        losses, self._state = self._program(self._state)
        return losses

    def seconds(self, repeats: int) -> float:
        return timing.queued(self, repeats) / self._count

    def to_json(self) -> dict[str, Any]:
        return {"pallas_kernels": self._program.as_text().count(_KERNEL_CALL)}


Builders = Mapping[str, Callable[[], Lane]]


def of_scan(name: str, work: grid.Workload, unroll: int, simulate: bool = False) -> Builders:
    """The builders of a contender that is a scan, by program."""
    make, wanted = SCANS[name]
    if simulate and name in SIMULATED:
        make, wanted = SIMULATED[name], _SIMULATED_PROGRAMS
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
        if program in (STEP, STEPS):
            optimiser = optax.adam(grid.LEARNING_RATE)
            trainer = Trainer(work.training_loss(make(unroll)), optimiser)
            state = trainer.start(work.params)
            if program == STEPS:
                return _many_steps(trainer, state, work.batch)
            return Compiled(programs.build(trainer.step, state, work.batch))
        if program == timing.BACKWARD:
            return _pullback(work, work.loss(make(unroll)))
        dense = program == DENSE
        loss = work.dense_loss(make(unroll)) if dense else work.loss(make(unroll))
        function = programs.derivatives(loss)[timing.VALUE_AND_GRAD if dense else program]
        return Compiled(programs.build(function, work.point, None, work.batch.labels))


def _pullback(work: grid.Workload, loss: programs.Loss) -> Compiled:
    """The backward half alone, of what the forward half kept."""
    forward = jax.jit(lambda point, labels: jax.vjp(lambda at: loss(at, labels), point))
    value, pull = forward(work.point, work.batch.labels)
    return Compiled(programs.build(lambda pull, ct: pull(ct)[0], pull, jnp.ones_like(value)))


def _many_steps(trainer: Trainer, state: Any, batch: Any) -> Donated:
    """Steps of training in one program, their state as one array for each dtype, donated.

    So a GPU can run them as one graph whose buffers stay where they are.
    """
    flat, rebuild = ravel_pytree(state)

    def step(flat, _):
        loss, after = trainer.step(rebuild(flat), batch)
        return ravel_pytree(after)[0], loss

    def steps(flat):
        flat, losses = jax.lax.scan(step, flat, length=IN_ONE)
        return losses, flat

    compiled = jax.jit(steps, donate_argnums=0).lower(flat).compile()
    return Donated(compiled, flat, IN_ONE)


def system_of(shape: grid.Shape) -> floor.System:
    """What `KERNELS` solves: W diag(d_t) of the RNN as such, the GRU's Jacobians as matrices."""
    return floor.System(shape.length, shape.batch, shape.hidden, shape.cell == grid.RNN)


def radices_of(shape: grid.Shape) -> list[int]:
    """The chunks that `Pallas()` chooses."""
    of_cell = system_of(shape).weighted
    kernel = pallas_chunks.reduction_of_cell if of_cell else pallas_chunks.reduction_of_matrices
    return pallas_chunks.radices_of(kernel(shape.hidden), shape.length, shape.batch)


def kernel_lane(shape: grid.Shape, work: grid.Workload) -> Repeated:
    """The kernels alone, on the system of this point: the part that the floor bounds.

    A program solves several times, from what the last solve ended with, so that what a call costs
    the host is not counted.

    Raises:
        Exception: whatever the kernels or the compiler refuse with.
    """
    reason = kernels.missing()
    if reason is not None:
        raise NotImplementedError(reason)
    if shape.cell == grid.LSTM or shape.dtype != "float32":
        raise NotImplementedError("the solve is timed alone for the RNN and the GRU in float32")
    operator = _operator(work)
    sizes = (shape.length, shape.batch, shape.hidden)
    cotangents = jax.random.normal(jax.random.key(1), sizes, jnp.float32)
    start = jnp.zeros_like(cotangents[0])
    how = {"radices": radices_of(shape), "reverse": True}
    maps: tuple[jax.Array, ...] = (operator.as_dense(),)
    scan: Callable[..., jax.Array] = kernels.dense_scan
    if system_of(shape).weighted:
        maps = operator.weight, operator.gates[..., 0, 0, :]
        scan = kernels.weighted_scan

    def solves(*arguments):
        *system, state = arguments
        # A loop: each kernel is lowered once.
        return jax.lax.fori_loop(0, SOLVES, lambda _, s: scan(*system, s, **how)[0], state)

    return Repeated(programs.build(solves, *maps, cotangents, start), SOLVES)


def _operator(work: grid.Workload) -> Factored:
    """The transposed Jacobians along the trajectory of the workload."""
    params, bits = work.params["cell"], work.batch.inputs
    first = work.cell.initial_carry((bits.shape[1],), work.params["head"].shape[0], bits.dtype)
    _, hs = jax.lax.scan(functools.partial(work.cell, params), first, bits)
    before = jnp.concatenate([first[None], hs[:-1]])
    return work.cell.jacobian(params, before, bits, hs)

"""A scan over the devices of a mesh axis, another solver on each of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from parscan_bp.arguments import check_kind, described, set_ints
from parscan_bp.devices import (
    METHODS,
    AffineMap,
    DeviceOrder,
    Link,
    OverMesh,
    as_link,
    cheapest,
    check_axis,
    exclusive_scan,
    in_turn,
    is_bound,
)
from parscan_bp.operators import compose
from parscan_bp.originals import lax_scan
from parscan_bp.planner.plan import DEFAULT_MEMORY_LIMIT
from parscan_bp.report import Rounds
from parscan_bp.solvers.base import Complexity, Solver
from parscan_bp.solvers.collect import default_chunk, in_chunks
from parscan_bp.solvers.device_corrections import solved_in_rounds
from parscan_bp.solvers.planned import Planned
from parscan_bp.solvers.sweep import Sweep
from parscan_bp.system import System, block_shape
from parscan_bp.trees import add, eval_shape, nbytes
from parscan_bp.types import Array

OF_VECTORS = ("turns", "corrections")
"""The methods that multiply no Jacobians, beside those of `METHODS`."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sharded(Solver):
    """The steps of a scan divided over the devices of a mesh axis.

    Of T steps each of P devices has T/P, with their inputs and carries. Backward, it multiplies the
    Jacobians of its steps to one map, a scan over the devices makes what enters each of them of
    these maps, and ``inner`` solves for its steps from there:

        M_p = A_{i+1} ... A_j,    lambda_i = M_p lambda_j + b_p    for its steps i..j,

    which is `Chunked` with devices for chunks. Forward, the values are those of `jax.lax.scan`: the
    carry passes from device to device, each of which waits for it; with ``forward=Chunks()`` all
    step side by side.

    Outside `jax.shard_map` everything is put into one, over this axis alone; other axes of the mesh
    are the compiler's, as a batch's that is divided over 'data'. Steps that P devices leave over
    (T not a multiple of P) are run on all of them at the end of the scan. Inside `jax.shard_map` or
    `jax.pmap` the scan is given the device's own inputs; its first carry is that of the whole scan,
    the same on all devices (what the others are given is not looked at), and so is its last one.
    Cotangents there are what JAX makes of ``psum``, see `parscan_bp.parallel`.

    Maps are products, and overflow where those of a `TreeSolver` do; "turns" and "corrections" make
    none.

    Steps 2 T/P and the scan over devices; T forward. Collectives in reverse-mode: those of the
    method, one exchange of a carry, and one sum of the parameters' cotangents.

    Args:
      axis: name of the mesh axis.
      mesh: the mesh; ``None`` takes that of the arguments, or else that of `jax.set_mesh`.
      inner: the solver of a device's own steps; ``None`` is `Sweep`. If it is a tree that is
        ``scaled``, so are the maps.
      method: how maps go from device to device: "ppermute", "all_gather" or "chain", see
        `parscan_bp.devices.exclusive`; "auto" takes the one that ``link`` is done with first.
        "turns" multiplies no Jacobians: each device waits for the vector of the one before it, as
        in the forward pass, which takes T steps and P - 1 exchanges of vectors. "corrections"
        multiplies none either: devices sweep side by side from zero, and then hand on, in rounds,
        what each makes of what arrived last, as `ChunkedCorrections` does between chunks. Where
        T/P steps forget what enters them there is one round: 3 T/P steps, 2 exchanges of vectors,
        and 2 of a flag. There are P - 1 at most; and "turns" follows where numbers that are not
        finite are handed on, or large ones cancel, which a report tells (``fell_back``).
      link: what "auto" takes the network for; ``None`` is what was measured of this machine
        (`parscan_bp.parallel.measure_link`), or else between virtual devices of a CPU.
      memory_limit: bytes that three maps of a device's steps may take; more is refused.

    Raises:
      TypeError: if an argument is none such; when used, if there is no mesh with this axis.
      ValueError: if the mesh has no such axis or there is no such method.
      NotImplementedError: if ``inner`` cannot be wrapped; when used, for a step that communicates
        over the same axis.

    Source: BPPSA (Wang, Bai, Pekhimenko, MLSys 2020), sections 2.2 and 3.6.

    Example:
      >>> import jax, jax.numpy as jnp, parscan_bp as pb
      >>> from jax.sharding import Mesh
      >>> mesh = Mesh(jax.devices()[:1], ("time",))
      >>> step = lambda c, x: (0.5 * c + x, c)
      >>> loss = lambda xs: pb.scan(step, 0.0, xs, solver=pb.Sharded("time", mesh))[0]
      >>> jax.grad(loss)(jnp.zeros(3)).tolist()
      [0.25, 0.5, 1.0]
    """

    axis: str
    mesh: Any = None
    _: dataclasses.KW_ONLY
    inner: Solver | None = None
    method: str = "auto"
    link: Link | None = None
    memory_limit: int = DEFAULT_MEMORY_LIMIT

    ragged: ClassVar = True

    def __post_init__(self):
        check_axis(self.axis, self.mesh)
        set_ints(self, memory_limit=1)
        if self.method not in ("auto", *METHODS, *OF_VECTORS):
            named = ", ".join(map(repr, ("auto", *METHODS, *OF_VECTORS)))
            raise ValueError(f"method: got {self.method!r}; one of {named} is wanted")
        if self.link is not None:
            check_kind("link", self.link, Link)
        _check_inner(self.inner)

    @property
    def needs(self):  # type: ignore[override]
        """The maps of all steps of a device are products of Jacobians, whatever solves inside."""
        return self.here.needs if self.method in OF_VECTORS else "operators"

    @property
    def rounds_vary(self):  # type: ignore[override]
        return self.method == "corrections"

    @property
    def here(self):
        """What solves a device's own steps."""
        return Sweep() if self.inner is None else self.inner

    def memory(self, n, each, vector):
        return self.here.memory(n, each, vector)

    def with_memory_limit(self, limit):
        inner = None if self.inner is None else self.inner.with_memory_limit(limit)
        return dataclasses.replace(self, inner=inner, memory_limit=limit)

    def form(self, operator):
        return self.here.form(operator)

    @functools.cached_property
    def place(self):
        return OverMesh(self.axis, self.mesh, self.method, self.link)

    def for_stages(self, system):
        if self.method != "auto":
            return self
        workers = self.place.count((system.operators, system.g))
        pays = Planned(workers).plan(system).schedule.products
        return self if pays else dataclasses.replace(self, method="turns")

    def run_ragged(self, system):
        raise NotImplementedError(
            f"{self!r} divides scans, and the layers of parscan_bp.chain; a bare system of "
            "operators of different shapes wants another solver, such as Planned()"
        )

    def run(self, system, state):
        return self.run_observed(system, state)[0]

    def run_observed(self, system, state):
        self._check_bound()
        line = DeviceOrder(self.axis, system.backward)
        own = functools.partial(self.here.run, system)
        if self.method == "turns":
            return in_turn(line, own, state, add), Rounds.of(1)
        if self.method == "corrections":
            return solved_in_rounds(line, system, state, own)
        if line.size > 1:
            self._check_memory(system)
            operator, b = _reduced(system, self, state)
            # What this device's own state becomes goes to the next ones, too.
            maps = operator, b + operator.matvec(state)
            method = self.method
            if method == "auto":
                method = cheapest(line.size, maps, as_link(self.link))
            state = add(state, exclusive_scan(line, maps, method))
        return own(state), Rounds.of(1)

    def _check_memory(self, system: System) -> None:
        operator = block_shape(system, 1).operator
        self.check(type(operator))
        need = 3 * nbytes(eval_shape(self.form, operator))
        if need > self.memory_limit:
            raise ValueError(
                f"memory_limit: {self!r} needs about {need:,} bytes for three maps of "
                f"{operator.shape[0]}x{operator.shape[1]}, more than the limit of "
                f"{self.memory_limit:,}; raise it, or use method='turns', which needs none"
            )

    def _check_bound(self) -> None:
        if not is_bound(self.axis):
            raise NotImplementedError(
                f"{self!r}: the program does not run on each device of {self.axis!r} here. "
                "parscan_bp.scan sees to that; a bare system wants jax.shard_map around it"
            )

    def complexity(self, n):
        devices = self.place.count(())
        own, (each, left) = self.here.complexity, divmod(n, devices)
        inner, rest = own(max(each, 1)), own(max(left, 1)).steps * bool(left)
        vectors = inner.vector_products * devices * bool(each) + left
        if self.method == "corrections" and each and devices > 1:
            # With one round.
            steps, swept = 2 * each + inner.steps + rest, 2 * devices * each
            return Complexity(steps, 0, swept + vectors, inner.operators * devices)
        if self.method == "turns" or not each or devices == 1:
            steps = inner.steps * devices * bool(each) + rest
            return Complexity(steps, 0, vectors, inner.operators * devices)
        doubling = self.method in ("auto", "ppermute")
        rounds = (devices - 1).bit_length() if doubling else devices - 1
        between = max(2 * rounds - 3, 0) if doubling else 0
        return Complexity(
            steps=each - 1 + rounds + inner.steps + rest,
            matrix_products=devices * (each - 1 + between),
            vector_products=devices * (each + rounds) + vectors,
            operators=devices * (inner.operators + 3),
        )


def _check_inner(inner: Any) -> None:
    if inner is None:
        return
    if not isinstance(inner, Solver):
        raise TypeError(f"inner: got {described(inner)}; a solver such as Sweep() is wanted")
    why = None
    if not inner.uniform:
        why = "it takes ragged systems only"
    elif inner.rounds_vary:
        why = "the number of its rounds depends on the numbers, and devices would wait for another"
    elif inner.keeps:
        why = "it wants what a forward pass keeps of the steps, and recompute=True is wanted"
    elif isinstance(inner, Sharded):
        why = "it is spread over devices itself"
    if why is not None:
        raise NotImplementedError(f"inner: {inner!r} cannot be wrapped: {why}")


def _reduced(system: System, solver: Solver, state: Array) -> AffineMap:
    """The map of all steps of a system, chunks of which are linearised together."""
    n, backward = system.length, system.backward

    def maps(start, size):
        block = system.block(start, size)
        operator = solver.form(block.operator)
        b = block.leaving
        if block.entering is not None:
            b = add(b, operator.matvec(block.entering))
        if b is None:
            b = lax.broadcast(jnp.zeros_like(state), (size,))
        return operator.broadcast(size), b

    def visit(total, start, size):
        def step(total, t):
            (m1, b1), (m2, b2) = total, t
            return (compose(m1, m2), m2.matvec(b1) + b2), None

        return lax_scan(step, total, maps(start, size), reverse=backward)[0]

    first = jax.tree.map(lambda a: a[0], maps(n - 1 if backward else 0, 1))
    if n == 1:
        return first
    size = default_chunk(n - 1, nbytes(eval_shape(lambda: maps(0, n))))
    offset = 0 if backward else 1
    shifted = lambda total, start, size: visit(total, start + offset, size)  # noqa: E731
    return in_chunks(n - 1, size, backward, shifted, first)

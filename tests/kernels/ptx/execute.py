"""Runs what calls kernels with every one compiled, and its PTX executed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.kernels import compat
from tests.kernels.ptx import ptx_text
from tests.kernels.ptx.block import Block
from tests.kernels.ptx.memory import Race
from tests.kernels.ptx.program import Program, parse
from tests.kernels.ptx.uses import Told, Uses

_COUNT = itertools.count()
"""For names: of kernels that are alike, the compiler tells the first one's PTX alone."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel with its arguments.

    Attributes:
      name: of the kernel.
      program: as compiled.
      uses: what its parameters stand for.
      inputs, outputs: the arrays; what is not written of an output is NaN.
      blocks: indices of all.
    """

    name: str
    program: Program
    uses: Uses
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    blocks: list[tuple[int, int, int]]

    def run(
        self, blocks: int | None = None, without: Collection[int] = ()
    ) -> collections.Counter[Race]:
        """Executes the first so many blocks, or all; returns the races of their threads."""
        races: collections.Counter[Race] = collections.Counter()
        for output in self.outputs:
            output[...] = np.nan
        arguments = self.uses.arguments([*self.inputs, *self.outputs])
        for index in self.blocks[:blocks]:
            block = Block(self.program, *arguments, index, without)
            block.run()
            races += block.shared.races
        return races

    def executed(self) -> collections.Counter[int]:
        """How often the first block executes each instruction, by its number."""
        arguments = self.uses.arguments([*self.inputs, *self.outputs])
        block = Block(self.program, *arguments, self.blocks[0])
        block.run()
        return block.executed


@contextlib.contextmanager
def executing() -> Iterator[list[Launch]]:
    """In this context kernels are executed from their PTX; it gives a list of them.

    Raises:
      AssertionError: threads race, or do what the hardware does not take.
    """
    launches: list[Launch] = []
    make, fetch = compat.kernel, compat.fetch

    def kernel(body: Callable, *, name: str, out: Any, grid: Any, **how: Any) -> Callable:
        def run(*args: Any) -> Any:
            outs = jax.tree.leaves(out)
            uses = Uses()
            recorded = uses.recorded(body, len(args), len(outs))
            how["interpret"] = None
            function = make(recorded, name=f"{name}_{next(_COUNT)}", out=out, grid=grid, **how)
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
            program = parse(ptx_text.ptx(function, shapes))
            launch = Launch(
                name,
                program,
                uses,
                [np.array(a, order="C") for a in args],
                [np.empty(o.shape, o.dtype) for o in outs],
                _blocks([*grid.values()]),
            )
            _check_parameters(launch)
            races = launch.run()
            assert not races, f"{name}: {dict(races)}"
            launches.append(launch)
            made = map(jnp.asarray, launch.outputs)
            return jax.tree.unflatten(jax.tree.structure(out), made)

        return run

    def fetch_told(source: Any, target: Any, barrier: Any) -> None:
        fetch(source.whole() if isinstance(source, Told) else source, target, barrier)

    with (
        mock.patch.object(compat, "kernel", kernel),
        mock.patch.object(compat, "fetch", fetch_told),
    ):
        yield launches


def _blocks(sizes: list[int]) -> list[tuple[int, int, int]]:
    """The last axis of a grid is x."""
    x, y, z = [*reversed(sizes), 1, 1][:3]
    return [(i, j, k) for k, j, i in itertools.product(range(z), range(y), range(x))]


def _check_parameters(launch: Launch) -> None:
    sizes = [parameter.size for parameter in launch.program.parameters]
    assert sizes.count(0) == len(launch.uses.pointers), launch.name
    assert sum(sizes) == 128 * len(launch.uses.boxes), launch.name

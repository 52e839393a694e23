"""What each process of the bench `mesh` does: the gradient of an RNN over all of them."""

import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import parscan_bp as pb


def measure(settings: str) -> dict[str, Any]:
    """Times and counts of every method, in this process.

    Raises:
        FloatingPointError: a gradient is not that of `jax.lax.scan` in one process.
    """
    options = json.loads(settings)
    problem = _Problem(options["length"], options["batch"], options["hidden"])
    found = {name: problem.program(name) for name in options["methods"]}
    result = {name: problem.checked(name, program) for name, program in found.items()}
    samples: dict[str, list[float]] = {name: [] for name in found}
    # So many rounds in every process: a budget of time would end in one before another.
    for _ in range(options["rounds"]):
        for name, program in found.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*problem.arrays))
            samples[name].append(time.perf_counter() - start)
    for name, values in samples.items():
        result[name]["seconds"] = values
    return result


class _Problem:
    """An Elman RNN of random numbers, the same in every process."""

    def __init__(self, length: int, batch: int, hidden: int):
        rng = np.random.default_rng(0)
        shapes = ((hidden, hidden), (batch, hidden), (length, batch, hidden))
        self.values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        self.values[0] /= 2 * hidden**0.5
        self.mesh = Mesh(np.array(jax.devices()), ("time",))
        specs = (PartitionSpec(), PartitionSpec(), PartitionSpec("time"))
        places = [NamedSharding(self.mesh, spec) for spec in specs]
        self.arrays = [
            jax.make_array_from_callback(values.shape, place, values.__getitem__)
            for values, place in zip(self.values, places, strict=True)
        ]

    def solver(self, method: str) -> pb.Sharded:
        return pb.Sharded("time", self.mesh, method=method)

    def program(self, method: str) -> Any:
        scan = functools.partial(pb.scan, solver=self.solver(method))
        gradient = jax.grad(functools.partial(_loss, scan))
        whole = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(gradient, out_shardings=whole).lower(*self.arrays).compile()

    def checked(self, method: str, program: Any) -> dict[str, Any]:
        got = np.asarray(program(*self.arrays))
        want = np.asarray(jax.jit(jax.grad(functools.partial(_loss, jax.lax.scan)))(*self.values))
        error = float(np.abs(got - want).max() / np.abs(want).max())
        if not error <= 1e-4:
            raise FloatingPointError(f"the gradient is off by {error} of its largest entry")
        memory = program.memory_analysis()
        # Rounds whose number the data decides are in no program.
        counted = not self.solver(method).rounds_vary
        stats = pb.parallel.collective_stats(program) if counted else None
        return {
            "error": error,
            "bytes": memory.argument_size_in_bytes + memory.temp_size_in_bytes,
            "collectives": stats
            if stats is None
            else {kind: [c.count, c.bytes] for kind, c in stats.items()},
        }


def _loss(scan, weights, h0, xs):
    def step(h, x):
        h = jnp.tanh(h @ weights + x)
        return h, h

    last, ys = scan(step, h0, xs)
    return (last**2).sum() + (ys**3).sum()

"""Compiles a training step for sm_90a without a GPU: ``python compile_training_step.py SOLVER``.

See `sm90`.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import optax
import sm90

import parscan_bp as pb
from parscan_bp import kernels

SOLVERS = {"chosen": None, "Pallas": pb.Pallas()}
LENGTH, BATCH, HIDDEN = 1000, 16, 20
CELL, OPTIMISER = pb.cells.Elman(), optax.adam(1e-3)


def loss(solver, params, x, target):
    step, start = functools.partial(CELL, params), jnp.zeros((BATCH, HIDDEN))
    h, _ = pb.scan(step, start, x, forward="fused", solver=solver)
    return ((h - target) ** 2).mean()


def train_step(solver, params, moments, x, target):
    value, gradient = jax.value_and_grad(functools.partial(loss, solver))(params, x, target)
    updates, moments = OPTIMISER.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments, value


def main(solver):
    kernels.unusable = lambda interpret: None  # there is no GPU, and none is needed
    params = jax.eval_shape(lambda: CELL.init(jax.random.key(0), 1, HIDDEN))
    batch = [(LENGTH, BATCH, 1), (BATCH, HIDDEN)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in batch]
    step = functools.partial(train_step, SOLVERS[solver])
    sm90.compiled(step, (params, jax.eval_shape(OPTIMISER.init, params), *arrays))


if __name__ == "__main__":
    main(sys.argv[1])
